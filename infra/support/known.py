"""Values of this machine that are secret: known(state, environ, stack file). Reads, writes nothing.

Owns where secrets lie: the state folder (docs/architecture.md) and the environment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from infra.local.state import State

_WORDS: Final = ("TOKEN", "PASSPHRASE", "PASSWORD", "SECRET", "API_KEY", "ACCESS_KEY", "WEBHOOK")
_FILES_OF: Final = ("_FILE", "_PATH")
_LONGEST_BYTES: Final = 64 * 1024


def known(state: State, environ: Mapping[str, str]) -> set[str]:
    """Every secret value that this machine holds for its stacks."""
    found = set(_environment(environ))
    files = [state.passphrase, *_private_keys(state.root / "ssh")]
    cloud = state.root / "cloud"
    if cloud.is_dir():
        files += [path for path in cloud.rglob("*") if path.is_file()]
    for path in files:
        text = _read(path)
        found.add(text)
        found |= set(_leaves(text))
    return {each for each in found if each.strip()}


def _environment(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        if not any(word in name.upper() for word in _WORDS):
            continue
        if name.upper().endswith(_FILES_OF):
            yield _read(Path(value))
        else:
            yield value


def _private_keys(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if "PRIVATE KEY" in _read(path)]


def _read(path: Path) -> str:
    try:
        return path.read_bytes()[:_LONGEST_BYTES].decode(errors="replace")
    except OSError:
        return ""


def _leaves(text: str) -> Iterator[str]:
    """Secret values of a JSON file or of lines `NAME=value`, whatever holds them."""
    try:
        yield from _named(json.loads(text))
    except ValueError:
        for line in text.splitlines():
            name, equals, value = line.removeprefix("export ").partition("=")
            if equals and any(word in name.upper() for word in (*_WORDS, "KEY")):
                yield value.strip().strip("'\"")


def _named(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _named(each, str(key))
    elif isinstance(value, list):
        for each in value:
            yield from _named(each, name)
    elif isinstance(value, str) and any(word in name.upper() for word in (*_WORDS, "KEY")):
        yield value
