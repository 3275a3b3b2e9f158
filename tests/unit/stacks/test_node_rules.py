"""Rules of node groups, their network and their cluster: each fires on one planted mistake."""

# One planted mistake a line reads as a table.
# ruff: noqa: E501

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stacks.catalog import PLATFORMS
from stacks.check import check
from stacks.compatibility import KUBERNETES
from stacks.errors import Level
from stacks.rules import cluster
from stacks.rules.naming import cidr_problem
from tests.conftest import PUBLIC_KEY
from tests.unit.stacks.conftest import Change, changed
from tests.unit.stacks.test_check import worker

DISK = {"name": "scratch", "mount_path": "/mnt/scratch", "size_gib": 186}
USER = {"name": "ops", "ssh_public_keys": [PUBLIC_KEY]}
B300 = {
    "platform": "gpu-b300-sxm",
    "preset": "8gpu-192vcpu-2768gb",
    "infiniband_fabric": "uk-south1-a",
}


def disk(**values: Any) -> Change:
    return lambda c: worker(c).update(local_disks=[{**DISK, **values}])


def with_image_disk(change: Change) -> Change:
    return lambda c: (change(c), worker(c).update(image_disk={"size_gib": 930}))


def strategy(**values: int) -> Change:
    return lambda c: worker(c).update(strategy=values)


def reservation(billing: str = "on-demand", **values: Any) -> Change:
    return lambda c: worker(c).update(billing=billing, reservation=values)


def users(*given: dict[str, Any]) -> Change:
    return lambda c: c["nodes"].update(ssh_users=list(given))


def two_sets(config: dict[str, Any]) -> None:
    """101 nodes take the groups `worker` and `worker-1`."""
    config["nodes"]["workers"].append({**worker(config), "name": "worker-1"})
    worker(config)["nodes"] = 101


