"""Whether every node has what was declared: GPUs, driver, ECC, PCIe, NVLink, InfiniBand.

Each node is asked once; nvidia-smi answers in `-q -x` and `topo -m`.
"""

from __future__ import annotations

import itertools
import operator
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from workloads.accept.gates import Answer, Check, Expected, ProgramError, node_name, settle
from workloads.common.record import package_versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as the driver sees it; None is what it does not say."""

    index: int
    model: str
    memory_gib: float | None
    driver: str
    cuda: str
    ecc: bool | None
    uncorrected: int | None
    """Uncorrectable ECC errors since the driver was loaded."""
    pending_remap: bool | None
    """Rows of memory that wait for a reset of the GPU to be replaced."""
    pcie_gen: int | None
    """Highest generation that GPU and slot share: an idle GPU lowers the one in use."""
    pcie_width: int | None
    """Lanes in use."""
    throttled: tuple[str, ...] | None
    """Reasons of heat or power supply for which it runs slower now."""


_ANSWERS: Final[dict[str | None, bool]] = {
    "Enabled": True,
    "Disabled": False,
    "Yes": True,
    "No": False,
}
_FAULTS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")


def parse_xml(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs in the output of `nvidia-smi -q -x`."""
    # A document type is in every output; entities in it are none of nvidia-smi's.
    if "<!ENTITY" in text:
        raise ProgramError("nvidia-smi -q -x: the output declares entities; it is not its own")
    try:
        root = ElementTree.fromstring(text)  # noqa: S314
    except ElementTree.ParseError as error:
        raise ProgramError(f"nvidia-smi -q -x: no XML: {error}; run it by hand") from error
    if root.tag != "nvidia_smi_log":
        raise ProgramError(f"nvidia-smi -q -x: <{root.tag}>, expected <nvidia_smi_log>")
    driver, cuda = _text(root, "driver_version") or "", _text(root, "cuda_version") or ""
    return tuple(
        Gpu(
            index=index,
            model=_text(gpu, "product_name") or "",
            memory_gib=(mib := _whole(_text(gpu, "fb_memory_usage/total"))) and mib / 1024,
            driver=driver,
            cuda=cuda,
            ecc=_ANSWERS.get(_text(gpu, "ecc_mode/current_ecc")),
            uncorrected=_uncorrected(gpu),
            pending_remap=_ANSWERS.get(_text(gpu, "remapped_rows/remapped_row_pending")),
            pcie_gen=_whole(_text(gpu, "pci/pci_gpu_link_info/pcie_gen/max_link_gen")),
            pcie_width=_whole(_text(gpu, "pci/pci_gpu_link_info/link_widths/current_link_width")),
            throttled=_throttled(gpu),
        )
        for index, gpu in enumerate(root.findall("gpu"))
    )


_UNDERLINE = re.compile(r"\x1b\[[0-9;]*m")


def parse_nvlinks(text: str) -> dict[str, int]:
    """Return the NVLinks in the matrix of `nvidia-smi topo -m`; 0 where GPUs talk over PCIe."""
    rows = [_UNDERLINE.sub("", line).split() for line in text.splitlines()]
    start = next((index for index, row in enumerate(rows) if row[:1] == ["GPU0"]), None)
    if start is None:
        raise ProgramError("nvidia-smi topo -m: no column GPU0; the driver sees no GPU")
    # The columns of GPUs are the first ones; those of network cards follow.
    gpus = [name for name in rows[start] if re.fullmatch(r"GPU\d+", name)]
    links = {
        (row[0], other): int(cell[2:]) if re.fullmatch(r"NV\d+", cell) else 0
        for row in rows[start + 1 :]
        for other, cell in zip(gpus, row[1:], strict=False)
    }
    missing = [pair for pair in itertools.product(gpus, gpus) if pair not in links]
    if missing:
        raise ProgramError(f"nvidia-smi topo -m: no cell for {missing[0]}; it was cut short")
    return {f"{one}-{other}": links[one, other] for one, other in itertools.combinations(gpus, 2)}


def _text(node: ElementTree.Element, path: str) -> str | None:
    found = node.findtext(path)
    return None if found is None or found.strip() in ("", "N/A") else found.strip()


def _whole(text: str | None) -> int | None:
    digits = re.match(r"\d+", text or "")
    return int(digits[0]) if digits else None


def _uncorrected(gpu: ElementTree.Element) -> int | None:
    counts = [
        count
        for node in gpu.findall("ecc_errors/volatile/*")
        if "uncorrectable" in node.tag and (count := _whole(node.text)) is not None
    ]
    return sum(counts) if counts else None


