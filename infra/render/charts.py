"""Every Helm release of a stack, in order, with its chart, pinned version and values. Pure.

They are listed in values/releases.yaml.j2, each one's values beside it; versions are in
stacks/compatibility.yaml. infra/components makes the releases. Nothing leaves the cluster: the
charts stand alone, without the endpoints of a provider.

Every non-obvious value is a trap of a first deployment; the reason stands beside it. Source of
names and defaults, where a file gives no other, read 2026-11-21: nebius/soperator
helm/*/values.yaml at 4.1.7, and the values of the official recipe (nebius-solutions-library
soperator/modules/slurm/templates, commit 7b687e5); of VictoriaMetrics, VictoriaLogs, the log
collector and Grafana: helm/soperator-fluxcd/templates of nebius/soperator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from infra.render import names
from infra.render.nodes import EXPORT, minimum_nodes
from infra.render.templates import has_template, manifest
from stacks import catalog
from stacks.catalog import GIB, PLATFORMS, Amounts, Preset
from stacks.compatibility import release_of
from stacks.machines import JAIL_UPPER, checks_know, observability_volumes
from stacks.spec import StackSpec
from stacks.spec.cluster import HOME, ChecksProfile, Maintenance, SssdSpec
from stacks.spec.nodes import IMAGE_PATH, LocalDiskSpec, NodeGroupSpec, WorkerSpec

REGISTRY: Final = "oci://cr.eu-north1.nebius.cloud/soperator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One Helm release."""

    release: str
    """Name of the release, and of its resource."""
    chart: str
    """Name of the chart in its repository, or its whole OCI address."""
    version: str
    namespace: str
    repository: str | None = None
    """Address of an HTTP repository; None for OCI."""
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    after: tuple[str, ...] = ()
    """Releases that it needs; also those that go only after it has gone."""
    creates_namespace: bool = True
    """False where the program makes it: one namespace has one owner."""
    timeout_s: int | None = None
    """Longest wait for it; None is Helm's five minutes."""
    definitions: str | None = None
    """API group of the custom resources in its crds/, which Helm would never upgrade."""


PODS_STARTED: Final = "pods-started"
"""The wait for the pods of the cluster, among what a release comes after."""


KRUISE: Final = "kruise-system"
"""Namespace of no release: the chart of kruise makes it, and its webhooks lead there."""


def platform_charts(spec: StackSpec) -> tuple[Chart, ...]:
    """What the operator needs, the operator, and what watches over nodes."""
    return tuple(_chart(spec, row, {}) for row in chart_values(spec, "releases")["platform"])


def k8up_chart(spec: StackSpec) -> Chart:
    """The operator that makes the copies of the jail, of a stack that has them."""
    return _chart(spec, chart_values(spec, "releases")["backup"], {})


def cluster_charts(
    spec: StackSpec,
    *,
    allocation_id: Any,
    ssh_public_keys: Any,
    slack_webhook_url: Any = None,
    nfs_address: Any = None,
) -> tuple[Chart, ...]:
    """The Slurm cluster, in the namespace that is made before them."""
    known = {
        "allocation_id": allocation_id,
        "ssh_public_keys": ssh_public_keys,
        "slack_webhook_url": slack_webhook_url,
        "nfs_address": nfs_address,
    }
    return tuple(_chart(spec, row, known) for row in chart_values(spec, "releases")["cluster"])


def _chart(spec: StackSpec, row: dict[str, Any], known: Mapping[str, Any]) -> Chart:
    release, version = row["release"], spec.cluster.soperator_version
    chart = f"{REGISTRY}/helm-{release}"
    if row.keys() & {"chart", "repository"}:
        chart, version = release, release_of(version).charts[release]
    own = {
        "chart": chart,
        "version": version,
        "namespace": spec.cluster.namespace,
        "creates_namespace": "namespace" in row,
        "values": chart_values(spec, release, known),
    }
    return Chart(**{**own, **row, "after": tuple(row.get("after", ()))})


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


# What slurm.conf needs beside the chart's own lines for accounts to bind: a job of nobody's account
# or over a limit is refused.
_ENFORCE: Final = "AccountingStorageEnforce=associations,limits,qos"


def _sssd_references(sssd: SssdSpec) -> dict[str, str]:
    """Names of what the sidecar reads, in the keys that both charts have for them."""
    found = {"sssdConfSecretRefName": sssd.config_secret}
    if sssd.ca_config_map is not None:
        found["sssdLdapCAConfigMapRefName"] = sssd.ca_config_map
    return found


def maintenance(spec: StackSpec) -> str:
    """Mode of the SlurmCluster: a paused stack has no pods of Slurm, whatever else is declared."""
    if spec.nodes.paused and not spec.soperator.maintenance.startswith(Maintenance.DOWNSCALE):
        return Maintenance.DOWNSCALE.value
    return spec.soperator.maintenance.value


