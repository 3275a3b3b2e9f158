"""The exit status of a verdict: NOT RUN is no success, and no failure either."""

from __future__ import annotations

from typing import Final

NOT_RUN: Final = 69
"""EX_UNAVAILABLE of sysexits.h, as the jobs themselves end with it."""
_EXIT_CODES: Final = {"PASS": 0, "FAIL": 1, "NOT RUN": NOT_RUN, "NOT_RUN": NOT_RUN}


def exit_code(verdict: str) -> int:
    """Return the status for PASS, FAIL and NOT RUN, also as files spell it."""
    return _EXIT_CODES[verdict]