def _throttled(gpu: ElementTree.Element) -> tuple[str, ...] | None:
    said = {
        name: (each.text or "").strip()
        for kind in ("event", "throttle")
        for each in gpu.findall(f"clocks_{kind}_reasons/*")
        if (name := each.tag.removeprefix(f"clocks_{kind}_reason_")) in _FAULTS
    }
    known = set(said.values()) & {"Active", "Not Active"}
    return tuple(name for name in _FAULTS if said.get(name) == "Active") if known else None


INFINIBAND = Path("/sys/class/infiniband")
UP: Final = ("InfiniBand", "ACTIVE")
"""Link layer and state of a port that carries something."""
_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One network port of the RDMA kind."""

    device: str
    state: str
    gbit_per_s: float
    link_layer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What one node says of itself."""

    name: str
    gpus: tuple[Gpu, ...]
    nvlinks: dict[str, int]
    """`GPU0-GPU1` -> links between the two."""
    ports: tuple[Port, ...]
    versions: dict[str, str]
    errors: tuple[str, ...]
    """Commands that did not answer."""


def ask_node(*, infiniband: Path = INFINIBAND) -> NodeFacts:
    """Return what this node says; a command that is missing or fails is told, not raised."""
    errors: list[str] = []
    gpus: tuple[Gpu, ...] = ()
    nvlinks: dict[str, int] = {}
    try:
        gpus = parse_xml(_nvidia_smi("-q", "-x"))
        if len(gpus) > 1:
            nvlinks = parse_nvlinks(_nvidia_smi("topo", "-m"))
    except ProgramError as error:
        errors.append(str(error))
    return NodeFacts(
        name=node_name(),
        gpus=gpus,
        nvlinks=nvlinks,
        ports=read_ports(infiniband),
        versions=_versions(),
        errors=tuple(errors),
    )


def read_ports(folder: Path) -> tuple[Port, ...]:
    """Return the ports under /sys/class/infiniband; none where there is no such folder."""
    return tuple(
        Port(
            device=path.parents[1].name,
            state=_read(path / "state").rpartition(" ")[2],
            gbit_per_s=float((re.match(r"[\d.]+", _read(path / "rate")) or "0")[0]),
            link_layer=_read(path / "link_layer"),
        )
        for path in sorted(folder.glob("*/ports/*"))
    )


_COMPARED: Final[tuple[tuple[str, str, Callable[[Any, Any], bool], str], ...]] = (
    ("model", "model", lambda said, wanted: wanted in said, "got {said}, expected {wanted}"),
    ("model", "memory_gib", operator.ge, "{said:.4g} GiB, expected {wanted} or more"),
    (
        "driver",
        "driver",
        lambda said, wanted: _number(said) >= _number(wanted),
        "driver {said} is older than {wanted}: set cluster.nvidia_driver",
    ),
    ("ecc", "ecc", operator.ge, "ECC is off: nvidia-smi -e 1 and a reset"),
    ("ecc", "uncorrected", operator.eq, "{said} uncorrected errors: drain the node"),
    ("ecc", "pending_remap", operator.eq, "rows wait to be remapped: reset the GPU"),
    ("pcie", "pcie_gen", operator.ge, "PCIe {said}, expected {wanted}"),
    ("pcie", "pcie_width", operator.ge, "{said} lanes, expected {wanted}"),
    ("heat", "throttled", operator.eq, "{said}"),
)
"""Question, field of Gpu, whether it is as expected, and what is told where it is not."""
_SOUND: Final[dict[str, Any]] = {"uncorrected": 0, "pending_remap": False, "throttled": ()}
"""What is expected of every GPU; all else is its class's."""
_WORDS: Final = {
    "memory_gib": "its memory", "uncorrected": "uncorrected ECC errors", "ecc": "whether ECC is on",
    "pcie_gen": "PCIe generation", "pcie_width": "PCIe lanes", "throttled": "what slows it down"
}  # fmt: skip


def judge(facts: Sequence[NodeFacts], expected: Expected, gpus_per_node: int) -> list[Check]:
    """Return the checks of all nodes; `gpus_per_node` is what the preset declares."""
    checks: list[Check] = []
    for node in facts:
        checks.append(_same_software(node, facts[0]))
        if gpus_per_node:
            checks += _node_checks(node, expected, gpus_per_node)
    return checks


def _node_checks(node: NodeFacts, expected: Expected, gpus_per_node: int) -> list[Check]:
    found = len(node.gpus)
    why = "" if found else f": {'; '.join(node.errors) or 'nvidia-smi lists no GPU'}"
    answers: dict[str, list[Answer]] = {
        "gpus": [(found == gpus_per_node, f"{found} of {gpus_per_node} GPUs{why}")]
    }
    for question, name, holds, wrong in _COMPARED:
        of = answers.setdefault(question, [] if found else [(None, "no GPU to ask")])
        for gpu in node.gpus:
            of += compare(gpu, name, expected, holds, wrong)
    answers["nvlink"] = _nvlinks(node, expected) if found > 1 else []
    ports, answers["infiniband"] = _infiniband(node, expected)
    return [
        settle(
            f"readiness.{question}",
            of,
            subject=node.name,
            context=ports if question == "infiniband" else None,
        )
        for question, of in answers.items()
        if of  # what expects nothing asks nothing
    ]


