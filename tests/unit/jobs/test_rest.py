"""What an end without success means for the jobs that needed it, and why one waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infra.clients.slurm import Job, scontrol_job, squeue
from infra.jobs.follow import rest_lines, waiting_for, why
from infra.jobs.history import Submission

# Lines of Slurm 22.05.8, shortened to the fields that are read.
QUEUE = """\
11|prepare|RUNNING|0:07|2026-11-21T05:00:00|2026-11-21T05:00:01|(null)|worker-0
12|tune|PENDING|0:00|2026-11-21T05:00:00|N/A|afterok:11(unfulfilled)|(Dependency)
13|end|PENDING|0:00|2026-11-21T05:00:00|N/A|afterok:12(unfulfilled),afterok:11(unfulfilled)|(Dependency)
14|clean|PENDING|0:00|2026-11-21T05:00:00|N/A|afterany:12(unfulfilled)|(Dependency)
15|other|PENDING|0:00|2026-11-21T05:00:00|N/A|(null)|(Resources)
"""
JOBS = squeue(QUEUE)
NAMES = {job.id: job.name for job in JOBS}


def made(job_id: str, job: str, after: str | None = None) -> Submission:
    return Submission(
        stack="local",
        job=job,
        job_id=job_id,
        code_hash="h",
        sets=(),
        after=after,
        log_path="",
        submitted_at="2026-11-21T05:00:00+00:00",
        cluster="K",
    )


MADE = (made("11", "prepare"), made("12", "tune", "11"), made("13", "end", "12:11"))


def test_a_wait_names_the_jobs_and_what_their_failure_means() -> None:
    assert why(JOBS[1], NAMES) == (
        "waits until prepare (11) succeeded; if it fails, this one is cancelled"
    )
    assert why(JOBS[2], {"12": "tune"}) == (
        "waits until tune (12) and job 11 succeeded; if one fails, this one is cancelled"
    )
    assert why(JOBS[4], NAMES) == "waits until enough nodes are free"


@pytest.mark.feature("S001-94")
def test_the_queue_and_one_job_tell_the_same_need() -> None:
    one = scontrol_job(
        "JobId=12 JobName=tune JobState=PENDING Reason=Dependency "
        "Dependency=afterok:11(unfulfilled) ExitCode=0:0 SubmitTime=2026-11-21T05:00:00"
    )
    assert one.needs == JOBS[1].needs == ("11",)


def test_a_job_that_waits_for_any_end_does_not_need_success() -> None:
    assert JOBS[3].needs == ()


def test_with_a_job_go_all_that_need_its_success() -> None:
    assert [job.id for job in waiting_for(["11"], JOBS)] == ["12", "13"]
    assert [job.id for job in waiting_for(["12"], JOBS)] == ["13"]
    assert waiting_for(["15"], JOBS) == ()


def test_a_failed_job_names_what_does_not_run_and_how_to_go_on() -> None:
    failed = Job(id="11", name="prepare", state="FAILED", exit_code=65)
    assert rest_lines(failed, MADE, "K") == (
        "tune (12) needed it and does not run",
        "end (13) needed it and does not run",
        (
            "once it is mended, this submits what is not done: "
            "soperator submit end --pipeline -s local"
        ),
    )


def test_a_cancelled_job_points_at_the_one_that_it_needed() -> None:
    (line,) = rest_lines(Job(id="13", name="end", state="CANCELLED"), MADE, "K")
    assert line.startswith("it was to start once tune (12) and prepare (11) succeeded")


def test_a_job_that_was_cancelled_while_it_ran_had_what_it_needed() -> None:
    ran = Job(id="13", name="end", state="CANCELLED", where="worker-0")
    assert rest_lines(ran, MADE, "K") == ()


def test_a_job_that_succeeded_or_of_another_cluster_has_nothing_to_say() -> None:
    done = Job(id="11", name="prepare", state="COMPLETED", exit_code=0)
    assert rest_lines(done, MADE, "K") == ()
    assert rest_lines(replace(done, state="FAILED"), MADE, "another") == ()
