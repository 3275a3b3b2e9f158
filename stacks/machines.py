"""The machines of a stack and what lies where on them: node_groups(spec), shared_mounts(spec).

Also what Soperator 4.1.7 itself mounts in login and worker pods, in the jail and beside it, the
disks that its charts claim, and the hardware that its GPU checks know. Where no other source
stands, a source is a path in nebius/soperator at tag 4.1.7, read 2026-11-22. The operator takes a
mount of ours at one of its own paths without a word, and the API server then refuses the pod:
"mountPath: Invalid value: must be unique".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from types import MappingProxyType
from typing import Final

from stacks.spec import StackSpec
from stacks.spec.cluster import HOME, Observability
from stacks.spec.nodes import IMAGE_PATH, MachineSpec, NfsSpec, NodeGroupSpec, WorkerSpec
from stacks.spec.slurm import WHOLE_NODES, JobSpec
from stacks.spec.storage import DiskType

ROLES: Final = ("system", "controller", "login", "accounting", "nfs")


def node_groups(spec: StackSpec) -> Iterator[tuple[str, str, NodeGroupSpec]]:
    """Role, path in the stack and node group, in the order of the file."""
    for role in ROLES if spec.attached is None else ():
        group: NodeGroupSpec | None = getattr(spec.nodes, role)
        if group is not None:
            yield role, f"nodes.{role}", group
    for index, worker in enumerate(spec.nodes.workers):
        yield "worker", f"nodes.workers[{index}]", worker


def machines(spec: StackSpec) -> Iterator[tuple[str, MachineSpec]]:
    """Path in the stack and hardware of everything that runs, in the cluster and beside it."""
    for _, path, group in node_groups(spec):
        yield path, group
    if spec.nfs is not None:
        yield "nfs", spec.nfs


def disks(machine: MachineSpec, path: str) -> Iterator[tuple[str, int, DiskType, int]]:
    """Path, GiB, type and number of the disks of one machine, the boot disk first."""
    yield f"{path}.boot_disk", machine.boot_disk.size_gib, machine.boot_disk.type, 1
    if isinstance(machine, WorkerSpec):
        for index, disk in enumerate(machine.local_disks):
            yield f"{path}.local_disks[{index}]", disk.size_gib, disk.type, 1
        if machine.image_disk is not None:
            yield f"{path}.image_disk", machine.image_disk.size_gib, machine.image_disk.type, 1
    if isinstance(machine, NfsSpec):
        data = machine.data_disks
        yield f"{path}.data_disks", data.size_gib, data.type, data.count


_NODES: Final = re.compile(r"(?P<prefix>[^\[\],]{1,255})(?:\[(?P<ranges>[0-9,-]+)\])?(?:,|$)")
_MOST_NODES: Final = 1 << 16
"""More than any cluster has: a line of a login node must not fill this machine's memory."""
_MOST_DIGITS: Final = 18


def expand_nodes(text: str) -> tuple[str, ...]:
    """Every name of a list as Slurm writes it, such as `gpu[01-03,7]`; ValueError for any other."""
    names: list[str] = []
    position = 0
    while position < len(text):
        found = _NODES.match(text, position)
        if found is None:
            raise ValueError(f"{text[:80]!r} is not a list of names")
        position = found.end()
        for each in [""] if found["ranges"] is None else _numbers(found["ranges"], text):
            if len(names) == _MOST_NODES:
                raise ValueError(f"{text[:80]!r} are more names than a cluster has")
            names.append(found["prefix"] + each)
    return tuple(names)


def _numbers(ranges: str, text: str) -> Iterator[str]:
    """`0-1,3` -> 0, 1, 3; leading zeros stay."""
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        is_range = first.isdecimal() and (last.isdecimal() or not dash)
        if not is_range or len(part) > 2 * _MOST_DIGITS or int(last or first) < int(first):
            raise ValueError(f"{text[:80]!r} is not a list of names")
        for number in range(int(first), int(last or first) + 1):
            yield f"{number:0{len(first)}d}"


def nodeset_of(spec: StackSpec, node: str) -> str:
    """Name of the nodeset of a node of Slurm; it may be none that the stack has."""
    if spec.attached is None:
        return node.rpartition("-")[0]
    for each in spec.attached.nodesets:
        if node in _names(each.nodes):
            return each.name
    return ""


@cache
def _names(nodes: str) -> frozenset[str]:
    return frozenset(expand_nodes(nodes))


# nebius/soperator helm/soperator-activechecks/scripts at 4.1.7 with health-checker 1.1.30, read
# 2026-11-21: platforms 8xH100, 8xH200, 8xB200 and 8xB300. On any other a check prints a line and
# passes.
CHECKED_GPUS: Final = 8
CHECKED_PLATFORMS: Final = (
    "gpu-h100-sxm",
    "gpu-h200-sxm",
    "gpu-b200-sxm",
    "gpu-b200-sxm-a",
    "gpu-b300-sxm",
)


