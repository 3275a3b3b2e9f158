"""Each rule of Soperator's settings and of teams fires on one planted mistake, with what to do."""

# One planted mistake a line reads as a table.

from __future__ import annotations

from typing import Any

import pytest

from stacks.changes import declared_values
from stacks.check import check
from stacks.errors import Level
from tests.conftest import PUBLIC_KEY
from tests.unit.stacks.conftest import Change, changed
from tests.unit.stacks.test_check import worker


def soperator(**values: Any) -> Change:
    return lambda config: config.update(soperator=values)


def file(**values: Any) -> Change:
    return soperator(jail_files=[{"path": "/etc/motd", "content": "x", **values}])


def user(**values: Any) -> Change:
    return soperator(users=[{"name": "ann", "ssh_public_keys": [PUBLIC_KEY], **values}])


def nfs(**values: Any) -> Change:
    machine = {
        "platform": "cpu-d3",
        "preset": "8vcpu-32gb",
        "boot_disk": {"size_gib": 64},
        "data_disks": {"size_gib": 93},
        "mount_path": "/mnt/nfs",
    }
    return lambda config: config.update(nfs={**machine, **values})


def alerts(**values: Any) -> Change:
    return soperator(observability="small", alerts=values)


def lifetime(**values: Any) -> Change:
    return lambda config: config.update(lifetime=values)


def slurm(**values: Any) -> Change:
    return lambda config: config["slurm"].update(values)


def account(**values: Any) -> Change:
    return slurm(accounts=[{"name": "red", "users": [], **values}])


def one_gpu(config: dict[str, Any]) -> None:
    worker(config).update(preset="1gpu-16vcpu-200gb", nodes=2)
    del worker(config)["infiniband_fabric"]
    config["soperator"] = {"checks": "quick"}


def two_sizes(config: dict[str, Any]) -> None:
    small = {**worker(config), "name": "worker-small", "preset": "1gpu-16vcpu-200gb"}
    del small["infiniband_fabric"]
    config["nodes"]["workers"].append(small)
    config["soperator"] = {"checks": "full"}


