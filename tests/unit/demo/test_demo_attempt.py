"""The submission of a run that was killed before the job's number came back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from infra.demo import attempt
from infra.demo.attempt import Attempt
from infra.jobs.parse import Job
from infra.jobs.submit import Submission

BEGUN = Attempt(
    submission=Submission(
        stack="local",
        job="finetune",
        job_id="",
        code_hash="abc",
        sets=("train.max_steps=6",),
        after="7",
        log_path="",
        submitted_at="2026-11-21T08:00:00+00:00",
        cluster="ssh-ed25519 AAAA",
    ),
    newest_id=7,
)
JOB = Job(id="8", name="finetune", state="PENDING")


def test_an_attempt_is_read_as_it_was_written(tmp_path: Path) -> None:
    attempt.begin(tmp_path, BEGUN)
    assert attempt.left(tmp_path) == BEGUN
    attempt.end(tmp_path)
    assert attempt.left(tmp_path) is None
    attempt.end(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"submission": {}, "newest_id": 1}'])
def test_a_damaged_attempt_is_none(tmp_path: Path, text: str) -> None:
    attempt.begin(tmp_path, BEGUN)
    (tmp_path / "demo" / "attempt.json").write_text(text)
    assert attempt.left(tmp_path) is None


def test_the_job_is_the_newer_one_of_that_name() -> None:
    jobs = [replace(JOB, id="6"), replace(JOB, id="8", name="evaluate"), replace(JOB, id="9_1")]
    assert attempt.made(BEGUN, jobs, known=()) == jobs[2]


@pytest.mark.parametrize(
    ("jobs", "known"),
    [([], []), ([replace(JOB, id="7")], []), ([JOB], ["8"]), ([replace(JOB, name="x")], [])],
    ids=["none at all", "an older one", "one whose number is known", "another job"],
)
def test_without_such_a_job_nothing_was_submitted(jobs: list[Job], known: list[str]) -> None:
    assert attempt.made(BEGUN, jobs, known) is None


def test_the_newest_job_is_the_largest_number() -> None:
    assert attempt.newest([replace(JOB, id="9"), replace(JOB, id="10_3")]) == 10
    assert attempt.newest([]) == 0
