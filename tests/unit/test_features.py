"""docs/features.tsv is the acceptance table: one row per seed feature, and each says the truth.

The invariants are complete numbering per seed, allowed states and proofs, paths and decisions that
exist, and a test that carries the row's id (`@pytest.mark.feature("S000-12")`). Whether the test
passes is the test run's business, not this file's.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from tests.unit.docs_site.site import counted, marked_tests

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "features.tsv"

NUM_FEATURES = {"S000": 125, "S001": 97, "S002": 92, "S003": 90, "S004": 46}
"""Features counted in each of the five seed documents; the numbering of each is contiguous."""

KINDS = frozenset("CFOJNDSMT$RX")
PROOFS = {
    "run": "works",
    "declared": "works",
    "part": "part",
    "stand-in": "part",
    "gpu": "part",
    "cloud": "part",
    "-": "waived",
}
"""What shows a row (CONTRIBUTING.md, Features), and the state that follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table; `where` holds paths divided by spaces."""

    id: str
    kind: str
    feature: str
    state: str
    proof: str
    missing: str
    where: str
    adr: str
    note: str


def read_rows() -> list[Row]:
    """The rows of the committed table, in file order."""
    with TABLE.open(encoding="ascii", newline="") as file:
        lines = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [Row(**line) for line in lines]


def problems(rows: list[Row]) -> list[str]:
    """What is wrong with the table, one line each with the id, what came and what is allowed."""
    return numbering_problems(rows) + [line for row in rows for line in row_problems(row)]


def numbering_problems(rows: list[Row]) -> list[str]:
    """Ids that are missing, repeated or of no seed."""
    expected = {f"{seed}-{n + 1:02d}" for seed, num in NUM_FEATURES.items() for n in range(num)}
    found = Counter(row.id for row in rows)
    return (
        [f"{id_}: has no row; add one" for id_ in sorted(expected - set(found))]
        + [f"{id_}: is not a feature of a seed" for id_ in sorted(set(found) - expected)]
        + [f"{id_}: has {n} rows; keep one" for id_, n in sorted(found.items()) if n > 1]
    )


def row_problems(row: Row) -> list[str]:
    """What one row claims and the tree does not have."""
    lines: list[str] = []
    if row.kind not in KINDS or len(row.kind) != 1:
        lines.append(f"{row.id}: kind {row.kind!r} is not one of {''.join(sorted(KINDS))}")
    if not row.feature:
        lines.append(f"{row.id}: has no text")
    if PROOFS.get(row.proof) != row.state:
        lines.append(f"{row.id}: proof {row.proof!r} of {sorted(PROOFS)} is not {row.state!r}")
    if row.state == "works" and not (row.where and row.id in ids_of_tests()):
        lines.append(f"{row.id}: works, but names no path, or no test carries its id")
    if (row.state == "part") != bool(row.missing):
        lines.append(f"{row.id}: what is missing is said of parts and of nothing else")
    if row.state == "waived" and not row.adr:
        lines.append(f"{row.id}: waived without a decision; name its number in docs/adr/")
    paths = [path for path in row.where.split() if not (ROOT / path).exists()]
    lines += [f"{row.id}: path {path!r} does not exist" for path in paths]
    if row.adr and not list((ROOT / "docs" / "adr").glob(f"{row.adr}-*.md")):
        lines.append(f"{row.id}: decision {row.adr!r} is not in docs/adr/")
    return lines


@cache
def ids_of_tests() -> dict[str, list[str]]:
    return marked_tests(ROOT / "tests")


def test_every_feature_of_the_seeds_has_one_true_row() -> None:
    """An evaluator finds here where a promise is kept, so it names only what is there."""
    assert problems(read_rows()) == []


def test_every_id_that_a_test_carries_is_a_row() -> None:
    assert sorted(set(ids_of_tests()) - {row.id for row in read_rows()}) == []


def test_the_readme_counts_as_the_table() -> None:
    with TABLE.open(encoding="ascii", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert counted(rows) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_waived_row_is_context_that_nothing_can_be_built_for() -> None:
    """A feature that can be built is never waived: it is `part` until it works."""
    assert [row.id for row in read_rows() if row.state == "waived" and row.kind != "X"] == []


GOOD = Row(
    id="S000-01",
    kind="R",
    feature="a feature",
    state="works",
    proof="run",
    missing="",
    where="docs/features.tsv",
    adr="",
    note="",
)


def test_a_row_that_names_what_exists_has_no_problem() -> None:
    assert row_problems(GOOD) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "Q"}, "kind 'Q'"),
        ({"kind": ""}, "kind ''"),
        ({"feature": ""}, "has no text"),
        ({"state": "done"}, "is not 'done'"),
        ({"proof": "mock"}, "proof 'mock'"),
        ({"proof": "stand-in"}, "proof 'stand-in'"),
        ({"missing": "half"}, "what is missing"),
        ({"where": ""}, "names no path"),
        ({"where": "docs/none.md"}, "path 'docs/none.md' does not exist"),
        ({"state": "waived", "proof": "-"}, "waived without a decision"),
        ({"adr": "9999"}, "decision '9999'"),
    ],
)
def test_a_planted_mistake_in_a_row_is_found(change: dict[str, str], message: str) -> None:
    lines = row_problems(replace(GOOD, **change))
    assert len(lines) == 1
    assert message in lines[0]


def test_a_missing_a_repeated_and_an_unknown_id_are_found() -> None:
    rows = read_rows()
    stranger = replace(rows[0], id="S005-01")
    lines = numbering_problems([*rows[2:], rows[2], stranger])
    assert lines == [
        "S000-01: has no row; add one",
        "S000-02: has no row; add one",
        "S005-01: is not a feature of a seed",
        "S000-03: has 2 rows; keep one",
    ]