SOPERATOR_ERRORS: list[tuple[Change, str, str]] = [
    *(
        (
            lambda c, block=block: c["login"].update(allowed_cidrs=[block]),
            "login.allowed_cidrs[0]",
            used,
        )
        for block, used in (
            ("10.0.0.1/8", "use 10.0.0.0/8"),
            ("10.0.0.1", "use 10.0.0.1/32"),
            ("0.0.0.0", "use 0.0.0.0/32"),
            ("10.0.0.0/255.0.0.0", "use 10.0.0.0/8"),
            ("10.0.0.0/0.255.255.255", "use 10.0.0.0/8"),
            ("10.0.0.0/08", "use 10.0.0.0/8"),
            ("office", "203.0.113.0/24"),
        )
    ),
    (
        lambda c: c["login"].update(allowed_cidrs=["10.0.0.0/8", "10.0.0.0/8"]),
        "login.allowed_cidrs[1]",
        "used twice",
    ),
    (
        lambda c: c["login"].update(
            allowed_cidrs=["10.0.0.0/8"], service="NodePort", ssh_port=30022
        ),
        "login.allowed_cidrs",
        "LoadBalancer",
    ),
    (soperator(cuda_version="12.4.1"), "soperator.cuda_version", "has: 12.9.0, 13.0.2"),
    (
        lambda c: (
            soperator(cuda_version="13.0.2")(c),
            c["cluster"].update(drivers_preset="cuda12.8"),
        ),
        "soperator.cuda_version",
        "newer than the drivers",
    ),
    (soperator(slack_notifier=True), "soperator.slack_notifier", "observability"),
    (soperator(alerts={}), "soperator.alerts", "nothing collects metrics"),
    (
        alerts(min_gpu_utilization_percent=101),
        "soperator.alerts.min_gpu_utilization_percent",
        "101 is not between 1 and 100",
    ),
    (alerts(stalled_step_minutes=5), "soperator.alerts.stalled_step_minutes", "between 6 and 1440"),
    (alerts(checkpoint_minutes=5), "soperator.alerts.checkpoint_minutes", "between 6 and 10080"),
    (alerts(drained_minutes=1441), "soperator.alerts.drained_minutes", "between 1 and 1440"),
    (lifetime(), "lifetime", "neither until nor idle_hours"),
    (lifetime(until="tomorrow"), "lifetime.until", "write 2026-12-24T18:00Z"),
    (lifetime(until="2026-12-24"), "lifetime.until", "write 2026-12-24T18:00Z"),
    (lifetime(until="2026-12-24T18:00"), "lifetime.until", "write 2026-12-24T18:00Z"),
    (lifetime(idle_hours=721), "lifetime.idle_hours", "721 is more than 720"),
    (
        lambda c: (lifetime(idle_hours=8)(c), c["slurm"].update(accounting=False)),
        "lifetime.idle_hours",
        "slurm.accounting is off",
    ),
    (
        lambda c: (lifetime(idle_hours=8)(c), c["jobs"][0].update(schedule="0 2 * * *")),
        "jobs[0].schedule",
        "then no schedule runs any more",
    ),
    (file(path="etc/motd"), "soperator.jail_files[0].path", "not absolute"),
    (file(mode="rw-r--r--"), "soperator.jail_files[0].mode", "octal"),
    (file(path="/etc/slurm/slurm.conf"), "soperator.jail_files[0].path", "Soperator writes"),
    (file(path="/mnt/data/notes"), "soperator.jail_files[0].path", "behind that mount"),
    (file(path="/mnt/memory/x"), "soperator.jail_files[0].path", "behind that mount"),
    (file(path="/mnt/ram/x"), "soperator.jail_files[0].path", "behind that mount"),
    (file(path="/tmp/x"), "soperator.jail_files[0].path", "behind that mount"),
    (file(path="/etc/enroot/enroot.conf"), "soperator.jail_files[0].path", "behind that mount"),
    (
        soperator(jail_files=[{"path": "/etc/motd", "content": "x"}] * 2),
        "soperator.jail_files[1].path",
        "used twice",
    ),
    (
        soperator(
            jail_files=[
                {"path": f"/etc/{name}", "content": f"{name}\n" * 300_000} for name in ("a", "b")
            ]
        ),
        "soperator.jail_files",
        "1200000 bytes",
    ),
    (soperator(nfs_home={"size_gib": 100}), "storage.submounts[1].mount_path", "keep one"),
    (user(name="root"), "soperator.users[0].name", "none of root"),
    (user(name="Ann"), "soperator.users[0].name", "lower-case"),
    (user(name="deployer"), "soperator.users[0].name", "none of root, deployer"),
    (user(ssh_public_keys=[]), "soperator.users[0].ssh_public_keys", "nobody could enter"),
    (
        user(ssh_public_keys=["ssh-dss A"]),
        "soperator.users[0].ssh_public_keys[0]",
        "not an OpenSSH",
    ),
    (
        soperator(users=[{"name": "ann", "ssh_public_keys": [PUBLIC_KEY]}] * 2),
        "soperator.users[1].name",
        "used twice",
    ),
    (
        lambda c: c["nodes"]["workers"].append(
            {
                **worker(c),
                "name": "worker-cpu",
                "platform": "cpu-d3",
                "preset": "2vcpu-8gb",
                "infiniband_fabric": None,
            }
        ),
        "nodes.workers[1].preset",
        "-0.05 vCPUs",
    ),
    (
        lambda c: c["nodes"]["accounting"].update(preset="4vcpu-16gb"),
        "nodes.accounting.preset",
        "-0.5 GiB of memory",
    ),
    (
        lambda c: c["nodes"]["accounting"]["boot_disk"].update(size_gib=64),
        "nodes.accounting.preset",
        "-15 GiB of disk",
    ),
    (
        lambda c: (
            c["slurm"].update(accounting=False, accounts=[{"name": "red", "users": []}]),
            c["nodes"].pop("accounting"),
            c["storage"].pop("accounting"),
        ),
        "slurm.accounts",
        "set it to true",
    ),
    (slurm(accounts=[{"name": "red", "users": []}] * 2), "slurm.accounts[1].name", "used twice"),
    (account(name="root"), "slurm.accounts[0].name", "not 'root'"),
    (account(name="Red"), "slurm.accounts[0].name", "lower-case"),
    (account(qos=["urgent"]), "slurm.accounts[0].qos", "has: normal"),
    (account(users=["ann", "ann"]), "slurm.accounts[0].users[1]", "used twice"),
    (account(users=["root"]), "slurm.accounts[0].users", "every account"),
    (slurm(qos=[{"name": "normal"}]), "slurm.qos[0].name", "not 'normal'"),
    (slurm(qos=[{"name": "short", "max_wall": "soon"}]), "slurm.qos[0].max_wall", "no Slurm time"),
    (
        lambda c: (nfs()(c), soperator(nfs_home={"size_gib": 100})(c)),
        "nfs",
        "one server serves the homes",
    ),
    (nfs(platform="cpu-x9"), "nfs.platform", "not a platform"),
    (nfs(preset="3vcpu-12gb"), "nfs.preset", "not a preset"),
    (nfs(platform="gpu-b200-sxm", preset="1gpu-20vcpu-224gb"), "nfs.platform", "not offered in"),
    (
        nfs(platform="gpu-h100-sxm", preset="1gpu-16vcpu-200gb"),
        "nfs.platform",
        "a file server leaves idle",
    ),
    (nfs(billing="preemptible"), "nfs.billing", "use on-demand"),
    (nfs(data_disks={"size_gib": 100}), "nfs.data_disks.size_gib", "use 186"),
    (nfs(data_disks={"size_gib": 93 * 2819}), "nfs.data_disks.size_gib", "ends at 262074"),
    (
        nfs(boot_disk={"size_gib": 64, "type": "network-ssd-io-m3"}),
        "nfs.boot_disk.size_gib",
        "use 93",
    ),
    (nfs(mount_path="srv"), "nfs.mount_path", "not absolute"),
    (nfs(mount_path="/mnt/data"), "nfs.mount_path", "already the path of storage.submounts[0]"),
    (nfs(mount_path="/home/shared"), "nfs.mount_path", "lies inside '/home'"),
    (nfs(mount_path="/etc"), "nfs.mount_path", "the jail's own system"),
    (
        lambda c: (nfs()(c), c["nodes"].update(nfs=dict(c["nodes"]["controller"]))),
        "nodes.nfs",
        "remove the group",
    ),
    (
        lambda c: (nfs()(c), file(path="/mnt/nfs/notes")(c)),
        "soperator.jail_files[0].path",
        "behind that mount",
    ),
]
SOPERATOR_WARNINGS: list[tuple[Change, str, str]] = [
    (
        nfs(data_disks={"size_gib": 93, "type": "network-ssd-non-replicated"}),
        "nfs.data_disks.type",
        "keeps one copy",
    ),
    (one_gpu, "soperator.checks", "none runs here"),
    (two_sizes, "soperator.checks", "asks for 1"),
    (soperator(nfs_home={"size_gib": 100}), "soperator.nfs_home", "deleted with the cluster"),
    (lambda c: c["nodes"].update(nfs=dict(c["nodes"]["controller"])), "nodes.nfs", "no NFS server"),
    (slurm(qos=[{"name": "urgent"}]), "slurm.qos[0].name", "named by no account"),
    (account(users=["ann"]), "slurm.accounts[0].users", "soperator.users"),
]


