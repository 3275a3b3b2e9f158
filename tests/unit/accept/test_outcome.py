"""PASS, FAIL and NOT RUN are three things, and NOT RUN never ends with 0."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest

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
