"""The process group of a job: ranks from torchrun's environment, gloo on CPU, NCCL on GPUs.

Owns start, barriers with a timeout, small reductions and the end of the group. Does not launch
processes: torchrun does.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass, replace
from datetime import timedelta
from enum import Enum
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar

from workloads.common.exit_codes import ConfigError

if TYPE_CHECKING:
    import torch

DEFAULT_TIMEOUT_S = 600
# No limit of its own: a rank that died is seen at once, and Slurm ends the job at its time limit.
_NO_TIMEOUT = timedelta(days=30)


class PlainUnpickler(pickle._Unpickler):
    """Reads pickles that others may have written: plain values, and what ranks tell each other.

    That is dataclasses and lists of this program and of torch's checkpoints, torch's dtypes, paths
    and exceptions, of modules that are loaded already. Everything else could run a program. In
    Python: C's reader lets a pickle set attributes of the classes that it names, PosixPath's `/`.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def load_build(self) -> None:
        """Give an object the state that comes with it."""
        named = self.stack[-2]  # pyright: ignore
        # Of all in this process; a member of an Enum too.
        if isinstance(named, (type, FunctionType, Enum)):
            name = getattr(named, "__name__", named)
            raise pickle.UnpicklingError(f"changes {name}, which it may only name")
        super().load_build()  # pyright: ignore

    dispatch[pickle.BUILD[0]] = load_build  # pyright: ignore

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle names; UnpicklingError where it is none of these."""
        found = vars(sys.modules.get(module, object)).get(name)
        if not _is_plain(module, name, found):
            raise pickle.UnpicklingError(
                f"holds {module}.{name}, which may run a program: only values, tensors and their "
                "descriptions are read"
            )
        return found


_PLAIN = frozenset(
    {
        *(f"builtins.{name}" for name in ("bytearray", "complex", "frozenset", "set", "slice")),
        *("collections.OrderedDict", "pathlib.PosixPath", "torch.Size"),
        *("torch.serialization._get_layout", "traceback.FrameSummary", "traceback.StackSummary"),
    }
)


def _is_plain(module: str, name: str, found: Any) -> bool:
    if f"{module}.{name}" in _PLAIN or (module == "torch" and type(found).__name__ == "dtype"):
        return found is not None
    if not isinstance(found, type):
        return False
    if issubclass(found, BaseException):
        return True
    is_ours = module.startswith(("workloads.", "torch.distributed.checkpoint.", "__main__"))
    return is_ours and (is_dataclass(found) or issubclass(found, (Enum, list)))


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process's place among all ranks of the job."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    group: Any = None
    """Process group of these ranks; None: torch's default group, of all ranks."""

    @property
    def is_main(self) -> bool:
        """True on the one rank that writes results."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """True when a process group exists."""
        return self.world_size > 1

    def apart(self, timeout_s: float | None = None) -> World:
        """Return the same ranks in a CPU group of their own; every rank calls it.

        Without a timeout they wait as long as it takes: on a GPU, NCCL's watchdog would end them.
        """
        if not self.is_distributed:
            return self
        import torch
        import torch.distributed as dist

        timeout = _NO_TIMEOUT if timeout_s is None else timedelta(seconds=timeout_s)
        group = dist.new_group(backend="gloo", timeout=timeout)
        return replace(self, device=torch.device("cpu"), group=group)

    def synchronize(self) -> None:
        """Wait until this rank's GPU has done what it was given; at once without one."""
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        """Wait for every rank; raises after the group's timeout."""
        self.sum([0.0])

    def sum(self, values: list[float]) -> list[float]:
        """Return the element-wise sum over all ranks, in float64; waits for no GPU."""
        if not self.is_distributed:
            return values
        import torch
        import torch.distributed as dist

        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.group)
        return tensor.tolist()

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's `value` on every rank."""
        if not self.is_distributed:
            return value
        import torch.distributed as dist

        box = [value]
        dist.broadcast_object_list(box, group=self.group, group_src=0, device=self.device)
        return box[0]

    def agree(self, choose: Callable[[], Any]) -> Any:
        """Return rank 0's answer on every rank; its error is raised on all of them."""
        outcome: Any = None
        if self.is_main:
            try:
                outcome = choose()
            except Exception as error:
                outcome = error
        outcome = self.broadcast(outcome)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's `value` in rank order, on every rank."""
        if not self.is_distributed:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values


def environment_rank() -> tuple[int, int, int]:
    """Return (rank, local rank, world size) of torchrun's environment; (0, 0, 1) without it."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    given = [name for name in names if name in os.environ]
    if not given:
        return 0, 0, 1
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise ConfigError(
            f"{', '.join(given)} set but not {', '.join(missing)}: start the job with torchrun"
        )
    rank, local_rank, world_size = (int(os.environ[name]) for name in names)
    return rank, local_rank, world_size


@contextlib.contextmanager
def world(
    *,
    cpu_threads: int | None = None,
    timeout_s: int = DEFAULT_TIMEOUT_S,
    backend: str | None = None,
) -> Iterator[World]:
    """Yield this rank's World; the process group, if any, is destroyed at the end.

    `cpu_threads` bounds torch's threads of this rank, so that ranks that share one machine do not
    take each other's cores. `backend` is `nccl` or `gloo`; None: that of the device.
    """
    import torch

    rank, local_rank, world_size = environment_rank()
    if cpu_threads:
        torch.set_num_threads(cpu_threads)
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        if local_rank >= count:
            raise ConfigError(
                f"LOCAL_RANK {local_rank}: this node shows {count} GPUs to the job; "
                "ask for one GPU per rank (jobs[].gpus_per_node)"
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    here = World(rank=rank, local_rank=local_rank, world_size=world_size, device=device)
    if not here.is_distributed:
        yield here
        return
    import torch.distributed as dist

    with contextlib.suppress(OSError):
        if socket.gethostbyname(os.environ.get("MASTER_ADDR", "")).startswith("127."):
            # All ranks are on this machine; gloo would else ask DNS for the host's own name.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # Collectives of objects, checkpoints' too, carry pickles from whoever is connected.
    dist.distributed_c10d._unpickler = PlainUnpickler  # pyright: ignore
    over_nccl = backend == "nccl" or (backend is None and device.type == "cuda")
    dist.init_process_group(
        # gloo beside NCCL: tensors in host memory are reduced too (shards that are offloaded).
        backend="cpu:gloo,cuda:nccl" if over_nccl else "gloo",
        timeout=timedelta(seconds=timeout_s),
        device_id=device if over_nccl else None,
    )
    try:
        yield here
    finally:
        dist.destroy_process_group()
