"""What the operator's stand-in makes of maintenance, elastic sets, priorities and jail files."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from infra.local.plugins.kubernetes_wait import readiness_of
from infra.local.reconcile.configuration import slurm_settings
from infra.local.reconcile.jail_files import write_jail_files
from infra.local.reconcile.plan import Plan, make_plan
from infra.local.reconcile.snapshot import Snapshot
from infra.local.reconcile.status import nodeset_status
from infra.local.reconcile.volumes import Places
from infra.local.state import Ports
from tests.unit.kube.samples import CLUSTER, NODESETS, one, rendered


def cluster(**values: Any) -> dict[str, Any]:
    return one(rendered("helm-slurm-cluster", {**CLUSTER, **values}), "SlurmCluster")


def nodeset(**values: Any) -> dict[str, Any]:
    given = copy.deepcopy(NODESETS)
    given["nodesets"][0] |= values
    return one(rendered("helm-nodesets", given), "NodeSet")


def planned(folder: Path, *objects: dict[str, Any]) -> Plan:
    places = Places(filesystems=folder / "filesystems", pods=folder / "pods")
    ports = Ports(17800)
    snapshot = Snapshot.of(objects)
    return make_plan(snapshot, places=places, ports=ports, worker_port=lambda _: 1)


def test_a_downscaled_cluster_has_no_pod_and_misses_none(tmp_path: Path) -> None:
    """A pause must end: a NodeSet that stays pending would hold the program up for ever."""
    stopped = cluster(maintenance="downscale")
    plan = planned(tmp_path, stopped, nodeset())
    assert (plan.cluster, plan.stopped) == (None, True)
    (workers,) = plan.nodesets
    status = nodeset_status(workers, {}, cluster_runs=False, stopped=plan.stopped)
    assert (status["phase"], status["replicas"]) == ("Ready", 0)
    assert readiness_of(stopped) is None


def test_a_running_cluster_is_waited_for_and_its_missing_workers_are_told(tmp_path: Path) -> None:
    running = cluster()
    plan = planned(tmp_path, running, nodeset())
    assert not plan.stopped
    (workers,) = plan.nodesets
    status = nodeset_status(workers, {}, cluster_runs=True, stopped=plan.stopped)
    assert status["phase"] == "Pending"
    assert readiness_of(running) is not None


def test_of_an_elastic_set_the_first_nodes_run(tmp_path: Path) -> None:
    elastic = nodeset(replicas=8, ephemeralNodes=True, initialNumberEphemeralNodes=1)
    (workers,) = planned(tmp_path, cluster(), elastic).nodesets
    assert [worker.name for worker in workers.workers] == ["worker-0"]


def test_weights_of_priorities_reach_slurm() -> None:
    accounting = {**CLUSTER["slurmNodes"]["accounting"]}
    accounting["slurmConfig"] = {"priorityWeightFairshare": 10, "priorityWeightQOS": 20}
    source = cluster(slurmNodes={**CLUSTER["slurmNodes"], "accounting": accounting})
    config = slurm_settings(source, (), Ports(17800), accounting=True).slurm_config
    assert (config["PriorityWeightFairshare"], config["PriorityWeightQOS"]) == (10, 20)
    # The chart's default of 0 is Slurm's own.
    assert "PriorityWeightAge" not in config


def jailed(items: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    place = {"name": "jail-files", "namespace": "soperator"}
    texts = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": place, "data": {"a": "hello\n"}}
    spec = {"configMap": {"name": "jail-files"}, "items": items}
    return texts, {"kind": "JailedConfig", "metadata": place, "spec": spec}


def test_a_jailed_config_puts_its_texts_into_the_jail(tmp_path: Path) -> None:
    objects = jailed([{"key": "a", "path": "/root/greeting", "mode": 0o600}])
    write_jail_files(Snapshot.of(objects), cluster(), tmp_path)
    written = tmp_path / "root" / "greeting"
    assert written.read_text() == "hello\n"
    assert written.stat().st_mode & 0o777 == 0o600


def test_a_jailed_config_writes_nothing_outside_the_jail(tmp_path: Path) -> None:
    jail = tmp_path / "jail"
    jail.mkdir()
    objects = jailed([{"key": "a", "path": "/../outside"}, {"key": "missing", "path": "/x"}])
    write_jail_files(Snapshot.of(objects), cluster(), jail)
    assert [path.name for path in tmp_path.rglob("*")] == ["jail"]
