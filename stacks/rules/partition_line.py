"""Rules of what stands in slurm.conf behind a partition's name and nodes."""

from __future__ import annotations

import re
from typing import Final

from stacks.decode import nearest
from stacks.problem import Findings
from stacks.slurm_spec import PartitionSpec
from stacks.slurm_time import slurm_seconds

HIDDEN: Final = "hidden"
"""Partition that every Slurm active check of Soperator submits to."""
_IS_HIDDEN: Final = re.compile(r"(?i)\bHidden=YES\b")
_SLURM_DEFAULTS: Final = "default"
# The operator renders `PartitionName=<name> Nodes=<nodesets> <config>`.
_WRITTEN_BY_SOPERATOR: Final = ("partitionname", "nodes")
_NAMES: Final = """
AllocNodes AllowAccounts AllowGroups AllowQos Alternate CpuBind Default DefaultTime DefCpuPerGPU
DefMemPerCPU DefMemPerGPU DefMemPerNode DenyAccounts DenyQos DisableRootJobs ExclusiveTopo
ExclusiveUser GraceTime Hidden LLN MaxCPUsPerNode MaxCPUsPerSocket MaxMemPerCPU MaxMemPerNode
MaxNodes MaxTime MinNodes OverSubscribe OverTimeLimit PowerDownOnIdle PreemptMode Priority
PriorityJobFactor PriorityTier QOS ReqResv ResumeTimeout RootOnly SelectTypeParameters Shared State
SuspendTime SuspendTimeout Topology TRESBillingWeights
"""
"""https://slurm.schedmd.com/slurm.conf.html, PARTITION CONFIGURATION of 25.11, and the older names
`Priority` and `Shared` that it still reads; read 2026-11-21."""
_OPTIONS: Final = {name.lower(): name for name in _NAMES.split()}
_STATES: Final = ("UP", "DOWN", "DRAIN", "INACTIVE")
_SWITCHES: Final = ("default", "hidden", "rootonly", "disablerootjobs", "exclusiveuser", "lln")
_TIMES: Final = ("maxtime", "defaulttime")


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
        if not separator or not option.isalpha() or not value:
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
        elif option.lower() not in _OPTIONS:
            findings.error(
                f"{path}.config",
                f"'{option}' is no option of a partition, and slurmctld would not start"
                f"{nearest(option, tuple(_OPTIONS.values()))}",
                rule="partitions.config-option",
            )
        elif problem := _value_problem(option.lower(), value):
            findings.error(f"{path}.config", f"'{word}': {problem}", rule="partitions.config-value")
    if partition.name == HIDDEN and not _IS_HIDDEN.search(partition.config):
        findings.warn(
            f"{path}.config",
            "'hidden' is shown to users, who may submit to it; add Hidden=YES",
            rule="partitions.hidden-shown",
        )


def _value_problem(option: str, value: str) -> str | None:
    """What Slurm would refuse of the options whose values are few; None for all others."""
    if option == "state" and value.upper() not in _STATES:
        return f"a state is one of {', '.join(_STATES)}"
    if option in _SWITCHES and value.upper() not in ("YES", "NO"):
        return "give YES or NO"
    is_endless = value.upper() in ("INFINITE", "UNLIMITED", "NONE")
    if option in _TIMES and not is_endless and slurm_seconds(value) is None:
        return "give minutes, HH:MM:SS, D-HH:MM:SS or UNLIMITED"
    return None
