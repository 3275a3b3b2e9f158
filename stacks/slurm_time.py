"""Durations as Slurm writes them: time limits of sbatch and elapsed times of sacct."""

from __future__ import annotations

import re
from typing import Final

_FORMS: Final = re.compile(
    r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d{1,2}))?(?::(?P<third>\d{1,2}))?", re.ASCII
)


def slurm_seconds(text: str) -> int | None:
    """Seconds of `30` (minutes), `MM:SS`, `HH:MM:SS`, `D-HH[:MM[:SS]]`; None for any other text."""
    found = _FORMS.fullmatch(text.strip())
    if found is None:
        return None
    first, second, third = (int(found[part] or 0) for part in ("first", "second", "third"))
    if found["days"] is not None:
        return int(found["days"]) * 86400 + first * 3600 + second * 60 + third
    if found["third"] is not None:
        return first * 3600 + second * 60 + third
    return first * 60 + second
