"""The architecture of a declared stack as a picture: stack_svg(spec). Pure.

Everything in it comes from the spec, so it cannot go stale: `soperator draw` and the documentation
draw it anew. Owns what stands where; how a box looks is svg.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from infra.render.svg import Box, Drawing
from stacks.catalog import find_preset
from stacks.machines import node_groups
from stacks.node_spec import Billing, NodeGroupSpec, WorkerSpec
from stacks.spec import StackSpec
from stacks.storage_spec import FilesystemSpec, SubmountSpec

_GAP: Final = 16.0
_LEFT: Final = 300.0
"""Where the project begins; people and what they type stand left of it."""
_FRAME_TITLE: Final = 28.0
_ARROW: Final = 56.0
_ROW: Final = 1000.0
"""Width of a row before the next box starts another."""


def stack_svg(spec: StackSpec) -> str:
    """The whole stack as one SVG: people, cluster, node groups, filesystems, what is beside it."""
    drawing = Drawing(f"Architecture of the stack {spec.name}")
    top = _FRAME_TITLE * 3 + _GAP
    inner = _LEFT + 3 * _GAP
    services = _rows(_services(spec), inner, top)
    workers = _rows(_workers(spec), inner, services[-1].bottom + _GAP)
    slurm = _rows(_slurm(spec), inner, workers[-1].bottom + _GAP)
    cluster_bottom = slurm[-1].bottom + _GAP
    disks = _rows(_filesystems(spec), inner, cluster_bottom + _ARROW + _FRAME_TITLE)
    beside = _rows(_beside(spec), inner, disks[-1].bottom + _ARROW + _GAP)
    right = max(box.x + box.width for box in (*services, *workers, *slurm, *disks, *beside)) + _GAP

    nebius = spec.nebius
    bottom = (beside or disks)[-1].bottom + _GAP
    drawing.frame(
        f"Nebius project {nebius.project_id}, region {nebius.region}",
        _LEFT,
        0,
        right + _GAP - _LEFT + _GAP,
        bottom,
    )
    drawing.frame(
        _network(spec),
        _LEFT + _GAP,
        _FRAME_TITLE,
        right - _LEFT - _GAP + _GAP,
        cluster_bottom - _FRAME_TITLE + _GAP / 2,
    )
    drawing.frame(
        f"Kubernetes {spec.cluster.kubernetes_version}, etcd {spec.cluster.etcd_size}, Soperator "
        f"{spec.cluster.soperator_version}, Slurm cluster {spec.cluster.slurm_cluster_name}",
        inner - _GAP,
        2 * _FRAME_TITLE,
        right - inner + _GAP,
        cluster_bottom - 2 * _FRAME_TITLE,
    )
    drawing.frame(
        "Shared filesystems, over virtiofs",
        inner - _GAP,
        disks[0].y - _FRAME_TITLE,
        right - inner + _GAP,
        disks[-1].bottom - disks[0].y + _FRAME_TITLE + _GAP / 2,
    )
    for box in (*services, *workers, *slurm, *disks, *beside):
        drawing.box(box)
    _people(drawing, spec, {box.title: box for box in services})
    _uses(drawing, spec, workers[0].middle, cluster_bottom, disks, beside)
    return drawing.text()


def _rows(boxes: Sequence[Box], x: float, y: float) -> list[Box]:
    """The boxes beside each other, in rows where there are many; those of a row equally high."""
    placed: list[Box] = []
    row: list[Box] = []
    right = x
    for box in boxes:
        if row and right + box.least_width > x + _ROW:
            placed += _equally_high(row)
            y, right, row = placed[-1].bottom + _GAP, x, []
        row.append(replace(box, x=right, y=y, width=box.least_width))
        right += box.least_width + _GAP
    return [*placed, *_equally_high(row)]


def _equally_high(row: Sequence[Box]) -> list[Box]:
    height = max((box.least_height for box in row), default=0.0)
    return [replace(box, height=height) for box in row]


def _services(spec: StackSpec) -> list[Box]:
    """Node groups that run the cluster itself, one box each."""
    return [
        Box(title=role, lines=_machine_lines(group))
        for role, _, group in node_groups(spec)
        if role != "worker"
    ]


def _machine_lines(group: NodeGroupSpec) -> tuple[str, ...]:
    disk = group.boot_disk
    return (
        f"{_count(group)} x {group.platform}",
        group.preset,
        f"boot disk {disk.size_gib} GiB",
        str(disk.type),
    )


def _count(group: NodeGroupSpec) -> str:
    least, most = group.min_nodes, group.max_nodes
    return str(most) if least == most else f"{least} to {most}"


def _workers(spec: StackSpec) -> list[Box]:
    return [_worker(worker) for worker in spec.nodes.workers]


def _worker(worker: WorkerSpec) -> Box:
    preset = find_preset(worker.platform, worker.preset)
    gpus = 0 if preset is None else preset.gpus
    link = (
        f"InfiniBand {worker.infiniband_fabric}"
        if worker.infiniband_fabric
        else "InfiniBand"
        if worker.has_fabric
        else "Ethernet, no InfiniBand"
    )
    lines = [
        *_machine_lines(worker),
        f"{gpus} GPUs a node, {gpus * worker.max_nodes} in all; {link}",
        f"slurmd on {worker.name}-0 to {worker.name}-{worker.max_nodes - 1}"
        if worker.max_nodes > 1
        else f"slurmd on {worker.name}-0",
    ]
    lines += [f"own disk {disk.mount_path}" for disk in worker.local_disks]
    if worker.billing is not Billing.ON_DEMAND:
        lines.append(str(worker.billing))
    return Box(title=f"nodeset {worker.name}", lines=tuple(lines), kind="gpu")


def _slurm(spec: StackSpec) -> list[Box]:
    """What people submit to and what they submit."""
    partitions = [
        f"{each.name}: {', '.join(each.nodesets) or 'every nodeset'}"
        for each in spec.slurm.partitions
    ]
    jobs = [
        f"{job.name}: {job.nodes} x {job.gpus_per_node} GPUs, {job.module}" for job in spec.jobs
    ]
    accounting = "slurmdbd and its database" if spec.slurm.accounting else "no accounting"
    return [
        Box(title="Slurm partitions", lines=(*partitions, accounting)),
        Box(title="Declared jobs", lines=tuple(jobs)),
    ]


def _filesystems(spec: StackSpec) -> list[Box]:
    storage = spec.storage
    boxes = [_disk("jail", "/ of login and workers", storage.jail)]
    boxes += [_disk(each.name, each.mount_path, each) for each in storage.submounts]
    boxes.append(_disk("controller spool", "controller only", storage.controller_spool))
    if storage.accounting is not None:
        boxes.append(_disk("accounting", "accounting only", storage.accounting))
    return boxes


def _disk(title: str, where: str, disk: FilesystemSpec | SubmountSpec) -> Box:
    size = f"existing {disk.existing_id}" if disk.size_gib is None else f"{disk.size_gib:,} GiB"
    return Box(title=title, lines=(where, size, str(disk.type)), kind="disk")


def _beside(spec: StackSpec) -> list[Box]:
    """What the project has beside the cluster."""
    storage = spec.storage
    boxes: list[Box] = []
    if storage.backup is not None:
        kept = f"{storage.backup.keep_daily} daily copies of the jail"
        boxes.append(Box(title="bucket of backups", lines=(kept,), kind="disk"))
    if storage.config_bucket_gib is not None:
        boxes.append(Box(title="bucket of run configs", lines=("one for each run",), kind="disk"))
    if storage.registry_gib is not None:
        boxes.append(Box(title="container registry", lines=("images of jobs",), kind="disk"))
    if spec.nfs is not None:
        lines = (f"{spec.nfs.platform} {spec.nfs.preset}", f"exports {spec.nfs.mount_path}")
        boxes.append(Box(title="NFS server", lines=lines, kind="disk"))
    return boxes


def _network(spec: StackSpec) -> str:
    nebius = spec.nebius
    if nebius.subnet_id is not None:
        return f"Existing subnet {nebius.subnet_id}"
    if nebius.discover_network:
        return "The only subnet of the project"
    return "Network and subnet of the stack" if nebius.network_id is None else "Subnet of the stack"


def _people(drawing: Drawing, spec: StackSpec, services: dict[str, Box]) -> None:
    """Who comes in from outside, and by which doors."""
    login = services["login"]
    door = f"SSH, port {spec.login.ssh_port}, host key pinned"
    users = len(spec.soperator.users)
    lines = (
        "soperator submit, logs, status, pull",
        door,
        *((f"{users} declared users beside root",) if users else ()),
    )
    person = Box(title="you", lines=lines, kind="outside")
    width = _LEFT - 2 * _GAP
    person = replace(person, y=login.y, width=width, height=person.least_height)
    reach = "public address" if spec.cluster.public_endpoint else "private address only"
    pulumi = Box(
        title="pulumi up",
        lines=("resources over the Nebius API", f"charts over Kubernetes, {reach}"),
        kind="outside",
    )
    pulumi = replace(pulumi, y=person.bottom + 2 * _GAP, width=width, height=pulumi.least_height)
    drawing.box(person)
    drawing.box(pulumi)
    # Above the boxes of the row, then down into the login node: no line crosses another box.
    over = login.y - _GAP / 2
    drawing.line(width, over, login.middle, over)
    drawing.arrow(login.middle, over, login.middle, login.y)
    drawing.arrow(width, pulumi.y + 20, _LEFT, pulumi.y + 20)


def _uses(
    drawing: Drawing,
    spec: StackSpec,
    x: float,
    cluster_bottom: float,
    disks: Sequence[Box],
    beside: Sequence[Box],
) -> None:
    """Lines from the cluster to what it mounts, and from the jail to its copies."""
    drawing.arrow(x, cluster_bottom, x, disks[0].y - _FRAME_TITLE, "mounted where the box says")
    if spec.storage.backup is not None and beside:
        drawing.arrow(
            disks[0].middle, disks[-1].bottom, disks[0].middle, beside[0].y, "restic, encrypted"
        )
