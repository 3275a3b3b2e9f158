"""Whether a name that the stack wants is taken by a resource that is not its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from infra.nebius.errors import ApiError
from infra.preflight.cloud import Cloud
from infra.preflight.finding import Finding, failed, not_checked, passed
from infra.preflight.inventory import KINDS, Owner
from infra.render.machine import boot_disk_name
from infra.render.names import filesystems
from stacks.spec import StackSpec

CHECK: Final = "names"


def wanted_names(spec: StackSpec) -> Iterator[tuple[str, str]]:
    """Kind of inventory.KINDS and name of each resource that the stack makes under its project."""
    name = spec.name
    if spec.nebius.subnet_id is None:
        yield "subnet", f"{name}-subnet"
        if spec.nebius.network_id is None:
            yield "network", f"{name}-network"
    yield "address", f"{name}-login"
    yield "cluster", f"{name}-kube"
    for tag, declared in filesystems(spec):
        if declared.existing_id is None:
            yield "filesystem", f"{name}-{tag}"
    if spec.nfs is not None:
        yield "address", f"{name}-nfs-address"
        yield "machine", f"{name}-nfs"
        yield "disk", boot_disk_name(f"{name}-nfs", spec.nfs.boot_disk.type)
        for index in range(spec.nfs.data_disks.count):
            yield "disk", f"{name}-nfs-data-{index}"
    made = [worker for worker in spec.nodes.workers if worker.gpu_cluster_id is None]
    for fabric in sorted({worker.infiniband_fabric for worker in made} - {None}, key=str):
        yield "GPU cluster", f"{name}-{fabric}"
    storage = spec.storage
    if storage.backup is not None:
        yield "bucket", f"{name}-backups"
        yield "service account", f"{name}-backup"
        yield "group", f"{name}-backup-writers"
    if storage.config_bucket_gib is not None:
        yield "bucket", f"{name}-configs"
        yield "service account", f"{name}-config-upload"
        yield "group", f"{name}-config-upload-writers"
    if storage.registry_gib is not None:
        yield "registry", f"{name}-images"


def ask_names(cloud: Cloud, spec: StackSpec, owner: Owner) -> list[Finding]:
    """Every name that a stranger has, and the kinds that the account may not list."""
    findings: list[Finding] = []
    wanted: dict[str, list[str]] = defaultdict(list)
    for kind, name in wanted_names(spec):
        wanted[kind].append(name)
    for kind, names in wanted.items():
        try:
            existing = cloud.list(KINDS[kind], spec.nebius.project_id)
        except ApiError as error:
            # An account without rights on one service still learns of the others' names.
            if error.code != "PERMISSION_DENIED":
                raise
            told = f"{kind} {', '.join(names)}: {error.message}"
            findings.append(not_checked(CHECK, told))
            continue
        findings += [
            failed(
                CHECK,
                f"the {kind} {found.metadata.name!r} exists as {found.metadata.id} and is not this "
                "stack's own",
                "delete or rename it, or take it over: soperator adopt",
                certain=True,
            )
            for found in existing
            if found.metadata.name in names and not owner.owns(found)
        ]
    num_wanted = sum(map(len, wanted.values()))
    return findings or [passed(CHECK, f"{num_wanted} names are free or this stack's own")]
