"""The architecture of a stack as SVG, from its spec alone: boxes and edges; words are data."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Final, Literal

from infra.render.login import memory_text
from infra.render.templates import manifest
from stacks.catalog import GIB
from stacks.machines import MEMORY, node_groups
from stacks.spec import StackSpec
from stacks.spec.slurm import SERVE_MODULE

Kind = Literal["plain", "gpu", "disk", "outside", "frame"]

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
    boxes = _boxes(spec)
    if spec.attached is not None:
        placed = _rows([*boxes["login"], *boxes["workers"], *boxes["slurm"]], 0, 0)
        for box in placed:
            drawing.box(box)
        _flows(drawing, spec, 0, placed[-1].bottom + _GAP)
        return drawing.text()
    top = _FRAME_TITLE * 3 + _GAP
    inner = _LEFT + 3 * _GAP
    services = _rows(boxes["services"], inner, top)
    workers = _rows(boxes["workers"], inner, services[-1].bottom + _GAP)
    slurm = _rows(boxes["slurm"], inner, workers[-1].bottom + _GAP)
    cluster_bottom = slurm[-1].bottom + _GAP
    disks = _rows(boxes["filesystems"], inner, cluster_bottom + _ARROW + _FRAME_TITLE)
    beside = _rows(boxes["beside"], inner, disks[-1].bottom + _ARROW + _GAP)
    right = max(box.x + box.width for box in (*services, *workers, *slurm, *disks, *beside)) + _GAP

    bottom = (beside or disks)[-1].bottom + _GAP
    frames = (
        (_LEFT, 0, right + _GAP - _LEFT + _GAP, bottom),
        (
            _LEFT + _GAP,
            _FRAME_TITLE,
            right - _LEFT - _GAP + _GAP,
            cluster_bottom - _FRAME_TITLE + _GAP / 2,
        ),
        (
            inner - _GAP,
            2 * _FRAME_TITLE,
            right - inner + _GAP,
            cluster_bottom - 2 * _FRAME_TITLE,
        ),
        (
            inner - _GAP,
            disks[0].y - _FRAME_TITLE,
            right - inner + _GAP,
            disks[-1].bottom - disks[0].y + _FRAME_TITLE + _GAP / 2,
        ),
    )
    for box, (x, y, width, height) in zip(boxes["frames"], frames, strict=True):
        drawing.box(replace(box, x=x, y=y, width=width, height=height))
    for box in (*services, *workers, *slurm, *disks, *beside):
        drawing.box(box)
    (login,) = (box for box in services if box.title == "login")
    person, pulumi = boxes["people"]
    _people(drawing, person, pulumi, login)
    mounts, copied = workers[0].middle, disks[0].middle
    under = "mounted where the box says"
    drawing.arrow(mounts, cluster_bottom, mounts, disks[0].y - _FRAME_TITLE, under)
    if spec.storage.backup is not None:
        drawing.arrow(copied, disks[-1].bottom, copied, beside[0].y, "restic, encrypted")
    _flows(drawing, spec, inner, bottom + _GAP)
    return drawing.text()


_KINDS: Final[Mapping[str, Kind]] = {
    "workers": "gpu",
    "filesystems": "disk",
    "beside": "disk",
    "people": "outside",
    "frames": "frame",
}


def _boxes(spec: StackSpec) -> dict[str, list[Box]]:
    """What stands in each part of the drawing, not placed yet, out of stack_drawing.yaml.j2."""
    found = manifest(
        "stack_drawing.yaml.j2",
        spec=spec,
        groups=list(node_groups(spec)),
        memory=memory_text(spec),
        MEMORY=MEMORY,
        GIB=GIB,
    )
    boxes: dict[str, list[Box]] = {}
    for part, texts in found.items():
        kind: Kind = _KINDS.get(part, "plain")
        split = [text.rstrip("\n").split("\n") for text in texts or ()]
        boxes[part] = [Box(title=title, lines=tuple(more), kind=kind) for title, *more in split]
    return boxes


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


def _people(drawing: Drawing, person: Box, pulumi: Box, login: Box) -> None:
    """Who comes in from outside, and by which doors."""
    width = _LEFT - 2 * _GAP
    person = replace(person, y=login.y, width=width, height=person.least_height)
    pulumi = replace(pulumi, y=person.bottom + 2 * _GAP, width=width, height=pulumi.least_height)
    drawing.box(person)
    drawing.box(pulumi)
    # Above the boxes of the row, then down into the login node: no line crosses another box.
    over = login.y - _GAP / 2
    drawing.line(width, over, login.middle, over)
    drawing.arrow(login.middle, over, login.middle, login.y)
    drawing.arrow(width, pulumi.y + 20, _LEFT, pulumi.y + 20)