def checks_know(worker: WorkerSpec) -> bool:
    """Whether a GPU check on this worker's nodes would check anything."""
    return worker.gpus == CHECKED_GPUS and worker.platform in CHECKED_PLATFORMS


# Disks that the charts claim from the cloud, beside the declared filesystems: infra/render writes
# the claims, cost/ prices them, and both ask here.
_OBSERVABILITY_GIB: Final[Mapping[Observability, Mapping[str, int]]] = MappingProxyType(
    {
        Observability.OFF: MappingProxyType({}),
        # Defaults of helm/soperator-fluxcd at 4.1.7.
        Observability.SMALL: MappingProxyType({"metrics": 30, "logs": 30}),
        # nebius-solutions-library soperator/modules/slurm, commit 7b687e5, 2026-04-21.
        Observability.FULL: MappingProxyType({"metrics": 512, "logs": 256}),
    }
)


def home_volume_gib(spec: StackSpec) -> int:
    """GiB that the NFS server of `/home` claims on network SSD; 0 without one."""
    return 0 if spec.soperator.nfs_home is None else spec.soperator.nfs_home.size_gib


def observability_volumes(spec: StackSpec) -> Mapping[str, int]:
    """GiB that metrics and logs claim on network SSD, by what they keep; empty without them."""
    return _OBSERVABILITY_GIB[spec.soperator.observability]


JAIL_UPPER: Final = "/mnt/jail.upper"
"""Where a pod puts what shall show in the jail, under its path there."""
MEMORY: Final = "/mnt/memory"
"""A tmpfs of each login and worker pod, of at most the memory that slurmd or sshd asks for."""

