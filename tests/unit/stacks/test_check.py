"""Each rule fires on one planted mistake, at its level, at its path, with what to do."""

# One planted mistake a line reads as a table.
# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stacks.check import check
from stacks.errors import Level
from stacks.load import load_stack
from stacks.rules.cluster import public_key_problem
from tests import SHIPPED
from tests.conftest import PUBLIC_KEY
from tests.unit.stacks.conftest import Change, changed, load


def worker(config: dict[str, Any]) -> dict[str, Any]:
    return config["nodes"]["workers"][0]


def submount(config: dict[str, Any], **values: Any) -> None:
    config["storage"]["submounts"].append(
        {"name": "extra", "mount_path": "/mnt/extra", "size_gib": 10, **values}
    )


def nfs(**values: Any) -> dict[str, Any]:
    machine = {"platform": "cpu-d3", "preset": "8vcpu-32gb", "boot_disk": {"size_gib": 64}}
    return {**machine, "data_disks": {"size_gib": 93}, **values}


def search(config: dict[str, Any], **values: Any) -> None:
    grid = [{"key": "train.learning_rate", "values": ["1e-5", "2e-5"]}]
    entry = {"name": "lr", "job": "finetune", "metric": "last_loss", "grid": grid, **values}
    config.setdefault("searches", []).append(entry)


def test_the_valid_stack_has_nothing_to_say(config: dict[str, Any]):
    assert check(load(config)) == ()


@pytest.mark.parametrize("name", SHIPPED)
def test_no_shipped_stack_has_an_error(name: str, public_key_file: Path):
    errors = [problem for problem in check(load_stack(name)) if problem.level is Level.ERROR]
    assert errors == []


