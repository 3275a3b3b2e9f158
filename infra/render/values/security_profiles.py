"""Values of security-profiles-operator, for AppArmor profiles only. Pure."""

from __future__ import annotations

from typing import Any, Final

from infra.render.resources import requests_and_limits
from stacks.node_capacity import GIB, Amounts

# The umbrella chart's of 4.1.7: with its own limits the daemon is killed on nodes of many pods.
_OPERATOR: Final = Amounts(cpu_m=500, memory_mib=3 * GIB, ephemeral_mib=0)


def security_profiles_values() -> dict[str, Any]:
    """AppArmor on every node, and nothing else of what the operator can do."""
    return {
        "enableAppArmor": True,
        "enableBpfRecorder": False,
        "enableLogEnricher": False,
        "enableProfiling": False,
        "enableSelinux": False,
        "daemon": {"tolerations": [{"operator": "Exists"}]},
        "resources": requests_and_limits(_OPERATOR),
    }
