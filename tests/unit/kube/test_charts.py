"""The renderers make what the charts of Soperator 4.1.7 make, and refuse what those break on."""

from __future__ import annotations

import copy

import pytest

from infra.local.kube.values import ChartError, Release, merge
from infra.local.plugins.kubernetes_objects import render
from tests.unit.kube.samples import CLUSTER, NODESETS, STORAGE, one, rendered


def changed(values, path, value):
    """A copy of the values with one of them replaced."""
    made = copy.deepcopy(values)
    *steps, last = path
    at = made
    for step in steps:
        at = at[step]
    at[last] = value
    return made


def test_each_volume_is_a_claimed_local_volume_that_a_daemonset_mounts_by_its_tag():
    objects = rendered("helm-slurm-cluster-storage")
    volume = one(objects, "PersistentVolume", "jail-submount-data-pv")
    assert volume["spec"]["local"] == {"path": "/mnt/jail-submount-data"}
    assert volume["spec"]["claimRef"]["name"] == "jail-submount-data-pvc"
    assert volume["metadata"]["annotations"] == {"local.soperator/mount-tag": "data"}
    mount = one(objects, "DaemonSet", "jail-submount-data-mount")
    command = mount["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    assert "mount -t virtiofs -o rw,relatime data /host/mnt/jail-submount-data" in command


def test_accounting_has_a_volume_and_no_claim_and_only_when_enabled():
    with_it = rendered("helm-slurm-cluster-storage")
    assert "claimRef" not in one(with_it, "PersistentVolume", "accounting-pv")["spec"]
    off = changed(STORAGE, ("volume", "accounting", "enabled"), False)
    names = [o["metadata"]["name"] for o in rendered("helm-slurm-cluster-storage", off)]
    assert not [name for name in names if name.startswith("accounting")]


@pytest.mark.parametrize("tag", ["jail_Data0", "Data", "data-"])
def test_a_mount_tag_that_the_chart_would_rewrite_is_refused(tag):
    values = changed(STORAGE, ("volume", "jail", "filestoreDeviceName"), tag)
    with pytest.raises(ChartError, match=r"volume.jail.filestoreDeviceName: .* would be rewritten"):
        rendered("helm-slurm-cluster-storage", values)


def test_a_volume_that_no_node_would_mount_is_refused():
    values = changed(STORAGE, ("storage", "jail", "matchExpressions"), [])
    with pytest.raises(ChartError, match=r"storage.jail.matchExpressions: \[\] matches no node"):
        rendered("helm-slurm-cluster-storage", values)


def test_gpus_and_storage_take_their_kubernetes_names():
    nodeset = one(rendered("helm-nodesets"), "NodeSet", "worker")
    assert nodeset["spec"]["slurmd"]["resources"] == {
        "cpu": "60",
        "memory": "300Gi",
        "ephemeral-storage": "55Gi",
        "nvidia.com/gpu": "2",
    }


def test_a_gpu_nodeset_without_a_number_of_gpus_is_refused():
    values = copy.deepcopy(NODESETS)
    del values["nodesets"][0]["slurmd"]["resources"]["gpu"]
    with pytest.raises(ChartError, match=r"nodesets\[0\].slurmd.resources.gpu: is required"):
        rendered("helm-nodesets", values)


def test_no_replicas_become_one_as_in_the_real_chart():
    values = changed(NODESETS, ("nodesets", 0, "replicas"), 0)
    assert one(rendered("helm-nodesets", values), "NodeSet")["spec"]["replicas"] == 1


def test_two_nodesets_of_one_name_are_refused():
    values = {"nodesets": NODESETS["nodesets"] * 2}
    with pytest.raises(ChartError, match="'worker' is declared twice"):
        rendered("helm-nodesets", values)


def test_the_door_has_the_fields_of_its_service_type_only():
    login = one(rendered("helm-slurm-cluster"), "SlurmCluster")["spec"]["slurmNodes"]["login"]
    assert login["sshdServiceNodePort"] == 30022
    assert "sshdServiceLoadBalancerIP" not in login
    values = changed(CLUSTER, ("slurmNodes", "login", "sshdServiceType"), "LoadBalancer")
    values["slurmNodes"]["login"]["sshdServiceLoadBalancerIP"] = "192.0.2.1"
    login = one(rendered("helm-slurm-cluster", values), "SlurmCluster")["spec"]["slurmNodes"][
        "login"
    ]
    assert login["sshdServiceLoadBalancerIP"] == "192.0.2.1"
    assert "sshdServiceNodePort" not in login


def test_priorities_are_those_of_the_real_chart():
    """templates/priority-class.yaml of helm-slurm-cluster 4.1.7."""
    made = [x for x in rendered("helm-slurm-cluster", CLUSTER) if x["kind"] == "PriorityClass"]
    assert {x["metadata"]["name"]: x["value"] for x in made} == {
        "soperator-slurm-worker": 1000000,
        "soperator-slurm-controller": 1000001,
        "soperator-slurm-login": 100002,
        "soperator-slurm-accounting": 100003,
        "soperator-slurm-exporter": 100004,
        "soperator-slurm-rest": 100005,
        "soperator-slurm-sconfigcontroller": 100006,
        "soperator-slurm-populate-jail": 100007,
        "soperator-slurm-mariadb": 100008,
    }
    assert {x.get("preemptionPolicy", "PreemptLowerPriority") for x in made} == {
        "PreemptLowerPriority"
    }


def test_a_spool_with_two_sources_is_refused():
    """The chart has a default template: giving a source name without a null leaves both."""
    values = copy.deepcopy(CLUSTER)
    del values["slurmNodes"]["controller"]["volumes"]["spool"]["volumeClaimTemplateSpec"]
    with pytest.raises(ChartError, match=r"controller.volumes.spool: give exactly one"):
        rendered("helm-slurm-cluster", values)


def test_accounting_needs_exactly_one_database():
    values = changed(CLUSTER, ("slurmNodes", "accounting", "mariadbOperator", "enabled"), False)
    with pytest.raises(ChartError, match="exactly one of mariadbOperator and externalDB"):
        rendered("helm-slurm-cluster", values)


def test_every_unknown_value_is_named_at_once():
    values = {"nodesets": [{**NODESETS["nodesets"][0], "replica": 1}], "nodeset": []}
    with pytest.raises(ChartError) as raised:
        rendered("helm-nodesets", values)
    assert str(raised.value).splitlines() == [
        "helm-nodesets: nodeset: unknown value; did you mean 'nodesets'?",
        "helm-nodesets: nodesets[0].replica: unknown value; did you mean 'replicas'?",
    ]


def test_required_values_are_named():
    with pytest.raises(ChartError, match=r"volume.jail.size: is required\n.*controllerSpool.size"):
        rendered("helm-slurm-cluster-storage", {})


def test_a_null_removes_a_default():
    spool = {"volumeSourceName": "controller-spool", "volumeClaimTemplateSpec": None}
    controller = {"volumes": {"spool": spool}}
    merged, _ = merge("helm-slurm-cluster", {"slurmNodes": {"controller": controller}})
    found = merged["slurmNodes"]["controller"]["volumes"]["spool"]
    assert found == {"volumeSourceName": "controller-spool"}


def test_values_without_effect_are_reported():
    given = {"telemetry": {"jobsTelemetry": {}}, "clusterName": "x"}
    assert merge("helm-slurm-cluster", given)[1] == ("telemetry",)


def test_a_chart_that_is_not_known_is_recorded_only():
    release = Release(name="x", namespace="n", chart="helm-soperator", version="4.1.7")
    found = render(release, {"any": "thing"})
    assert found.recorded_only
    assert found.objects == []