def compare(
    gpu: Gpu, name: str, expected: Expected, holds: Callable[[Any, Any], bool], wrong: str
) -> list[Answer]:
    """Return whether what a GPU says under `name` holds; `wrong` is told where it does not."""
    said, wanted = getattr(gpu, name), _SOUND.get(name, getattr(expected, name, None))
    if not wanted and name not in _SOUND:
        return _unexpected(name, wanted)
    if said in (None, ""):
        # Not every GPU can remap rows; and without ECC none has errors to count.
        is_asked = name != "pending_remap" and (name != "uncorrected" or expected.ecc is not False)
        why = f"GPU {gpu.index}: the driver does not say: {_WORDS.get(name, name)}"
        return [(None, why)] if is_asked else []
    text = wrong.format(said=", ".join(said) if name == "throttled" else said, wanted=wanted)
    # A node has one driver.
    return [(holds(said, wanted), text if name == "driver" else f"GPU {gpu.index}: {text}")]


def _unexpected(name: str, wanted: object) -> list[Answer]:
    """What is told where nothing is expected: by 0 or false none is to be had, and more is fine."""
    why = f"no gates say what to expect: give expected.{name} in a file of accept.gates"
    return [(None, why)] if wanted is None else []


def _nvlinks(node: NodeFacts, expected: Expected) -> list[Answer]:
    wanted = expected.nvlinks
    if not wanted:
        return _unexpected("nvlinks", wanted)
    if not node.nvlinks:
        return [(None, "; ".join(node.errors) or "no topology")]
    thin = [f"{pair} has {links}" for pair, links in sorted(node.nvlinks.items()) if links < wanted]
    return [(not thin, f"{wanted} NVLinks a pair expected; {', '.join(thin[:4])}")]


def _infiniband(node: NodeFacts, expected: Expected) -> tuple[dict[str, int], list[Answer]]:
    """How many ports are up at their rate, and are expected; the answer."""
    wanted, rate = expected.infiniband_ports, expected.infiniband_gbit_per_s
    if not wanted:
        return {}, _unexpected("infiniband_ports", wanted)
    ups = [port for port in node.ports if (port.link_layer, port.state) == UP]
    good = sum(port.gbit_per_s >= (rate or 0) for port in ups)
    ports = [f"{port.device} {port.state} {port.gbit_per_s:g}" for port in node.ports]
    reason = (
        f"{good} of {wanted} InfiniBand ports are up at {rate or 0:g} Gbit/s "
        f"({', '.join(ports) or 'none is there'}): see ibstat, and infiniband_fabric in the stack"
    )
    answers = [(good >= wanted, reason), *_unexpected("infiniband_gbit_per_s", rate)]
    return {"ports": good, "expected": wanted}, answers


def _same_software(node: NodeFacts, first: NodeFacts) -> Check:
    mine = _software(node)
    different = [
        f"{name} {mine.get(name)}, {first.name} has {version}"
        for name, version in _software(first).items()
        # A node without a GPU has no driver to compare: it failed already.
        if mine.get(name) != version and (name != "driver" or node.gpus)
    ]
    answers: list[Answer] = [(not different, "; ".join(different))]
    return settle("readiness.software", answers, subject=node.name, context=mine)


def _software(node: NodeFacts) -> dict[str, str]:
    return {**node.versions, **({"driver": node.gpus[0].driver} if node.gpus else {})}


def declared_gpus(ranks_on_node: int) -> int:
    """Return the GPUs that the preset gives a node, else one for each rank."""
    preset = re.match(r"(\d+)gpu-", os.environ.get("SOPERATOR_PRESET", ""))
    return int(preset[1]) if preset else ranks_on_node


def _versions() -> dict[str, str]:
    import torch

    known = {"cuda": torch.version.cuda or "none", **package_versions()}
    return {name: known[name] for name in ("python", "torch", "cuda", "nccl") if name in known}


def _nvidia_smi(*words: str) -> str:
    path = shutil.which("nvidia-smi")
    if path is None:
        raise ProgramError("nvidia-smi is not on PATH; the node has no driver for the job")
    try:
        done = subprocess.run(
            [path, *words], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ProgramError(f"nvidia-smi {' '.join(words)}: no answer in {_TIMEOUT_S} s") from None
    if done.returncode:
        text = " ".join((done.stderr or done.stdout).split())
        raise ProgramError(f"nvidia-smi {' '.join(words)}: exit {done.returncode}: {text}")
    return done.stdout


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
