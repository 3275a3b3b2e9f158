"""A pipeline is submitted once, in order, each job after what it needs; what counts stays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from infra.clients.errors import JobsError
from infra.clients.ssh import Result
from infra.jobs import history
from infra.jobs.history import (
    Submission,
    Submitted,
    SubmittedJobs,
    find_equivalent,
    pipeline_text,
    settings_by_job,
    submit_pipeline,
)
from stacks.spec.slurm import JobSpec
from tests.unit.jobs.raw import request, submitter
from tests.unit.jobs.test_submit import HASH, OUTPUTS


def job(name: str, *after: str, module: str = "workloads.train") -> JobSpec:
    return JobSpec(name=name, module=module, recipe="r", after=after)


JOBS = (job("prepare"), job("tune", "prepare"), job("base", "prepare"), job("end", "tune", "base"))
NAMES = [each.name for each in JOBS]


@dataclass
class Queue:
    """Slurm as a table of states: `scontrol` and records answer from it, `send` adds to it."""

    state: Path
    states: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Job id -> name and state."""
    without_record: set[str] = field(default_factory=set)
    sent: list[tuple[str, str | None]] = field(default_factory=list)

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        text, code = "", 0
        if command.startswith("scontrol show job"):
            number = command.split()[4]
            name, state = self.states[number]
            text = f"JobId={number} JobName={name} JobState={state} ExitCode=0:0 Reason=None\n"
        elif "/run_record.json" in command:
            job_id = command.partition("/run_record.json")[0].rpartition("/")[2]
            text = "" if job_id in self.without_record else "{}"
        else:
            text = f"releases/{HASH}\n#!/bin/bash\n"
        return Result(command=command, exit_code=code, stdout=text, stderr="planned: 05:00\n")

    def show(self, wanted: JobSpec, after: str | None) -> str:
        outputs = self.equivalent.outputs
        return submitter(self, outputs, code_hash=HASH).dry_run(request(wanted.name, after=after))

    def send(self, wanted: JobSpec, after: str | None) -> Submitted:
        number = str(len(self.states) + 1)
        self.states[number] = (wanted.name, "PENDING")
        self.sent.append((wanted.name, after))
        made = Submission(
            stack="local",
            job=wanted.name,
            job_id=number,
            code_hash=HASH,
            sets=(),
            after=after,
            log_path="",
            submitted_at=f"2026-11-21T08:00:{int(number):02d}+00:00",
            cluster=OUTPUTS.login_host_key,
        )
        history.remember(self.state, made)
        return Submitted(submission=made, is_equivalent=False)

    def set_all(self, state: str, *ids: str) -> None:
        for number in ids or tuple(self.states):
            self.states[number] = (self.states[number][0], state)

    @property
    def equivalent(self) -> SubmittedJobs:
        outputs = replace(OUTPUTS, jobs=dict.fromkeys(NAMES, ""))
        return SubmittedJobs(
            connection=self, outputs=outputs, state=self.state, code_hash=HASH, log=lambda _: None
        )


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue(tmp_path)


def submitted(
    queue: Queue, jobs: Sequence[JobSpec] = JOBS, *, again: bool = False
) -> list[tuple[str, str | None]]:
    """What one submission of the pipeline sends."""
    queue.sent.clear()
    counts = find_equivalent(jobs, {}, queue.equivalent, again=again)
    submit_pipeline(jobs, counts, queue.equivalent, queue.send)
    return list(queue.sent)


@pytest.mark.feature("S000-11")
def test_each_job_waits_for_all_that_it_needs(queue: Queue) -> None:
    assert submitted(queue) == [("prepare", None), ("tune", "1"), ("base", "1"), ("end", "2:3")]


def test_what_is_left_waits_for_another_job_though_what_it_needs_counts(queue: Queue) -> None:
    submitted(queue)
    queue.set_all("COMPLETED", "1")
    queue.set_all("CANCELLED", "2", "3", "4")
    queue.sent.clear()
    counts = find_equivalent(JOBS, {}, queue.equivalent)
    shown = pipeline_text(JOBS, counts, queue.show, after="99")
    assert "--dependency=afterok:1:99" in shown
    assert "--dependency=afterok:$TUNE:$BASE'" in shown
    submit_pipeline(JOBS, counts, queue.equivalent, queue.send, after="99")
    assert queue.sent == [("tune", "99"), ("base", "99"), ("end", "5:6")]


def test_a_second_submission_sends_nothing_while_the_first_is_on_its_way(queue: Queue) -> None:
    submitted(queue)
    queue.set_all("RUNNING", "1")
    assert submitted(queue) == []
    queue.set_all("COMPLETED")
    assert submitted(queue) == []


def test_after_a_failure_only_what_is_not_done_is_sent(queue: Queue) -> None:
    submitted(queue)
    queue.set_all("COMPLETED", "1", "3")
    queue.set_all("FAILED", "2")
    queue.set_all("CANCELLED", "4")
    assert submitted(queue) == [("tune", None), ("end", "5")]


def test_a_job_that_lost_its_record_runs_again_with_all_that_follows(queue: Queue) -> None:
    submitted(queue)
    queue.set_all("COMPLETED")
    queue.without_record.add("1")
    assert [name for name, _ in submitted(queue)] == NAMES


def test_asked_for_again_every_job_is_sent(queue: Queue) -> None:
    submitted(queue)
    queue.set_all("COMPLETED")
    assert [name for name, _ in submitted(queue, again=True)] == NAMES


