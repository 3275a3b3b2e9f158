"""Traps of a first deployment of Soperator 4.1.7, one test each, in the order of docs/charts.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from infra.render import names
from infra.render.charts import Chart, chart_values, cluster_charts, platform_charts
from stacks.catalog import find_preset
from stacks.check import check
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.cluster import ChecksProfile
from tests import SHIPPED

pytestmark = [
    pytest.mark.usefixtures("public_key_file"),
    pytest.mark.parametrize("stack", SHIPPED),
]
PROFILES = [ChecksProfile.ESSENTIAL, ChecksProfile.QUICK, ChecksProfile.FULL]


def charts(spec: StackSpec) -> dict[str, Chart]:
    inside = cluster_charts(spec, allocation_id="id", ssh_public_keys=["key"])
    return {chart.release: chart for chart in (*platform_charts(spec), *inside)}


def cluster(spec: StackSpec) -> dict[str, Any]:
    return chart_values(spec, "slurm-cluster", {"allocation_id": "id", "ssh_public_keys": ["key"]})


def nodesets(spec: StackSpec) -> list[dict[str, Any]]:
    return chart_values(spec, "nodesets")["nodesets"]


def with_checks(spec: StackSpec, profile: ChecksProfile) -> dict[str, Any]:
    spec = replace(spec, soperator=replace(spec.soperator, checks=profile))
    return chart_values(spec, "soperator-activechecks")


def keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from keys(each)
    elif isinstance(value, list):
        for each in value:
            yield from keys(each)


def has_fabric(spec: StackSpec) -> bool:
    return any(worker.has_fabric for worker in spec.nodes.workers)


def test_trap_1_the_version_is_a_released_one_and_no_umbrella_decides_it(stack: str) -> None:
    found = charts(load_stack(stack))
    assert "soperator-fluxcd" not in found
    assert found["soperator"].version == "4.1.7"


def test_trap_2_workers_are_nodesets_and_none_is_in_the_cluster(stack: str) -> None:
    spec = load_stack(stack)
    assert "worker" not in cluster(spec)["slurmNodes"]
    assert [each["name"] for each in nodesets(spec)] == [each.name for each in spec.nodes.workers]


@pytest.mark.feature("S003-13")
def test_trap_3_partitions_are_structured(stack: str) -> None:
    """Slurm has no node otherwise."""
    assert cluster(load_stack(stack))["partitionConfiguration"]["configType"] == "structured"


def test_trap_4_a_hidden_partition_has_every_node(stack: str) -> None:
    partitions = cluster(load_stack(stack))["partitionConfiguration"]["partitions"]
    (hidden,) = [each for each in partitions if each["name"] == "hidden"]
    assert hidden["isAll"]
    assert "Hidden=YES" in hidden["config"]


@pytest.mark.feature("S000-123", "S002-03", "S002-63", "S003-13", "S004-27")
def test_trap_5_the_node_line_has_cpus_and_gpus(stack: str) -> None:
    spec = load_stack(stack)
    for worker, each in zip(spec.nodes.workers, nodesets(spec), strict=True):
        preset = find_preset(worker.platform, worker.preset)
        assert preset is not None
        line = each["nodeConfig"]["static"]
        assert f"CPUs={preset.vcpus} Boards=1 " in line
        assert line.endswith(f":{preset.gpus}")


def test_trap_6_the_tree_topology_is_off_without_a_fabric(stack: str) -> None:
    spec = load_stack(stack)
    off = cluster(spec)["slurmConfig"].get("topologyPlugin") == ""
    assert off is not has_fabric(spec)


@pytest.mark.parametrize("profile", PROFILES)
def test_trap_7_no_check_waits_for_one_that_does_not_run(
    stack: str, profile: ChecksProfile
) -> None:
    """`wait-for-topology` never ends without a fabric, and who waits for it neither."""
    spec = load_stack(stack)
    checks = with_checks(spec, profile)["checks"]
    runs = {name for name, each in checks.items() if each.get("runAfterCreation")}
    assert ("wait-for-topology" in runs) is has_fabric(spec)
    for name in runs:
        assert set(checks[name]["dependsOn"]) <= runs, name


def test_trap_8_rest_comes_with_accounting_and_only_with_it(stack: str) -> None:
    spec = load_stack(stack)
    bare = replace(
        spec,
        slurm=replace(spec.slurm, accounting=False),
        nodes=replace(spec.nodes, accounting=None),
    )
    for each, wanted in ((spec, True), (bare, False)):
        nodes = cluster(each)["slurmNodes"]
        assert nodes["rest"]["enabled"] is nodes["accounting"]["enabled"] is wanted


def test_trap_9_workers_mount_the_scripts_that_slurm_conf_names(stack: str) -> None:
    """Without them the first prolog drains the node. The name is that of 4.1.7."""
    for each in nodesets(load_stack(stack)):
        mounts = each["slurmd"]["volumes"]["customVolumeMounts"]
        scripts = {
            mount["mountPath"]: mount["volumeSource"]["configMap"]
            for mount in mounts
            if "slurm_scripts" in mount["mountPath"]
        }
        wanted = {"name": "slurm-scripts", "defaultMode": 0o755}
        paths = ("/opt/slurm_scripts/", "/mnt/jail.upper/opt/slurm_scripts/")
        assert scripts == dict.fromkeys(paths, wanted)


@pytest.mark.feature("S000-62")
def test_trap_10_workers_share_the_user_namespace_of_the_host(stack: str) -> None:
    assert all(each["enableHostUserNamespace"] for each in nodesets(load_stack(stack)))


def test_trap_11_the_spool_of_a_worker_is_a_plain_volume(stack: str) -> None:
    for each in nodesets(load_stack(stack)):
        assert each["slurmd"]["volumes"]["spool"] == {"emptyDir": {}}


def test_trap_12_no_nodeset_asks_for_zero_replicas(stack: str) -> None:
    """The chart makes one of it: a set that may be empty is elastic and counts its most."""
    spec = load_stack(stack)
    empty = tuple(replace(worker, min_nodes=0) for worker in spec.nodes.workers)
    spec = replace(spec, nodes=replace(spec.nodes, workers=empty))
    for worker, each in zip(empty, nodesets(spec), strict=True):
        assert each["replicas"] == worker.max_nodes
        assert (each["ephemeralNodes"], each["initialNumberEphemeralNodes"]) == (True, 0)
    assert cluster(spec)["slurmConfig"]["suspendTime"] == 600


def test_trap_13_mount_tags_pass_the_filter_of_the_chart_unchanged(stack: str) -> None:
    spec = load_stack(stack)
    volume = chart_values(spec, "slurm-cluster-storage")["volume"]
    tags = [tag for tag, _ in names.filesystems(spec)]
    given = [volume[key] for key in ("jail", "controllerSpool", "accounting") if key in volume]
    given += volume["jailSubMounts"]
    assert sorted(each["filestoreDeviceName"] for each in given) == sorted(tags)
    assert all(set(tag) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for tag in tags)


def test_trap_14_the_deletion_of_unready_nodes_can_be_switched_off(stack: str) -> None:
    spec = load_stack(stack)
    assert "args" not in chart_values(spec, "soperatorchecks")["checks"]["manager"]
    kept = replace(spec, soperator=replace(spec.soperator, delete_unready_nodes=False))
    arguments = chart_values(kept, "soperatorchecks")["checks"]["manager"]["args"]
    assert "--delete-not-ready-nodes=false" in arguments
    # Helm replaces the list as a whole: without leader election two managers would act.
    assert "--leader-elect" in arguments


def test_trap_15_the_checks_go_before_their_controller(stack: str) -> None:
    assert "soperatorchecks" in charts(load_stack(stack))["soperator-activechecks"].after


def test_trap_16_the_health_check_is_left_to_the_chart(stack: str) -> None:
    """Given a value, the chart writes the key twice."""
    assert "healthCheckConfig" not in set(keys(cluster(load_stack(stack))))


@pytest.mark.parametrize("version", ["12.9.0", "13.0.2"])
def test_trap_17_the_jail_and_its_check_have_one_cuda(stack: str, version: str) -> None:
    spec = load_stack(stack)
    spec = replace(spec, soperator=replace(spec.soperator, cuda_version=version))
    checks = chart_values(spec, "soperator-activechecks")
    assert cluster(spec)["cudaVersion"] == checks["cudaVersion"] == version


def test_trap_18_the_crds_are_no_release_of_their_own(stack: str) -> None:
    """Its record of 1.4 MB is larger than a Secret may be; helm-soperator brings the same CRDs."""
    assert not [name for name in charts(load_stack(stack)) if "soperator-crds" in name]


@pytest.mark.parametrize("profile", PROFILES)
def test_gpu_checks_ask_for_no_more_gpus_than_the_smallest_node_has(
    stack: str, profile: ChecksProfile
) -> None:
    """The chart asks for 8: elsewhere each check would wait four hours."""
    spec = load_stack(stack)
    presets = [find_preset(worker.platform, worker.preset) for worker in spec.nodes.workers]
    least = min(preset.gpus for preset in presets if preset is not None)
    assert with_checks(spec, profile)["slurmJob"] == {"gpusPerNode": str(least)}


@pytest.mark.feature("S000-03")
def test_gpu_checks_run_where_they_know_the_hardware_and_are_asked_for(stack: str) -> None:
    spec = load_stack(stack)
    known = spec.name == "h100-prod"
    for profile, wanted in zip(PROFILES, (False, known, known), strict=True):
        checks = with_checks(spec, profile)["checks"]
        assert bool(checks["mem-perf"].get("runAfterCreation")) is wanted
        assert bool(checks["all-reduce-perf-nccl-with-ib"].get("runAfterCreation")) is wanted
    # What takes hours is asked for by `full` alone, and only there on a schedule.
    assert with_checks(spec, PROFILES[1])["checks"]["gpu-fryer"] == {"enabled": False}
    assert bool(with_checks(spec, PROFILES[1])["checks"]["mem-perf"].get("suspend")) is known


def test_the_ssh_check_knows_how_many_login_nodes_there_are(stack: str) -> None:
    spec = load_stack(stack)
    login = replace(spec.nodes.login, min_nodes=3, max_nodes=3)
    spec = replace(spec, nodes=replace(spec.nodes, login=login))
    checks = chart_values(spec, "soperator-activechecks")["checks"]
    job = checks["ssh-check"]["k8sJobSpec"]["jobContainer"]
    assert job["env"] == [{"name": "NUM_OF_LOGIN_NODES", "value": "3"}]


def test_the_pods_of_a_role_tolerate_the_taint_of_its_nodes(stack: str) -> None:
    filters = {each["name"]: each for each in cluster(load_stack(stack))["k8sNodeFilters"]}
    for role, each in filters.items():
        taint = {"key": names.NODESET_LABEL, "value": role, "effect": "NoSchedule"}
        wanted = [] if role == "system" else [{**taint, "operator": "Equal"}]
        assert each.get("tolerations", []) == wanted


def test_a_paused_cluster_is_downscaled_whatever_mode_is_declared(stack: str) -> None:
    spec = load_stack(stack)
    assert cluster(spec)["maintenance"] == "none"
    paused = replace(spec, nodes=replace(spec.nodes, paused=True))
    assert cluster(paused)["maintenance"] == "downscale"


def test_every_shipped_stack_leaves_the_new_settings_alone(stack: str) -> None:
    found = [problem.rule for problem in check(load_stack(stack))]
    assert not [rule for rule in found if rule.startswith(("soperator.", "teams."))]
