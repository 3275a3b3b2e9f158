"""Values of charts out of charts/, one file a release; what several have: claims, amounts. Pure.

Amounts are those of stacks/catalog.py, as Kubernetes quantities in the charts' keys. Nothing
leaves the cluster: the charts stand alone, without the endpoints of a provider. Names of values of
VictoriaMetrics, VictoriaLogs, the log collector and Grafana: helm/soperator-fluxcd/templates of
nebius/soperator, read 2026-11-21.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from infra.render import names, templates
from infra.render.nodes import EXPORT
from stacks import catalog
from stacks.catalog import GIB, Amounts, Preset
from stacks.machines import JAIL_UPPER, observability_volumes
from stacks.spec import StackSpec
from stacks.spec.cluster import HOME
from stacks.spec.nodes import IMAGE_PATH, NodeGroupSpec


def claim(name: str) -> dict[str, Any]:
    """The claim of a filesystem as a volume."""
    return {"persistentVolumeClaim": {"claimName": f"{name}-pvc", "readOnly": False}}


def preset_of(group: NodeGroupSpec) -> Preset:
    """The preset of a node group; ValueError where the catalog has none."""
    preset = group.hardware
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


MONITORING: Final = "monitoring-system"
LOGS: Final = "logs-system"
_STORE_PORT: Final = "8429"
METRICS_ADDRESS: Final = (
    f"http://vmsingle-metrics-victoria-metrics-k8s-stack.{MONITORING}.svc:{_STORE_PORT}"
)
"""The metrics store: VMSingle of the release `metrics`, at the port that Soperator's notifier asks
(helm/soperator-notifier/templates, son.alert.dataSourceUrl, read 2026-11-21)."""
METRICS_IMPORT: Final = f"{METRICS_ADDRESS}/api/v1/import/prometheus"
"""Where jobs send their own metrics."""


_CHARTS: Final = "values/charts"
_SHARED: Final = {
    "monitoring": MONITORING,
    "logs": LOGS,
    "store_port": _STORE_PORT,
    "names": names,
    "catalog": catalog,
    "claim": claim,
    "preset_of": preset_of,
    "quantities": quantities,
    "requests_and_limits": requests_and_limits,
    "busybox": "cr.eu-north1.nebius.cloud/soperator/busybox",
    "export": EXPORT,
    "home": HOME,
    "image_path": IMAGE_PATH,
    "jail_upper": JAIL_UPPER,
}


def has_values(release: str) -> bool:
    """Whether a release has values of ours."""
    return templates.has_template(f"{_CHARTS}/{release}.yaml.j2")


def chart_values(
    spec: StackSpec, release: str, known: Mapping[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """The values of a release whose file is in charts/; `known` as for a manifest."""
    shared = {**_SHARED, "spec": spec, "volumes": observability_volumes(spec)}
    return templates.manifest(f"{_CHARTS}/{release}.yaml.j2", known, **shared, **more)
