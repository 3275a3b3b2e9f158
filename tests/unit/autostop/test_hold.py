"""Partitions that take no jobs while their nodes go, and take them again where they stay."""

from __future__ import annotations

import pytest

from infra.clients.errors import JobsError
from infra.clients.ssh import Result
from infra.operate.idle import hold, release

PARTITIONS = (
    "PartitionName=main AllowGroups=ALL Default=YES State=UP TotalCPUs=16\n"
    "PartitionName=night AllowGroups=ALL Default=NO State=DOWN TotalCPUs=16\n"
    "PartitionName=debug AllowGroups=ALL Default=NO State=UP TotalCPUs=16\n"
)


class Slurm:
    """Two partitions that are up and one that is not; refuses changes that name `broken`."""

    def __init__(self, broken: str = "-") -> None:
        self.broken, self.changes = broken, list[str]()

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        if "update" not in command:
            return Result(command=command, exit_code=0, stdout=PARTITIONS, stderr="")
        self.changes.append(command.removeprefix("scontrol update PartitionName="))
        failed = int(self.broken in command)
        return Result(command=command, exit_code=failed, stdout="", stderr="Access denied\n")


def test_only_what_was_up_is_held_and_let_go() -> None:
    slurm = Slurm()
    release(slurm, hold(slurm))
    assert slurm.changes == [
        "main State=DRAIN",
        "debug State=DRAIN",
        "main State=UP",
        "debug State=UP",
    ]


def test_where_one_cannot_be_held_none_is() -> None:
    slurm = Slurm(broken="debug State=DRAIN")
    with pytest.raises(JobsError, match="PartitionName=debug: exit 1: Access denied"):
        hold(slurm)
    assert slurm.changes[2:] == ["main State=UP", "debug State=UP"]
