"""When k8up backs up and prunes: schedule_problem(text) says why it could not read a schedule."""

from __future__ import annotations

import re
from typing import Final

# k8up has @annually-random too, but leaves it as it is, and its cron does not know the word:
# k8up-io/k8up operator/handler/randomizer.go, read 2026-11-21.
_WORD: Final = re.compile(r"@(hourly|daily|weekly|monthly|yearly)(-random)?|@annually")
_FIELD: Final = re.compile(r"[0-9A-Za-z*/,-]+")
# Of k8up's cron: https://pkg.go.dev/github.com/robfig/cron/v3, read 2026-11-21.
_FIELDS: Final = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of month", 1, 31),
    ("month", 1, 12),
    ("day of week", 0, 6),
)


def schedule_problem(text: str) -> str | None:
    """What is wrong with a schedule and what to give instead; None for one that is right."""
    if _WORD.fullmatch(text):
        return None
    parts = text.split(" ")
    if len(parts) != len(_FIELDS) or not all(_FIELD.fullmatch(part) for part in parts):
        return (
            f"'{text}' is no schedule; give five fields of cron, or @hourly, @daily, @weekly, "
            "@monthly or @yearly, with -random to spread the load"
        )
    for part, (name, first, last) in zip(parts, _FIELDS, strict=True):
        for item in part.split(","):
            bounds = item.partition("/")[0].split("-")
            if any(end.isdigit() and not first <= int(end) <= last for end in bounds):
                return f"'{text}': '{item}' is no {name}; cron takes {first} to {last}"
    return None
