"""The report's drawings as SVG: the architecture of a stack, and charts.

Every text is escaped here, every colour is a variable of the page's style.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from html import escape

from cost.report.charts import Axis, Mark, Scale, Series, line_chart
from cost.report.layout import short
from infra.render.login import memory_text
from stacks.catalog import find_preset
from stacks.machines import MEMORY
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing, NodeGroupSpec, WorkerSpec


def text(x: float, y: float, content: object, cls: str = "t", anchor: str = "start") -> str:
    """One line of text with its baseline at y."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{cls}" text-anchor="{anchor}">'
        f"{escape(str(content))}</text>"
    )


def rect(x: float, y: float, width: float, height: float, cls: str, radius: float = 8) -> str:
    """A rectangle with round corners."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="{radius}" class="{cls}"/>'
    )


def line(x1: float, y1: float, x2: float, y2: float, cls: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{cls}"/>'


def document(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    """The picture, scaling with the page; `label` is what a screen reader says."""
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(label)}" '
        f'preserveAspectRatio="xMidYMid meet">{"".join(parts)}</svg>'
    )


def clip(content: str, characters: int) -> str:
    """The text, cut to fit with an ellipsis."""
    return content if len(content) <= characters else content[: characters - 3] + "..."


_WIDTH = 1080.0
_MARGIN, _GAP, _PAD = 12.0, 14.0, 16.0
_LINE = 18.0
_MAX_PIPS = 64
"""GPUs drawn per nodeset; more are a number."""


@dataclass(frozen=True, slots=True)
class _Card:
    title: str
    lines: tuple[str, ...]
    cls: str = "card"
    pips: int = 0
    num_nodes: int = 0


def draw(spec: StackSpec) -> str:
    """The stack as boxes: door, roles and workers inside the cluster, storage below."""
    inner = _WIDTH - 2 * _MARGIN - 2 * _PAD
    parts: list[str] = []
    y = _MARGIN + 34
    roles = _row(_roles(spec), _MARGIN + _PAD, y, inner)
    parts += roles.parts
    y += roles.height + _GAP
    columns = min(3, max(1, len(spec.nodes.workers)))
    workers = [_worker(worker) for worker in spec.nodes.workers]
    for start in range(0, len(workers), columns):
        row = _row(workers[start : start + columns], _MARGIN + _PAD, y, inner)
        parts += row.parts
        y += row.height + _GAP
    cluster_bottom = y - _GAP + _PAD
    cluster = spec.cluster
    heading = (
        f"mk8s cluster, Kubernetes {cluster.kubernetes_version}  /  Soperator "
        f"{cluster.soperator_version}  /  {spec.nebius.region}"
    )
    frame = [
        rect(_MARGIN, _MARGIN, _WIDTH - 2 * _MARGIN, cluster_bottom - _MARGIN, "frame", 14),
        text(_MARGIN + _PAD, _MARGIN + 22, heading, "frame-title"),
    ]
    y = cluster_bottom + 30
    middle = _WIDTH / 2
    parts += [
        line(middle, cluster_bottom, middle, y, "wire"),
        text(middle + 10, cluster_bottom + 20, "shared over virtiofs by every node", "note"),
    ]
    cards = _storage(spec)
    columns = 4
    for start in range(0, len(cards), columns):
        row = _row(cards[start : start + columns], _MARGIN, y, _WIDTH - 2 * _MARGIN, columns)
        parts += row.parts
        y += row.height + _GAP
    label = f"Architecture of stack {spec.name}"
    return document(_WIDTH, y - _GAP + _MARGIN, label, [*frame, *parts])


@dataclass(frozen=True, slots=True)
class _Row:
    parts: list[str]
    height: float


def _row(cards: Sequence[_Card], x: float, y: float, width: float, columns: int = 0) -> _Row:
    """Cards side by side, all as high as the highest."""
    columns = columns or len(cards)
    card_width = (width - _GAP * (columns - 1)) / columns
    height = max(_height(card, card_width) for card in cards)
    parts = []
    for index, card in enumerate(cards):
        parts += _draw(card, x + index * (card_width + _GAP), y, card_width, height)
    return _Row(parts, height)


def _height(card: _Card, width: float) -> float:
    return 30 + _LINE * len(card.lines) + _pip_rows(card, width) * 16 + (10 if card.pips else 0)


def _pip_rows(card: _Card, width: float) -> int:
    per_row = max(1, int((width - 2 * _PAD) // 16))
    return -(-min(card.pips, _MAX_PIPS) // per_row) if card.pips else 0


def _draw(card: _Card, x: float, y: float, width: float, height: float) -> list[str]:
    characters = int((width - 2 * _PAD) / 6.6)
    parts = [
        rect(x, y, width, height, card.cls),
        text(x + _PAD, y + 22, clip(card.title, characters), "card-title"),
    ]
    for index, content in enumerate(card.lines):
        line_y = y + 22 + _LINE * (index + 1)
        parts.append(text(x + _PAD, line_y, clip(content, characters), "card-line"))
    per_row = max(1, int((width - 2 * _PAD) // 16))
    top = y + 32 + _LINE * len(card.lines)
    for index in range(min(card.pips, _MAX_PIPS)):
        column, row = index % per_row, index // per_row
        parts.append(rect(x + _PAD + column * 16, top + row * 16, 12, 12, "pip", 3))
    return parts


def _roles(spec: StackSpec) -> list[_Card]:
    login = spec.login
    cards = [
        _group("system", spec.nodes.system),
        _group("controller", spec.nodes.controller, "slurmctld"),
        _group(
            "login",
            spec.nodes.login,
            f"SSH {login.service}, port {login.ssh_port}",
            cls="card door",
        ),
    ]
    if spec.nodes.accounting is not None:
        cards.append(_group("accounting", spec.nodes.accounting, "slurmdbd, MariaDB"))
    return cards


def _group(name: str, group: NodeGroupSpec, extra: str = "", cls: str = "card") -> _Card:
    disk = f"boot {group.boot_disk.size_gib} GiB {group.boot_disk.type}"
    lines = (f"{group.platform} {group.preset}", disk, *((extra,) if extra else ()))
    return _Card(f"{name}  x {_count(group)}", lines, cls)


def _worker(worker: WorkerSpec) -> _Card:
    preset = find_preset(worker.platform, worker.preset)
    gpus = preset.gpus if preset else 0
    billing = ", preemptible" if worker.billing is Billing.PREEMPTIBLE else ""
    fabric = worker.infiniband_fabric
    lines = (
        f"{worker.platform} {worker.preset}{billing}",
        f"boot {worker.boot_disk.size_gib} GiB {worker.boot_disk.type}",
        f"InfiniBand {fabric}" if fabric else "Ethernet between nodes",
        *((f"{gpus} GPUs on each of {_count(worker)} nodes",) if gpus else ("no GPU",)),
    )
    title = f"nodeset {worker.name}  x {_count(worker)}"
    return _Card(title, lines, "card worker", gpus * worker.max_nodes, worker.max_nodes)


def _storage(spec: StackSpec) -> list[_Card]:
    storage = spec.storage
    cards = [_Card("jail  /", (f"{storage.jail.size_gib} GiB {storage.jail.type}",), "card disk")]
    for submount in storage.submounts:
        size = f"{submount.size_gib} GiB" if submount.size_gib else f"{submount.existing_id}"
        places = [
            place
            for place, where in sorted(storage.places.items())
            if where == submount.mount_path or where.startswith(f"{submount.mount_path}/")
        ]
        lines = (f"{size} {submount.type}", *((f"places: {', '.join(places)}",) if places else ()))
        cards.append(_Card(f"{submount.name}  {submount.mount_path}", lines, "card disk"))
    if spec.nfs is not None:
        disks = spec.nfs.data_disks
        lines = (f"{disks.count} x {disks.size_gib} GiB {disks.type}", spec.nfs.preset)
        cards.append(_Card(f"NFS server  {spec.nfs.mount_path}", lines, "card disk"))
    cards.append(_Card(f"memory  {MEMORY}", (memory_text(spec),), "card disk"))
    if storage.memory is not None:
        memory = storage.memory
        line = f"{memory.size_gib} GiB tmpfs on every worker"
        cards.append(_Card(f"memory  {memory.mount_path}", (line,), "card disk"))
    spool = storage.controller_spool
    cards.append(_Card("controller spool", (f"{spool.size_gib} GiB {spool.type}",), "card disk"))
    if storage.accounting is not None:
        line = f"{storage.accounting.size_gib} GiB {storage.accounting.type}"
        cards.append(_Card("accounting", (line,), "card disk"))
    if storage.backup is not None:
        line = f"{storage.backup.keep_daily} daily copies of {storage.backup.size_gib} GiB"
        cards.append(_Card("backup bucket", (line,), "card disk"))
    return cards


def _count(group: NodeGroupSpec) -> str:
    if group.min_nodes == group.max_nodes:
        return str(group.min_nodes)
    return f"{group.min_nodes}..{group.max_nodes}"


_SMOOTHING = 0.6
"""Weight of the past in the moving average: about two and a half steps."""


def loss_curve(points: Sequence[tuple[int, float]]) -> str:
    """Loss per train step with its moving average; needs two points."""
    points = [(step, loss) for step, loss in points if math.isfinite(loss)]
    if len(points) < 2:
        return ""
    dots = tuple(Mark(x=x, y=y) for x, y in exact(points))
    steps = points[-1][0] - points[0][0] + 1
    return line_chart(
        "loss",
        title="Loss by train step",
        description=f"Loss from {points[0][1]:.3f} to {points[-1][1]:.3f} over {steps} steps",
        x=Axis(label="train step", scale=Scale.LINEAR, text=short),
        y=Axis(label="loss", scale=Scale.LINEAR, text=short),
        series=[
            Series(name="moving average", points=exact(smooth(points)), style=0),
            Series(name="each step", points=(), style=1, marks=dots),
        ],
    )


def busy_curve(moments: Sequence[tuple[float, float, float | None]]) -> str:
    """Utilisation and memory in use by minute, in percent; needs two moments."""
    if len(moments) < 2:
        return ""
    busy = [(minute, percent) for minute, percent, _ in moments]
    used = [(minute, memory) for minute, _, memory in moments if memory is not None]
    mean = math.fsum(percent for _, percent in busy) / len(busy)
    minutes = max(minute for minute, _ in busy)
    return line_chart(
        "busy",
        title="GPU utilisation over the run",
        description=f"GPU utilisation over {minutes:.0f} minutes, {mean:.1f} percent in the mean",
        x=Axis(label="minute of the job", scale=Scale.LINEAR, text=short),
        y=Axis(label="percent", scale=Scale.LINEAR, text=short, reach=Decimal(0)),
        series=[
            Series(name="mean utilisation of all GPUs", points=exact(busy), style=0),
            Series(name="memory in use on the least used GPU", points=exact(used), style=1, dash=1),
        ],
    )


def exact(points: Sequence[tuple[float, float]]) -> tuple[tuple[Decimal, Decimal], ...]:
    """The points as the decimals that line_chart draws."""
    return tuple((Decimal(str(x)), Decimal(str(y))) for x, y in points)


def smooth(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Exponential moving average, without the pull towards zero at the start."""
    total = weight = 0.0
    result: list[tuple[int, float]] = []
    for step, loss in points:
        total = _SMOOTHING * total + (1 - _SMOOTHING) * loss
        weight = _SMOOTHING * weight + (1 - _SMOOTHING)
        result.append((step, total / weight))
    return result


def bar_width(value: float, largest: float) -> float:
    """Width of a bar in percent of its cell; a value that is there is always seen."""
    if largest <= 0 or value <= 0:
        return 0.0
    return max(1.0, round(100 * value / largest, 1))
