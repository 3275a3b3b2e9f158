"""Every end of a job has its class and its next step; every wait has its words."""

from __future__ import annotations

import pytest

from infra.clients.slurm import ACTIVE_STATES, Job
from infra.jobs.follow import FAILURES, KINDS, in_words, outcome
from workloads.common.exit_codes import ExitCode

# Codes that are a class of their own, or no failure.
_CLASSES = {ExitCode.OK, ExitCode.OUT_OF_MEMORY, ExitCode.PREEMPTED}
_NOT_STARTED = 78
"""Of the sbatch text itself (infra/render/sbatch.py)."""
_KILLED = 128 + 9


def ended(state: str, exit_code: int | None = None) -> Job:
    return Job(id="12", name="finetune", state=state, exit_code=exit_code)


@pytest.mark.parametrize(
    ("state", "exit_code", "kind"),
    [
        ("COMPLETED", 0, "COMPLETED"),
        ("FAILED", 1, "FAILED"),
        ("FAILED", 70, "OOM"),
        ("FAILED", 137, "FAILED"),
        ("OUT_OF_MEMORY", 137, "OOM"),
        ("NODE_FAIL", 1, "NODE_FAIL"),
        ("BOOT_FAIL", 1, "NODE_FAIL"),
        ("TIMEOUT", 0, "TIMEOUT"),
        ("DEADLINE", 0, "TIMEOUT"),
        ("PREEMPTED", 0, "PREEMPTED"),
        ("FAILED", 75, "PREEMPTED"),
        ("CANCELLED", 0, "CANCELLED"),
        ("LAUNCH_FAILED", None, "FAILED"),
        ("FORGOTTEN", None, "FORGOTTEN"),
    ],
)
def test_every_end_has_its_class_and_a_next_step(
    state: str, exit_code: int | None, kind: str
) -> None:
    found = outcome(ended(state, exit_code), "local")
    assert found is not None
    assert found.kind == kind
    assert found.cause
    assert found.next_step


def test_every_class_can_be_reached() -> None:
    states = ("COMPLETED", "FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "TIMEOUT", "PREEMPTED")
    kinds = {
        outcome(ended(state, 1), "local").kind for state in (*states, "CANCELLED", "FORGOTTEN")
    }  # type: ignore[union-attr]
    assert kinds == KINDS


@pytest.mark.parametrize("state", sorted(ACTIVE_STATES))
def test_a_job_that_may_still_run_has_no_outcome(state: str) -> None:
    assert outcome(ended(state), "local") is None


def test_every_failure_of_the_workloads_is_explained() -> None:
    assert set(FAILURES) == {int(code) for code in ExitCode if code not in _CLASSES} | {
        _NOT_STARTED,
        _KILLED,
    }


def test_a_next_step_names_job_and_stack() -> None:
    assert str(outcome(ended("COMPLETED", 0), "h100-prod")) == (
        "COMPLETED: its result is on the cluster; soperator pull 12 -s h100-prod"
    )


@pytest.mark.parametrize("code", sorted(FAILURES))
def test_every_step_is_filled_in(code: int) -> None:
    words = str(outcome(ended("FAILED", code), "h100-prod"))
    assert "{" not in words
    assert words.count("soperator ") == words.count("-s h100-prod")
    assert ("drain" in words) is ("--reason TEXT -s h100-prod" in words)


@pytest.mark.parametrize(("state", "exit_code"), [("FAILED", 75), ("TIMEOUT", 0)])
def test_a_server_is_not_told_to_resume_a_training(state: str, exit_code: int) -> None:
    words = str(outcome(ended(state, exit_code), "h100-prod", is_server=True))
    assert "soperator submit finetune -s h100-prod" in words
    assert "train." not in words
    assert "saved" not in words
    assert "train.resume=auto" in str(outcome(ended(state, exit_code), "h100-prod"))


def test_a_signal_is_named() -> None:
    assert outcome(ended("FAILED", 128 + 11), "local").cause == "signal 11 ended it"  # type: ignore[union-attr]


def test_a_kill_is_not_taken_for_full_memory_nor_a_server_for_a_training() -> None:
    killed = str(outcome(ended("FAILED", _KILLED), "local"))
    assert "by somebody, or by the kernel" in killed
    assert "micro_batch_size" not in killed
    assert "a server: lower serve.limits" in str(outcome(ended("FAILED", 70), "local"))


@pytest.mark.parametrize("reason", ["launch failed requeued held", "launch_failed_requeued_held"])
def test_a_job_that_is_held_after_a_lost_controller_says_the_way_out(reason: str) -> None:
    words = in_words(reason)
    assert "Duplicate jobid" in words
    assert "soperator cluster drain NODE --undo -s STACK" in words


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "waits until enough nodes are free"),
        (None, "the scheduler has not looked at it yet"),
        (
            "ReqNodeNotAvail, UnavailableNodes:worker-[0-1]",
            "a node that it needs is drained, down or reserved: look at sinfo -R (worker-[0-1])",
        ),
        (
            "AssocGrpGRESMinutes",
            "the team's limit is reached (AssocGrpGRESMinutes): it starts when its other jobs end",
        ),
        (
            "QOSMaxCpuPerUserLimit",
            "the QOS's limit is reached (QOSMaxCpuPerUserLimit): it starts when its other jobs end",
        ),
        ("ReasonOfALaterSlurm", "ReasonOfALaterSlurm"),
    ],
)
def test_a_wait_is_explained_in_words(reason: str | None, words: str) -> None:
    assert in_words(reason) == words
