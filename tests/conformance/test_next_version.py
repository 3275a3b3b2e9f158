"""What the next Soperator would break: each obstacle is in next_version.tsv, each row is found.

The same stacks and values as for the version that is deployed, against charts, definitions and
operator of 5.0.0. stacks/compatibility.yaml refuses it until the table is empty.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from infra.clients.kube_rules import describe
from infra.operate.conformance.come_up import declared
from infra.operate.conformance.sources import NotRunError, RenderError
from tests.conformance.chart_values import without_effect
from tests.conformance.conftest import NEXT
from tests.conformance.test_charts import WITHOUT_EFFECT

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1200)]
TABLE = Path(__file__).with_name("next_version.tsv")
STACKS = ("h100-prod", "all-keys")
_CHECKED = ("accepted", "reconciled", "pods valid", "keys present", "placed", "claims bound")


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """One row: what is found, as a pattern, what it means and what takes it away."""

    kind: str
    what: str
    effect: str
    needs: str


def rows() -> list[Break]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [Break(**row) for row in csv.DictReader(file, delimiter="\t")]


@pytest.fixture(scope="module")
def seen() -> set[tuple[str, str]]:
    return set()


def values(spec, sources, helm, folder) -> Iterator[tuple[str, str]]:
    """Values that the next charts ignore and today's read, and charts that refuse."""
    cluster = replace(spec.cluster, soperator_version=NEXT)
    soperator = sources.soperator(NEXT)
    for release in declared(replace(spec, cluster=cluster), folder).releases:
        try:
            chart = sources.chart(release.name, release.version, NEXT)
        except NotRunError:
            continue
        if sources.folder / soperator not in chart.parents:
            continue
        arguments = (chart, release.name, release.namespace, release.values)
        try:
            for leaf in without_effect(helm, *arguments):
                if (release.name, leaf.name) not in WITHOUT_EFFECT:
                    yield "value", f"{release.name}: {leaf.name}"
        except RenderError as error:
            yield "chart", f"{release.name}: {error}"


def names(way) -> set[str]:
    """What makes pods, by kind and name."""
    return {
        describe(each)
        for each in way.live
        if each["kind"] in ("StatefulSet", "Deployment", "MariaDB")
        and each["metadata"]["namespace"] == way.declared.spec.cluster.namespace
    }


@pytest.mark.parametrize("stack", STACKS)
def test_every_break_is_in_the_table(
    stack, spec, sources, helm, came_up, tmp_path, seen, record_property
):
    today, then = came_up(stack), came_up(stack, NEXT)
    for step in (today, then):
        if step.steps["reconciled"].outcome == "NOT RUN":
            raise NotRunError("; ".join(step.steps["reconciled"].not_run))
    found = set(values(spec(stack), sources, helm, tmp_path))
    known = {str(each) for step in today.steps.values() for each in step.obstacles}
    found |= {
        (name, str(each))
        for name in _CHECKED
        for each in then.steps[name].obstacles
        if str(each) not in known
    }
    was, will = names(today.way), names(then.way)
    found |= {("gone", each) for each in was - will} | {("new", each) for each in will - was}
    record_property("breaks", len(found))
    seen |= found
    unlisted = [
        f"{kind}\t{what}"
        for kind, what in sorted(found)
        if not any(row.kind == kind and fnmatchcase(what, row.what) for row in rows())
    ]
    assert not unlisted, "not in next_version.tsv:\n" + "\n".join(unlisted)


def test_every_row_of_the_table_still_breaks(seen, record_property):
    if not seen:
        raise NotRunError("nothing was compared")
    record_property("rows", len(rows()))
    stale = [
        f"{row.kind}: {row.what}"
        for row in rows()
        if not any(kind == row.kind and fnmatchcase(what, row.what) for kind, what in seen)
    ]
    assert not stale, "gone, so take them out of next_version.tsv:\n" + "\n".join(stale)
