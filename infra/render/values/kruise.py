"""Values of OpenKruise 1.8.0, which runs every StatefulSet of Soperator (apps.kruise.io). Pure."""

from __future__ import annotations

from typing import Any, Final

# The gates that Soperator's operator relies on: helm/soperator/values.yaml at 4.1.7.
_GATES: Final = (
    "ImagePullJobGate",
    "RecreatePodWhenChangeVCTInCloneSetGate",
    "StatefulSetAutoResizePVCGate",
    "StatefulSetAutoDeletePVC",
    "PreDownloadImageForInPlaceUpdate",
    "ResourceDistributionGate",
)


def kruise_values() -> dict[str, Any]:
    """Feature gates, and the manager that the umbrella chart of 4.1.7 pins over the chart's own."""
    return {
        # Bare commas: a backslash before each is for `helm --set` and would stay in the value.
        "featureGates": ",".join(f"{gate}=true" for gate in _GATES),
        "manager": {"image": {"tag": "v1.8.3"}},
    }
