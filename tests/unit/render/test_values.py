"""Values of the Soperator charts: golden per stack, taken by the charts, and in agreement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from infra.clients.kube_rules import quantity
from infra.local.kube.values import Release
from infra.local.plugins.kubernetes_objects import Rendered, render
from infra.render import names
from infra.render.charts import chart_values, cluster_charts, gres, platform_charts
from infra.render.nodes import labels, roles
from stacks.load import load_stack
from stacks.machines import IN_JAIL
from stacks.spec import StackSpec
from stacks.spec.slurm import SshServiceType
from stacks.spec.storage import MemoryMountSpec, SubmountSpec
from tests import SHIPPED
from tests.unit.local.operator_mounts import IN_POD
from tests.unit.render.conftest import as_json

pytestmark = pytest.mark.usefixtures("public_key_file")

KEYS = ["ssh-ed25519 AAAA user", "ssh-ed25519 BBBB deploy"]


def values(spec: StackSpec) -> dict[str, dict[str, Any]]:
    """Chart -> what the program gives it."""
    cluster = chart_values(
        spec, "slurm-cluster", {"allocation_id": "vpcallocation-1", "ssh_public_keys": KEYS}
    )
    return {
        "helm-slurm-cluster-storage": chart_values(spec, "slurm-cluster-storage"),
        "helm-slurm-cluster": cluster,
        "helm-nodesets": chart_values(spec, "nodesets"),
    }


def rendered(spec: StackSpec, chart: str) -> Rendered:
    release = Release(
        name=chart.removeprefix("helm-"),
        namespace=spec.cluster.namespace,
        chart=chart,
        version=spec.cluster.soperator_version,
    )
    return render(release, values(spec)[chart])


def found(value: object, key: str) -> Iterator[Any]:
    """Every value of `key`, at any depth."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name == key:
                yield each
            yield from found(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from found(each, key)


@pytest.mark.feature(
    "S000-58",
    "S000-70",
    "S000-74",
    "S000-76",
    "S000-78",
    "S000-79",
    "S000-80",
    "S000-123",
    "S002-03",
    "S002-09",
    "S002-10",
    "S002-14",
    "S002-16",
    "S002-34",
    "S003-13",
    "S003-44",
    "S003-47",
    "S003-63",
    "S003-64",
)  # fmt: skip
@pytest.mark.parametrize("stack", SHIPPED)
def test_the_values_of_every_shipped_stack_are_the_golden_ones(
    stack: str, golden: Callable[[str, str], None]
) -> None:
    spec = load_stack(stack)
    inside = cluster_charts(spec, allocation_id="vpcallocation-1", ssh_public_keys=KEYS)
    for chart in (*platform_charts(spec), *inside):
        golden(f"helm_values/{stack}/{chart.release}.json", as_json(chart.values))


@pytest.mark.parametrize("stack", SHIPPED)
@pytest.mark.parametrize(
    "chart", ["helm-slurm-cluster-storage", "helm-slurm-cluster", "helm-nodesets"]
)
def test_the_chart_takes_every_value_and_makes_objects_of_them(stack: str, chart: str) -> None:
    """The renderers refuse a name that the chart does not know; the real chart ignores it."""
    result = rendered(load_stack(stack), chart)
    assert not result.recorded_only
    assert result.objects


@pytest.mark.parametrize("stack", SHIPPED)
class TestAgreement:
    """What one chart, the node groups or the cloud call a thing, the others call the same."""

    def test_every_filesystem_is_a_volume_under_its_mount_tag(self, stack: str) -> None:
        spec = load_stack(stack)
        tags = [tag for tag, _ in names.filesystems(spec)]
        assert sorted(
            found(chart_values(spec, "slurm-cluster-storage"), "filestoreDeviceName")
        ) == sorted(tags)

    def test_every_claim_in_use_is_made_by_the_storage_chart(self, stack: str) -> None:
        spec = load_stack(stack)
        made = {
            each["metadata"]["name"]
            for each in rendered(spec, "helm-slurm-cluster-storage").objects
            if each["kind"] == "PersistentVolumeClaim"
        }
        cluster, nodesets = (values(spec)[n] for n in ("helm-slurm-cluster", "helm-nodesets"))
        used = {*found(cluster, "claimName"), *found(nodesets, "claimName")}
        assert used
        assert used <= made

    def test_the_databases_claim_binds_to_the_accounting_volume(self, stack: str) -> None:
        """By Kubernetes' rule for a volume that no claim names: class, modes and size."""
        spec = load_stack(stack)
        (claim,) = found(values(spec)["helm-slurm-cluster"], "volumeClaimTemplate")
        free = [
            each["metadata"]["name"]
            for each in rendered(spec, "helm-slurm-cluster-storage").objects
            if each["kind"] == "PersistentVolume"
            and "claimRef" not in each["spec"]
            and each["spec"]["storageClassName"] == claim["storageClassName"]
            and set(claim["accessModes"]) <= set(each["spec"]["accessModes"])
            and quantity(claim["resources"]["requests"]["storage"])
            <= quantity(each["spec"]["capacity"]["storage"])
        ]
        assert free == ["accounting-pv"]

    def test_no_mount_is_at_the_path_of_another_in_its_pod(self, stack: str) -> None:
        """As the API server demands; the operator takes it, and no pod is made."""
        spec = load_stack(stack)
        cluster, nodesets = (values(spec)[n] for n in ("helm-slurm-cluster", "helm-nodesets"))
        for pod in [*nodesets["nodesets"], cluster["slurmNodes"]["login"]]:
            volumes = pod["slurmd"]["volumes"] if "slurmd" in pod else pod["volumes"]
            custom = volumes.get("customVolumeMounts", [])
            paths = [
                *IN_POD,
                *(f"/mnt/jail.upper{each['mountPath']}" for each in volumes["jailSubMounts"]),
                *(each["mountPath"].rstrip("/") for each in custom),
            ]
            assert len(paths) > len(IN_POD)
            assert [path for path in paths if paths.count(path) > 1] == []

    def test_every_named_volume_source_is_declared(self, stack: str) -> None:
        cluster = values(load_stack(stack))["helm-slurm-cluster"]
        declared = {source["name"] for source in cluster["volumeSources"]}
        assert names.JAIL in declared
        assert set(found(cluster, "volumeSourceName")) <= declared

    def test_every_named_node_filter_is_declared(self, stack: str) -> None:
        cluster = values(load_stack(stack))["helm-slurm-cluster"]
        declared = {each["name"] for each in cluster["k8sNodeFilters"]}
        assert set(found(cluster, "k8sNodeFilterName")) <= declared

    def test_every_node_selector_matches_a_node_group(self, stack: str) -> None:
        """A label that no node has leaves the pods pending without a word."""
        spec = load_stack(stack)
        groups = [labels(role).items() for role in roles(spec)]
        given = values(spec)
        selectors = list(
            found([given["helm-slurm-cluster"], given["helm-nodesets"]], "nodeSelector")
        )
        for placement in found(given, "matchExpressions"):
            selectors += [{each["key"]: one} for each in placement for one in each["values"]]
        assert selectors
        for selector in selectors:
            assert any(selector.items() <= group for group in groups), selector

    @pytest.mark.feature("S000-08")
    def test_login_and_workers_mount_the_same_submounts(self, stack: str) -> None:
        spec = load_stack(stack)
        cluster, nodesets = (values(spec)[n] for n in ("helm-slurm-cluster", "helm-nodesets"))
        (on_login,) = found(cluster, "jailSubMounts")
        shared = {each["mountPath"] for each in on_login}
        assert shared == {each.mount_path for each in spec.storage.submounts}
        workers = zip(spec.nodes.workers, found(nodesets, "jailSubMounts"), strict=True)
        for worker, on_worker in workers:
            memory = spec.storage.memory
            own = {disk.mount_path for disk in worker.local_disks}
            own |= set() if memory is None else {memory.mount_path}
            assert {each["mountPath"] for each in on_worker} == shared | own

    def test_every_nodeset_says_whose_cluster_it_is(self, stack: str) -> None:
        given = values(load_stack(stack))
        for nodeset in given["helm-nodesets"]["nodesets"]:
            owner = nodeset["annotations"][names.CLUSTER_REF]
            assert owner == given["helm-slurm-cluster"]["clusterName"]


def nodeset(spec: StackSpec) -> dict[str, Any]:
    (only,) = chart_values(spec, "nodesets")["nodesets"]
    return only


def slurm(spec: StackSpec) -> dict[str, Any]:
    return values(spec)["helm-slurm-cluster"]


def with_worker(spec: StackSpec, **changes: Any) -> StackSpec:
    (worker,) = spec.nodes.workers
    return replace(spec, nodes=replace(spec.nodes, workers=(replace(worker, **changes),)))


def test_a_worker_declares_its_gres_in_the_node_line(spec: StackSpec) -> None:
    """Structured mode derives none: a job with --gpus would wait for ever."""
    assert nodeset(spec)["nodeConfig"]["static"].endswith(" Gres=gpu:nvidia_l40s:2")


def test_a_worker_without_gpus_asks_for_none(spec: StackSpec) -> None:
    plain = nodeset(with_worker(spec, platform="cpu-d3", preset="8vcpu-32gb"))
    assert "Gres" not in plain["nodeConfig"]["static"]
    assert "gpu" not in plain["slurmd"]["resources"]
    assert not {"gpu", "tolerations"} & set(plain)


@pytest.mark.feature("S004-27")
def test_gres_counts_the_gpus_of_the_preset(spec: StackSpec) -> None:
    (worker,) = spec.nodes.workers
    assert gres(worker) == "gpu:nvidia_l40s:2"
    assert gres(replace(worker, preset="1gpu-16vcpu-96gb")) == "gpu:nvidia_l40s:1"
    assert gres(replace(worker, platform="cpu-d3", preset="8vcpu-32gb")) is None
    (given,) = chart_values(spec, "nodesets")["nodesets"]
    assert given["gpu"]["enabled"] is True, "slurmd's pod sees them"
    assert given["slurmd"]["resources"]["gpu"] == 2


@pytest.mark.parametrize("stack", SHIPPED)
def test_slurmd_leaves_a_part_of_its_node_to_the_system(stack: str) -> None:
    """A request of the whole node is never scheduled."""
    spec = load_stack(stack)
    nodesets = chart_values(spec, "nodesets")["nodesets"]
    for worker, given in zip(spec.nodes.workers, nodesets, strict=True):
        vcpus, memory_gib = (int(part.rstrip("vcpugb")) for part in worker.preset.split("-")[-2:])
        resources = given["slurmd"]["resources"]
        assert 0 < int(resources["cpu"].removesuffix("m")) <= (vcpus - 2) * 1000
        assert 0 < int(resources["memory"].removesuffix("Gi")) < memory_gib * 0.9


def test_an_unknown_preset_is_refused_with_where_presets_are_listed(spec: StackSpec) -> None:
    with pytest.raises(ValueError, match=r"gpu-l40s-d has no preset 9gpu; see stacks/catalog.py"):
        chart_values(with_worker(spec, preset="9gpu"), "nodesets")


def test_the_tree_topology_is_off_only_where_no_nodeset_has_a_fabric(spec: StackSpec) -> None:
    """With it, workers off InfiniBand wait for labels that they never get."""
    assert slurm(spec)["slurmConfig"] == {"topologyPlugin": "", "topologyParam": ""}
    assert slurm(with_worker(spec, infiniband_fabric="fabric-6"))["slurmConfig"] == {}


def test_a_node_port_is_the_declared_one_and_needs_no_allocation(spec: StackSpec) -> None:
    login = slurm(spec)["slurmNodes"]["login"]
    assert (login["sshdServiceType"], login["sshdServiceNodePort"]) == ("NodePort", 30022)
    assert "vpcallocation-1" not in str(login)


def test_a_load_balancer_gets_the_allocated_address(spec: StackSpec) -> None:
    door = replace(spec.login, service=SshServiceType.LOAD_BALANCER, ssh_port=22)
    login = slurm(replace(spec, login=door))["slurmNodes"]["login"]
    assert login["sshdServiceAnnotations"] == {
        "nebius.com/load-balancer-allocation-id": "vpcallocation-1"
    }
    assert "sshdServiceNodePort" not in login


def test_the_login_node_lets_in_exactly_the_given_keys_and_proves_itself(spec: StackSpec) -> None:
    cluster = slurm(spec)
    assert cluster["slurmNodes"]["login"]["sshRootPublicKeys"] == KEYS
    assert cluster["secrets"] == {"sshdKeysName": names.LOGIN_HOST_KEYS}


def test_without_accounting_what_needs_it_is_off_too(bare: StackSpec) -> None:
    nodes = slurm(bare)["slurmNodes"]
    assert [nodes[name]["enabled"] for name in ("accounting", "rest", "exporter")] == [False] * 3
    assert "accounting" not in chart_values(bare, "slurm-cluster-storage")["volume"]
    for chart in values(bare):
        assert rendered(bare, chart).objects


def test_what_the_operator_mounts_into_the_jail_is_in_the_list_of_the_rules() -> None:
    upper = "/mnt/jail.upper"
    inside = {path.removeprefix(upper) for path in IN_POD if path.startswith(f"{upper}/")}
    assert "/mnt/memory" in inside
    assert inside <= {mount.path for mount in IN_JAIL}


@pytest.mark.feature("S000-124", "S004-27")
def test_a_partition_without_nodesets_has_all_nodes(spec: StackSpec) -> None:
    main, hidden = spec.slurm.partitions
    named = replace(main, nodesets=("worker",))
    changed = replace(spec, slurm=replace(spec.slurm, partitions=(named, hidden)))
    parts = slurm(changed)["partitionConfiguration"]["partitions"]
    assert (parts[0]["nodeSetRefs"], "isAll" in parts[0]) == (["worker"], False)
    assert (parts[1]["isAll"], "nodeSetRefs" in parts[1]) == (True, False)


def test_a_filesystem_that_grows_leaves_every_release_as_it_is(spec: StackSpec) -> None:
    """A claim cannot grow where Kubernetes did not provision its volume: the `up` ended there."""
    storage, accounting = spec.storage, spec.storage.accounting
    assert accounting is not None
    grown = replace(
        spec,
        storage=replace(
            storage,
            jail=replace(storage.jail, size_gib=4096),
            controller_spool=replace(storage.controller_spool, size_gib=4096),
            accounting=replace(accounting, size_gib=4096),
            submounts=tuple(replace(each, size_gib=4096) for each in storage.submounts),
        ),
    )
    assert values(grown) == values(spec)


def test_an_existing_filesystem_is_claimed_without_knowing_its_size(spec: StackSpec) -> None:
    old = SubmountSpec(name="old", mount_path="/mnt/old", existing_id="computefilesystem-1")
    changed = replace(spec, storage=replace(spec.storage, submounts=(old,)))
    (volume,) = chart_values(changed, "slurm-cluster-storage")["volume"]["jailSubMounts"]
    assert volume == {"name": "old", "size": "1Gi", "filestoreDeviceName": "jail-submount-old"}


@pytest.mark.feature("S000-77")
def test_shared_memory_and_the_tmpfs_have_their_declared_sizes(spec: StackSpec) -> None:
    memory = MemoryMountSpec(mount_path="/mnt/ram", size_gib=2)
    spec = replace(spec, storage=replace(spec.storage, memory=memory))
    volumes = nodeset(with_worker(spec, shared_memory_gib=48))["slurmd"]["volumes"]
    assert volumes["sharedMemorySize"] == "48Gi"
    (tmpfs,) = [each for each in volumes["jailSubMounts"] if each["name"] == "memory"]
    assert tmpfs["volumeSource"] == {"emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}
