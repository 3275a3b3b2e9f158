"""torchrun that tells the truth: the exit status is the one of the rank that failed first.

torchrun itself exits 1 for every failure, which hides the codes of exit_codes.py from Slurm.
SIGUSR1 (Slurm's `--signal`) and SIGTERM reach the ranks as SIGTERM, which makes them save and exit.
Usage: python -m workloads.common.launch <torchrun options> -m workloads.train --recipe NAME
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from workloads.common.exit_codes import ExitCode, exit_code_of, reason_of
from workloads.common.log import log


def _as_sigterm(number: int, frame: FrameType | None) -> None:
    del number, frame
    os.kill(os.getpid(), signal.SIGTERM)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run torchrun with `arguments`; return the exit status of the first failed rank, or 0."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    signal.signal(signal.SIGUSR1, _as_sigterm)
    try:
        torchrun(list(arguments) if arguments is not None else None)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        log(f"rank {rank} ended with {failure.exitcode}")
        # A negative code is a signal's number; shells and Slurm write it as 128 + number.
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    except SignalException as error:
        log(f"stopped by {signal.Signals(error.sigval).name}")
        return int(ExitCode.PREEMPTED)
    except Exception as error:  # the nodes never met: torchrun's own store or rendezvous
        log(reason_of(error), every_rank=True)
        return int(exit_code_of(error))
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
