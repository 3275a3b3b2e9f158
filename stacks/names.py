"""Names that a user may write for another one: canonical_platform("gpu-h200") -> gpu-h200-sxm.

Owns the resolution of aliases; the names themselves are facts of catalog.py.
"""

from __future__ import annotations

from stacks.catalog import PLATFORM_ALIASES


class Alias(str):
    """A name of the API that was written in another way; equal to the name itself."""

    __slots__ = ("written",)

    written: str

    def __new__(cls, name: str, *, written: str) -> Alias:
        """The name, remembering what was written."""
        made = super().__new__(cls, name)
        made.written = written
        return made


def canonical_platform(written: str) -> str:
    """The API's name of a platform; an Alias where another name was written."""
    name = PLATFORM_ALIASES.get(written)
    return written if name is None else Alias(name, written=written)
