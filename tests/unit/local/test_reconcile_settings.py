"""What the operator's stand-in makes of maintenance, elastic sets, priorities and jail files."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from infra.local.reconcile.__main__ import node_objects
from infra.local.reconcile.planner import make_plan
from infra.local.reconcile.pods import Plan, abandoned, nodeset_status, power_states
from infra.local.reconcile.snapshot import Places, Snapshot, slurm_settings, write_jail_files
from infra.local.slurm.daemons import render_slurm_conf
from infra.local.slurm.pod import Request
from infra.state import Ports
from tests.local.slurm_stand import node_group
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
    """What nobody wants is missed by nobody."""
    stopped = cluster(maintenance="downscale")
    plan = planned(tmp_path, stopped, nodeset())
    assert (plan.cluster, plan.stopped) == (None, True)
    (workers,) = plan.nodesets
    status = nodeset_status(workers, {}, cluster_runs=False, stopped=plan.stopped)
    assert (status["phase"], status["replicas"]) == ("Ready", 0)


def test_a_running_cluster_is_waited_for_and_its_missing_workers_are_told(tmp_path: Path) -> None:
    running = cluster()
    plan = planned(tmp_path, running, nodeset())
    assert not plan.stopped
    (workers,) = plan.nodesets
    status = nodeset_status(workers, {}, cluster_runs=True, stopped=plan.stopped)
    assert status["phase"] == "Pending"


def power_state(*ordinals: int) -> dict[str, Any]:
    spec = {"nodeSetRef": "worker", "activeNodes": list(ordinals)}
    metadata = {"name": "worker", "namespace": "soperator"}
    return {"kind": "NodeSetPowerState", "metadata": metadata, "spec": spec}


def asked(verb: str, *nodes: str) -> Request:
    return Request(path=Path(verb), powers_up=verb == "resume", nodes=nodes)


ELASTIC = nodeset(replicas=8, ephemeralNodes=True, initialNumberEphemeralNodes=1)


def test_of_an_elastic_set_slurm_knows_all_nodes_and_the_first_ones_run(tmp_path: Path) -> None:
    (workers,) = planned(tmp_path, cluster(), ELASTIC).nodesets
    assert [worker.name for worker in workers.workers] == [f"worker-{n}" for n in range(8)]
    assert all(worker.is_elastic for worker in workers.workers)
    assert [pod.name for pod in workers.pods] == ["worker-0"]


def test_the_pods_of_a_power_state_run_and_no_others(tmp_path: Path) -> None:
    (workers,) = planned(tmp_path, cluster(), ELASTIC, power_state(2, 5, 11)).nodesets
    # The set has no twelfth node, whatever the power state says.
    assert [pod.name for pod in workers.pods] == ["worker-2", "worker-5"]


def test_requests_of_slurm_add_and_take_nodes_in_their_order() -> None:
    snapshot = Snapshot.of([ELASTIC, power_state(0)])
    calls = [
        asked("resume", "worker-3", "other-4"),
        asked("suspend", "worker-0", "worker-3"),
        asked("resume", "worker-3"),
    ]
    (state,) = power_states(snapshot, calls)
    assert state["spec"] == {"nodeSetRef": "worker", "activeNodes": [3]}
    assert power_states(snapshot, [asked("resume", "worker-0")]) == []


def test_a_set_gets_its_power_state_once_and_loses_it_with_elasticity() -> None:
    (state,) = power_states(Snapshot.of([ELASTIC]), [])
    assert state["spec"]["activeNodes"] == [0]
    assert power_states(Snapshot.of([nodeset()]), []) == []
    assert abandoned(Snapshot.of([nodeset(), power_state(0)])) == [power_state(0)]
    assert abandoned(Snapshot.of([ELASTIC, power_state(0)])) == []


def test_a_group_grows_for_the_nodes_that_are_powered_up_and_no_further() -> None:
    labels = {"slurm.nebius.ai/nodeset-name": "worker"}
    hardware = {"resources": {"platform": "cpu-d3", "preset": "8vcpu-32gb"}}
    group = node_group("g", labels, most=3, **hardware)
    for active, num_nodes in (((), 1), ((0, 4), 2), ((0, 1, 2, 3), 3)):
        assert len(node_objects([group], [power_state(*active)])) == num_nodes
    fixed = node_group("g", labels, **hardware)
    assert len(node_objects([fixed], [power_state(0, 1)])) == 1


def test_slurm_counts_gpus_where_a_set_says_that_it_has_some(tmp_path: Path) -> None:
    """A Gres alone is none: the operator asks each NodeSet for `gpu.enabled`."""
    source, cpu = cluster(), nodeset(name="cpu")
    del cpu["spec"]["gpu"]
    for sets, counts in (([cpu], False), ([cpu, nodeset()], True)):
        plan = planned(tmp_path, source, *sets)
        assert plan.cluster is not None
        assert ("GresTypes=gpu\n" in render_slurm_conf(plan.cluster.settings)) is counts


def test_slurm_powers_elastic_nodes_alone(tmp_path: Path) -> None:
    fixed = nodeset(name="fixed", replicas=1)
    source = cluster()
    source["spec"]["slurmConfig"] = {"suspendTime": 300}
    plan = planned(tmp_path, source, ELASTIC, fixed)
    assert plan.cluster is not None
    text = render_slurm_conf(plan.cluster.settings)
    assert "SuspendTime=300\n" in text
    assert "SuspendExcNodes=fixed-0\n" in text
    assert "ResumeProgram=/run/soperator/power/resume\n" in text
    assert "SlurmctldParameters=cloud_dns,idle_on_node_suspend" in text
    alone = planned(tmp_path, source, fixed)
    assert alone.cluster is not None
    text = render_slurm_conf(alone.cluster.settings)
    assert "SuspendExcNodes=fixed-0\n" in text
    assert "cloud_dns" not in text


def test_weights_of_priorities_reach_slurm() -> None:
    accounting = {**CLUSTER["slurmNodes"]["accounting"]}
    accounting["slurmConfig"] = {"priorityWeightFairshare": 10, "priorityWeightQOS": 20}
    source = cluster(slurmNodes={**CLUSTER["slurmNodes"], "accounting": accounting})
    config = slurm_settings(source, (), Ports(17800), accounting=True).accounting_config
    assert config["PriorityWeightFairshare"] == 10
    assert config["PriorityWeightQOS"] == 20


def test_values_reach_slurm_under_its_own_names_and_empty_texts_do_not() -> None:
    source = cluster()
    source["spec"]["slurmConfig"] = {"defMemPerNode": 0, "prolog": "/p.sh", "taskPluginParam": ""}
    config = slurm_settings(source, (), Ports(17800), accounting=False).slurm_config
    assert config == {"DefMemPerNode": 0, "Prolog": "/p.sh"}


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
