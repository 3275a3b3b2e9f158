"""Readers of what nvidia-smi prints: `-q -x` and `topo -m`. Pure.

Tags are those of nvsmi_device_v12.dtd (driver 535 and later) with the older names beside them.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any
from xml.etree import ElementTree

from workloads.common.exit_codes import WorkloadError


class NvidiaSmiError(WorkloadError):
    """Output that is not what nvidia-smi prints."""


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
    throttled: tuple[str, ...]
    """Reasons of heat or power supply for which it runs slower now."""

    def to_json(self) -> dict[str, Any]:
        """Return the GPU as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The matrix of `nvidia-smi topo -m`."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    links: dict[tuple[str, str], str]

    def nvlinks(self) -> dict[tuple[str, str], int]:
        """NVLinks of each pair of GPUs; 0 where they talk over PCIe."""
        found: dict[tuple[str, str], int] = {}
        for index, one in enumerate(self.gpus):
            for other in self.gpus[index + 1 :]:
                link = self.links[one, other]
                found[one, other] = int(link[2:]) if re.fullmatch(r"NV\d+", link) else 0
        return found


_FAULTS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")


def parse_xml(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs in the output of `nvidia-smi -q -x`."""
    # A document type is in every output; entities in it are none of nvidia-smi's.
    if "<!ENTITY" in text:
        raise NvidiaSmiError("nvidia-smi -q -x: the output declares entities; it is not its own")
    try:
        root = ElementTree.fromstring(text)  # noqa: S314
    except ElementTree.ParseError as error:
        raise NvidiaSmiError(f"nvidia-smi -q -x: no XML: {error}; run it by hand") from error
    if root.tag != "nvidia_smi_log":
        raise NvidiaSmiError(f"nvidia-smi -q -x: <{root.tag}>, expected <nvidia_smi_log>")
    driver, cuda = _text(root, "driver_version") or "", _text(root, "cuda_version") or ""
    return tuple(
        Gpu(
            index=index,
            model=_text(gpu, "product_name") or "",
            memory_gib=_mib(_text(gpu, "fb_memory_usage/total")),
            driver=driver,
            cuda=cuda,
            ecc=_is(_text(gpu, "ecc_mode/current_ecc"), "Enabled"),
            uncorrected=_uncorrected(gpu),
            pending_remap=_is(_text(gpu, "remapped_rows/remapped_row_pending"), "Yes"),
            pcie_gen=_whole(_text(gpu, "pci/pci_gpu_link_info/pcie_gen/max_link_gen")),
            pcie_width=_whole(_text(gpu, "pci/pci_gpu_link_info/link_widths/current_link_width")),
            throttled=_throttled(gpu),
        )
        for index, gpu in enumerate(root.findall("gpu"))
    )


_UNDERLINE = re.compile(r"\x1b\[[0-9;]*m")


def parse_topology(text: str) -> Topology:
    """Return the matrix of `nvidia-smi topo -m`."""
    lines = [_UNDERLINE.sub("", line) for line in text.splitlines()]
    start = next((index for index, line in enumerate(lines) if line.split()[:1] == ["GPU0"]), None)
    if start is None:
        raise NvidiaSmiError("nvidia-smi topo -m: no column GPU0; the driver sees no GPU")
    device = re.compile(r"(GPU|NIC|mlx5_)\d+")
    columns = [name for name in lines[start].split() if device.fullmatch(name)]
    links: dict[tuple[str, str], str] = {}
    for line in lines[start + 1 :]:
        name, *cells = line.split() or [""]
        if not device.fullmatch(name):
            break
        links |= {(name, other): cell for other, cell in zip(columns, cells, strict=False)}
    gpus = tuple(name for name in columns if name.startswith("GPU"))
    missing = [pair for pair in ((a, b) for a in gpus for b in gpus) if pair not in links]
    if missing:
        raise NvidiaSmiError(f"nvidia-smi topo -m: no cell for {missing[0]}; it was cut short")
    return Topology(
        gpus=gpus, nics=tuple(name for name in columns if name not in gpus), links=links
    )


def _text(node: ElementTree.Element, path: str) -> str | None:
    found = node.findtext(path)
    return None if found is None or found.strip() in ("", "N/A") else found.strip()


def _whole(text: str | None) -> int | None:
    digits = re.match(r"\d+", text or "")
    return int(digits[0]) if digits else None


def _mib(text: str | None) -> float | None:
    mib = _whole(text)
    return None if mib is None else mib / 1024


def _is(text: str | None, yes: str) -> bool | None:
    return None if text in (None, "", "[N/A]", "N/A") else text == yes


def _uncorrected(gpu: ElementTree.Element) -> int | None:
    counts = [
        _whole(node.text)
        for node in gpu.findall("ecc_errors/volatile/*")
        if "uncorrectable" in node.tag
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _throttled(gpu: ElementTree.Element) -> tuple[str, ...]:
    reasons = [
        *gpu.findall("clocks_event_reasons/*"),
        *gpu.findall("clocks_throttle_reasons/*"),
    ]
    return tuple(
        fault
        for fault in _FAULTS
        if any(each.tag.endswith(f"reason_{fault}") and _active(each.text) for each in reasons)
    )


def _active(text: str | None) -> bool:
    return (text or "").strip() == "Active"
