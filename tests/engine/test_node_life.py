"""Network, kube cluster and node groups under the real engine, from the first up to destroy."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PUBLIC_KEY
from tests.engine.component_project import component_project, declare, ids_in
from tests.engine.nebius_project import Emulator, Project, pulumi_binary, running_emulator

pytestmark = [
    pytest.mark.engine,
    pytest.mark.usefixtures("forks"),
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
]
_PROGRAM = """
import json
from pathlib import Path

import pulumi

from infra.components.storage import Filesystems
from infra.components.kube_cluster import KubeCluster
from infra.components.kube_cluster import Network
from infra.components.kube_cluster import NodeGroups
from infra.components.kube_cluster import NvidiaOperators
from infra.providers.nebius.adoption import discovered
from stacks.check import Level, check
from stacks.load import STACKS_DIR, load_config
from stacks.files import parse_yaml

config = parse_yaml((STACKS_DIR / "Pulumi.h100-prod.yaml").read_text())["config"]
declared = json.loads(Path(__file__).with_name("declared.json").read_text())
in_stages = declared.pop("in stages", False)
for path, value in {"nebius.project_id": "project-e00p", **declared}.items():
    subject, *rest = path.split(".")
    steps = [f"soperator-stack:{subject}", *rest]
    at = config
    for step in steps[:-1]:
        at = at[int(step) if step.isdigit() else step]
    at[steps[-1]] = value