ERRORS: list[tuple[Change, str, str]] = [
    # identity and entry
    (lambda c: c["nebius"].update(tenant_id="e00"), "nebius.tenant_id", "starts with 'tenant-'"),
    (lambda c: c["nebius"].update(project_id="e00"), "nebius.project_id", "'project-'"),
    (lambda c: c["nebius"].update(project_id="project-"), "nebius.project_id", "dashes follow"),
    (lambda c: c["nebius"].update(project_id="project-$(x)"), "nebius.project_id", "dashes follow"),
    (lambda c: c["nebius"].update(subnet_id="x", network_id="vpcnetwork-1"), "nebius.subnet_id", "vpcsubnet-"),
    (lambda c: c["nebius"].update(region="eu-north9"), "nebius.region", "have: eu-north1"),
    (lambda c: c["cluster"].update(kubernetes_version="1.33.2"), "cluster.kubernetes_version", "MAJOR.MINOR"),
    (lambda c: c["cluster"].update(soperator_version="latest"), "cluster.soperator_version", "4.1.7"),
    (lambda c: c["cluster"].update(etcd_size=2), "cluster.etcd_size", "use 1 or 3"),
    (lambda c: c["cluster"].update(namespace="So"), "cluster.namespace", "lower-case"),
    (lambda c: submount(c, name="tmp-disk"), "storage.submounts[4].name", "a volume that each pod has already"),
    (lambda c: c["cluster"].update(namespace="slurm"), "cluster.namespace", "or set soperator.checks to off"),
    (lambda c: c["cluster"].update(slurm_cluster_name="hpc"), "cluster.slurm_cluster_name", "only where it is 'soperator'"),
    (lambda c: c["login"].update(ssh_public_keys=[]), "login.ssh_public_keys", "no key"),
    (lambda c: c["login"].update(ssh_public_keys=["ssh-dss A"]), "login.ssh_public_keys[0]", "not an OpenSSH"),
    (lambda c: c["login"].update(ssh_port=2222), "login.ssh_port", "listens on 22"),
    (lambda c: c["login"].update(service="NodePort"), "login.ssh_port", "30000 to 32767"),
    (lambda c: c["login"].update(service="NodePort", ssh_port=32768), "login.ssh_port", "32767"),
    (lambda c: c.update(code_path="code"), "code_path", "not absolute"),
    (lambda c: c.update(code_path="/mnt/memory/code"), "code_path", "on the memory that Soperator mounts"),
    (lambda c: c.update(code_path="/mnt/ram/code"), "code_path", "memory of each worker (/mnt/ram)"),
    (lambda c: c.update(python_env_path="/opt//venv"), "python_env_path", "not plain"),
    # storage
    (lambda c: c["storage"].pop("accounting"), "storage.accounting", "slurm.accounting is true"),
    (lambda c: c["storage"]["jail"].update(existing_id="computefilesystem-1"), "storage.jail", "has both"),
    (lambda c: c["storage"].update(controller_spool={}), "storage.controller_spool", "has neither"),
    (lambda c: (c["storage"].update(jail={"existing_id": "computefilesystem-1"}),
                submount(c, size_gib=None, existing_id="computefilesystem-1")),
     "storage.submounts[0].existing_id", "'computefilesystem-1' is used twice, first by storage.jail"),
    (lambda c: submount(c, size_gib=None, existing_id="computefilesystem-1", forbid_deletion=True),
     "storage.submounts[2].forbid_deletion", "does not change"),
    (lambda c: (c["storage"].update(purge_on_destroy=True), submount(c, forbid_deletion=True)),
     "storage.submounts[2].forbid_deletion", "refused half-way"),
    (lambda c: c["storage"].update(backup={"keep_daily": 7, "size_gib": 1, "schedule": "daily"}),
     "storage.backup.schedule", "'daily' is no schedule"),
    (lambda c: c["storage"].update(
        backup={"keep_daily": 7, "size_gib": 1, "schedule": "61 * * * *"}),
     "storage.backup.schedule", "'61' is no minute; cron takes 0 to 59"),
    (lambda c: c["storage"].update(
        backup={"keep_daily": 7, "size_gib": 1, "schedule": "0 0 * * 1-7"}),
     "storage.backup.schedule", "'1-7' is no day of week"),
    *(
        (lambda c, text=text: c["storage"].update(
            backup={"keep_daily": 7, "size_gib": 1, "schedule": text}),
         "storage.backup.schedule", "' is no ")
        for text in ("0 2 * * 5-1", "*/0 2 * * *", "0 2 * * FRI-MON", "0 MON * * *", "0 1-2-3 * * *",
                     "0 2 * JAN,,MAR *", "0 2- * * *", "0 2 * * 7", "0 2 * * 07", "0 2/ * * *", "*-5 2 * * *")
    ),
    (lambda c: (c["storage"]["jail"].update(type="weka"), submount(c, type="weka")),
     "storage", "a cluster can have one"),
    (lambda c: submount(c, name="Data"), "storage.submounts[2].name", "lower-case"),
    (lambda c: submount(c, name="a" * 23), "storage.submounts[2].name", "at most 22"),
    (lambda c: submount(c, name="data"), "storage.submounts[1].name", "'data' is used twice"),
    (lambda c: submount(c, existing_id="computefilesystem-1"), "storage.submounts[2]", "has both"),
    (lambda c: submount(c, size_gib=None), "storage.submounts[2]", "has neither"),
    (lambda c: submount(c, size_gib=None, existing_id="x"), "storage.submounts[2].existing_id", "computefilesystem-"),
    (lambda c: submount(c, mount_path="mnt/x"), "storage.submounts[2].mount_path", "not absolute"),
    (lambda c: submount(c, mount_path="/mnt/x/"), "storage.submounts[2].mount_path", "not plain"),
    (lambda c: submount(c, mount_path="/mnt/a b"), "storage.submounts[2].mount_path", "must quote"),
    (lambda c: submount(c, mount_path="/"), "storage.submounts[2].mount_path", "the jail itself"),
    (lambda c: submount(c, mount_path="/usr/lib"), "storage.submounts[2].mount_path", "lies in /usr, the jail's own system"),
    (lambda c: submount(c, mount_path="/root"), "storage.submounts[2].mount_path", "hides /root, the home of root"),
    (lambda c: submount(c, mount_path="/tmp"), "storage.submounts[2].mount_path", "hides /tmp, the disk"),
    (lambda c: submount(c, mount_path="/opt"), "storage.submounts[2].mount_path", "hides /opt/slurm_scripts, the prolog"),
    (lambda c: submount(c, mount_path="/opt/slurm_scripts/x"), "storage.submounts[2].mount_path", "lies in /opt/slurm_scripts, the prolog"),
    (lambda c: submount(c, mount_path="/mnt/data"), "storage.submounts[2].mount_path", "already the path"),
    (lambda c: submount(c, mount_path="/mnt/data/x"), "storage.submounts[2].mount_path", "lies inside '/mnt/data'"),
    (lambda c: submount(c, mount_path="/mnt"), "storage.submounts[0].mount_path", "lies inside '/mnt'"),
    (lambda c: submount(c, mount_path="/mnt/ram"), "storage.memory.mount_path", "already the path"),
    (lambda c: submount(c, mount_path="/mnt/memory"), "storage.submounts[2].mount_path",
     "'/mnt/memory' hides /mnt/memory, the memory that Soperator mounts on each node; choose another"),
    (lambda c: submount(c, mount_path="/mnt/memory/x"), "storage.submounts[2].mount_path", "lies in /mnt/memory"),
    (lambda c: submount(c, mount_path="/mnt"), "storage.submounts[2].mount_path", "hides /mnt/memory"),
    (lambda c: c["storage"]["memory"].update(mount_path="/mnt/memory"), "storage.memory.mount_path",
     "such as /mnt/NAME, or remove storage.memory: Soperator's own is there in any case"),
    (lambda c: c.update(nfs=nfs(mount_path="/mnt/memory")), "nfs.mount_path", "hides /mnt/memory"),
    (lambda c: c["storage"]["memory"].update(size_gib=1600), "storage.memory.size_gib", "is more than a 'worker' node has (1600 GiB); write less"),
    (lambda c: c["storage"]["places"].pop("chkpt"), "storage.places.chkpt", "missing; recipes name all"),
    (lambda c: c["storage"]["places"].update(chkpoint="/mnt/data"), "storage.places.chkpoint", "unknown place"),
    (lambda c: c["storage"]["places"].update(logs="logs"), "storage.places.logs", "not absolute"),
    (lambda c: c["storage"]["places"].update(logs="/mnt/memory/logs"), "storage.places.logs", "do not see it"),
    (lambda c: c["storage"]["places"].update(logs="/mnt/ram/logs"), "storage.places.logs", "do not see it"),
    # nodes
    (lambda c: worker(c).update(platform="gpu-h100"), "nodes.workers[0].platform", "has: cpu-e2, cpu-d3"),
    (lambda c: worker(c).update(preset="4gpu"), "nodes.workers[0].preset",
     "'4gpu' is not a preset of 'gpu-h100-sxm' (has: 1gpu-16vcpu-200gb, 8gpu-128vcpu-1600gb)"),
    (lambda c: worker(c).update(platform="gpu-b200-sxm"), "nodes.workers[0].platform", "is in: us-central1"),
    (lambda c: worker(c).update(platform="gpu-l40s-d", preset="2gpu-64vcpu-384gb"),
     "nodes.workers[0].infiniband_fabric", "cannot join a GPU cluster; remove the fabric"),
    (lambda c: worker(c).update(preset="1gpu-16vcpu-200gb"), "nodes.workers[0].infiniband_fabric",
     "use 8gpu-128vcpu-1600gb or remove"),
    (lambda c: worker(c).update(infiniband_fabric="fabric-5"), "nodes.workers[0].infiniband_fabric",
     "in eu-west1, not of gpu-h100-sxm in eu-north1 (has: fabric-2, fabric-3, fabric-4, fabric-6)"),
    (lambda c: worker(c).update(infiniband_fabric="fabric-7"), "nodes.workers[0].infiniband_fabric", "gpu-h200-sxm"),
    (lambda c: worker(c).update(name="Worker"), "nodes.workers[0].name", "lower-case"),
    (lambda c: worker(c).update(name="system"), "nodes.workers[0].name", "node group of a role"),
    (lambda c: c["nodes"]["workers"].append(dict(worker(c))), "nodes.workers[1].name", "'worker' is used twice"),
    (lambda c: c["nodes"].update(workers=[]), "nodes.workers", "at least one"),
    (lambda c: c["nodes"]["system"].update(min_nodes=10), "nodes.system.min_nodes", "more than max_nodes (9)"),
    (lambda c: c["nodes"]["system"].update(min_nodes=0), "nodes.system.min_nodes", "does not start"),
    (lambda c: c["nodes"]["system"].update(max_nodes=101), "nodes.system.max_nodes", "holds 100"),
    (lambda c: worker(c).update(boot_disk={"size_gib": 32}), "nodes.workers[0].boot_disk.size_gib", "64 or more"),
    (lambda c: worker(c).update(boot_disk={"size_gib": 560, "type": "network-ssd-non-replicated"}),
     "nodes.workers[0].boot_disk.size_gib", "not a multiple of 93, as network-ssd-non-replicated needs; use 651"),
    (lambda c: worker(c).update(boot_disk={"size_gib": 262167, "type": "network-ssd-io-m3"}),
     "nodes.workers[0].boot_disk.size_gib", "ends at 262074"),
    (lambda c: c["nodes"].pop("accounting"), "nodes.accounting", "missing, but slurm.accounting is true"),
    (lambda c: c["slurm"].update(accounting=False), "nodes.accounting", "declared, but slurm.accounting is false"),
    # partitions and jobs
    (lambda c: c["slurm"]["partitions"].pop(1), "slurm.partitions", "no partition 'hidden'"),
    (lambda c: c["slurm"]["partitions"][1].update(nodesets=["worker"]), "slurm.partitions[1].nodesets", "all nodes"),
    (lambda c: c["slurm"]["partitions"][0].update(nodesets=["wrker"]), "slurm.partitions[0].nodesets", "has: worker"),
    (lambda c: c["slurm"]["partitions"][0].update(config="State=UP"), "slurm.partitions", "none has Default=YES"),
    (lambda c: c["slurm"]["partitions"][1].update(config="DEFAULT=yes"), "slurm.partitions", "main, hidden have"),
    (lambda c: c["jobs"][1].update(name="Fine"), "jobs[1].name", "lower-case"),
    (lambda c: c["jobs"][1].update(name="prepare"), "jobs[1].name", "'prepare' is used twice, first by jobs[0].name;"),
    (lambda c: c["jobs"][1].update(module="train"), "jobs[1].module", "workloads.train"),
    (lambda c: c["jobs"][1].update(recipe="a.json"), "jobs[1].recipe", "without its ending (.json, .yaml, .yml)"),
    (lambda c: c["jobs"][1].update(time_limit="\uff11:00:00"), "jobs[1].time_limit", "no Slurm time"),
    (lambda c: c["jobs"][1].update(time_limit="2h"), "jobs[1].time_limit", "'1-00:00:00'"),
    (lambda c: c["jobs"][1].update(partition="gpu"), "jobs[1].partition", "has: main, hidden"),
    (lambda c: c["jobs"][1].update(nodes=3), "jobs[1].nodes", "has at most 2 such nodes; write at most 2, or raise max_nodes"),
    (lambda c: c["jobs"][1].update(gpus_per_node=9), "jobs[1].gpus_per_node", "has 8; write at most 8"),
    (lambda c: c["jobs"][1].update(cpus_per_task=17), "jobs[1].cpus_per_task", "136 CPUs, but a node has 128; write at most 16"),
    (lambda c: c["jobs"][1].update(after="prep"), "jobs[1].after", "has: prepare, finetune"),
    (lambda c: c["jobs"][0].update(after="finetune"), "jobs[0].after", "prepare -> finetune -> prepare is a circle"),
    (lambda c: c["jobs"][0].update(after="prepare"), "jobs[0].after", "is a circle"),
    (lambda c: c["jobs"][1].update(after=["prepare", "prep"]), "jobs[1].after", "'prep' is not a job"),
    (lambda c: c["jobs"][1].update(after=["prepare", "prepare"]), "jobs[1].after[1]", "'prepare' is used twice"),
    (lambda c: c["jobs"][1].update(schedule="0 2 * *"), "jobs[1].schedule", "give five fields of cron"),
    (lambda c: c["jobs"][1].update(schedule="60 2 * * *"), "jobs[1].schedule", "'60' is no minute; Slurm takes 0 to 59"),
    (lambda c: c["jobs"][1].update(schedule="0 2 30 feb *"), "jobs[1].schedule", "never comes"),
    (lambda c: (c["jobs"][1].update(schedule="@daily"), c["slurm"].update(config_lines=["ScronParameters=enable"])),
     "slurm.config_lines[0]", "take it out"),
    (lambda c: search(c, name="Lr"), "searches[0].name", "lower-case"),
    (lambda c: search(c, name="finetune"), "searches[0].name", "'finetune' is a job"),
    (lambda c: (search(c), search(c)), "searches[1].name", "'lr' is used twice"),
    (lambda c: search(c, metric="Last loss"), "searches[0].metric", "is no metric"),
    (lambda c: search(c, job="fine"), "searches[0].job", "has: prepare, finetune"),
    (lambda c: (c["jobs"][0].update(module="workloads.serve", nodes=1), search(c, job="prepare")),
     "searches[0].job", "is no job that gives a result"),
    (lambda c: search(c, grid=[]), "searches[0]", "0 trials by grid and trials; give 2 to 500"),
    (lambda c: search(c, grid=[{"key": f"a{n}", "values": [str(v) for v in range(99)]} for n in range(9)]),
     "searches[0]", "913,517,247,483,640,899 trials"),
    (lambda c: search(c, grid=[{"key": "a", "values": ["1", "2"]}, {"key": "a", "values": ["3"]}]),
     "searches[0].grid[1].key", "'a' is used twice"),
    (lambda c: search(c, grid=[{"key": "a", "values": []}], trials=[{"settings": ["a=1"]}, {"settings": ["a=2"]}]),
     "searches[0].grid[0].values", "'a' has no value"),
    (lambda c: search(c, grid=[{"key": "a b", "values": ["1", "2"]}]), "searches[0].grid[0].key", "is no setting"),
    (lambda c: search(c, trials=[{"settings": ["lr"]}]), "searches[0].trials[0].settings", "'lr' is not key=value"),
    (lambda c: search(c, trials=[{"settings": ["train.learning_rate=1e-5"]}]), "searches[0]", "is 2 trials"),
    (lambda c: (search(c), c["slurm"].update(config_lines=["maxarraysize = 9", "MaxArraySize=1"])),
     "slurm.config_lines[1]", "search 'lr' is an array of 2 trials; give 2 or more"),
    (lambda c: c["chat"].update(serving_nodeset="w"), "chat.serving_nodeset", "has: worker"),
    (lambda c: c["chat"].update(output_tokens=9000), "chat.output_tokens", "do not fit"),
]  # fmt: skip


