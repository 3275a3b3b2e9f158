"""Names of what is sold, and the unit that each is sold by: unit_of("gpu-h100-sxm/gpu/reserved").

A SKU is `<platform>/<gpu|vcpu|ram>`, `disk/<type>`, `filesystem/<type>` or one of a few services; a
node that is not billed on demand adds its kind: `/preemptible`, `/reserved`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from cost.price import Unit
from stacks.catalog import PLATFORMS
from stacks.node_spec import Billing
from stacks.storage_spec import DiskType

_NODE_PARTS: Final[Mapping[str, Unit]] = MappingProxyType(
    {"gpu": Unit.GPU_HOUR, "vcpu": Unit.VCPU_HOUR, "ram": Unit.GIB_HOUR}
)
_SERVICES: Final[Mapping[str, Unit]] = MappingProxyType(
    {
        "object-storage/standard": Unit.GIB_MONTH,
        "object-storage/enhanced-throughput": Unit.GIB_MONTH,
        "container-registry/storage": Unit.GIB_MONTH,
        "public-ip": Unit.ADDRESS_HOUR,
        "public-ip/kubernetes-endpoint": Unit.ADDRESS_HOUR,
        "mk8s/control-plane": Unit.CLUSTER_HOUR,
    }
)


def _units() -> Mapping[str, Unit]:
    units = dict(_SERVICES)
    for kind in DiskType:
        units[f"disk/{kind}"] = Unit.GIB_MONTH
        units[f"filesystem/{kind}"] = Unit.GIB_MONTH
    for platform, facts in PLATFORMS.items():
        for part, unit in _NODE_PARTS.items():
            if part != "gpu" or facts.gres_type is not None:
                for billing in Billing:
                    units[node_sku(platform, part, billing)] = unit
    return MappingProxyType(units)


def node_sku(platform: str, part: str, billing: Billing) -> str:
    """SKU of one part of a platform's nodes, such as `gpu-h100-sxm/gpu/preemptible`."""
    suffix = "" if billing is Billing.ON_DEMAND else f"/{billing}"
    return f"{platform}/{part}{suffix}"


def covers_vm(sku: str) -> bool:
    """Whether the price of this GPU includes its vCPUs and memory.

    NVLink GPUs do since 2025-10-01 (docs.nebius.com/signup-billing/billing-changes-oct-2025).
    """
    platform, _, part = sku.partition("/")
    return "-sxm" in platform and part.split("/")[0] == "gpu"


UNITS: Final = _units()
"""SKU -> the unit that it is sold by."""


def unit_of(sku: str) -> Unit | None:
    """The unit that the SKU is sold by; None where no such thing is sold."""
    return UNITS.get(sku)