@pytest.mark.parametrize(("change", "path", "text"), SOPERATOR_ERRORS)
def test_a_mistake_is_refused(change: Change, path: str, text: str):
    errors = [each for each in check(changed(change)) if each.level is Level.ERROR]
    assert [each for each in errors if each.path == f"demo.{path}" and text in each.message], errors


@pytest.mark.parametrize(("change", "path", "text"), SOPERATOR_WARNINGS)
def test_a_doubtful_value_is_told(change: Change, path: str, text: str):
    problems = [each for each in check(changed(change)) if each.level is Level.WARNING]
    assert [each for each in problems if each.path == f"demo.{path}" and text in each.message]


def test_a_whole_and_right_declaration_has_nothing_to_say():
    spec = changed(
        lambda c: (
            c["login"].update(allowed_cidrs=["203.0.113.0/24"]),
            c.update(
                soperator={
                    "cuda_version": "13.0.2",
                    "checks": "full",
                    "observability": "small",
                    "slack_notifier": True,
                    "jail_files": [{"path": "/etc/profile.d/x.sh", "content": "x"}],
                    "users": [{"name": "ann", "ssh_public_keys": [PUBLIC_KEY]}],
                }
            ),
            c["slurm"].update(
                qos=[{"name": "urgent", "priority": 10, "max_wall": "1-00:00:00", "max_gpus": 8}],
                accounts=[{"name": "red", "users": ["ann"], "qos": ["normal", "urgent"]}],
            ),
        )
    )
    assert check(spec) == ()
    # The bill compares declared values by key: each record of a list needs a name of its own.
    values = declared_values(spec)
    assert values["soperator.jail_files[/etc/profile.d/x.sh].mode"] == "0644"
    assert values["slurm.accounts[red].users"] == "ann"
    assert not [key for key in values if key.endswith(("content", "ssh_public_keys"))]