@pytest.mark.feature("S000-75")
@pytest.mark.feature("S000-69")
@pytest.mark.parametrize(("change", "path", "message"), ERRORS, ids=[row[1] for row in ERRORS])
def test_what_would_break_is_an_error(change: Change, path: str, message: str):
    found = {
        problem.path: problem.message
        for problem in check(changed(change))
        if problem.level is Level.ERROR
    }
    assert message in found.get(f"demo.{path}", f"no error there; found {found}")


WARNINGS: list[tuple[Change, str, str]] = [
    (lambda c: c["jobs"][1].update(schedule="@hourly"), "jobs[1].schedule", "may come 1:00:00 after"),
    (lambda c: c["nodes"]["controller"].update(nodes=2), "nodes.controller.max_nodes", "1 never used; set nodes to 1"),
    (lambda c: c["nodes"]["login"].update(preset="4vcpu-16gb"), "nodes.login.preset", "insufficient for login"),
    (lambda c: c["nodes"]["system"].update(min_nodes=1), "nodes.system.min_nodes", "wants 3"),
    (lambda c: worker(c).update(boot_disk={"size_gib": 128}), "nodes.workers[0].boot_disk.size_gib", "wants 512"),
    (lambda c: worker(c).pop("infiniband_fabric"), "nodes.workers[0].infiniband_fabric", "over Ethernet"),
    (lambda c: worker(c).update(infiniband_fabric="fabric-99"), "nodes.workers[0].infiniband_fabric", "only the API"),
    (lambda c: worker(c).update(name="gpu"), "nodes.workers[0].name", "worker-*"),
    (lambda c: worker(c).update(shared_memory_gib=1595), "nodes.workers[0].shared_memory_gib", "kills the job"),
    (lambda c: c["storage"]["memory"].update(size_gib=300), "storage.memory.size_gib",
     "leaves 1300 GiB of a 'worker' node, so the next job that asks for all 1436 GiB drains it"),
    (lambda c: c["storage"]["jail"].update(size_gib=3000), "storage.jail.size_gib", "Nebius support"),
    (lambda c: c["storage"]["jail"].update(type="weka"), "storage.jail.type", "but there are nodes.system 8, nodes"),
    (lambda c: c["storage"]["places"].update(data="/mnt/dta"), "storage.places.data", "fills the jail"),
    (lambda c: c["storage"].update(backup={"keep_daily": 7, "size_gib": 256}, purge_on_destroy=True), "storage.purge_on_destroy", "no copy is left"),
    (lambda c: c["storage"].update(backup={"keep_daily": 7, "size_gib": 1024}), "storage.backup.size_gib", "256 GiB"),
    (lambda c: c.update(code_path="/opt/code"), "code_path", "under no declared submount"),
    (lambda c: c["nodes"]["login"].update(billing="preemptible"), "nodes.login.billing", "stops the cluster"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "path", "message"), WARNINGS, ids=[row[1] for row in WARNINGS])
