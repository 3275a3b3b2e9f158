"""Texts and names of a stack reach the charts as they are, and nothing where none is declared."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import Any

import pytest

from infra.local.kube.values import Release
from infra.local.plugins.kubernetes_objects import render
from infra.local.reconcile.snapshot import own_source
from infra.render.charts import chart_values
from stacks.spec import StackSpec
from stacks.spec.cluster import SssdSpec
from stacks.spec.nodes import LocalDiskSpec, WorkerSpec
from stacks.spec.slurm import AccountSpec

SSSD = SssdSpec(config_secret="sssd-conf", ca_config_map="ldap-ca")


def of_cluster(spec: StackSpec) -> dict[str, Any]:
    return chart_values(spec, "slurm-cluster", {"allocation_id": "id", "ssh_public_keys": []})


def of_nodeset(spec: StackSpec, **changes: Any) -> dict[str, Any]:
    """Values of the first nodeset after a change of its declaration."""
    (first, *_) = chart_values(with_worker(spec, **changes), "nodesets")["nodesets"]
    return first


def with_worker(spec: StackSpec, **changes: Any) -> StackSpec:
    first, *others = spec.nodes.workers
    assert isinstance(first, WorkerSpec)
    workers = (replace(first, **changes), *others)
    return replace(spec, nodes=replace(spec.nodes, workers=workers))


def with_sssd(spec: StackSpec) -> StackSpec:
    return replace(spec, soperator=replace(spec.soperator, sssd=SSSD))


def test_nothing_is_there_that_nobody_declared(spec: StackSpec) -> None:
    cluster, nodeset = of_cluster(spec), of_nodeset(spec)
    assert "sssd" not in cluster["slurmNodes"]
    assert "customSlurmConfig" not in cluster
    assert not {"sssd", "sssdConfSecretRefName", "configMapRefSshd"} & set(nodeset)
    assert set(nodeset["nodeConfig"]) == {"static", "features"}


def test_a_directory_reaches_controller_login_and_every_nodeset(spec: StackSpec) -> None:
    declared = with_sssd(spec)
    names = {"sssdConfSecretRefName": "sssd-conf", "sssdLdapCAConfigMapRefName": "ldap-ca"}
    amounts = {"cpu": "200m", "memory": "512Mi", "ephemeralStorage": "5Gi"}
    assert of_cluster(declared)["slurmNodes"]["sssd"] == {
        "enabled": True,
        "resources": amounts,
        **names,
    }
    for nodeset in chart_values(declared, "nodesets")["nodesets"]:
        assert nodeset["sssd"] == {"enabled": True, "resources": amounts}
        assert {name: nodeset[name] for name in names} == names


def test_the_chart_hands_the_directory_to_both_kinds_of_node(spec: StackSpec) -> None:
    declared = with_sssd(spec)
    version = spec.cluster.soperator_version
    release = Release(
        name="slurm-cluster", namespace="soperator", chart="helm-slurm-cluster", version=version
    )
    made = render(release, of_cluster(declared)).objects
    (cluster,) = [each for each in made if each["kind"] == "SlurmCluster"]
    for role in ("controller", "login"):
        node = cluster["spec"]["slurmNodes"][role]
        assert node["sssdConfSecretRefName"] == "sssd-conf"
        assert node["sssd"]["resources"]["ephemeral-storage"] == "5Gi"


def test_a_directory_without_an_authority_of_its_own_names_no_map(spec: StackSpec) -> None:
    bare = replace(SSSD, ca_config_map=None)
    declared = replace(spec, soperator=replace(spec.soperator, sssd=bare))
    assert "sssdLdapCAConfigMapRefName" not in of_cluster(declared)["slurmNodes"]["sssd"]


@pytest.mark.feature("S002-03")
def test_declared_lines_stand_after_those_that_accounts_need(spec: StackSpec) -> None:
    accounts = (AccountSpec(name="red", users=("ann",)),)
    slurm = replace(spec.slurm, config_lines=("PriorityDecayHalfLife=7-0",))
    assert of_cluster(replace(spec, slurm=slurm))["customSlurmConfig"] == (
        "PriorityDecayHalfLife=7-0\n"
    )
    both = of_cluster(replace(spec, slurm=replace(slurm, accounts=accounts)))
    assert both["customSlurmConfig"] == (
        "AccountingStorageEnforce=associations,limits,qos\nPriorityDecayHalfLife=7-0\n"
    )


def test_the_least_nodes_of_an_elastic_set_never_sleep(spec: StackSpec) -> None:
    """The line replaces the operator's, so that it names the nodes of fixed sets too."""
    (worker,) = spec.nodes.workers
    assert "customSlurmConfig" not in of_cluster(with_worker(spec, min_nodes=0, max_nodes=4))
    some = replace(worker, name="some", min_nodes=1, max_nodes=4)
    none = replace(worker, name="none", min_nodes=0, max_nodes=4)
    mixed = replace(spec, nodes=replace(spec.nodes, workers=(worker, some, none)))
    assert of_cluster(mixed)["customSlurmConfig"] == "SuspendExcNodes=worker-0,worker-1,some-0\n"


