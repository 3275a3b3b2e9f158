"""torchrun that tells the truth: which failures are tried again, and why the job ended.

torchrun exits 1 for every failure and restarts any; here a failure that would come again (a wrong
recipe, no memory, a loss that is not finite) ends the job at once, and the exit status is that of
the rank that failed first, which the run record then says too. SIGUSR1 and SIGTERM reach the ranks
as SIGTERM: they save and exit. SIGTERM that came to one node, which is about to be taken, is passed
on to the ranks of every node within a second, as no rank can save alone.
Usage: python -m workloads.common.launch <torchrun options> -m workloads.train --recipe NAME
"""

from __future__ import annotations

import contextlib
import hmac
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from workloads.common import atomic, hardware, record
from workloads.common.exit_codes import (
    ADVICE,
    RESTARTABLE,
    ConfigError,
    ExitCode,
    exit_code_of,
    reason_of,
)
from workloads.common.log import log
from workloads.common.places import Places
from workloads.common.record import job_id

EVERY_S = 10
"""Seconds between two samples of the GPUs: a day of eight is 3 MB."""
_SCRIPT = Path(__file__).parents[1] / "monitoring" / "check_gpu_util.sh"
_END_S = 10.0


@contextlib.contextmanager
def sampled() -> Iterator[None]:
    """Sample while the block runs; what goes wrong is told once and the job goes on."""
    process = _start()
    try:
        yield
    finally:
        if process is not None:  # and what it waits for: it has a process group of its own
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)