def test_what_works_but_costs_is_a_warning(change: Change, path: str, message: str):
    problems = check(changed(change))
    assert [problem.level for problem in problems] == [Level.WARNING], problems
    assert problems[0].path == f"demo.{path}"
    assert message in problems[0].message


def test_a_job_may_use_nodes_of_every_nodeset_that_fits():
    def two_nodesets(config: dict[str, Any]) -> None:
        config["nodes"]["workers"].append({**worker(config), "name": "worker-b"})
        config["jobs"][1]["nodes"] = 4

    assert check(changed(two_nodesets)) == ()


def test_a_job_counts_only_the_nodes_of_its_partition():
    def narrow_partition(config: dict[str, Any]) -> None:
        config["nodes"]["workers"].append({**worker(config), "name": "worker-b"})
        config["slurm"]["partitions"][0]["nodesets"] = ["worker"]
        config["jobs"][1]["nodes"] = 3

    (problem,) = check(changed(narrow_partition))
    assert problem.path == "demo.jobs[1].nodes"


def test_errors_come_before_warnings_and_all_are_reported():
    def three_mistakes(config: dict[str, Any]) -> None:
        config["nodes"]["login"]["preset"] = "4vcpu-16gb"
        config["nebius"]["region"] = "mars"
        config["jobs"][1]["after"] = "nothing"

    levels = [problem.level for problem in check(changed(three_mistakes))]
    assert levels.count(Level.ERROR) > 1
    assert levels == sorted(levels)


