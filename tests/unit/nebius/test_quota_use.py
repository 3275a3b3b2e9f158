"""What one resource uses of a quota; emulator and pre-flight count by the same function."""

from __future__ import annotations

from typing import Any

import pytest

from infra.providers.nebius.quota_use import used_by
from infra.providers.nebius.resource_type import GIB
from infra.providers.nebius.schema import Schema

_GPUS = {"platform": "gpu-h100-sxm", "preset": "8gpu-128vcpu-1600gb"}
_CPUS = {"platform": "cpu-d3", "preset": "4vcpu-16gb"}
_DISK = {"type": "NETWORK_SSD", "size_gibibytes": 128}


def _group(resources: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"template": {"resources": resources, "boot_disk": _DISK, **more}}


_OF_GROUP = {
    "compute.instance.count": 3,
    "compute.disk.count": 3,
    "compute.disk.size.network-ssd": 3 * 128 * GIB,
    "vpc.allocation.count": 6,
}


@pytest.mark.parametrize(
    ("name", "spec", "expected"),
    [
        (
            "compute.v1.Disk",
            _DISK,
            {"compute.disk.count": 1, "compute.disk.size.network-ssd": 128 * GIB},
        ),
        (
            "compute.v1.Filesystem",
            _DISK,
            {"compute.filesystem.count": 1, "compute.filesystem.size.network-ssd": 128 * GIB},
        ),
        ("compute.v1.GpuCluster", {}, {"compute.gpucluster.count": 1}),
        ("mk8s.v1.Cluster", {}, {"mk8s.cluster.count": 1}),
        ("vpc.v1.Allocation", {}, {"vpc.allocation.count": 1}),
        ("vpc.v1.Subnet", {}, {}),
        (
            "compute.v1.Instance",
            {"resources": _CPUS},
            {"compute.instance.count": 1, "compute.instance.non-gpu.vcpu": 4},
        ),
        ("mk8s.v1.NodeGroup", _group(_GPUS), {**_OF_GROUP, "compute.instance.gpu.h100": 24}),
        ("mk8s.v1.NodeGroup", _group(_CPUS), {**_OF_GROUP, "compute.instance.non-gpu.vcpu": 12}),
        # GPUs of a capacity block count against no quota of GPUs.
        (
            "mk8s.v1.NodeGroup",
            _group(_GPUS, reservation_policy={"reservation_ids": ["capacityblockgroup-1"]}),
            _OF_GROUP,
        ),
    ],
)
def test_every_resource_counts_against_the_quotas_of_its_kind(
    name: str, spec: dict[str, Any], expected: dict[str, int]
) -> None:
    schema = Schema.shared()
    resource: Any = schema.message(f"nebius.{name}")(spec=spec)
    assert used_by(schema, resource, lambda _group: 3) == expected
