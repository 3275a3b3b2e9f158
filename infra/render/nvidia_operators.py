"""NVIDIA's operators as applications of the kube cluster, where node images have no drivers. Pure.

Source: nebius-solutions-library modules/network-operator and modules/gpu-operator, as the Soperator
recipe calls them (commit 7b687e5, 2026-04-21).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from stacks.catalog import find_preset
from stacks.cluster_spec import GpuDrivers
from stacks.spec import StackSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One application of the Nebius marketplace."""

    name: str
    """Name of the application and of its namespace."""
    product_slug: str
    set: Mapping[str, str]
    """Values of its chart, by path."""

    def spec(self, cluster_id: Any) -> dict[str, Any]:
        """The API's K8sReleaseSpec."""
        return {
            "cluster_id": cluster_id,
            "product_slug": self.product_slug,
            "namespace": self.name,
            "application_name": self.name,
            "set": dict(self.set),
        }


_NETWORK: Final = Operator(
    name="network-operator",
    product_slug="nebius/nvidia-network-operator",
    set=MappingProxyType(
        {
            "operator.resources.limits.cpu": "500m",
            "operator.resources.limits.memory": "1280Mi",
            # Its probe kills the driver's container while the module is still being built.
            "ofedDriver.livenessProbe.enabled": "false",
        }
    ),
)
_GPU: Final = Operator(
    name="gpu-operator",
    product_slug="nebius/nvidia-gpu-operator",
    # Soperator's own exporter maps GPUs to jobs; two of them would count every GPU twice.
    set=MappingProxyType({"dcgmExporter.enabled": "false"}),
)


def nvidia_operators(spec: StackSpec) -> tuple[Operator, ...]:
    """The operators in the order in which they are installed; none without GPUs."""
    presets = (find_preset(each.platform, each.preset) for each in spec.nodes.workers)
    if spec.cluster.gpu_drivers is GpuDrivers.PREINSTALLED:
        return ()
    if not any(preset is not None and preset.gpus for preset in presets):
        return ()
    return _NETWORK, _GPU
