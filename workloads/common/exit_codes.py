"""Exit codes of workload jobs: each kind of failure has its own non-zero number.

Owns the numbers and the mapping from exceptions to them. Does not end the process: job.py does.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit status of a job; 0 only when the result exists."""

    OK = 0
    FAILED = 1
    BAD_CONFIG = 2
    BAD_DATA = 65
    """sysexits EX_DATAERR."""
    OUT_OF_MEMORY = 70
    DISTRIBUTED = 71
    NON_FINITE = 72
    PREEMPTED = 75
    """sysexits EX_TEMPFAIL: running the same job again continues it."""


class WorkloadError(Exception):
    """A failure with a known cause: one line that says what came, what is allowed, what to do."""

    exit_code = ExitCode.FAILED


class ConfigError(WorkloadError):
    """A recipe, an override or the environment is wrong."""

    exit_code = ExitCode.BAD_CONFIG


class DataError(WorkloadError):
    """Rows, a tokenizer, model files or an adapter are missing or unusable."""

    exit_code = ExitCode.BAD_DATA


class NonFiniteLossError(WorkloadError):
    """The loss or the gradient became NaN or infinite."""

    exit_code = ExitCode.NON_FINITE


class PreemptedError(WorkloadError):
    """A signal asked the job to stop and its state is saved."""

    exit_code = ExitCode.PREEMPTED


# Allocation failures of the CPU arrive as a plain RuntimeError
# (c10/core/impl/alloc_cpu.cpp: "DefaultCPUAllocator: can't allocate memory").
_CPU_OOM_TEXT = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory")
# Gloo and NCCL failures that torch raises as a plain RuntimeError.
_DISTRIBUTED_TEXT = ("gloo", "NCCL", "Connection closed by peer", "ProcessGroup", "TCPStore")


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code that tells what kind of failure `error` is."""
    if isinstance(error, WorkloadError):
        return error.exit_code
    if isinstance(error, MemoryError):
        return ExitCode.OUT_OF_MEMORY
    # By name, so that a job which fails before torch is imported does not import it now.
    names = {kind.__name__ for kind in type(error).__mro__}
    if "OutOfMemoryError" in names:
        return ExitCode.OUT_OF_MEMORY
    if names & {"DistBackendError", "DistNetworkError", "DistStoreError", "DistError"}:
        return ExitCode.DISTRIBUTED
    if isinstance(error, RuntimeError):
        text = str(error)
        if any(part in text for part in _CPU_OOM_TEXT):
            return ExitCode.OUT_OF_MEMORY
        if any(part in text for part in _DISTRIBUTED_TEXT):
            return ExitCode.DISTRIBUTED
    return ExitCode.FAILED


def reason_of(error: BaseException) -> str:
    """Return one line for the run record."""
    text = " ".join(str(error).split())
    if isinstance(error, WorkloadError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