def _start() -> subprocess.Popen[bytes] | None:
    results = os.environ.get("SOPERATOR_PLACE_RESULTS")
    if not results or shutil.which("nvidia-smi") is None:
        return None
    path = Path(results) / job_id() / f"gpu_{socket.gethostname()}.csv"
    try:
        atomic.own_folder(path.parent, below=Path(results))
        with path.open("ab") as sink:  # a requeued job goes on in the file of its first run
            return subprocess.Popen(
                ["bash", str(_SCRIPT), "--raw", str(EVERY_S), "0"],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
    except (OSError, ConfigError) as error:
        why = getattr(error, "strerror", None) or error
        log(f"{path}: GPUs are not sampled: {why}", every_rank=True)
        return None


STARTS, SAVE_S = "SOPERATOR_STARTS", "SOPERATOR_SAVE_S"
RDZV_KEY = "SOPERATOR_RDZV_KEY"
"""Variable with the job's secret, by which its nodes know each other; its script makes one."""
EXIT_FILE, NODES_FILE = "SOPERATOR_EXIT_FILE", "SOPERATOR_NODES_FILE"
MIN_NODES = "SOPERATOR_MIN_NODES"


_KILLERS = {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
"""Signals from outside, or of a fault of its own; a rank that lost its peers may abort."""
_TORCHRUN_KILLS_AFTER_S = 30
"""torch 2.15, elastic/multiprocessing/api.py: PContext.close."""


_PORTS = range(13_000, 17_000)
"""Below those that a kernel gives to whoever connects (Linux, ip-sysctl.rst, 2026-11-23:
ip_local_port_range begins at 32768) and those of Kubernetes' services."""


def free_port() -> int:
    """Return a port of this node that is free now, for a server that listens seconds later.

    Not one that the kernel chooses (bind to 0): meanwhile, while ranks load torch, it would give
    that to a connection or server of any other job of the node. Nobody holds this one either.
    """
    for port in random.sample(_PORTS, len(_PORTS)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    raise ConfigError(f"ports {_PORTS[0]} to {_PORTS[-1]} of this node are all in use: end a job")


_STOPS = (signal.SIGTERM, signal.SIGUSR1)


def _end_before_ranks(number: int, frame: FrameType | None) -> None:
    """End this node with nothing to save; once there are ranks, `_stop` is in its place."""
    del frame
    log(f"{signal.Signals(number).name} before a rank was started: there is nothing to save")
    raise SystemExit(int(ExitCode.PREEMPTED))


def may_restart(status: int) -> bool:
    """Whether ranks that ended with `status` (negative: by that signal) are worth a new start."""
    return status < 0 or status in RESTARTABLE


def cause_of(status: int, ends: Mapping[int, int]) -> int | None:
    """Return the rank of this node that explains why another one lost its peers; None: no rank.

    A rank's connections close before its status can be read: who waits for it may be seen first.
    """
    if status != ExitCode.DISTRIBUTED:
        return None
    said = [rank for rank, end in sorted(ends.items()) if end > 0 and end not in record.EFFECTS]
    killed = [rank for rank, end in sorted(ends.items()) if -end in _KILLERS]
    return next(iter(said + killed), None)


def cause_text(rank: int, status: int) -> str:
    """Return why a job failed whose rank could not say it, and what to do."""
    if status == -signal.SIGKILL:
        return (
            f"rank {rank} was ended by SIGKILL, as the kernel does it for memory: give the job "
            f"more memory, or {ADVICE[ExitCode.OUT_OF_MEMORY]}"
        )
    return f"{_end_of(rank, status)}: its last lines are in the job's log"


def _end_of(rank: int, status: int) -> str:
    end = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
    return f"rank {rank} {end}"


def say_why(arguments: Sequence[str], rank: int, status: int) -> None:
    """Put the cause into the run record, where what a rank wrote there is only its effect."""
    words = [*arguments, "", ""]
    module = words[words.index("-m") + 1] if "-m" in arguments else ""
    recipe = words[words.index("--recipe") + 1] if "--recipe" in arguments else module
    fallback = record.RunRecord(
        kind=module.rpartition(".")[2],
        recipe=recipe,
        outcome="FAIL",
        exit_code=shell_status(status),
        reason=cause_text(rank, status),
        hardware=hardware.detect("cpu"),
    )
    try:
        record.say_why(Places().path("results") / record.job_id(), fallback)
    except (ConfigError, OSError, ValueError, KeyError) as error:
        log(f"the run record does not say why the job failed: {reason_of(error)}")


def shell_status(status: int) -> int:
    """Return a process's status as shells and Slurm write it: a signal is 128 + its number."""
    return status if status >= 0 else 128 - status


def _stop(number: int, frame: FrameType | None) -> None:
    """End the ranks, at the first signal only: a further one would end who waits for their save."""
    del number, frame
    from torch.distributed.elastic.multiprocessing.api import SignalException

    for each in _STOPS:
        signal.signal(each, signal.SIG_IGN)
    raise SignalException("told to stop", sigval=signal.SIGTERM)


def agent_class(backends: Sequence[Any] = ()) -> Any:
    """Return torchrun's agent with our rules about restarts; `backends` hold the nodes' notices."""
    from torch.distributed.elastic.agent.server.api import WorkerState
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError

    class Agent(LocalElasticAgent):
        """Starts the ranks of one node."""

        num_starts = 0
        unsure = ""
        """The end of a rank that was told to stop and did not say that it has saved.

        It may have: a signal can come after the save. One that was just starting had nothing new.
        """
        num_notices = 0
        """Notices of this job that this node gave, or has acted upon."""

        def _start_workers(self, worker_group: Any) -> Any:  # pyright: ignore
            self.num_starts += 1
            os.environ[STARTS] = str(self.num_starts)
            # A record of the start before says nothing of this one.
            os.environ[record.STARTED_S] = str(time.time())
            if self._may_go_on(worker_group):  # what was said before is why the ranks start anew
                while self._is_noticed():
                    self.num_notices += 1
            nodes = os.environ.get(NODES_FILE)
            if nodes and worker_group.group_rank == 0:
                Path(nodes).write_text(f"{worker_group.group_world_size}\n", encoding="utf-8")
            started = super()._start_workers(worker_group)  # pyright: ignore
            for number in _STOPS:  # instead of torchrun's own, which starts anew with each signal
                signal.signal(number, _stop)
            return started

        def _may_go_on(self, worker_group: Any) -> bool:
            """Whether the ranks could go on with one node less than there are now."""
            fewest = os.environ.get(MIN_NODES)
            return bool(fewest) and worker_group.group_world_size > int(fewest)

        def _is_noticed(self) -> bool:
            # The store may have gone with its node: torchrun finds that out by itself.
            with contextlib.suppress(RendezvousConnectionError):
                return any(each.has_notice(self.num_notices) for each in backends)
            return False

        def _pass_on(self, worker_group: Any) -> None:
            """Tell the ranks of this node that another one is about to be taken."""
            if not self._is_noticed():
                return
            self.num_notices += 1
            log("another node of the job is about to stop: the ranks save", every_rank=True)
            if not self._may_go_on(worker_group):
                os.kill(os.getpid(), signal.SIGTERM)
                return
            # They end with PREEMPTED, and start again on the nodes that are left.
            for pid in self._pcontext.pids().values() if self._pcontext else ():
                os.kill(pid, signal.SIGTERM)

        def _monitor_workers(self, worker_group: Any) -> Any:  # pyright: ignore
            self._pass_on(worker_group)
            result = super()._monitor_workers(worker_group)  # pyright: ignore
            if result.state is not WorkerState.FAILED:
                return result
            first = min(result.failures.values(), key=lambda failure: failure.timestamp)
            ends = {
                rank: failure.exitcode
                for rank, failure in result.failures.items()
                # Later: torchrun did it, to a rank that did not stop when it was told to.
                if failure.timestamp - first.timestamp < _TORCHRUN_KILLS_AFTER_S
            }
            cause = cause_of(first.exitcode, ends)
            if cause is not None:
                # Of it alone, as torchrun names the one that was seen first.
                first = result.failures[cause]
                result.failures = {cause: first}
            status = int(first.exitcode)
            is_dynamic = worker_group.spec.rdzv_handler.get_backend() != "static"
            if status == ExitCode.PREEMPTED and is_dynamic:
                # Saved because of a signal to another node, or because nodes come or go. If this
                # node is to stop too, its own signal says so; if not, the ranks go on.
                self._remaining_restarts += 1
            elif not may_restart(status):
                self._remaining_restarts = 0
            if self._remaining_restarts > 0:
                log(f"a rank ended with {status}: all ranks start again from the last checkpoint")
            return result

        def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
            context = self._pcontext
            if isinstance(sys.exception(), SignalException):
                with contextlib.suppress(RendezvousConnectionError):
                    for each in backends:
                        each.give_notice(self.num_notices)
            if context:
                # 30 s are too short to save a large model; the ranks end as soon as they have.
                context.close(death_sig, max(timeout, int(os.environ.get(SAVE_S) or 0)))
            super()._shutdown(death_sig)  # of torch 2.11 to 2.14 it takes no time
            handlers = getattr(context, "subprocess_handlers", {})
            ends = ((rank, handler.proc.returncode) for rank, handler in handlers.items())
            odd = (each for each in ends if each[1] not in (None, 0, int(ExitCode.PREEMPTED)))
            self.unsure = next((_end_of(*each) for each in odd), "")

    return Agent


def backend_class(key: str, made: list[Any] | None = None) -> Any:
    """Return torchrun's place where nodes meet, with a seal that is looked at before it is read.

    Each that is made is appended to `made`. Beside torchrun's state it holds the notices of nodes.
    torchrun unpickles what it finds there, and the store takes it from everybody who can connect.
    """
    from torch.distributed.elastic.rendezvous.api import RendezvousStateError
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

    class Sealed(C10dRendezvousBackend):
        """The state of a rendezvous, with a MAC of the job's key before it."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            if made is not None:
                made.append(self)

        def give_notice(self, number: int) -> None:
            """Say to every node that this one is about to be taken."""
            name = self._notice(number)
            self._call_store("set", name, self._seal(b"", name).hex())

        def has_notice(self, number: int) -> bool:
            """Whether a node has said so `number` times before and now once more."""
            name = self._notice(number)
            if not self._call_store("check", [name]):
                return False
            told = self._call_store("get", name)
            return hmac.compare_digest(told, self._seal(b"", name).hex().encode())

        def _notice(self, number: int) -> str:
            return f"{self._key}.notice.{number}"

        def _seal(self, state: bytes, name: str | None = None) -> bytes:
            # Under the name that it has in the store: a notice is no state, nor another notice.
            return hmac.digest(key.encode(), f"{name or self._key}\0".encode() + state, "sha256")

        def _opened(self, sealed: bytes) -> bytes:
            seal, state = sealed[:32], sealed[32:]
            if not hmac.compare_digest(seal, self._seal(state)):
                raise RendezvousStateError(
                    f"rendezvous {self._key.rpartition('rendezvous.')[2]}: holds what somebody "
                    f"without {RDZV_KEY} wrote, which is not read: export the same on every node; "
                    "where it is, another user or host interferes: run the job again"
                )
            return state

        def get_state(self) -> Any:
            found = super().get_state()
            return found and (self._opened(found[0]), found[1])

        def set_state(self, state: bytes, token: Any = None) -> Any:
            found = super().set_state(self._seal(state) + state, token)
            return found and (self._opened(found[0]), *found[1:])

    return Sealed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run torchrun with `arguments`; return the exit status of the first failed rank, or 0."""
    for number in _STOPS:  # torch takes seconds to be imported
        signal.signal(number, _end_before_ranks)
    with sampled():
        try:
            status = _run(sys.argv[1:] if arguments is None else arguments)
        except SystemExit as ended:
            status = int(ended.code or 0)
    exit_file = os.environ.get(EXIT_FILE)
    if status and exit_file:
        # The first node that fails says why; the others fail because of it.
        with contextlib.suppress(FileExistsError), Path(exit_file).open("x") as file:
            file.write(f"{status}\n")
    return status


def _run(arguments: Sequence[str]) -> int:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import api as rendezvous
    from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend
    from torch.distributed.elastic.rendezvous.api import RendezvousTimeoutError
    from torch.distributed.launcher import api
    from torch.distributed.run import main as torchrun

    made: list[Any] = []
    backends: list[Any] = []
    agent = agent_class(backends)

    def make(*args: Any, **kwargs: Any) -> Any:
        made.append(agent(*args, **kwargs))
        return made[-1]

    # launch_agent names the class; it takes no other by an argument.
    api.LocalElasticAgent = make  # pyright: ignore[reportPrivateImportUsage]
    # Ranks need no key. Without one this node is alone: others have another.
    key = os.environ.pop(RDZV_KEY, "") or secrets.token_hex(32)
    c10d_rendezvous_backend.C10dRendezvousBackend = backend_class(key, backends)
    # Else the ranks' store outlives a rendezvous, and a rank whose node counts its restarts
    # otherwise than the rest finds the addresses of dead ranks in it (torch 2.15: attempt_N).
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    rendezvous.get_free_port = free_port  # pyright: ignore[reportPrivateImportUsage]
    try:
        torchrun(list(arguments))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        log(f"rank {rank} ended with {failure.exitcode}")
        if failure.exitcode not in record.EFFECTS:
            say_why(arguments, rank, failure.exitcode)
        return shell_status(failure.exitcode)
    except SignalException as error:
        log(f"stopped by {signal.Signals(error.sigval).name}")
        if made and made[-1].unsure:
            log(f"{made[-1].unsure} without a word of its save: the newest whole checkpoint counts")
        return int(ExitCode.PREEMPTED)
    except RendezvousTimeoutError as error:
        if made and made[-1].num_starts:
            log(f"too few nodes are left, {reason_of(error)}; the job waits in the queue for more")
            return int(ExitCode.PREEMPTED)
        log(reason_of(error), every_rank=True)
        return int(ExitCode.DISTRIBUTED)
    except Exception as error:  # the nodes never met: torchrun's own store or rendezvous
        log(reason_of(error), every_rank=True)
        return int(exit_code_of(error))
    return int(ExitCode.OK)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread of the store that still runs at exit would make libstdc++ abort