def test_an_unknown_preset_is_one_error_and_not_an_exception():
    """Rules that need the preset stay silent instead of repeating the mistake."""
    (problem,) = check(changed(lambda c: worker(c).update(preset="8gpu")))
    assert problem.path == "demo.nodes.workers[0].preset"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (PUBLIC_KEY.replace("AAAAC3", "AAAA!3"), "not base64"),
        (PUBLIC_KEY.split()[0] + " " + PUBLIC_KEY.split()[1][:16], "cut off"),
        (PUBLIC_KEY.replace("ssh-ed25519", "ssh-rsa", 1), "cut off"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "private key"),
        ("ssh-ed25519", "not an OpenSSH public key"),
        ("", "not an OpenSSH public key"),
    ],
)
def test_a_damaged_public_key_is_refused(line: str, message: str):
    assert message in (public_key_problem(line) or "accepted")


def test_a_private_key_is_never_repeated_in_a_message():
    assert "BEGIN" not in (public_key_problem("-----BEGIN OPENSSH PRIVATE KEY----- abc") or "")


@pytest.mark.parametrize(
    "schedule",
    [
        "0 2 * * 1-5",
        "*/15 08-18/2 1,15 jan-mar,DEC mon",
        "59 23 31 12 6",
        "@daily-random",
        "7/20 * * * *",
    ],
)
def test_a_schedule_that_k8up_reads_is_taken(schedule: str):
    backup = {"keep_daily": 7, "size_gib": 1, "schedule": schedule, "prune_schedule": schedule}
    assert check(changed(lambda c: c["storage"].update(backup=backup))) == ()
