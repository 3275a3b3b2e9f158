"""Values of helm-nodesets: one NodeSet per declared worker group. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from infra.render import names
from infra.render.values.pods import (
    BUSYBOX,
    NFS,
    SCRIPTS,
    claim,
    guard,
    nfs_volume,
    preset_of,
    quantities,
    virtiofs_guards,
)
from infra.render.values.slurm_cluster import sssd_references
from infra.render.values.storage import home_on_worker
from stacks.catalog import MUNGE, PLATFORMS, SSSD, slurmd_amounts
from stacks.machines import JAIL_UPPER
from stacks.spec import StackSpec
from stacks.spec.cluster import GpuDrivers, Observability
from stacks.spec.nodes import IMAGE_PATH, ImageDiskSpec, LocalDiskSpec, WorkerSpec

JOB_MAP_FOLDER: Final = "/var/run/nebius/slurm"
"""Where slurmd tells the DCGM exporter which job holds which GPU."""
_IMAGE_STORAGE: Final = "image-storage"
"""ConfigMap of helm-soperator-custom-configmaps, and the volume that it speaks of."""
FOLDERS: Final = "make-folders-"
"""Init container that makes the folders of a disk; the disk's name follows, arguments are paths."""


def nodesets_values(spec: StackSpec, *, nfs_address: Any = None) -> dict[str, Any]:
    """Every worker group as the chart wants it."""
    return {"nodesets": [_nodeset(spec, worker, nfs_address) for worker in spec.nodes.workers]}


def gres(worker: WorkerSpec) -> str | None:
    """Gres of one node, such as `gpu:nvidia_l40s:2`; None without GPUs."""
    preset = preset_of(worker)
    if not preset.gpus:
        return None
    type_ = PLATFORMS[worker.platform].gres_type
    return f"gpu:{type_}:{preset.gpus}" if type_ else f"gpu:{preset.gpus}"


def is_elastic(worker: WorkerSpec) -> bool:
    """Whether Slurm itself brings and drops nodes between the least and the most."""
    return worker.min_nodes < worker.max_nodes


def storage_class(disk: LocalDiskSpec | ImageDiskSpec) -> str:
    """Class of helm-storageclasses for a disk that one node has for itself."""
    return f"compute-csi-{disk.type}-{disk.filesystem}"


def _nodeset(spec: StackSpec, worker: WorkerSpec, nfs_address: Any) -> dict[str, Any]:
    preset = preset_of(worker)
    sssd = spec.soperator.sssd
    amounts = slurmd_amounts(preset, worker.boot_disk.size_gib, sssd=sssd is not None)
    resources: dict[str, Any] = {**quantities(amounts)}
    static = (
        f"CPUs={preset.vcpus} Boards=1 SocketsPerBoard={preset.sockets} "
        f"CoresPerSocket={preset.cores_per_socket} ThreadsPerCore={preset.threads_per_core}"
    )
    volumes = _volumes(spec, worker, nfs_address)
    slurmd: dict[str, Any] = {"resources": resources, "volumes": volumes}
    values: dict[str, Any] = {
        "name": worker.name,
        "annotations": {names.CLUSTER_REF: spec.cluster.slurm_cluster_name},
        **replicas(worker),
        # hostUsers: false on privileged workers breaks enroot.
        "enableHostUserNamespace": True,
        "priorityClass": "soperator-worker-high-priority",
        "nodeSelector": {names.NODESET_NAME_LABEL: worker.name},
        "munge": {"resources": quantities(MUNGE)},
        "customInitContainers": _init_containers(spec, worker),
    }
    if preset.gpus:
        resources["gpu"] = preset.gpus
        # GRES is not derived in structured mode: without it jobs with --gres never start.
        static += f" Gres={gres(worker)}"
        values["gpu"] = {"enabled": True, "nvidia": {"gdrCopyEnabled": True}}
        # The chart's default leaves out video and graphics, which decoders of data sets use.
        slurmd["customEnv"] = [
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,graphics,utility,video"}
        ]
        values["tolerations"] = [
            {"key": names.GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}
        ]
    values["nodeConfig"] = {"static": static, "features": features(worker)}
    if worker.gres_lines:
        values["nodeConfig"]["gresConfig"] = list(worker.gres_lines)
    if worker.extra is not None:
        values["nodeConfig"]["dynamic"] = _for_shell(worker.extra)
    if worker.sshd_config_map is not None:
        values["configMapRefSshd"] = worker.sshd_config_map
    if sssd is not None:
        values["sssd"] = {"enabled": True, "resources": quantities(SSSD)}
        values |= sssd_references(sssd)
    values["slurmd"] = slurmd
    return values


