"""Values of helm-soperator-dcgm-exporter: GPU metrics that name the job of each GPU. Pure."""

from __future__ import annotations

from typing import Any, Final

from infra.render.resources import preset_of, requests_and_limits
from stacks.cluster_spec import GpuDrivers
from stacks.node_capacity import Amounts
from stacks.soperator_spec import Observability
from stacks.spec import StackSpec

_EXPORTER: Final = Amounts(cpu_m=100, memory_mib=512, ephemeral_mib=0)


def needs_dcgm_exporter(spec: StackSpec) -> bool:
    """Whether GPU metrics are collected and there is a GPU."""
    has_gpus = any(preset_of(worker).gpus for worker in spec.nodes.workers)
    return has_gpus and spec.soperator.observability is not Observability.OFF


def dcgm_exporter_values(spec: StackSpec) -> dict[str, Any]:
    """The exporter; only NVIDIA's GPU operator makes the file that it waits for by default."""
    return {
        "validateToolkit": spec.cluster.gpu_drivers is GpuDrivers.OPERATORS,
        "daemonSet": {"nvidiaDcgmExporter": {"resources": requests_and_limits(_EXPORTER)}},
    }
