"""What is exported, by infra/render/monitoring/metrics.tsv: EXPORTED, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

_LIST: Final = Path(__file__).parents[3] / "infra/render/monitoring/metrics.tsv"
SOURCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "dcgm": "https://github.com/nebius/soperator, helm/soperator-dcgm-exporter/values.yaml "
        "(dcgmMetricsCsv), read 2026-11-21",
        "slurm": "https://github.com/nebius/soperator, internal/exporter/collector.go, "
        "read 2026-11-21",
        "train": "workloads/train/measure.py",
        "serve": "workloads/serve/metrics.py",
        "vllm": "https://docs.vllm.ai/en/stable/usage/metrics/, read 2026-11-21",
        "records": "infra/render/monitoring/objects.py",
        "vmalert": "https://docs.victoriametrics.com/victoriametrics/vmalert/, alerts state on "
        "restarts, read 2026-11-21",
    }
)
"""Exporter -> where its metrics are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric as it is stored."""

    name: str
    exporter: str
    """Key of SOURCES."""
    kind: str
    """counter, gauge or histogram."""
    says: str


def read_metrics(text: str) -> Mapping[str, Metric]:
    """Metrics by name; ValueError for a repeated name or an unknown exporter."""
    found: dict[str, Metric] = {}
    for number, line in enumerate(text.splitlines()[1:], 2):
        name, exporter, kind, says = line.split("\t")
        if name in found:
            raise ValueError(f"metrics.tsv:{number}: '{name}' is listed twice; names are unique")
        if exporter not in SOURCES:
            have = ", ".join(SOURCES)
            raise ValueError(f"metrics.tsv:{number}: no exporter '{exporter}' (has: {have})")
        found[name] = Metric(name=name, exporter=exporter, kind=kind, says=says)
    return MappingProxyType(found)


EXPORTED: Final = read_metrics(_LIST.read_text(encoding="utf-8"))