def test_a_server_that_ended_is_started_again_and_one_that_runs_is_not(queue: Queue) -> None:
    jobs = (job("prepare"), job("serve", "prepare", module="workloads.serve"))
    submitted(queue, jobs)
    queue.set_all("COMPLETED", "1")
    queue.set_all("RUNNING", "2")
    assert submitted(queue, jobs) == []
    queue.set_all("COMPLETED", "2")
    assert submitted(queue, jobs) == [("serve", None)]


def test_a_result_of_older_data_does_not_count(queue: Queue) -> None:
    """What is submitted alone is older than a preparation that was submitted since."""
    submitted(queue)
    queue.set_all("COMPLETED")
    assert queue.equivalent.find("tune", (), queue.equivalent.newest(["prepare"])) is not None
    queue.send(JOBS[0], None)
    assert queue.equivalent.find("tune", (), queue.equivalent.newest(["prepare"])) is None


def test_the_first_jobs_wait_for_the_job_that_the_user_names(queue: Queue) -> None:
    counts = find_equivalent(JOBS, {}, queue.equivalent)
    submit_pipeline(JOBS, counts, queue.equivalent, queue.send, after="77")
    assert queue.sent[0] == ("prepare", "77")
    assert queue.sent[1] == ("tune", "1")


def test_a_dry_run_shows_every_sbatch_and_sends_none(queue: Queue) -> None:
    submitted(queue, JOBS[:1])
    text = pipeline_text(JOBS, find_equivalent(JOBS, {}, queue.equivalent), queue.show)
    lines = [line for line in text.splitlines() if line.startswith("# ")]
    options = f"--kill-on-invalid-dep=yes --export=ALL,SOPERATOR_RELEASE={HASH}"
    assert lines == [
        "# prepare: job 1 counts; it is not submitted again",
        f"# sbatch --parsable --dependency=afterok:1 {options} jobs/tune",
        "# planned: 05:00",
        f"# sbatch --parsable --dependency=afterok:1 {options} jobs/base",
        "# planned: 05:00",
        f"# sbatch --parsable '--dependency=afterok:$TUNE:$BASE' {options} jobs/end",
        "# planned: 05:00",
    ]
    assert len(queue.states) == 1


def test_settings_go_to_the_job_that_they_name() -> None:
    sets = ["tune:train.lr=1", "tune:a=b:c=d", "prepare:x=1"]
    assert settings_by_job(sets, JOBS, "end") == {
        "tune": ("train.lr=1", "a=b:c=d"),
        "prepare": ("x=1",),
    }


def test_every_setting_of_no_job_is_refused_at_once() -> None:
    with pytest.raises(JobsError, match=r"--set a=1 tuen:a=1 tune:a: .*\(prepare, tune, base, end"):
        settings_by_job(["a=1", "tuen:a=1", "tune:a", "tune:a=1"], JOBS, "end")


@dataclass
class Forgetful(Queue):
    """Slurm that forgot every job, as one without accounting does; records are still there."""

    record: str = ""

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        if "/mnt/results/1/run_record.json" in command:
            return Result(command=command, exit_code=0, stdout=self.record, stderr="")
        said = "slurm_load_jobs error: Invalid job id specified\n"
        return Result(command=command, exit_code=1, stdout="", stderr=said)


@pytest.mark.parametrize(
    ("changes", "counts"),
    [({}, True), ({"outcome": "FAIL"}, False), ({"code_hash": "x"}, False), ({"job": 1}, False)],
)
def test_of_a_job_that_slurm_forgot_the_record_says_whether_it_is_done(
    changes: dict[str, object], counts: bool, tmp_path: Path
) -> None:
    queue = Forgetful(state=tmp_path)
    queue.send(JOBS[0], None)
    record = {"job_id": "1", "job": "prepare", "code_hash": HASH, "outcome": "PASS", **changes}
    queue.record = json.dumps(record)
    assert (queue.equivalent.find("prepare", ()) is not None) is counts
    queue.record = queue.record[:-9]
    assert queue.equivalent.find("prepare", ()) is None


def test_what_needs_a_job_that_slurm_forgot_does_not_wait_for_it(tmp_path: Path) -> None:
    """The rest of a pipeline was refused: Slurm knows no such job."""
    queue = Forgetful(state=tmp_path)
    queue.send(JOBS[0], None)
    record = {"job_id": "1", "job": "prepare", "code_hash": HASH, "outcome": "PASS"}
    queue.record = json.dumps(record)
    assert submitted(queue, JOBS[:2]) == [("tune", None)]


@dataclass
class Answers(Queue):
    """Slurm whose every answer about a job is this error."""

    stderr: str = ""

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        return Result(command=command, exit_code=1, stdout="", stderr=f"{self.stderr}\n")


def test_a_controller_that_does_not_answer_lets_nothing_be_submitted_twice(tmp_path: Path) -> None:
    queue = Queue(state=tmp_path)
    queue.send(JOBS[0], None)
    gone = Answers(state=tmp_path, stderr="slurm_load_jobs error: Invalid job id specified")
    assert gone.equivalent.find("prepare", ()) is None
    busy = Answers(state=tmp_path, stderr="Unable to contact slurm controller")
    with pytest.raises(JobsError, match="Unable to contact slurm controller"):
        busy.equivalent.find("prepare", ())
