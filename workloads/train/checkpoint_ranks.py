"""What the ranks of a run say to each other about its checkpoints, over a gloo group of their own.

Its own group, as files are written in a thread while the loop uses the others.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from workloads.common.dist import World


class Ranks:
    """The ranks of one run; every rank calls every method at the same point."""

    def __init__(self, world: World, *, timeout_s: float, group: Any = None) -> None:
        """`group`: a gloo group of the world's ranks that nobody else uses; None makes one."""
        self.world = world
        if group is None and world.is_distributed:
            group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self.group = group
        """None for one rank without a process group."""

    @property
    def for_dcp(self) -> dict[str, Any]:
        """Arguments by which torch DCP works over these ranks."""
        return {"process_group": self.group, "no_dist": self.group is None}

    def any(self, flag: bool) -> bool:
        """Whether any rank says so."""
        return any(self.gather(flag))

    def gather(self, value: Any) -> list[Any]:
        """What each rank says, by rank."""
        if self.group is None:
            return [value]
        values: list[Any] = [None] * self.world.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def agree(self, choose: Callable[[], Any]) -> Any:
        """Return rank 0's answer on all ranks; its error is raised on all of them."""
        outcome: Any = None
        if self.world.is_main:
            try:
                outcome = choose()
            except Exception as error:
                outcome = error
        if self.group is not None:
            box = [outcome]
            dist.broadcast_object_list(
                box, group_src=0, group=self.group, device=torch.device("cpu")
            )
            outcome = box[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome
