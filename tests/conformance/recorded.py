"""The table of what the official plugins answer, and where our stand-ins do not: plugins.tsv."""

from __future__ import annotations

import csv
import os
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from infra.local.engine import PLUGINS_SETTING
from infra.state import CHECKOUT

TABLE: Final = Path(__file__).with_name("plugins.tsv")
OFFICIAL: Final = "official"
SIDES: Final = (OFFICIAL, "stand-in")


class Row(NamedTuple):
    """One case of one plugin."""

    plugin: str
    case: str
    official: str
    stand_in: str
    """Empty where it answers the same."""
    effect: str
    """What the difference means to a user; empty where there is none."""


@cache
def rows() -> tuple[Row, ...]:
    """Every row of the table, in its order."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        lines = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        next(lines)
        return tuple(Row(*line) for line in lines)


def check(plugin: str, case: str, answer: str, *, official: bool) -> None:
    """Fails unless the table has this answer for the side that gave it."""
    found = [row for row in rows() if (row.plugin, row.case) == (plugin, case)]
    assert found, f"{TABLE.name}: {plugin} {case}: no row; it answered: {answer}"
    (row,) = found
    expected = row.official if official else row.stand_in or row.official
    assert answer == expected, f"{TABLE.name}: {plugin} {case}: it answered: {answer}"


def program_of(name: str, *, official: bool) -> Path:
    """The plugin's program; skips where the official one was not given."""
    program = f"pulumi-resource-{name}"
    if not official:
        return CHECKOUT / "infra" / "local" / "plugins" / "bin" / program
    folder = os.environ.get(PLUGINS_SETTING)
    if not folder:
        pytest.skip(
            f"{PLUGINS_SETTING} names no folder with {program}, which the project does not ship"
        )
    path = Path(folder, program)
    if not path.is_file():
        pytest.skip(
            f"{PLUGINS_SETTING}: {folder} has no {program}, which the project does not ship"
        )
    return path.resolve()
