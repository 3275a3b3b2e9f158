"""Values of the charts that no code decides: Soperator's operators, metrics, logs. Pure.

charts/ has one file of values a release, filled in with the stack. Nothing leaves the cluster: the
charts stand alone, without the endpoints of a provider. Names of values of VictoriaMetrics,
VictoriaLogs, the log collector and Grafana: helm/soperator-fluxcd/templates of nebius/soperator,
read 2026-11-21.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from infra.files import environment
from infra.render import names
from stacks.files import parse_yaml
from stacks.machines import observability_volumes
from stacks.spec import StackSpec

if TYPE_CHECKING:
    import jinja2

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


@cache
def _templates() -> jinja2.Environment:
    made = environment(Path(__file__).parent / "charts")
    made.globals |= {
        "monitoring": MONITORING,
        "logs": LOGS,
        "store_port": _STORE_PORT,
        "nodeset_label": names.NODESET_LABEL,
    }
    return made


def chart_values(spec: StackSpec, release: str) -> dict[str, Any]:
    """The values of a release whose file is in charts/."""
    template = _templates().get_template(f"{release}.yaml.j2")
    found = parse_yaml(template.render(spec=spec, volumes=observability_volumes(spec)))
    assert isinstance(found, dict)
    return found
