"""PASS, FAIL and NOT RUN are three things, and NOT RUN never ends with 0."""

from __future__ import annotations

import math
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from workloads.accept.__main__ import metrics
from workloads.accept.gates import Check, Limit, exit_code, fact, hold, not_run, overall
from workloads.common.exit_codes import ExitCode

LIMIT = Limit(at_least=350, at_most=None, unit="GB/s", source="somewhere", date="2026-11-21")
PASS = fact("a.one", True, subject="x", reason="")
FAIL = fact("a.two", False, subject="x", reason="broken")
MISSING = not_run("a.three", "no GPU", subject="x")


@pytest.mark.feature("S001-51")
@pytest.mark.parametrize(
    ("checks", "outcome", "code"),
    [
        ([PASS], "PASS", ExitCode.OK),
        ([PASS, MISSING], "NOT_RUN", ExitCode.NOT_RUN),
        ([PASS, MISSING, FAIL], "FAIL", ExitCode.FAILED),
        ([], "NOT_RUN", ExitCode.NOT_RUN),
    ],
)
def test_one_failure_fails_all_and_one_gap_passes_nothing(
    checks: list[Check], outcome: str, code: ExitCode
) -> None:
    found = overall(checks)
    assert found == outcome
    assert exit_code(found) is code
    assert (int(code) == 0) == (outcome == "PASS")


@pytest.mark.parametrize(
    ("value", "outcome"), [(350.0, "PASS"), (349.9, "FAIL"), (math.nan, "FAIL"), (None, "NOT_RUN")]
)
def test_a_number_is_held_against_its_limit(value: float | None, outcome: str) -> None:
    assert hold("a.b", value, LIMIT, subject="x").outcome == outcome


def test_a_failed_number_says_what_was_wanted_and_from_whom() -> None:
    check = hold("a.b", 100.0, LIMIT, subject="x", nodes=["worker-0"])
    assert check.reason == "at least 350"
    said = asdict(check)
    assert (said["nodes"], said["unit"]) == (("worker-0",), "GB/s")
    assert said["limit"]["source"] == "somewhere"


@pytest.mark.parametrize(("is_direct", "found"), [(True, 3.5), (False, None)])
def test_a_record_has_what_all_nodes_write_into_the_place_of_checkpoints(
    is_direct: bool, found: float | None
) -> None:
    """The planner of saves reads it; a rate of the page cache is none of the filesystem."""
    rows = [
        {"place": "chkpt", "write_gb_per_s": 2.0, "is_direct": True},
        {"place": "chkpt", "write_gb_per_s": 1.5, "is_direct": is_direct},
        {"place": "scratch", "write_gb_per_s": 9.0, "is_direct": True},
    ]
    report: Any = SimpleNamespace(measurements={"storage": rows})
    assert metrics(report).get("chkpt_write_gb_per_s") == found
