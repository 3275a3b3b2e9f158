"""Slurm settings out of a SlurmCluster: what its specification says, in Slurm's own names.

Owns the partitions of each `configType`. Decides nothing about pods: plan.py does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from infra.local.reconcile.snapshot import Object, name_of
from infra.local.slurm.settings import NEVER_S, Partition, SlurmSettings, WorkerNode
from infra.local.state import Ports

_SLURM_NAMES: Final = {
    "completeWait": "CompleteWait",
    "defCpuPerGPU": "DefCpuPerGPU",
    "defMemPerNode": "DefMemPerNode",
    "maxJobCount": "MaxJobCount",
    "messageTimeout": "MessageTimeout",
    "minJobAge": "MinJobAge",
}
_PRIORITIES: Final = {
    "priorityWeightAge": "PriorityWeightAge",
    "priorityWeightFairshare": "PriorityWeightFairshare",
    "priorityWeightQOS": "PriorityWeightQOS",
}
_DEFAULT_PARTITIONS: Final = (
    Partition(name="main", config="Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES"),
    Partition(name="hidden", config="Default=NO Hidden=YES MaxTime=INFINITE State=UP"),
)


def slurm_settings(
    cluster: Object, workers: tuple[WorkerNode, ...], ports: Ports, *, accounting: bool
) -> SlurmSettings:
    """Settings of the cluster with these workers; `accounting` says whether it has a database."""
    spec = cluster["spec"]
    config = spec.get("slurmConfig") or {}
    partitions = spec.get("partitionConfiguration") or {}
    kind = partitions.get("configType", "default")
    gather = (spec["slurmNodes"].get("accounting") or {}).get("slurmConfig") or {}
    return SlurmSettings(
        cluster=name_of(cluster),
        slurmctld_port=ports.slurmctld,
        slurmdbd_port=ports.slurmdbd,
        mariadb_port=ports.mariadb,
        workers=workers,
        declares_nodes=kind == "structured",
        partitions=_partitions(kind, partitions),
        raw_partitions=tuple(partitions.get("rawConfig") or ()) if kind == "custom" else (),
        accounting=accounting,
        job_gather=gather.get("jobAcctGatherType", "jobacct_gather/linux"),
        slurm_config={slurm: config[key] for key, slurm in _SLURM_NAMES.items() if key in config}
        | {slurm: gather[key] for key, slurm in _PRIORITIES.items() if gather.get(key)},
        suspend_after_s=config.get("suspendTime", NEVER_S),
        custom=spec.get("customSlurmConfig", ""),
    )


def _partitions(kind: str, configuration: Mapping[str, Any]) -> tuple[Partition, ...]:
    if kind == "default":
        return _DEFAULT_PARTITIONS
    if kind == "custom":
        return ()
    return tuple(
        Partition(
            name=item["name"],
            config=item.get("config", ""),
            nodesets=None if item.get("isAll") else tuple(item.get("nodeSetRefs") or ()),
        )
        for item in configuration.get("partitions") or []
    )