NODE_ERRORS: list[tuple[Change, str, str]] = [
    (lambda c: c["nebius"].update(discover_network=True, subnet_id="vpcsubnet-1", network_id="vpcnetwork-1"), "nebius.discover_network", "beside network_id and subnet_id"),
    (lambda c: c["cluster"].update(allowed_cidrs=["10.0.0.0/8"], public_endpoint=False), "cluster.allowed_cidrs", "no public address"),
    (lambda c: c["cluster"].update(allowed_cidrs=[f"10.0.{n}.0/24" for n in range(101)]), "cluster.allowed_cidrs", "the API takes 100"),
    (lambda c: c["cluster"].update(allowed_cidrs=["10.0.0.0/8", "10.0.0.0/8"]), "cluster.allowed_cidrs[1]", "used twice"),
    (lambda c: c["cluster"].update(allowed_cidrs=["10.0.0.1/8"]), "cluster.allowed_cidrs[0]", "use 10.0.0.0/8"),
    (lambda c: c["cluster"].update(drivers_preset="cuda12"), "cluster.drivers_preset", "'cuda12' is in no image of 'gpu-h100-sxm' for Kubernetes 1.33 (has: cuda13.0)"),
    (lambda c: worker(c).update(created_nodes=3), "nodes.workers[0].created_nodes", "more than min_nodes (2)"),
    (strategy(max_surge_percent=1, max_surge_nodes=1), "nodes.workers[0].strategy.max_surge_nodes", "one of the two"),
    (strategy(max_unavailable_percent=101), "nodes.workers[0].strategy.max_unavailable_percent", "use 0 to 100"),
    (strategy(max_unavailable_percent=0), "nodes.workers[0].strategy", "none could be replaced"),
    (strategy(max_unavailable_nodes=0, max_surge_nodes=0), "nodes.workers[0].strategy", "none could be replaced"),
    (reservation("preemptible", policy="strict"), "nodes.workers[0].reservation", "comes out of no reservation"),
    (reservation("reserved", policy="forbid"), "nodes.workers[0].reservation.policy", "use auto or strict"),
    (reservation(policy="forbid", ids=["capacityblockgroup-1"]), "nodes.workers[0].reservation.ids", "never uses"),
    (reservation(ids=["x"]), "nodes.workers[0].reservation.ids[0]", "starts with 'capacityblockgroup-'"),
    (lambda c: worker(c).update(max_pods=7), "nodes.workers[0].max_pods", "8 to 256"),
    (lambda c: worker(c).update(max_pods=257), "nodes.workers[0].max_pods", "8 to 256"),
    (lambda c: worker(c).update(shared_memory_gib=1600), "nodes.workers[0].shared_memory_gib", "1600 GiB is not less than the node has (1600 GiB); write less, such as 800"),
    (lambda c: worker(c).update(platform="cpu-d3", preset="8vcpu-32gb", nvidia_config_lines=["options nvidia A=1"]), "nodes.workers[0].nvidia_config_lines", "has no GPU"),
    (lambda c: worker(c).update(nvidia_config_lines=["NVreg_A=1"]), "nodes.workers[0].nvidia_config_lines[0]", "no line of modprobe.d"),
    (lambda c: worker(c).update(local_nvme={}), "nodes.workers[0].local_nvme", "uk-south1 gpu-b300-sxm 8gpu-192vcpu-2768gb"),
    (lambda c: worker(c).update(image_disk={"size_gib": 930, "type": "network-ssd"}), "nodes.workers[0].image_disk.type", "use network-ssd-non-replicated or network-ssd-io-m3"),
    (lambda c: worker(c).update(image_disk={"size_gib": 900}), "nodes.workers[0].image_disk.size_gib", "use 930"),
    (disk(type="network-ssd-io-m3", size_gib=100), "nodes.workers[0].local_disks[0].size_gib", "use 186"),
    (disk(type="network-ssd-io-m3", size_gib=262167), "nodes.workers[0].local_disks[0].size_gib", "ends at 262074"),
    (lambda c: worker(c).update(local_disks=[DISK, {**DISK, "mount_path": "/mnt/b"}]), "nodes.workers[0].local_disks[1].name", "'scratch' is used twice"),
    (disk(name="Scratch"), "nodes.workers[0].local_disks[0].name", "lower-case"),
    (disk(name="jail"), "nodes.workers[0].local_disks[0].name", "a volume that each pod has"),
    (disk(mount_path="mnt"), "nodes.workers[0].local_disks[0].mount_path", "not absolute"),
    (disk(mount_path="/"), "nodes.workers[0].local_disks[0].mount_path", "the jail itself"),
    (disk(mount_path="/root/scratch"), "nodes.workers[0].local_disks[0].mount_path", "lies in /root, the home of root"),
    (disk(mount_path="/mnt/data/x"), "nodes.workers[0].local_disks[0].mount_path", "of storage.submounts[0] hide each other"),
    (disk(mount_path="/mnt/ram"), "nodes.workers[0].local_disks[0].mount_path", "of storage.memory hide each other"),
    (disk(mount_path="/mnt/memory"), "nodes.workers[0].local_disks[0].mount_path", "hides /mnt/memory, the memory that Soperator"),
    (with_image_disk(disk(mount_path="/mnt/image-storage/x")), "nodes.workers[0].image_disk", "of nodes.workers[0].local_disks[0] hide each other"),
    (with_image_disk(lambda c: c["storage"]["submounts"][0].update(mount_path="/mnt/image-storage")), "nodes.workers[0].image_disk", "of storage.submounts[0] hide each other"),
    (lambda c: worker(c).update(labels={"a b": "c"}), "nodes.workers[0].labels.a b", "no Kubernetes label"),
    *((lambda c, key=key: worker(c).update(labels={key: "v"}), f"nodes.workers[0].labels.{key}", "no Kubernetes label") for key in ("Bad Prefix!/x", "/x", "a//x", "a/b/c", "UPPER.example/x", "-a.b/x", "a..b/x", f"{'a' * 254}/x")),
    (lambda c: worker(c).update(labels={"team": "-"}), "nodes.workers[0].labels.team", "no Kubernetes label"),
    (lambda c: c["nodes"]["login"].update(labels={"slurm.nebius.ai/x": "y"}), "nodes.login.labels.slurm.nebius.ai/x", "label of the charts"),
    (two_sets, "nodes.workers[1].name", "'worker-1' is node group 2 of 'worker'"),
    (lambda c: c["cluster"].update(os="<subnet_id>"), "cluster.os", "'<subnet_id>' is no name of the API's"),
    (lambda c: worker(c).update(infiniband_fabric="<subnet_id>"), "nodes.workers[0].infiniband_fabric", "'<subnet_id>' is no name of the API's"),
    (lambda c: worker(c).update(gpu_cluster_id="x", infiniband_fabric=None), "nodes.workers[0].gpu_cluster_id", "starts with 'computegpucluster-'"),
    (lambda c: worker(c).update(gpu_cluster_id="computegpucluster-1"), "nodes.workers[0].gpu_cluster_id", "give one of the two"),
    (lambda c: worker(c).update(gpu_cluster_id="computegpucluster-1", infiniband_fabric=None, preset="1gpu-16vcpu-200gb"), "nodes.workers[0].gpu_cluster_id", "these can: 8gpu-128vcpu-1600gb"),
    (users(USER, USER), "nodes.ssh_users[1].name", "'ops' is used twice"),
    (users({**USER, "name": "root"}), "nodes.ssh_users[0].name", "a user of the image"),
    (users({**USER, "name": "Ops"}), "nodes.ssh_users[0].name", "lower-case"),
    (users({**USER, "ssh_public_keys": []}), "nodes.ssh_users[0].ssh_public_keys", "no key"),
    (users({**USER, "ssh_public_keys": ["ssh-dss A"]}), "nodes.ssh_users[0].ssh_public_keys[0]", "not an OpenSSH"),
]  # fmt: skip

