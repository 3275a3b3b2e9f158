"""docs/conformance.md: tables of differences, every checkout, no placeholder."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from infra.operate.conformance.sources import CHECKOUTS, OUTSIDE, PROGRAMS, RELEASED, built_by
from infra.state import KUBE_APISERVER_VERSION

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")


def rows(name: str) -> list[dict[str, str]]:
    with (ROOT / "tests" / "conformance" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("*", "\\*") for cell in cells) + " |"


@pytest.mark.parametrize(
    "row",
    [row for row in rows("slurm_conf.tsv") if not row["effect"].startswith("none")],
    ids=lambda row: row["key"],
)
def test_a_difference_that_a_job_can_feel_is_on_the_page(row):
    assert line([f"{row['file']}: {row['key']}", row["real"], row["local"], row["effect"]]) in PAGE


@pytest.mark.parametrize(
    "row",
    [row for row in rows("renderings.tsv") if not row["effect"].startswith("none")],
    ids=lambda row: row["path"],
)
def test_a_rendering_that_a_user_can_feel_is_on_the_page(row):
    assert line(list(row.values())) in PAGE


@pytest.mark.parametrize("row", rows("next_version.tsv"), ids=lambda row: row["what"])
def test_what_the_next_version_breaks_is_on_the_page(row):
    assert line(list(row.values())) in PAGE


def shown() -> dict[str, str]:
    """Checkout -> revision, out of the table of the folder."""
    _, _, table = PAGE.partition("| checkout | from |")
    cells = [row.strip("| ").split(" | ") for row in table.partition("\n\n")[0].splitlines()[2:]]
    return {name: revision for name, _, revision, *_ in cells}


@pytest.mark.parametrize("name", CHECKOUTS)
def test_a_checkout_and_its_revision_are_a_row_of_the_page(name):
    assert shown().get(name) == CHECKOUTS[name].revision


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_command_that_builds_a_program_is_on_the_page(program):
    assert f"`{built_by(program, 'FOLDER')}`" in PAGE


def test_the_source_of_each_released_program_is_its_tag():
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `bin/")]
    for name, place in RELEASED.items():
        (source,) = [each[1] for each in rows if f"`bin/{name}`" in each[0]]
        assert source.partition(",")[0] == f"https://github.com/{place}"
    assert RELEASED["kubectl"].endswith(f" v{KUBE_APISERVER_VERSION}"), "of its server's version"


@pytest.mark.parametrize("release", OUTSIDE)
def test_a_release_that_is_never_rendered_is_on_the_page(release):
    _, _, told = PAGE.partition("`would come up` says how many things were not looked at")
    assert re.search(rf"(?<![\w-]){release}(?![\w-])", told.partition("\n\n")[0])


def test_no_placeholder_is_left_on_the_page():
    """Such as a word between at signs, or one that says that something is still to come."""
    found = re.findall(r"@[A-Z_]+@|\b(?:TODO|TBD|FIXME|XXX)\b", PAGE)
    assert found == []
    assert re.search(r"^\| operator.* \| PASS", PAGE, re.MULTILINE), "the last results are missing"
