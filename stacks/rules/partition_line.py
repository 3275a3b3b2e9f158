"""Rules of what stands in slurm.conf behind a partition's name and nodes."""

from __future__ import annotations

import re
from typing import Final

from stacks.errors import Findings, nearest
from stacks.rules.slurm_conf import PARTITION, value_problem
from stacks.spec.slurm import PartitionSpec

HIDDEN: Final = "hidden"
"""Partition that every Slurm active check of Soperator submits to."""
_IS_HIDDEN: Final = re.compile(r"(?i)\bHidden=YES\b")
_SLURM_DEFAULTS: Final = "default"
# The operator renders `PartitionName=<name> Nodes=<nodesets> <config>`.
_WRITTEN_BY_SOPERATOR: Final = ("partitionname", "nodes")


def check_line(partition: PartitionSpec, path: str, findings: Findings) -> None:
    """What stands in slurm.conf behind the name and the nodes."""
    if partition.name == _SLURM_DEFAULTS:
        findings.error(
            f"{path}.name",
            f"'{partition.name}': slurm.conf takes such a line as defaults of the lines below it, "
            "not as a partition; choose another name",
            rule="partitions.name-default",
        )
    for word in partition.config.split():
        option, separator, value = word.partition("=")
        if not separator or not (option.isascii() and option.isalpha()) or not value:
            findings.error(
                f"{path}.config",
                f"'{word}' is not of the form Option=value, divided by spaces",
                rule="partitions.config-form",
            )
        elif option.lower() in _WRITTEN_BY_SOPERATOR:
            findings.error(
                f"{path}.config",
                f"'{word}': Soperator writes {option} itself; use name and nodesets",
                rule="partitions.config-own",
            )
        elif option.lower() not in PARTITION:
            findings.error(
                f"{path}.config",
                f"'{option}' is no option of a partition, and slurmctld would not start"
                f"{nearest(option, tuple(name for name, _ in PARTITION.values()))}",
                rule="partitions.config-option",
            )
        elif problem := value_problem(PARTITION[option.lower()], value):
            findings.error(
                f"{path}.config",
                f"'{word}': slurmctld would not start, or read something else; {problem}",
                rule="partitions.config-value",
            )
    if partition.name == HIDDEN and not _IS_HIDDEN.search(partition.config):
        findings.warn(
            f"{path}.config",
            "'hidden' is shown to users, who may submit to it; add Hidden=YES",
            rule="partitions.hidden-shown",
        )
