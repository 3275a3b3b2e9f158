"""On CI nothing of the real tiers is skipped unseen: a bare machine must show what it lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
SKIPS = """
import pytest

@pytest.mark.local
def test_needs_a_program():
    pytest.skip("needs slurmctld (`make setup`)")

@pytest.mark.local
def test_needs_what_is_not_shipped():
    pytest.skip("needs the CRDs in x, which the project does not ship")

def test_of_no_real_tier():
    pytest.skip("no reason")
"""


@pytest.mark.parametrize(
    ("ci", "summary"), [("true", "1 failed, 2 skipped"), ("false", "3 skipped")]
)
def test_a_missing_program_is_a_skip_at_home_and_a_failure_on_ci(
    tmp_path: Path, ci: str, summary: str
) -> None:
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "test_skips.py").write_text(SKIPS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  local: real tier\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        env={**os.environ, "CI": ci, "PYTEST_ADDOPTS": ""},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert summary in ran.stdout, ran.stdout + ran.stderr
    assert ("nothing may be missing: Skipped: needs slurmctld" in ran.stdout) == (ci == "true")
