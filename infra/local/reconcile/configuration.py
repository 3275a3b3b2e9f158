"""Slurm settings out of a SlurmCluster: what its specification says, in Slurm's own names.

Owns the partitions of each `configType`. Decides nothing about pods: plan.py does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from infra.local.reconcile.snapshot import Object, name_of
from infra.local.slurm.settings import HealthCheck, Partition, SlurmSettings, WorkerNode
from infra.local.state import Ports

# The operator writes topology.conf from labels of the nodes, which are none of one machine.
_NOT_HERE: Final = ("TopologyPlugin", "TopologyParam")
_DEFAULT_PARTITIONS: Final = (
    Partition(
        name="main",
        config="Default=YES PriorityTier=10 MaxTime=INFINITE State=UP OverSubscribe=YES",
    ),
    Partition(
        name="hidden",
        config="Default=NO PriorityTier=10 PreemptMode=OFF Hidden=YES MaxTime=INFINITE State=UP "
        "OverSubscribe=YES",
    ),
)


def slurm_settings(
    cluster: Object, workers: tuple[WorkerNode, ...], ports: Ports, *, accounting: bool
) -> SlurmSettings:
    """Settings of the cluster with these workers; `accounting` says whether it has a database."""
    spec = cluster["spec"]
    partitions = spec.get("partitionConfiguration") or {}
    kind = partitions.get("configType", "default")
    gather = (spec["slurmNodes"].get("accounting") or {}).get("slurmConfig") or {}
    return SlurmSettings(
        cluster=name_of(cluster),
        namespace=cluster["metadata"]["namespace"],
        slurmctld_port=ports.slurmctld,
        slurmdbd_port=ports.slurmdbd,
        mariadb_port=ports.mariadb,
        workers=workers,
        declares_nodes=kind == "structured",
        partitions=_partitions(kind, partitions),
        raw_partitions=_raw(partitions) if kind == "custom" else (),
        accounting=accounting,
        accounting_config=_properties(gather),
        slurm_config=_properties(spec.get("slurmConfig") or {}),
        health_check=_health_check(spec.get("healthCheckConfig")),
        custom=spec.get("customSlurmConfig", ""),
    )


def _properties(config: Mapping[str, str | int]) -> dict[str, str | int]:
    """The values under Slurm's names, as the operator writes them: all but empty texts."""
    named = {key[0].upper() + key[1:]: value for key, value in config.items() if value != ""}
    return {key: value for key, value in sorted(named.items()) if key not in _NOT_HERE}


def _health_check(config: Mapping[str, Any] | None) -> HealthCheck | None:
    if config is None:
        return None
    return HealthCheck(
        program=config["healthCheckProgram"],
        interval_s=config["healthCheckInterval"],
        states=tuple(item["state"] for item in config["healthCheckNodeState"]),
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


def _raw(configuration: Mapping[str, Any]) -> tuple[str, ...]:
    """The lines of partitions; the operator leaves any other out."""
    lines = (line.strip() for line in configuration.get("rawConfig") or ())
    return tuple(line for line in lines if line.startswith("PartitionName"))