_COMPLEMENT: Final = "images/common/scripts/complement_jail.sh"
_SLURM: Final = "images/common/scripts/bind_slurm_common.sh"
_VOLUMES: Final = "internal/render/common/volume.go"
_IMEX: Final = "internal/render/common/nvidia_imex.go"
_CHART: Final = "helm/slurm-cluster/templates/slurm-cluster-cr.yaml"
_SLURM_PROGRAMS: Final = (
    "sacct", "sacctmgr", "salloc", "sattach", "sbatch", "sbcast", "scancel", "scontrol", "scrontab",
    "scrun", "sdiag", "sh5util", "sinfo", "sprio", "squeue", "sreport", "srun", "sshare", "sstat",
    "strigger",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class JailMount:
    """One path of the jail that shows something else than the jail's filesystem."""

    path: str
    what: str
    """What lies there, as a message calls it."""
    source: str
    of_one_node: bool = False
    """Whether jobs write there what other nodes do not see."""
    of_sssd: bool = False
    """Whether it is there with soperator.sssd alone."""


IN_JAIL: Final = (
    JailMount(MEMORY, "the memory that Soperator mounts on each node", _VOLUMES, True),
    JailMount("/tmp", "the disk that each node puts at /tmp", _VOLUMES, True),  # noqa: S108
    JailMount("/dev", "each node's own /dev", _COMPLEMENT, True),
    JailMount("/proc", "each node's own /proc", _COMPLEMENT, True),
    JailMount("/run", "each node's own /run", _COMPLEMENT, True),
    JailMount("/sys", "each node's own /sys", _COMPLEMENT, True),
    JailMount("/var/log", "each node's own /var/log", _COMPLEMENT, True),
    JailMount("/var/spool/slurmd", "the spool of slurmd", _COMPLEMENT, True),
    JailMount("/var/lib/sss/pipes", "the sockets of sssd", _COMPLEMENT, of_sssd=True),
    JailMount("/etc/sssd", "the configuration of sssd", _COMPLEMENT, of_sssd=True),
    JailMount("/etc/hosts", "each node's own names", _COMPLEMENT),
    JailMount("/etc/resolv.conf", "each node's own names", _COMPLEMENT),
    JailMount("/etc/enroot", "the configuration of enroot", _COMPLEMENT),
    JailMount("/usr/share/enroot", "enroot", _COMPLEMENT),
    JailMount("/usr/lib/enroot", "enroot", _COMPLEMENT),
    JailMount("/usr/lib/slurm", "plugins of Slurm", _COMPLEMENT),
    JailMount("/usr/sbin/slurmd", "slurmd", _COMPLEMENT),
    JailMount("/usr/sbin/slurmstepd", "slurmstepd", _COMPLEMENT),
    *(JailMount(f"/usr/bin/{name}", "a program of Slurm", _SLURM) for name in _SLURM_PROGRAMS),
    JailMount("/etc/nvidia-imex", "the configuration of IMEX", _IMEX),
    JailMount("/usr/bin/nvidia-imex-ctl", "a program of the driver", _IMEX),
    JailMount("/opt/slurm_scripts", "the prolog, epilog and health checks of Soperator", _CHART),
)
"""Volumes under /mnt/jail.upper of the pods, and what complement_jail.sh binds into the jail.

Beside it: libraries and programs of the driver, of Slurm and of enroot, file by file, in /usr.
"""

KEPT: Final = MappingProxyType(
    {
        "/mnt/jail": "where nodes mount the jail",
        JAIL_UPPER: "where nodes put their mounts into the jail",
        "/opt/soperator-home": "the homes of Soperator's own users",
        "/opt/soperator-outputs": "the logs of Soperator's checks",
        "/root": "the home of root with the keys that let `soperator` in",
    }
)
"""Path in the jail that no mount may cover -> what Soperator or this program keeps there."""

VOLUMES: Final = frozenset(
    # internal/consts/volume.go, as internal/render/{worker,login}/volume.go call them.
    {
        "boot", "dev-shm", "in-memory", "jail", "munge-key", "munge-socket", "nvidia",
        "nvidia-imex-cli", "nvidia-imex-cli-jail", "nvidia-imex-config", "nvidia-imex-config-jail",
        "security-limits", "ssh-configs", "ssh-configs-worker", "ssh-root-keys", "sshd-keys",
        "sssd-conf", "sssd-ldap-ca", "sssd-socket", "supervisord-config", "sysctl", "tmp-disk",
        "topology-node-labels", "worker-spool",
    }
    # infra/render/values: of this program.
    | {
        "docker-on-image-storage", "enroot-on-image-storage", "home-dir", "hpc-jobs-dir",
        "image-storage", "local-nvme", "memory", "nfs", "nvidia-driver-root", "slurm-scripts",
        "slurm-scripts-jail",
    }
)  # fmt: skip
"""Names of the other volumes in pods of login and workers: a second of a name makes a pod that the
API server refuses, and a disk of a node by that name takes the other's place."""


# One list of shared paths and one of each node's own, for rules, jobs and outputs, so that a new
# kind of mount is in all of them.
def shared_mounts(spec: StackSpec) -> Mapping[str, str]:
    """Config key -> mount path of everything shared beside the jail itself."""
    found = {
        f"storage.submounts[{index}]": submount.mount_path
        for index, submount in enumerate(spec.storage.submounts)
    }
    if spec.nfs is not None:
        found["nfs"] = spec.nfs.mount_path
    if spec.soperator.nfs_home is not None:
        found["soperator.nfs_home"] = HOME
    return found


def paths_of_one_node(spec: StackSpec) -> Mapping[str, str]:
    """Mount path of what each node has for itself -> how a message calls it."""
    paths = {mount.path: mount.what for mount in IN_JAIL if mount.of_one_node}
    for worker in spec.nodes.workers:
        for disk in worker.local_disks:
            paths[disk.mount_path] = f"a disk of each '{worker.name}' node ({disk.mount_path})"
        if worker.local_nvme is not None:
            drive = worker.local_nvme.mount_path
            paths[drive] = f"the drives of each '{worker.name}' node ({drive})"
        if worker.image_disk is not None:
            paths[IMAGE_PATH] = f"the image disk of each '{worker.name}' node ({IMAGE_PATH})"
    if spec.storage.memory is not None:
        memory = spec.storage.memory.mount_path
        paths[memory] = f"the memory of each worker ({memory})"
    return paths


def cpus_per_rank(nodesets: Sequence[WorkerSpec], job: JobSpec) -> int:
    """CPUs of a rank: the declared ones, else its GPU's share of the node with the fewest."""
    if job.cpus_per_task is not None:
        return job.cpus_per_task
    if not job.gpus_per_node:
        return 1
    presets = (worker.hardware for worker in nodesets)
    return min(preset.vcpus // preset.gpus for preset in presets if preset is not None)


def workers_of(spec: StackSpec, partition: str) -> tuple[WorkerSpec, ...]:
    """Nodesets of the partition of this name, all when it names none; none where it is none."""
    found = next((each for each in spec.slurm.partitions if each.name == partition), None)
    if found is None or not found.nodesets:
        return () if found is None else spec.nodes.workers
    return tuple(worker for worker in spec.nodes.workers if worker.name in found.nodesets)


def share_of_node(
    spec: StackSpec, partition: str, worker: WorkerSpec, gpus: int, cpus: int
) -> Decimal:
    """The larger of a job's parts of CPUs and GPUs, above 0; all where nodes are given whole."""
    lines = [each.config.lower() for each in spec.slurm.partitions if each.name == partition]
    if any(WHOLE_NODES.lower() in line for line in lines):
        return Decimal(1)
    of_gpus = Decimal(gpus) / worker.gpus if worker.gpus else Decimal(0)
    return max(of_gpus, Decimal(max(1, cpus)) / max(1, worker.vcpus))
