"""Plain values with one part of them wrong: `for values in damaged(whole)`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any


def damaged(value: Any) -> Iterator[Any]:
    """The value with each of its parts, one at a time, replaced by what does not belong there."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            for part in damaged(value[key]):
                copied = value.copy()
                copied[key] = part
                yield copied
    yield from (None, "x", 3, -1, 1e308, math.nan, True, [], {}, [1, {}], {"low": "x"})
