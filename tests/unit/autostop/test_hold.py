"""Partitions that take no jobs while their nodes go, and take them again where they stay."""

from __future__ import annotations

from infra.clients.ssh import Result
from infra.operate.idle import open_partitions, set_partitions

PARTITIONS = (
    "PartitionName=main AllowGroups=ALL Default=YES State=UP TotalCPUs=16\n"
    "PartitionName=night AllowGroups=ALL Default=NO State=DOWN TotalCPUs=16\n"
    "PartitionName=debug AllowGroups=ALL Default=NO State=UP TotalCPUs=16\n"
)


class Slurm:
    """Two partitions that are up and one that is not."""

    def __init__(self) -> None:
        self.changes = list[str]()

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        if "update" in command:
            self.changes.append(command.removeprefix("scontrol update PartitionName="))
        return Result(command=command, exit_code=0, stdout=PARTITIONS, stderr="")


def test_only_what_was_up_is_held_and_let_go() -> None:
    slurm = Slurm()
    partitions = open_partitions(slurm)
    set_partitions(slurm, partitions, "DRAIN")
    set_partitions(slurm, partitions, "UP")
    assert slurm.changes == [
        "main State=DRAIN",
        "debug State=DRAIN",
        "main State=UP",
        "debug State=UP",
    ]