def is_stopped(spec: StackSpec) -> bool:
    """Whether no pod of Slurm runs: nobody can enter, and no check can run."""
    return maintenance(spec).startswith(Maintenance.DOWNSCALE)


def _config_lines(spec: StackSpec) -> list[str]:
    """Lines of slurm.conf beside the chart's own.

    An elastic set's least nodes are kept awake: their machines are there and paid anyway. The
    operator excepts the nodes of fixed sets alone. Of two lines Slurm takes the later one, which is
    this, so it names those too ("specified more than once, latest value used").
    """
    lines = [_ENFORCE] if spec.slurm.accounts else []
    if any(worker.min_nodes and worker.is_elastic for worker in spec.nodes.workers):
        lines.append(f"SuspendExcNodes={','.join(minimum_nodes(spec))}")
    return [*lines, *spec.slurm.config_lines]


def gres(worker: WorkerSpec) -> str | None:
    """Gres of one node, such as `gpu:nvidia_l40s:2`; None without GPUs."""
    preset = preset_of(worker)
    if not preset.gpus:
        return None
    type_ = PLATFORMS[worker.platform].gres_type
    return f"gpu:{type_}:{preset.gpus}" if type_ else f"gpu:{preset.gpus}"


def features(worker: WorkerSpec) -> list[str]:
    """What `--constraint` may name: platform and boot disk as in the recipe, then its own."""
    hardware = (worker.platform, str(worker.boot_disk.type))
    return [*dict.fromkeys((*(name.replace("-", "_") for name in hardware), *worker.features))]


def replicas(worker: WorkerSpec) -> dict[str, Any]:
    """How many pods of slurmd the nodeset has, as its chart counts them."""
    if not worker.is_elastic:
        return {"replicas": worker.min_nodes}
    # The chart makes one of zero replicas; of an elastic set it counts the most.
    return {
        "replicas": worker.max_nodes,
        "ephemeralNodes": True,
        "initialNumberEphemeralNodes": worker.min_nodes,
    }


def _open_folders(spec: StackSpec, disk: LocalDiskSpec) -> list[str]:
    """Folders of the disk that every user writes into: declared ones, the disk if it has places."""
    places = (PurePosixPath(path) for path in spec.storage.places.values())
    has_places = any(path.is_relative_to(disk.mount_path) for path in places)
    return [*(["."] if has_places else []), *disk.folders]


# Minutes on an exclusive node each.
_QUICK_GPU: Final = (
    *("cuda-samples", "all-reduce-perf-nccl-without-ib", "mem-perf", "dcgmi-diag-r2"),
)
_QUICK_FABRIC: Final = ("all-reduce-perf-nccl-with-ib", "ib-gpu-perf")
# Up to two hours on an exclusive node each, or started by another check.
_LONG_GPU: Final = ("all-reduce-perf-nccl-in-docker", "gpu-fryer", "dcgmi-diag-r3")


def _gpu_checks(spec: StackSpec) -> list[str]:
    """Those of the declared profile; none on hardware that the health checker does not know."""
    workers, is_full = spec.nodes.workers, spec.soperator.checks is ChecksProfile.FULL
    if not (is_full or spec.soperator.checks is ChecksProfile.QUICK):
        return []
    if not any(map(checks_know, workers)):
        return []
    fabric = _QUICK_FABRIC if any(worker.has_fabric for worker in workers) else ()
    return [*_QUICK_GPU, *fabric, *(_LONG_GPU if is_full else ())]


_SHARED: Final = {
    "registry": REGISTRY,
    "pods_started": PODS_STARTED,
    "monitoring": MONITORING,
    "logs": LOGS,
    "store_port": _STORE_PORT,
    "names": names,
    "catalog": catalog,
    "claim": claim,
    "preset_of": preset_of,
    "quantities": quantities,
    "requests_and_limits": requests_and_limits,
    "maintenance": maintenance,
    "is_stopped": is_stopped,
    "config_lines": _config_lines,
    "known_gpu_checks": (*_QUICK_GPU, *_QUICK_FABRIC, *_LONG_GPU),
    "gpu_checks_of": _gpu_checks,
    "replicas": replicas,
    "gres": gres,
    "features": features,
    "references": _sssd_references,
    "open_folders": _open_folders,
    "busybox": "cr.eu-north1.nebius.cloud/soperator/busybox",
    "export": EXPORT,
    "home": HOME,
    "image_path": IMAGE_PATH,
    "jail_upper": JAIL_UPPER,
}


def chart_values(
    spec: StackSpec, release: str, known: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The values of a release, none where no file has any of ours; `known` as for a manifest."""
    template = f"values/{release}.yaml.j2"
    if not has_template(template):
        return {}
    volumes = observability_volumes(spec)
    return manifest(template, known, spec=spec, volumes=volumes, **_SHARED)
