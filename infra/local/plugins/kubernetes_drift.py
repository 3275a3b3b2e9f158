"""What of a live object counts against a declared one: project(live, declared)."""

from __future__ import annotations

import string
from decimal import Decimal, InvalidOperation
from typing import Any, Final

_SUFFIXES: Final[dict[str, Decimal]] = {
    "m": Decimal("0.001"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
}


def project(live: Any, declared: Any) -> Any:
    """The live value, reduced to the fields that are declared."""
    if isinstance(declared, dict) and isinstance(live, dict):
        return {key: project(live[key], item) for key, item in declared.items() if key in live}
    if isinstance(declared, list) and isinstance(live, list):
        shared = [project(item, was) for item, was in zip(live, declared, strict=False)]
        return shared + live[len(declared) :]
    return declared if _same_scalar(live, declared) else live


def _same_scalar(live: Any, declared: Any) -> bool:
    """Whether two values mean the same to the API: 1000m and 1, or null and nothing."""
    if live == declared:
        return True
    return (
        isinstance(live, str)
        and isinstance(declared, str | int)
        and (_quantity(live) is not None and _quantity(live) == _quantity(str(declared)))
    )


def _quantity(text: str) -> Decimal | None:
    number = text.rstrip(string.ascii_letters)
    factor = _SUFFIXES.get(text[len(number) :]) if number != text else Decimal(1)
    try:
        return None if factor is None else Decimal(number) * factor
    except InvalidOperation:
        return None
