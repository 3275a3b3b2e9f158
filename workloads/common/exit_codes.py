"""Exit codes of workload jobs: each kind of failure has its own non-zero number.

Owns the numbers and the mapping from exceptions to them. Does not end the process: job.py does.
"""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """Process exit status of a job; 0 only when the result exists."""

    OK = 0
    FAILED = 1
    BAD_CONFIG = 2
    BAD_DATA = 65
    """sysexits EX_DATAERR."""
    NOT_RUN = 69
    """sysexits EX_UNAVAILABLE: what the job needs is not installed; nothing was measured."""
    OUT_OF_MEMORY = 70
    DISTRIBUTED = 71
    NON_FINITE = 72
    NOT_SAVED = 73
    """sysexits EX_CANTCREAT: a checkpoint that is needed, or anything on a full filesystem."""
    DATA_LOADER = 74
    """sysexits EX_IOERR."""
    PREEMPTED = 75
    """sysexits EX_TEMPFAIL: running the same job again continues it."""
    HUNG = 76
    DEVICE = 77


# What to change, by code; the cause is the error's own.
ADVICE: Final = {
    ExitCode.OUT_OF_MEMORY: (
        "lower train.micro_batch_size and raise train.gradient_accumulation as much, set "
        "train.gradient_checkpointing, or shard with train.strategy=fsdp"
    ),
    ExitCode.DISTRIBUTED: (
        "a rank or its network was lost: see the first failed rank above it in the log; the run "
        "continues from its last checkpoint"
    ),
    ExitCode.DATA_LOADER: (
        "a process that reads rows died: give the job more memory, or lower the number of workers"
    ),
    ExitCode.HUNG: (
        "ranks waited for each other in vain: see whose stack above stands elsewhere; if steps "
        "are that long, raise train.checkpoint.timeout_s"
    ),
    ExitCode.NOT_SAVED: (
        "free space there, or raise the quota: soperator status --filesystems -s STACK"
    ),
    ExitCode.DEVICE: "a GPU or its driver failed: drain the node, then run the job again",
}
# Failures that the same ranks may not meet again; the others come back as often as they are tried.
RESTARTABLE: Final = frozenset(
    {ExitCode.DISTRIBUTED, ExitCode.DATA_LOADER, ExitCode.HUNG, ExitCode.DEVICE}
)


class WorkloadError(Exception):
    """A failure with a known cause: one line that says what came, what is allowed, what to do."""

    exit_code = ExitCode.FAILED


class ConfigError(WorkloadError):
    """A recipe, an override or the environment is wrong."""

    exit_code = ExitCode.BAD_CONFIG


class DataError(WorkloadError):
    """Rows, a tokenizer, model files or an adapter are missing or unusable."""

    exit_code = ExitCode.BAD_DATA


class NotRunError(WorkloadError):
    """An optional part of the environment that the job needs is not there."""

    exit_code = ExitCode.NOT_RUN


class NonFiniteLossError(WorkloadError):
    """The loss or the gradient became NaN or infinite."""

    exit_code = ExitCode.NON_FINITE


class CheckpointError(WorkloadError):
    """State that had to be saved is not saved."""

    exit_code = ExitCode.NOT_SAVED


class HungError(WorkloadError):
    """A step did not end within the declared time."""

    exit_code = ExitCode.HUNG


class PreemptedError(WorkloadError):
    """A signal asked the job to stop and its state is saved."""

    exit_code = ExitCode.PREEMPTED


# Allocation failures of the CPU arrive as a plain RuntimeError
# (c10/core/impl/alloc_cpu.cpp: "DefaultCPUAllocator: can't allocate memory").
_CPU_OOM_TEXT = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory")
# Gloo and NCCL failures that torch raises as a plain RuntimeError.
_DISTRIBUTED_TEXT = ("gloo", "NCCL", "Connection closed by peer", "ProcessGroup", "TCPStore")
# Of them, those that say that nobody died: the peers did not come (gloo, NCCL's watchdog).
_HUNG_TEXT = ("Timed out waiting", "Watchdog caught collective operation timeout")
_DATA_LOADER_TEXT = "DataLoader worker"


_FULL = {errno.ENOSPC: "No space left on device", errno.EDQUOT: "Disk quota exceeded"}
# torch's writer finds its file shorter than it should be (caffe2/serialize/inline_container.cc)
# and says so alone, where it writes by itself or in another process.
_CUT_SHORT_TEXT = ("inline_container.cc", "unexpected pos")


def full_text(error: BaseException) -> str | None:
    """Return what a failed write says of a full filesystem; None where it failed otherwise."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _FULL:
            return seen.strerror or _FULL[seen.errno]
        # safetensors has errors of its own, with the system's text in them.
        for text in _FULL.values():
            if text in str(seen):
                return text
        seen = seen.__cause__ or seen.__context__
    is_cut = all(part in str(error) for part in _CUT_SHORT_TEXT)
    return "a file was cut short, as on a full filesystem" if is_cut else None


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code that tells what kind of failure `error` is."""
    if isinstance(error, WorkloadError):
        return error.exit_code
    if full_text(error) is not None:
        return ExitCode.NOT_SAVED
    if isinstance(error, MemoryError):
        return ExitCode.OUT_OF_MEMORY
    # By name, so that a job which fails before torch is imported does not import it now.
    names = {kind.__name__ for kind in type(error).__mro__}
    if "OutOfMemoryError" in names:
        return ExitCode.OUT_OF_MEMORY
    text = str(error)
    if "AcceleratorError" in names:
        return ExitCode.DEVICE
    is_lost = bool(names & {"DistBackendError", "DistNetworkError", "DistStoreError", "DistError"})
    if isinstance(error, RuntimeError) and not is_lost:
        if _DATA_LOADER_TEXT in text:
            return ExitCode.DATA_LOADER
        if any(part in text for part in _CPU_OOM_TEXT):
            return ExitCode.OUT_OF_MEMORY
        is_lost = any(part in text for part in _DISTRIBUTED_TEXT)
    if is_lost and any(part in text for part in _HUNG_TEXT):
        return ExitCode.HUNG
    return ExitCode.DISTRIBUTED if is_lost else ExitCode.FAILED


def reason_of(error: BaseException) -> str:
    """Return one line for the run record: the cause and, where known, what to change."""
    text = " ".join(str(error).split())
    if isinstance(error, WorkloadError):
        return text
    cause = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if (full := full_text(error)) is not None:
        cause = f"no space left: {text if full in text else full}"
    advice = ADVICE.get(exit_code_of(error))
    return f"{cause}; {advice}" if advice else cause
