"""The exit status of a verdict: NOT RUN is no success, and no failure either."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import typer

TROUBLE: Final = 2
"""As diff(1) ends where it could not compare: 1 says that it did, and that they differ."""
NOT_RUN: Final = 69
"""EX_UNAVAILABLE of sysexits.h, as the jobs themselves end with it."""
_EXIT_CODES: Final = {
    "PASS": 0,
    "EQUAL": 0,
    "AGREE": 0,
    "FAIL": 1,
    "DIFFER": 1,
    "NOT RUN": NOT_RUN,
    "NOT_RUN": NOT_RUN,
}


def exit_code(verdict: str) -> int:
    """Return the status of a verdict, also as files spell it."""
    return _EXIT_CODES[verdict]


@contextmanager
def comparing() -> Iterator[None]:
    """Refusals in the block end with TROUBLE, so that 1 is a difference and nothing else."""
    from infra.cli.main import is_refusal, say_refusal

    try:
        yield
    except Exception as error:
        if not is_refusal(error):
            raise
        say_refusal(error)
        raise typer.Exit(TROUBLE) from error