def features(worker: WorkerSpec) -> list[str]:
    """What `--constraint` may name: platform and boot disk as in the recipe, then its own."""
    hardware = (worker.platform, str(worker.boot_disk.type))
    return [*dict.fromkeys((*(name.replace("-", "_") for name in hardware), *worker.features))]


def _for_shell(text: str) -> str:
    """The text as one word of a shell, with its variables left to be filled in.

    The worker's entrypoint does `eval echo "$SLURM_NODE_EXTRA"` (nebius/soperator, images/worker).
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def replicas(worker: WorkerSpec) -> dict[str, Any]:
    """How many pods of slurmd the nodeset has, as its chart counts them."""
    if not is_elastic(worker):
        return {"replicas": worker.min_nodes}
    # The chart makes one of zero replicas; of an elastic set it counts the most.
    return {
        "replicas": worker.max_nodes,
        "ephemeralNodes": True,
        "initialNumberEphemeralNodes": worker.min_nodes,
    }


def _volumes(spec: StackSpec, worker: WorkerSpec, nfs_address: Any) -> dict[str, Any]:
    mounts = [
        {
            "name": submount.name,
            "mountPath": submount.mount_path,
            "volumeSource": claim(names.submount_tag(submount.name)),
        }
        for submount in spec.storage.submounts
    ]
    mounts += home_on_worker(spec)
    if spec.nfs is not None:
        mounts.append(_mount(NFS, spec.nfs.mount_path, nfs_volume(nfs_address)))
    memory = spec.storage.memory
    if memory is not None:
        empty = {"medium": "Memory", "sizeLimit": f"{memory.size_gib}Gi"}
        mounts.append(_mount("memory", memory.mount_path, {"emptyDir": empty}))
    for disk in worker.local_disks:
        mounts.append(_own_disk(disk.name, disk.mount_path, disk))
    if worker.local_nvme is not None:
        path = worker.local_nvme.mount_path
        mounts.append(_mount("local-nvme", path, _host(path, "Directory")))
    if worker.image_disk is not None:
        mounts.append(_own_disk(_IMAGE_STORAGE, IMAGE_PATH, worker.image_disk))
    return {
        # The chart's default, a volumeClaimTemplateSpec, is unknown to the CRD.
        "spool": {"emptyDir": {}},
        "jail": claim(names.JAIL),
        "sharedMemorySize": f"{worker.shared_memory_gib}Gi",
        "jailSubMounts": mounts,
        "customVolumeMounts": _custom_mounts(spec, worker),
    }


def _custom_mounts(spec: StackSpec, worker: WorkerSpec) -> list[dict[str, Any]]:
    # slurm.conf names these scripts, but the chart mounts them on login nodes only: a worker
    # without them is drained by its first job.
    scripts = {"configMap": {"name": SCRIPTS, "defaultMode": 0o755}}
    mounts = [
        _mount("slurm-scripts", "/opt/slurm_scripts/", scripts),
        _mount("slurm-scripts-jail", f"{JAIL_UPPER}/opt/slurm_scripts/", scripts),
    ]
    if preset_of(worker).gpus:
        if spec.cluster.gpu_drivers is GpuDrivers.PREINSTALLED:
            # Checks and scripts of the charts look for the driver where the GPU operator puts it.
            mounts.append(_mount("nvidia-driver-root", "/run/nvidia/driver", _host("/", "")))
        if spec.soperator.observability is not Observability.OFF:
            job_map = _host(JOB_MAP_FOLDER, "DirectoryOrCreate")
            mounts.append(_mount("hpc-jobs-dir", JOB_MAP_FOLDER, job_map))
    if worker.image_disk is not None:
        for name, path, key in (
            (
                "enroot-on-image-storage",
                "/etc/enroot/enroot.conf.d/custom-dirs.conf",
                "enroot.conf",
            ),
            ("docker-on-image-storage", "/etc/docker/daemon.json", "daemon.json"),
        ):
            source = {"configMap": {"name": _IMAGE_STORAGE, "defaultMode": 0o500}}
            mounts.append({**_mount(name, path, source), "subPath": key, "readOnly": True})
    return mounts


def _init_containers(spec: StackSpec, worker: WorkerSpec) -> list[dict[str, Any]]:
    guards = virtiofs_guards(spec, submounts=True)
    guards += [
        guard(f"ensure-{disk.name}-{disk.filesystem}", disk.name, disk.filesystem)
        for disk in worker.local_disks
    ]
    guards += [
        _make_folders(disk, folders)
        for disk in worker.local_disks
        if (folders := _open_folders(spec, disk))
    ]
    if worker.local_nvme is not None:
        filesystem = worker.local_nvme.filesystem
        guards.append(guard(f"ensure-local-nvme-{filesystem}", "local-nvme", filesystem))
    if worker.image_disk is not None:
        filesystem = worker.image_disk.filesystem
        guards.append(guard(f"ensure-{_IMAGE_STORAGE}-{filesystem}", _IMAGE_STORAGE, filesystem))
        guards.append(_prepare_image_disk())
    return guards


def _open_folders(spec: StackSpec, disk: LocalDiskSpec) -> list[str]:
    """Folders of the disk that every user writes into: declared ones, the disk if it has places."""
    places = (PurePosixPath(path) for path in spec.storage.places.values())
    has_places = any(path.is_relative_to(disk.mount_path) for path in places)
    return [*(["."] if has_places else []), *disk.folders]


def _make_folders(disk: LocalDiskSpec, folders: Sequence[str]) -> dict[str, Any]:
    """Each folder with the rights of /tmp, before the first job looks for it."""
    script = 'cd /volume-mount && mkdir -p "$@" && chmod 1777 "$@"'
    return {
        "name": f"{FOLDERS}{disk.name}",
        "image": BUSYBOX,
        "volumeMounts": [{"name": disk.name, "mountPath": "/volume-mount"}],
        "command": ["sh", "-c", script, "sh", *folders],
    }


def _prepare_image_disk() -> dict[str, Any]:
    folders = "enroot/cache enroot/data enroot/runtime docker"
    script = f"cd /volume-mount && mkdir -p {folders} && chmod 777 -R enroot docker"
    return {
        "name": f"prepare-{_IMAGE_STORAGE}",
        "image": BUSYBOX,
        "volumeMounts": [{"name": _IMAGE_STORAGE, "mountPath": "/volume-mount"}],
        "command": ["sh", "-c", script],
    }


def _own_disk(name: str, path: str, disk: LocalDiskSpec | ImageDiskSpec) -> dict[str, Any]:
    return {
        "name": name,
        "mountPath": path,
        "volumeClaimTemplateSpec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class(disk),
            "resources": {"requests": {"storage": f"{disk.size_gib}Gi"}},
        },
    }


def _mount(name: str, path: str, source: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "mountPath": path, "volumeSource": source}


def _host(path: str, type_: str) -> dict[str, Any]:
    return {"hostPath": {"path": path, "type": type_}}
