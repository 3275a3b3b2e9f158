"""The architecture of a stack as SVG, from its spec alone: boxes, edges, words."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Final, Literal

from infra.render.login import memory_text
from stacks.catalog import GIB
from stacks.machines import MEMORY, node_groups
from stacks.spec import StackSpec
from stacks.spec.cluster import AttachedSpec
from stacks.spec.nodes import Billing, NodeGroupSpec, WorkerSpec
from stacks.spec.slurm import SERVE_MODULE
from stacks.spec.storage import FilesystemSpec, SubmountSpec

Kind = Literal["plain", "gpu", "disk", "outside"]

LINE_PX: Final = 15
"""Height of a line of text."""
TITLE_PX: Final = 24
"""Height of a title with its space."""
_PAD_PX: Final = 10
_CHARACTER_PX: Final = 6.4
"""Upper bound of a character's mean width at 11 px."""
# A page that has the picture in it has others too: no rule reaches beyond this one.
_STYLE: Final = (
    ".stack text{font:11px sans-serif;fill:#24292f}"
    ".stack .title{font-weight:bold;font-size:12px}"
    ".stack rect{stroke:#57606a;stroke-width:1;rx:4}"
    ".stack .plain{fill:#ffffff}.stack .gpu{fill:#e6f4ea}"
    ".stack .disk{fill:#fff4de}.stack .outside{fill:#eaeef2}"
    ".stack .frame{fill:none;stroke-dasharray:5 3}"
    ".stack .ground{fill:#ffffff;stroke:none}"
    ".stack path{fill:none;stroke:#57606a;stroke-width:1.5}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle with a title and lines of text."""

    title: str
    lines: tuple[str, ...] = ()
    kind: Kind = "plain"
    x: float = 0
    y: float = 0
    width: float = 0
    height: float = 0

    @property
    def least_width(self) -> float:
        """Width in px that holds its longest line."""
        longest = max(len(text) for text in (f"{self.title}  ", *self.lines))
        return longest * _CHARACTER_PX + 2 * _PAD_PX

    @property
    def least_height(self) -> float:
        """Height in px that holds all lines."""
        return TITLE_PX + len(self.lines) * LINE_PX + (_PAD_PX if self.lines else 4)

    @property
    def middle(self) -> float:
        """Its centre from the left."""
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height


@dataclass(slots=True)
class Drawing:
    """What was drawn so far, back to front."""

    title: str
    _parts: list[str] = field(default_factory=list[str])
    _width: float = 0
    _height: float = 0

    def frame(self, title: str, x: float, y: float, width: float, height: float) -> None:
        """A dashed rectangle around what belongs together."""
        self._grow(x + width, y + height)
        self._parts.append(_rect("frame", x, y, width, height))
        self._parts.append(_text("title", x + _PAD_PX, y + 16, title))

    def box(self, box: Box) -> None:
        """A box where it says."""
        self._grow(box.x + box.width, box.bottom)
        self._parts.append(_rect(box.kind, box.x, box.y, box.width, box.height))
        self._parts.append(_text("title", box.x + _PAD_PX, box.y + 16, box.title))
        for number, line in enumerate(box.lines, 1):
            self._parts.append(_text("", box.x + _PAD_PX, box.y + 18 + number * LINE_PX, line))

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A straight line without a head, the first part of an arrow that turns."""
        self._parts.append(f'<path d="M{x1:.0f} {y1:.0f}L{x2:.0f} {y2:.0f}"/>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float, label: str = "") -> None:
        """A straight line to (x2, y2) with a head, its label beside the middle."""
        self._parts.append(
            f'<path d="M{x1:.0f} {y1:.0f}L{x2:.0f} {y2:.0f}" marker-end="url(#head)"/>'
        )
        if label:
            self._parts.append(_text("", (x1 + x2) / 2 + 6, (y1 + y2) / 2 + 4, label))

    def text(self) -> str:
        """The whole picture."""
        width, height = self._width + 2 * _PAD_PX, self._height + 2 * _PAD_PX
        head = (
            '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8"/></marker>'
        )
        return "\n".join(
            [
                (
                    f'<svg xmlns="http://www.w3.org/2000/svg" class="stack" role="img" '
                    f'width="{width:.0f}" height="{height:.0f}" '
                    f'viewBox="{-_PAD_PX} {-_PAD_PX} {width:.0f} {height:.0f}">'
                ),
                f"<title>{escape(self.title)}</title>",
                f"<style>{_STYLE}</style><defs>{head}</defs>",
                _rect("ground", -_PAD_PX, -_PAD_PX, width, height),
                *self._parts,
                "</svg>\n",
            ]
        )

    def _grow(self, right: float, bottom: float) -> None:
        self._width = max(self._width, right)
        self._height = max(self._height, bottom)


def _rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    return (
        f'<rect class="{kind}" x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}"/>'
    )


def _text(kind: str, x: float, y: float, text: str) -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.0f}" y="{y:.0f}">{escape(text)}</text>'


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
    if spec.attached is not None:
        _flows(drawing, spec, 0, _attached(drawing, spec, spec.attached) + _GAP)
        return drawing.text()
    top = _FRAME_TITLE * 3 + _GAP
    inner = _LEFT + 3 * _GAP
    # Node groups that run the cluster itself, one box each.
    around = [(role, group) for role, _, group in node_groups(spec) if role != "worker"]
    boxes = [Box(title=role, lines=_machine_lines(group)) for role, group in around]
    services = _rows(boxes, inner, top)
    workers = _rows(
        [_worker(each) for each in spec.nodes.workers], inner, services[-1].bottom + _GAP
    )
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
    _flows(drawing, spec, inner, bottom + _GAP)
    return drawing.text()


_FLOWS: Final = {
    "workloads.data": ("Training", ("data",), "data"),
    "workloads.train": ("Training", ("data", "model"), "chkpt"),
    "workloads.evaluate": ("Inference", ("data", "model", "chkpt"), "results"),
    SERVE_MODULE: ("Inference", ("model", "chkpt"), ""),
}
"""Module -> what its jobs belong to, the places that they read, and the one they write, if any."""


def _flows(drawing: Drawing, spec: StackSpec, x: float, y: float) -> None:
    """Data flow of training and of inference: for each module what its jobs read and write."""
    for module, (purpose, read, written) in _FLOWS.items():
        jobs = [job.name for job in spec.jobs if f"{job.module}.".startswith(f"{module}.")]
        if not jobs:
            continue
        source = Box(title="read", lines=_folders(spec, *read), kind="disk")
        work = Box(title=f"{purpose}: {module}", lines=tuple(jobs), kind="gpu")
        target = (
            Box(title="written", lines=_folders(spec, written), kind="disk")
            if written
            else Box(title="you", lines=("answers, over SSH",), kind="outside")
        )
        row = _rows([source, work, target], x, y)
        row = [replace(box, x=box.x + 2 * _GAP * place) for place, box in enumerate(row)]
        for before, after in itertools.pairwise(row):
            drawing.arrow(before.x + before.width, y + 20, after.x, y + 20)
        for box in row:
            drawing.box(box)
        y = row[0].bottom + _GAP


def _folders(spec: StackSpec, *places: str) -> tuple[str, ...]:
    return tuple(f"{each}: {spec.storage.places.get(each, 'not declared')}" for each in places)


def _attached(drawing: Drawing, spec: StackSpec, attached: AttachedSpec) -> float:
    """What is known of a cluster that others run: its door, nodes, jobs; its lower edge in px."""
    lines = (f"Slurm {attached.slurm}", f"as {attached.user}", attached.folder)
    login = Box(title=f"login node {attached.host}", lines=lines)
    nodes = [
        Box(
            title=f"nodeset {each.name}",
            lines=(
                f"{each.count} nodes {each.nodes}",
                f"{each.cpus} CPUs, {each.memory_mib / GIB:,.0f} GiB",
                f"{each.gpus} GPUs a node, {each.gpus * each.count} in all",
            ),
            kind="gpu",
        )
        for each in attached.nodesets
    ]
    placed = _rows([login, *nodes, *_slurm(spec)[:2]], 0, 0)
    for box in placed:
        drawing.box(box)
    return placed[-1].bottom


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


def _worker(worker: WorkerSpec) -> Box:
    gpus = worker.gpus
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
    own = spec.storage.memory
    memory = [f"{MEMORY}: {memory_text(spec)}"]
    memory += [] if own is None else [f"{own.mount_path}: tmpfs, {own.size_gib} GiB a node"]
    return [
        Box(title="Slurm partitions", lines=(*partitions, accounting)),
        Box(title="Declared jobs", lines=tuple(jobs)),
        Box(title="In the workers' memory", lines=tuple(memory)),
    ]


def _filesystems(spec: StackSpec) -> list[Box]:
    storage = spec.storage
    boxes = [_disk("jail", "/ of login and workers", storage.jail)]
    boxes += [
        _disk(each.name, each.mount_path, each, _places(spec, each)) for each in storage.submounts
    ]
    boxes.append(_disk("controller spool", "controller only", storage.controller_spool))
    if storage.accounting is not None:
        boxes.append(_disk("accounting", "accounting only", storage.accounting))
    return boxes


def _places(spec: StackSpec, submount: SubmountSpec) -> tuple[str, ...]:
    path = submount.mount_path
    names = [
        name
        for name, where in sorted(spec.storage.places.items())
        if where == path or where.startswith(f"{path}/")
    ]
    return (f"places: {', '.join(names)}",) if names else ()


def _disk(
    title: str, where: str, disk: FilesystemSpec | SubmountSpec, more: tuple[str, ...] = ()
) -> Box:
    size = f"existing {disk.existing_id}" if disk.size_gib is None else f"{disk.size_gib:,} GiB"
    return Box(title=title, lines=(where, size, str(disk.type), *more), kind="disk")


def _beside(spec: StackSpec) -> list[Box]:
    """What the project has beside the cluster."""
    storage = spec.storage
    boxes: list[Box] = []
    if storage.backup is not None:
        backup = storage.backup
        kept = f"{backup.keep_daily} daily copies of the jail, {backup.size_gib:,} GiB"
        boxes.append(Box(title="bucket of backups", lines=(kept,), kind="disk"))
    if storage.config_bucket_gib is not None:
        boxes.append(Box(title="bucket of run configs", lines=("one for each run",), kind="disk"))
    if storage.registry_gib is not None:
        boxes.append(Box(title="container registry", lines=("images of jobs",), kind="disk"))
    if spec.nfs is not None:
        disks = spec.nfs.data_disks
        lines = (
            f"{spec.nfs.platform} {spec.nfs.preset}",
            f"exports {spec.nfs.mount_path}",
            f"{disks.count} x {disks.size_gib:,} GiB {disks.type}",
        )
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
        "soperator: submit, logs, status, pull",
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
