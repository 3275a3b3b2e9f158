"""The table of versions: every row has its source and day, and stands for the versions near it."""

from __future__ import annotations

import re

import pytest

from infra.render.charts import k8up_chart, platform_charts
from stacks.compatibility import KUBERNETES, ROLLOUT, SOPERATOR, numbers, release_of
from stacks.load import load_stack
from stacks.spec.cluster import ClusterSpec
from tests import SHIPPED

ROWS = [*SOPERATOR.values(), *KUBERNETES.values(), ROLLOUT]


def test_every_row_has_an_address_and_a_day():
    for row in ROWS:
        assert re.fullmatch(r"https://\S+( \(.+\))?", row.source), row
        assert re.fullmatch(r"2026-\d\d(-\d\d)?", row.date), row


def test_rows_go_from_old_to_new():
    for rows in (SOPERATOR, KUBERNETES):
        assert list(rows) == sorted(rows, key=numbers)


def test_the_default_is_a_version_of_which_everything_is_known():
    row = SOPERATOR[ClusterSpec().soperator_version]
    assert row.refused is None
    assert row.slurm
    assert row.kubernetes_min
    assert row.cuda
    assert ClusterSpec().kubernetes_version in KUBERNETES


@pytest.mark.parametrize(
    ("asked", "row"),
    [
        ("4.1.7", "4.1.7"),
        ("4.1.13", "4.1.7"),
        ("4.1.2", "4.1.7"),
        ("4.0.5", "4.0.0"),
        ("4.2.0", "4.1.7"),
        ("5.0.1", "4.1.7"),
        ("3.0.8", "4.0.0"),
        ("5.0.0", "5.0.0"),
    ],
)
def test_a_version_without_a_row_is_read_as_its_line_or_the_newest_before_it(asked: str, row: str):
    assert release_of(asked).version == row


@pytest.mark.parametrize("name", SHIPPED)
def test_every_chart_of_others_has_the_version_of_the_table(name: str, public_key_file: object):
    spec = load_stack(name)
    pins = release_of(spec.cluster.soperator_version).charts
    charts = (*platform_charts(spec), k8up_chart(spec))
    others = [each for each in charts if each.version != spec.cluster.soperator_version]
    assert others
    assert {each.release: each.version for each in others} == {
        each.release: pins[each.release] for each in others
    }
