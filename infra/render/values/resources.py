"""Amounts of stacks/catalog.py as Kubernetes quantities in the charts' keys. Pure."""

from __future__ import annotations

from stacks.catalog import GIB, Amounts, Preset, find_preset
from stacks.spec.nodes import NodeGroupSpec


def preset_of(group: NodeGroupSpec) -> Preset:
    """The preset of a node group; ValueError where the catalog has none."""
    preset = find_preset(group.platform, group.preset)
    if preset is None:
        raise ValueError(f"{group.platform} has no preset {group.preset}; see stacks/catalog.py")
    return preset


def quantities(amounts: Amounts) -> dict[str, str]:
    """`resources` of a container in the Soperator charts."""
    return {
        "cpu": f"{amounts.cpu_m}m",
        "memory": _binary(amounts.memory_mib),
        "ephemeralStorage": _binary(amounts.ephemeral_mib),
    }


def requests_and_limits(amounts: Amounts) -> dict[str, dict[str, str]]:
    """`resources` of a container in charts that take them as Kubernetes does; CPU has no limit."""
    memory = _binary(amounts.memory_mib)
    return {
        "requests": {"cpu": f"{amounts.cpu_m}m", "memory": memory},
        "limits": {"memory": memory},
    }


def _binary(mib: int) -> str:
    return f"{mib // GIB}Gi" if mib % GIB == 0 else f"{mib}Mi"