spec = load_config(config, "test")
errors = [str(each) for each in check(spec) if each.level is Level.ERROR]
assert not errors, errors
spec = discovered(spec)
network = Network(spec)
filesystems = Filesystems(spec)
kube = KubeCluster(spec, network)
nodes = NodeGroups(spec, kube, network, filesystems.ids, in_stages=in_stages)
NvidiaOperators(spec, kube, pulumi.ResourceOptions(depends_on=[nodes]))
pulumi.export("cluster", kube.cluster_id)
pulumi.export("groups", nodes.groups)
pulumi.export("gpu_clusters", nodes.gpu_cluster_ids)
pulumi.export("subnet", network.subnet_id)
"""
WORKER = "nodes.workers.0"
CPUS = {
    f"{WORKER}.platform": "cpu-d3",
    f"{WORKER}.preset": "4vcpu-16gb",
    f"{WORKER}.boot_disk": {"size_gib": 128},
    f"{WORKER}.infiniband_fabric": None,
    f"{WORKER}.shared_memory_gib": 1,
    "storage.memory": None,
    "storage.places.scratch": "/mnt/training/scratch",
    "jobs": [],
}
"""Workers without GPUs, of which the emulated quota allows hundreds."""


@pytest.fixture
def emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """No API server stands behind its clusters; their access only has to be there."""
    authority = tmp_path / "ca.pem"
    authority.write_text("CA-CERTIFICATE")
    monkeypatch.setenv("SOPERATOR_LOCAL_KUBE_CA_FILE", str(authority))
    with running_emulator(tmp_path / "emulator") as emulator:
        yield emulator


@pytest.fixture
def project(tmp_path: Path, emulator: Emulator) -> Project:
    return component_project(tmp_path / "project", emulator, _PROGRAM)


def stored(emulator: Emulator) -> set[str]:
    """Ids of what a stack makes, as the cloud has them."""
    ours = ("mk8s", "computegpucluster", "vpcallocation", "k8srelease")
    return ids_in(emulator, *ours)


def spec_of(project: Project, name: str) -> dict[str, Any]:
    """What the state says the API holds of one resource."""
    resources = json.loads(project.state())["checkpoint"]["latest"]["resources"]
    (found,) = [each for each in resources if each["urn"].endswith(f"::{name}")]
    return found["outputs"]["spec"]


def steps(project: Project) -> dict[str, str]:
    """Name -> operation of everything that a preview would change."""
    preview = json.loads(project.run("preview", "--json"))
    return {
        step["urn"].rpartition("::")[2]: step["op"]
        for step in preview["steps"]
        if step["op"] != "same"
    }


@pytest.mark.feature("S000-02", "S003-12")
def test_a_second_up_changes_nothing(project: Project) -> None:
    project.up()
    project.up("--expect-no-changes")


@pytest.mark.feature("S002-22", "S002-81")
def test_a_changed_count_and_roll_out_update_the_group_in_place(project: Project) -> None:
    project.up()
    before = project.outputs()
    declare(project, {f"{WORKER}.nodes": 3, f"{WORKER}.strategy": {"max_unavailable_nodes": 1}})
    assert steps(project) == {"test-worker": "update"}
    project.up()
    assert project.outputs() == before
    group = spec_of(project, "test-worker")
    assert group["fixed_node_count"] == 3
    assert group["strategy"]["max_unavailable"] == {"count": 1}
    project.up("--expect-no-changes")


def test_a_newer_kubernetes_goes_to_the_control_plane_then_group_by_group(
    project: Project,
) -> None:
    project.up()
    before = project.outputs()
    declare(project, {"cluster.kubernetes_version": "1.34", "in stages": True})
    assert set(steps(project).values()) == {"update"}
    output = project.up()
    order = re.findall(r"~ +nebius:mk8s/v1:(\w+) +test-(\S+) +updated", output)
    assert [kind for kind, _ in order] == ["Cluster", *["NodeGroup"] * 5]
    names = [name for _, name in order]
    assert names[1] == "system"
    assert set(names[2:5]) == {"controller", "login", "accounting"}
    assert names[5] == "worker"
    assert project.outputs() == before
    assert spec_of(project, "test-worker")["version"] == "1.34"
    # The next run knows of no upgrade: that the groups no longer wait for each other is no change.
    declare(project, {"cluster.kubernetes_version": "1.34"})
    project.up("--expect-no-changes")


def test_another_fabric_makes_its_gpu_cluster_before_the_old_one_goes(
    project: Project, emulator: Emulator
) -> None:
    """The API keeps a GPU cluster that nodes are in, so the nodes must leave it first."""
    project.up()
    before = project.outputs()
    declare(project, {f"{WORKER}.infiniband_fabric": "fabric-4"})
    project.up()
    after = project.outputs()
    assert after["groups"] == before["groups"]
    assert list(after["gpu_clusters"]) == ["fabric-4"]
    assert before["gpu_clusters"]["fabric-6"] not in stored(emulator)


def test_another_subnet_replaces_the_cluster_with_all_its_groups(
    project: Project, emulator: Emulator
) -> None:
    project.up()
    before = project.outputs()
    declare(
        project,
        {
            "nebius.subnet_id": "vpcsubnet-e00pdefault",
            "nebius.network_id": "vpcnetwork-e00pdefault",
        },
    )
    project.up()
    after = project.outputs()
    assert after["cluster"] != before["cluster"]
    assert not set(after["groups"].values()) & set(before["groups"].values())
    assert before["cluster"] not in stored(emulator)
    project.up("--expect-no-changes")


def test_the_projects_only_subnet_is_found_and_nothing_is_made_beside_it(project: Project) -> None:
    declare(project, {"nebius.discover_network": True})
    output = project.up()
    assert project.outputs()["subnet"] == "vpcsubnet-e00pdefault"
    assert "vpc/v1:Subnet" not in output
    project.up("--expect-no-changes")


def test_a_pause_takes_the_nodes_and_a_resume_brings_them_to_the_same_groups(
    project: Project,
) -> None:
    project.up()
    before = project.outputs()
    declare(project, {"nodes.paused": True})
    assert steps(project) == {"test-worker": "update"}
    project.up()
    assert spec_of(project, "test-worker")["fixed_node_count"] == 0
    declare(project, {})
    project.up()
    assert project.outputs() == before
    assert spec_of(project, "test-worker")["fixed_node_count"] == 2


def test_a_set_that_grows_over_a_hundred_gets_a_group_and_keeps_its_own(project: Project) -> None:
    declare(project, {**CPUS, f"{WORKER}.nodes": 100})
    project.up()
    before = project.outputs()["groups"]
    declare(project, {**CPUS, f"{WORKER}.nodes": 130})
    assert steps(project) == {"test-worker-1": "create"}
    project.up()
    after = project.outputs()["groups"]
    assert after["worker"] == before["worker"]
    assert spec_of(project, "test-worker-1")["fixed_node_count"] == 30


def test_groups_that_are_made_empty_change_nothing_at_the_next_up(project: Project) -> None:
    declare(project, {f"{WORKER}.created_nodes": 0})
    project.up()
    scaling = spec_of(project, "test-worker")["autoscaling"]
    assert scaling == {"max_node_count": 2} or scaling == {"min_node_count": 0, "max_node_count": 2}
    project.up("--expect-no-changes")


def test_operators_live_and_die_with_the_stack(project: Project, emulator: Emulator) -> None:
    declare(project, {"cluster.gpu_drivers": "operators"})
    project.up()
    project.up("--expect-no-changes")
    assert "2 deleted" not in project.run("refresh", "--yes", "--skip-preview")
    project.up("--expect-no-changes")
    declare(project, {})
    changes = steps(project)
    assert changes["test-gpu-operator"] == changes["test-network-operator"] == "delete"
    project.up()


def test_a_group_deleted_by_hand_comes_back(project: Project, emulator: Emulator) -> None:
    project.up()
    gone = project.outputs()["groups"]["worker"]
    emulator.kill()
    with sqlite3.connect(emulator.folder / "nebius.sqlite") as database:
        assert database.execute("DELETE FROM resources WHERE id = ?", (gone,)).rowcount == 1
    emulator.start()
    assert "- 1 deleted" in project.run("refresh", "--yes", "--skip-preview")
    assert steps(project)["test-worker"] == "create"
    project.up()
    assert project.outputs()["groups"]["worker"] != gone


def test_user_data_is_no_open_text_in_the_state(project: Project) -> None:
    declare(project, {"nodes.ssh_users": [{"name": "ops", "ssh_public_keys": [PUBLIC_KEY]}]})
    project.up()
    assert "#cloud-config" not in project.state()
    project.up("--expect-no-changes")


@pytest.mark.feature("S003-12")
def test_destroy_leaves_nothing_and_the_address_goes_after_the_cluster(
    project: Project, emulator: Emulator
) -> None:
    """The balancer of a cluster that still lives takes a deleted address anew."""
    project.up()
    output = project.run("destroy", "--yes", "--skip-preview")
    assert stored(emulator) == set()
    ended = re.findall(r"- +nebius:(\S+) +\S+ +deleted", output)
    kinds = ("mk8s/v1:NodeGroup", "mk8s/v1:Cluster", "vpc/v1:Allocation")
    places = [[at for at, kind in enumerate(ended) if kind == each] for each in kinds]
    assert places[0][-1] < places[1][0] < places[2][0], ended
