"""Kubernetes quantities as exact numbers."""

from __future__ import annotations

import re
from fractions import Fraction

_QUANTITY = re.compile(r"(?P<number>[0-9]*\.?[0-9]+)(?P<suffix>m|[kMGTPE]|[KMGTPE]i)?$")
_DECIMAL = {"m": Fraction(1, 1000), "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}


def quantity(text: str | int | Fraction | None) -> Fraction:
    """The number that a quantity stands for: cores, bytes or devices; nothing is 0."""
    if text is None:
        return Fraction(0)
    if isinstance(text, Fraction):
        return text
    found = _QUANTITY.match(str(text))
    if found is None:
        raise ValueError(f"quantity '{text}': a number, optionally with a suffix such as m or Gi")
    factor = {**_DECIMAL, **_BINARY, "E": 10**18, None: 1}[found["suffix"]]
    return Fraction(found["number"]) * factor