def test_lines_for_gres_and_extra_reach_the_nodes_of_their_set(spec: StackSpec) -> None:
    line = "Name=gpu File=/dev/nvidia0"
    config = of_nodeset(spec, gres_lines=(line,), extra="plain")["nodeConfig"]
    assert (config["gresConfig"], config["dynamic"]) == ([line], '"plain"')


def test_platform_and_boot_disk_of_a_set_are_features_before_its_own(spec: StackSpec) -> None:
    """As the recipe's, so that a script with `--constraint=gpu_l40s_d` runs here too."""
    own = of_nodeset(spec, features=("team-a", "gpu_l40s_d"))["nodeConfig"]["features"]
    assert own == ["gpu_l40s_d", "network_ssd_non_replicated", "team-a"]


@pytest.mark.parametrize(
    ("extra", "seen"),
    [
        ('{"ib_pod": "$TOPO_SWITCH_TIER2"}', '{"ib_pod": "pod-7"}'),
        ("it's a \\ * and  two spaces", "it's a \\ * and  two spaces"),
    ],
)
def test_extra_comes_out_of_the_workers_shell_as_it_was_written(
    spec: StackSpec, extra: str, seen: str
) -> None:
    """But for its variables: the entrypoint of a worker evaluates it so."""
    dynamic = of_nodeset(spec, extra=extra)["nodeConfig"]["dynamic"]
    done = subprocess.run(
        ["bash", "-c", 'evaluated=$(eval echo "$SLURM_NODE_EXTRA"); printf %s "$evaluated"'],
        env={"SLURM_NODE_EXTRA": dynamic, "TOPO_SWITCH_TIER2": "pod-7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == seen


def test_a_map_of_sshd_reaches_the_worker(spec: StackSpec) -> None:
    assert of_nodeset(spec, sshd_config_map="worker-sshd")["configMapRefSshd"] == "worker-sshd"


DISK = LocalDiskSpec(
    name="scratch", mount_path="/mnt/scratch", size_gib=93, folders=("tmp", "preprocessed")
)


@pytest.mark.feature("S003-48")
def test_folders_of_a_disk_are_made_before_the_worker_starts(spec: StackSpec) -> None:
    containers = of_nodeset(spec, local_disks=(DISK,))["customInitContainers"]
    (maker,) = [each for each in containers if each["name"] == "make-folders-scratch"]
    assert maker["volumeMounts"] == [{"name": "scratch", "mountPath": "/volume-mount"}]
    assert maker["command"][-2:] == ["tmp", "preprocessed"]
    guards = [each["name"] for each in containers]
    assert guards.index("ensure-scratch-ext4") < guards.index("make-folders-scratch")


def test_a_disk_without_folders_has_no_such_container(spec: StackSpec) -> None:
    containers = of_nodeset(spec, local_disks=(replace(DISK, folders=()),))
    assert not [each for each in containers["customInitContainers"] if "make" in each["name"]]


@pytest.mark.parametrize("folders", [(), ("tmp", "preprocessed")])
def test_the_local_stack_is_told_the_folders(spec: StackSpec, folders: tuple[str, ...]) -> None:
    values = chart_values(
        with_worker(spec, local_disks=(replace(DISK, folders=folders),)), "nodesets"
    )
    version = spec.cluster.soperator_version
    release = Release(name="nodesets", namespace="x", chart="helm-nodesets", version=version)
    (nodeset, *_) = [each for each in render(release, values).objects if each["kind"] == "NodeSet"]
    assert own_source("scratch", nodeset)["madeFolders"] == [*folders]
