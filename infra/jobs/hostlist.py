"""Slurm's short form of node names: `worker-[0-1,3],login-0` -> each name. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.jobs.errors import JobsError

_ABSENT = frozenset({"", "None assigned", "(null)", "None", "N/A", "n/a"})
_PART = re.compile(r"(?P<prefix>[^\[\],]+)(?:\[(?P<ranges>[0-9,-]+)\])?(?:,|$)")


def expand(text: str) -> tuple[str, ...]:
    """Every node name in the order of the text; none where no node was assigned."""
    text = text.strip()
    if text in _ABSENT:
        return ()
    names: list[str] = []
    position = 0
    while position < len(text):
        found = _PART.match(text, position)
        if found is None:
            raise JobsError(f"Slurm printed the nodes {text!r}, which is not a list of names")
        ranges = found["ranges"]
        names += (
            [found["prefix"]]
            if ranges is None
            else [f"{found['prefix']}{each}" for each in _numbers(ranges, text)]
        )
        position = found.end()
    return tuple(names)


def _numbers(ranges: str, text: str) -> Iterator[str]:
    """`0-1,3` -> 0, 1, 3; leading zeros stay."""
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise JobsError(f"Slurm printed the nodes {text!r}, which is not a list of names")
        for number in range(int(first), int(last or first) + 1):
            yield f"{number:0{len(first)}d}"
