"""The architecture of a stack as SVG, from its spec alone: boxes and edges; words are data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Final, Literal

from infra.render.login import memory_text
from infra.render.templates import manifest
from stacks.catalog import GIB
from stacks.files import fill
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
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height


@dataclass(frozen=True, slots=True)
class Arrow:
    """A straight line to (x2, y2), its label beside the middle; without a head it goes on."""

    x1: float
    y1: float
    x2: float
    y2: float
    label: str = ""
    head: bool = True


Part = Box | Arrow


def _picture(title: str, parts: Sequence[Part]) -> str:
    """The whole picture of these parts, back to front."""
    boxes = [each for each in parts if isinstance(each, Box)]
    svg = fill(
        Path(__file__).with_name("stack_drawing.svg.j2"),
        {"px": "{:.0f}".format, "escaped": escape},
        title=title,
        parts=parts,
        width=max(box.right for box in boxes) + 2 * _PAD_PX,
        height=max(box.bottom for box in boxes) + 2 * _PAD_PX,
        pad=_PAD_PX,
        line_px=LINE_PX,
    )
    return f"{svg}\n"


_GAP: Final = 16.0
_LEFT: Final = 300.0
"""Where the project begins; people and what they type stand left of it."""
_FRAME_TITLE: Final = 28.0
_ARROW: Final = 56.0
_ROW: Final = 1000.0
"""Width of a row before the next box starts another."""


def stack_svg(spec: StackSpec) -> str:
    """The whole stack as one SVG: people, cluster, node groups, filesystems, what is beside it."""
    return _picture(f"Architecture of the stack {spec.name}", [*_parts(spec)])


def _parts(spec: StackSpec) -> Iterator[Part]:
    boxes = _boxes(spec)
    if spec.attached is not None:
        placed = _rows([*boxes["login"], *boxes["workers"], *boxes["slurm"]], 0, 0)
        yield from placed
        yield from _flows(spec, 0, placed[-1].bottom + _GAP)
        return
    top = _FRAME_TITLE * 3 + _GAP
    inner = _LEFT + 3 * _GAP
    services = _rows(boxes["services"], inner, top)
    workers = _rows(boxes["workers"], inner, services[-1].bottom + _GAP)
    slurm = _rows(boxes["slurm"], inner, workers[-1].bottom + _GAP)
    cluster_bottom = slurm[-1].bottom + _GAP
    disks = _rows(boxes["filesystems"], inner, cluster_bottom + _ARROW + _FRAME_TITLE)
    beside = _rows(boxes["beside"], inner, disks[-1].bottom + _ARROW + _GAP)
    placed = (*services, *workers, *slurm, *disks, *beside)
    right = max(box.right for box in placed) + _GAP
    bottom = (beside or disks)[-1].bottom + _GAP
    edges = (
        (_LEFT, 0, right + 2 * _GAP, bottom),
        (_LEFT + _GAP, _FRAME_TITLE, right + _GAP, cluster_bottom + _GAP / 2),
        (inner - _GAP, 2 * _FRAME_TITLE, right, cluster_bottom),
        (inner - _GAP, disks[0].y - _FRAME_TITLE, right, disks[-1].bottom + _GAP / 2),
    )
    for box, (x, y, end, lower) in zip(boxes["frames"], edges, strict=True):
        yield replace(box, x=x, y=y, width=end - x, height=lower - y)
    yield from placed
    (login,) = (box for box in services if box.title == "login")
    person, pulumi = boxes["people"]
    yield from _people(person, pulumi, login)
    mounts, copied = workers[0].middle, disks[0].middle
    under = "mounted where the box says"
    yield Arrow(mounts, cluster_bottom, mounts, disks[0].y - _FRAME_TITLE, under)
    if spec.storage.backup is not None:
        yield Arrow(copied, disks[-1].bottom, copied, beside[0].y, "restic, encrypted")
    yield from _flows(spec, inner, bottom + _GAP)


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


def _flows(spec: StackSpec, x: float, y: float) -> Iterator[Part]:
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
            yield Arrow(before.right, y + 20, after.x, y + 20)
        yield from row
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


def _people(person: Box, pulumi: Box, login: Box) -> Iterator[Part]:
    """Who comes in from outside, and by which doors."""
    width = _LEFT - 2 * _GAP
    person = replace(person, y=login.y, width=width, height=person.least_height)
    pulumi = replace(pulumi, y=person.bottom + 2 * _GAP, width=width, height=pulumi.least_height)
    yield from (person, pulumi)
    # Above the boxes of the row, then down into the login node: no line crosses another box.
    over = login.y - _GAP / 2
    yield Arrow(width, over, login.middle, over, head=False)
    yield Arrow(login.middle, over, login.middle, login.y)
    yield Arrow(width, pulumi.y + 20, _LEFT, pulumi.y + 20)