NODE_WARNINGS: list[tuple[Change, str, str]] = [
    (lambda c: c["cluster"].update(public_endpoint=False), "cluster.public_endpoint", "route to the private address"),
    (lambda c: c["cluster"].update(os="ubuntu26.04"), "cluster.os", "only the API can tell"),
    (lambda c: c["cluster"].update(kubernetes_version="1.34"), "cluster.kubernetes_version", "only the API can tell"),
    (lambda c: worker(c).update(labels={"app.kubernetes.io/team": "ml"}), "nodes.workers[0].labels.app.kubernetes.io/team", "mk8s ignores"),
    (lambda c: worker(c).update(nvidia_config_lines=["options nvidia NVreg_A=1"]), "nodes.ssh_users", "should hold an SSH key"),
    (lambda c: c["nodes"].update(nfs={**c["nodes"]["controller"], "nodes": 2}), "nodes.nfs.max_nodes", "1 never used"),
]  # fmt: skip


def found(change: Change, level: Level) -> dict[str, str]:
    """Path -> message of every problem of the level."""
    problems = check(changed(change))
    return {problem.path: problem.message for problem in problems if problem.level is level}


@pytest.mark.parametrize(
    ("change", "path", "message"), NODE_ERRORS, ids=[row[1] for row in NODE_ERRORS]
)
def test_what_the_api_or_soperator_would_refuse_is_an_error(
    change: Change, path: str, message: str
):
    errors = found(change, Level.ERROR)
    assert message in errors.get(f"demo.{path}", f"no error there; found {errors}")


@pytest.mark.parametrize(
    ("change", "path", "message"), NODE_WARNINGS, ids=[row[1] for row in NODE_WARNINGS]
)
def test_what_works_with_a_catch_is_a_warning(change: Change, path: str, message: str):
    assert found(change, Level.ERROR) == {}
    warnings = found(change, Level.WARNING)
    assert message in warnings.get(f"demo.{path}", f"no warning there; found {warnings}")


def test_everything_that_a_worker_set_can_have_together_has_nothing_to_say():
    def rich(config: dict[str, Any]) -> None:
        config["nodes"]["ssh_users"] = [USER]
        config["cluster"] |= {
            "allowed_cidrs": ["203.0.113.0/24"],
            "audit_logs": True,
            "etcd_size": 1,
        }
        config["nebius"]["discover_network"] = True
        worker(config).update(
            nodes=250,
            created_nodes=0,
            max_pods=32,
            billing="reserved",
            labels={"team": "ml", "example.com/cost-center": "4711"},
            reservation={"policy": "strict", "ids": ["capacityblockgroup-1"]},
            strategy={"max_unavailable_nodes": 1, "drain_timeout_s": 0},
            nvidia_config_lines=["options nvidia NVreg_RestrictProfilingToAdminUsers=0"],
            local_disks=[DISK],
            image_disk={"size_gib": 930},
        )

    assert check(changed(rich)) == ()


def test_one_jail_has_programs_for_one_kind_of_cpu(monkeypatch: pytest.MonkeyPatch):
    """The jail is one root filesystem: an ARM worker cannot run what x86 login nodes install."""
    arm = replace(PLATFORMS["gpu-h100-sxm"], architecture="arm64")
    monkeypatch.setattr(cluster, "PLATFORMS", {**PLATFORMS, arm.name: arm})
    (problem,) = check(changed(lambda c: None))
    assert (problem.path, problem.rule) == ("demo.nodes.workers[0].platform", "nodes.architecture")
    assert "'gpu-h100-sxm' is arm64, but 'cpu-d3' of nodes.login is amd64" in problem.message


def test_a_machine_with_local_drives_may_join_them():
    def b300(config: dict[str, Any]) -> None:
        config["nebius"]["region"] = "uk-south1"
        config["nodes"]["ssh_users"] = [USER]
        worker(config).update(**B300, local_nvme={})

    assert not any("local_nvme" in problem.path for problem in check(changed(b300)))


def test_operators_need_no_drivers_in_the_image():
    def operators(config: dict[str, Any]) -> None:
        config["cluster"] |= {"gpu_drivers": "operators", "drivers_preset": "cuda12"}

    assert found(operators, Level.ERROR) == {}


def test_a_paused_stack_is_as_valid_as_a_running_one():
    assert check(changed(lambda c: c["nodes"].update(paused=True))) == ()


@pytest.mark.parametrize("cidr", ["10.0.0.0/8", "203.0.113.7/32", "0.0.0.0/0"])
def test_these_blocks_are_taken(cidr: str):
    assert cidr_problem(cidr) is None


@pytest.mark.parametrize("cidr", ["10.0.0.0/33", "::/0", "10.0.0", "office", "10.0.0.0/255.0.0.0"])
def test_these_blocks_are_refused(cidr: str):
    assert cidr_problem(cidr)


def test_the_driver_table_knows_every_platform_with_gpus():
    gpus = {name for name, platform in PLATFORMS.items() if platform.gres_type}
    for version, row in KUBERNETES.items():
        assert set(row.drivers) == gpus, version
        assert all(row.drivers.values())
