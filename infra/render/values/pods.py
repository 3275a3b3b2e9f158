"""What several charts have: claims, their guards, amounts; and values that no code decides. Pure.

Amounts are those of stacks/catalog.py, as Kubernetes quantities in the charts' keys. charts/ has
one file of values a release of operators, metrics and logs, filled in with the stack. Nothing
leaves the cluster: the charts stand alone, without the endpoints of a provider. Names of values of
VictoriaMetrics, VictoriaLogs, the log collector and Grafana: helm/soperator-fluxcd/templates of
nebius/soperator, read 2026-11-21.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from infra.files import environment
from infra.render import names
from infra.render.nodes import EXPORT
from stacks.catalog import GIB, Amounts, Preset
from stacks.files import parse_yaml
from stacks.machines import observability_volumes
from stacks.spec import StackSpec
from stacks.spec.nodes import NodeGroupSpec

if TYPE_CHECKING:
    import jinja2

NFS: Final = "nfs"
"""Volume, and volume source, of the NFS server that has a machine of its own."""
BUSYBOX: Final = "cr.eu-north1.nebius.cloud/soperator/busybox"
SCRIPTS: Final = "slurm-scripts"
"""ConfigMap of prolog, epilog and health scripts; from 5.0 on it is `<cluster>-slurm-scripts`."""


def claim(name: str) -> dict[str, Any]:
    """The claim of a filesystem as a volume."""
    return {"persistentVolumeClaim": {"claimName": f"{name}-pvc", "readOnly": False}}


def nfs_volume(address: Any) -> dict[str, Any]:
    """The export of the NFS server that has a machine of its own, as a volume."""
    return {"nfs": {"server": address, "path": EXPORT}}


def virtiofs_guards(spec: StackSpec, *, submounts: bool) -> list[dict[str, Any]]:
    """Init containers that refuse to start on a folder of the node where a mount is missing."""
    guards = [guard("ensure-jail-virtiofs", names.JAIL, "virtiofs")]
    if submounts:
        guards += [
            guard(f"ensure-{names.submount_tag(each.name)}-virtiofs", each.name, "virtiofs")
            for each in spec.storage.submounts
        ]
    return guards


def guard(name: str, volume: str, filesystem: str) -> dict[str, Any]:
    """An init container that ends well only where the volume is a mount of that filesystem."""
    return {
        "name": name,
        "image": BUSYBOX,
        "volumeMounts": [{"name": volume, "mountPath": "/volume-mount"}],
        "command": ["grep", f" /volume-mount {filesystem} ", "/proc/mounts"],
    }


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
