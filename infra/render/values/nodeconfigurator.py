"""Values of helm-nodeconfigurator: the rebooter that ends drains with a reboot. Pure."""

from __future__ import annotations

from typing import Any, Final

from infra.render.resources import requests_and_limits
from stacks.node_capacity import Amounts

_REBOOTER: Final = Amounts(cpu_m=500, memory_mib=256, ephemeral_mib=0)


def nodeconfigurator_values() -> dict[str, Any]:
    """A rebooter on every node, tainted ones too."""
    return {
        "rebooter": {
            "enabled": True,
            "resources": requests_and_limits(_REBOOTER),
            "tolerations": [{"operator": "Exists"}],
        }
    }
