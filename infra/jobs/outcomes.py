"""What a job's end means: one of seven classes, in words, with the next step.

Owns the classes and their advice. Slurm's states and the numbers of workloads/common/exit_codes.py
are read here and decided there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from infra.jobs.parse import Job


class OutcomeClass(StrEnum):
    """How a job ended."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    OOM = "OOM"
    NODE_FAIL = "NODE_FAIL"
    TIMEOUT = "TIMEOUT"
    PREEMPTED = "PREEMPTED"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of one job."""

    kind: OutcomeClass
    cause: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.cause}; {self.next_step}"


# States of https://slurm.schedmd.com/job_state_codes.html (read 2026-11-21); the rest is FAILED.
_OF_STATE: Final = {
    "COMPLETED": OutcomeClass.COMPLETED,
    "OUT_OF_MEMORY": OutcomeClass.OOM,
    "NODE_FAIL": OutcomeClass.NODE_FAIL,
    "BOOT_FAIL": OutcomeClass.NODE_FAIL,
    "TIMEOUT": OutcomeClass.TIMEOUT,
    "DEADLINE": OutcomeClass.TIMEOUT,
    "PREEMPTED": OutcomeClass.PREEMPTED,
    "CANCELLED": OutcomeClass.CANCELLED,
    "REVOKED": OutcomeClass.CANCELLED,
}
_OF_EXIT_CODE: Final = {
    70: OutcomeClass.OOM,
    75: OutcomeClass.PREEMPTED,
}
_PLAIN: Final = {
    OutcomeClass.COMPLETED: ("its result is on the cluster", "soperator pull {id} -s {stack}"),
    OutcomeClass.OOM: (
        "GPU or host memory was full",
        (
            "training: lower train.micro_batch_size and raise train.gradient_accumulation as much; "
            "a server: lower serve.limits; or ask for a preset with more memory (soperator size)"
        ),
    ),
    OutcomeClass.NODE_FAIL: (
        "a node went away",
        (
            "a declared job is queued again by itself; where soperator status shows it no more: "
            "soperator submit {name} -s {stack}; soperator drain NODE -s {stack} keeps jobs off a "
            "node that fails twice"
        ),
    ),
    OutcomeClass.TIMEOUT: (
        "it reached its time limit",
        (
            "raise jobs[].time_limit and run pulumi up; with `--set train.resume=auto` a training "
            "goes on from its last checkpoint"
        ),
    ),
    OutcomeClass.PREEMPTED: (
        "it was asked to stop, by a preemption or shortly before its time limit, and saved",
        "nothing where it is queued again; else submit it with --set train.resume=auto",
    ),
    OutcomeClass.CANCELLED: ("somebody cancelled it", "soperator submit {name} -s {stack}"),
}
FAILURES: Final = {
    1: ("an error that has no code of its own", "the traceback is in soperator logs {id}"),
    2: (
        "recipe, override or environment are wrong",
        "the log's line with (exit 2) names the key, what came and what is allowed",
    ),
    65: ("rows, tokenizer, model or checkpoint cannot be used", "the log names the file"),
    69: ("a package that it needs is not there; nothing was measured", "the log names it"),
    71: (
        "a rank or the network between ranks was lost",
        "look for the first failed rank in the log; soperator drain NODE after a second time",
    ),
    72: (
        "the loss or a gradient is NaN or infinite",
        "lower train.learning_rate or raise train.warmup_steps; prefer bf16 to fp16",
    ),
    73: (
        "a checkpoint that was needed is not saved",
        "free the place chkpt (df through soperator ssh) or lower train.keep_last",
    ),
    74: ("a process that reads rows died", "give the job more memory"),
    76: (
        "a step or a collective stood still",
        (
            "the rank whose stack stands elsewhere is the cause; raise train.checkpoint.timeout_s "
            "if steps are that long"
        ),
    ),
    77: ("a GPU or its driver failed", "soperator drain NODE, then submit it again"),
    78: (
        "a node lacks Python, a mount or a shared folder; nothing was started",
        "the log names node and path",
    ),
    # Slurm says OUT_OF_MEMORY only where it limits memory itself: the kernel's killer, and a
    # person's `kill -9`, look alike.
    128 + 9: (
        "it was killed (signal 9): by somebody, or by the kernel because host memory was full",
        (
            "dmesg on the node names it where it was memory: ask for more; else submit it again: "
            "soperator submit {name} -s {stack}"
        ),
    ),
}
"""Exit code -> cause and next step of a job that failed."""


def outcome(job: Job, stack: str) -> Outcome | None:
    """What the job's end means; None while it may still run."""
    if not job.finished:
        return None
    kind = _OF_STATE.get(job.state, OutcomeClass.FAILED)
    if kind is OutcomeClass.FAILED and job.exit_code is not None:
        kind = _OF_EXIT_CODE.get(job.exit_code, kind)
    cause, step = _PLAIN[kind] if kind in _PLAIN else _failure(job)
    return Outcome(
        kind=kind, cause=cause, next_step=step.format(id=job.id, name=job.name, stack=stack)
    )


def _failure(job: Job) -> tuple[str, str]:
    """Cause and next step of an end that only the exit code tells apart."""
    code = job.exit_code
    if code is not None and code in FAILURES:
        return FAILURES[code]
    last = "the last lines of soperator logs {id} say why"
    if code is not None and code > 128:
        return f"signal {code - 128} ended it", last
    if code is None:
        return f"Slurm calls it {job.state}", last
    return f"it ended with exit code {code}", last
