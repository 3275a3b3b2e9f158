"""Texts that the engine would show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infra.providers.engine.provider import SECRET, SIGNATURE


def open_texts(value: Any) -> Iterator[str]:
    """Every text in a sent value that is not inside a secret."""
    if isinstance(value, dict):
        if value.get(SIGNATURE) != SECRET:
            for each in value.values():
                yield from open_texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from open_texts(each)
    elif isinstance(value, str):
        yield value
