"""Which versions go together: SOPERATOR, KUBERNETES, SYSTEMS and ROLLOUT out of compatibility.yaml.

Owns the reading of the table and which row stands for a version that has none. What is refused is
rules/cluster.py's and changes.py's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from stacks.catalog import PLATFORMS
from stacks.files import parse_yaml
from stacks.spec.decode import CountOrZero, Decoder

_OTHER: Final = "other"
_NUMBERS: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SoperatorRelease:
    """One version of Soperator and what it goes with."""

    version: str
    charts: Mapping[str, str]
    """Release -> version of the charts that are not Soperator's own."""
    source: str
    date: str
    kubernetes_min: str | None = None
    """Oldest Kubernetes that its authors support; None where no source says."""
    slurm: str | None = None
    """Version of Slurm in its images; None where no source says."""
    cuda: tuple[str, ...] = ()
    """CUDA versions of its jail images; empty where no source says."""
    refused: str | None = None
    """Why this program cannot deploy it, and what to take; None where it can."""

    @property
    def line(self) -> tuple[int, ...]:
        """MAJOR and MINOR."""
        return numbers(self.version)[:2]


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesVersion:
    """One minor version of Kubernetes and the drivers in the images of its GPU nodes."""

    version: str
    drivers: Mapping[str, tuple[str, ...]]
    """Platform -> what `cluster.drivers_preset` may be."""
    source: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSystem:
    """One system of node images."""

    name: str
    source: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutDefaults:
    """How the API replaces the nodes of a group whose stack says nothing."""

    max_unavailable: int
    """Nodes that are away at once."""
    max_surge: CountOrZero
    """Nodes that are there beyond the declared number."""
    drain_timeout_minutes: int
    round_minutes_max: int
    """Longest for one round of new nodes, without their drain."""
    source: str
    date: str


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version before any suffix, to compare: `4.1.7-a1` is (4, 1, 7)."""
    return tuple(map(int, _NUMBERS.findall(version.partition("-")[0])))


def release_of(version: str) -> SoperatorRelease:
    """The row of the version, else the newest deployable one that is not newer, else the oldest.

    A patch pins the charts of its line, so another version of a known line is read as its row.
    """
    if version in SOPERATOR:
        return SOPERATOR[version]
    deployable = [each for each in SOPERATOR.values() if each.refused is None]
    same_line = [each for each in deployable if each.line == numbers(version)[:2]]
    older = [each for each in deployable if numbers(each.version) <= numbers(version)]
    return (same_line or older or deployable[:1])[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """The file as it stands."""

    soperator: tuple[SoperatorRelease, ...]
    kubernetes: tuple[KubernetesVersion, ...]
    systems: tuple[NodeSystem, ...]
    rollout: RolloutDefaults


def _read(path: Path) -> _Table:
    decoder = Decoder()
    table = decoder.record(_Table, parse_yaml(path.read_text(encoding="utf-8")), path.name)
    if table is None:
        raise ValueError("\n".join(decoder.problems))
    return table


_GPUS: Final = [name for name, platform in PLATFORMS.items() if platform.gres_type is not None]
_TABLE: Final = _read(Path(__file__).with_name("compatibility.yaml"))
SOPERATOR: Final = MappingProxyType({each.version: each for each in _TABLE.soperator})
# Platforms that the table does not name have the drivers of the others.
KUBERNETES: Final = MappingProxyType(
    {
        each.version: replace(
            each, drivers={name: each.drivers.get(name, each.drivers[_OTHER]) for name in _GPUS}
        )
        for each in _TABLE.kubernetes
    }
)
SYSTEMS: Final = tuple(each.name for each in _TABLE.systems)
ROLLOUT: Final = _TABLE.rollout
