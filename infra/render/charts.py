"""Every Helm release of a stack, in order, with its chart, pinned version and values.

Versions are in stacks/compatibility.yaml, values in values/. infra/components makes the releases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from infra.render.values.nodesets import nodesets_values
from infra.render.values.pods import LOGS, MONITORING, chart_values, preset_of
from infra.render.values.slurm_cluster import (
    TIMEOUT_S,
    active_checks_values,
    is_stopped,
    slurm_cluster_values,
)
from infra.render.values.storage import nfs_server_values, storage_values
from stacks.compatibility import release_of
from stacks.machines import home_volume_gib, observability_volumes
from stacks.spec import StackSpec
from stacks.spec.cluster import ChecksProfile, Observability

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


def foreign_version(spec: StackSpec, release: str) -> str:
    """Version of a chart that is not Soperator's own, as the stack's Soperator pins it."""
    return release_of(spec.cluster.soperator_version).charts[release]


def foreign(spec: StackSpec, name: str, repository: str, namespace: str, **more: Any) -> Chart:
    """A chart of somebody else, from their repository."""
    known: dict[str, Any] = {"chart": name, "version": foreign_version(spec, name), **more}
    return Chart(release=name, repository=repository, namespace=namespace, **known)


def own(spec: StackSpec, name: str, namespace: str, **more: Any) -> Chart:
    """A chart of Soperator: published names carry `helm-`, and all have one version."""
    known: dict[str, Any] = {"version": spec.cluster.soperator_version, **more}
    return Chart(release=name, chart=f"{REGISTRY}/helm-{name}", namespace=namespace, **known)


def inside(spec: StackSpec, name: str, values: Mapping[str, Any], **more: Any) -> Chart:
    """A chart of Soperator in the namespace of the cluster, which the program makes itself."""
    more |= {"values": values, "creates_namespace": False}
    return own(spec, name, spec.cluster.namespace, **more)


SYSTEM: Final = "soperator-system"
PODS_STARTED: Final = "pods-started"
"""The wait for the pods of the cluster, among what a release comes after."""

# Repositories as soperator-fluxcd 4.1.7 has them (nebius/soperator, 2026-07-30); versions are in
# stacks/compatibility.yaml.
_JETSTACK: Final = "https://charts.jetstack.io"
_PROMETHEUS: Final = "https://prometheus-community.github.io/helm-charts"
_OPENKRUISE: Final = "https://openkruise.github.io/charts"
_MARIADB: Final = "https://helm.mariadb.com/mariadb-operator"
_PROFILES: Final = "oci://cr.eu-north1.nebius.cloud/e00xdc03sb7gpqfd0a"
_VICTORIA: Final = "https://victoriametrics.github.io/helm-charts"
_COLLECTOR: Final = "https://open-telemetry.github.io/opentelemetry-helm-charts"
_NFS_DRIVER: Final = "https://raw.githubusercontent.com/kubernetes-csi/csi-driver-nfs/master/charts"
_NFS: Final = "nfs-system"


def platform_charts(spec: StackSpec) -> tuple[Chart, ...]:
    """What the operator needs, the operator, and what watches over nodes."""
    charts = [
        foreign(
            spec,
            "cert-manager",
            _JETSTACK,
            "cert-manager-system",
            values={"crds": {"enabled": True}},
        ),
        foreign(spec, "prometheus-operator-crds", _PROMETHEUS, MONITORING),
        foreign(
            spec,
            "kruise",
            _OPENKRUISE,
            "kruise-system",
            values=chart_values(spec, "kruise"),
            after=("cert-manager", "prometheus-operator-crds"),
        ),
    ]
    if spec.slurm.accounting:
        crds = "mariadb-operator-crds"
        charts.append(foreign(spec, crds, _MARIADB, "mariadb-operator-system"))
        charts.append(
            foreign(spec, "mariadb-operator", _MARIADB, "mariadb-operator-system", after=(crds,))
        )
    if spec.soperator.apparmor:
        name = "security-profiles-operator"
        charts.append(
            Chart(
                release=name,
                chart=f"{_PROFILES}/{name}",
                version=foreign_version(spec, name),
                namespace=f"{name}-system",
                values=chart_values(spec, name),
                after=("cert-manager",),
                definitions=f"{name}.x-k8s.io",
            )
        )
    needed = tuple(chart.release for chart in charts)
    if needs_storage_classes(spec):
        charts.append(own(spec, "storageclasses", "storage-system"))
    charts += _observability(spec)
    if spec.soperator.nfs_home is not None:
        charts.append(foreign(spec, "csi-driver-nfs", _NFS_DRIVER, _NFS))
        charts.append(
            own(
                spec,
                "nfs-server",
                _NFS,
                version=foreign_version(spec, "nfs-server"),
                values=nfs_server_values(spec),
                after=("csi-driver-nfs", "storageclasses"),
            )
        )
    charts += [
        # A release of helm-soperator-crds cannot be stored, 1.4 MB in a Secret of at most 1 MiB;
        # the same definitions lie in crds/ of this chart.
        own(
            spec,
            "soperator",
            SYSTEM,
            values=chart_values(spec, "soperator"),
            after=needed,
            definitions="slurm.nebius.ai",
        ),
        *(
            own(spec, name, SYSTEM, values=chart_values(spec, name), after=("soperator",))
            for name in ("soperatorchecks", "nodeconfigurator")
        ),
    ]
    return tuple(charts)


def cluster_charts(
    spec: StackSpec,
    *,
    allocation_id: Any,
    ssh_public_keys: Any,
    slack_webhook_url: Any = None,
    nfs_address: Any = None,
) -> tuple[Chart, ...]:
    """The Slurm cluster, in the namespace that is made before them."""
    cluster_values = slurm_cluster_values(
        spec,
        allocation_id=allocation_id,
        ssh_public_keys=ssh_public_keys,
        nfs_address=nfs_address,
    )
    charts: list[Chart] = []
    if needs_custom_configmaps(spec):
        name = "soperator-custom-configmaps"
        charts.append(inside(spec, name, chart_values(spec, name)))
    charts += [
        inside(
            spec,
            "slurm-cluster-storage",
            storage_values(spec),
            after=("soperator", "storageclasses"),
        ),
        inside(
            spec,
            "slurm-cluster",
            cluster_values,
            after=(
                "slurm-cluster-storage",
                "mariadb-operator",
                "security-profiles-operator",
                "nfs-server",
            ),
        ),
        inside(
            spec,
            "nodesets",
            nodesets_values(spec, nfs_address=nfs_address),
            # Workers mount its ConfigMaps.
            after=("slurm-cluster", "soperator-custom-configmaps"),
        ),
    ]
    if runs_checks(spec):
        charts.append(
            inside(
                spec,
                "soperator-activechecks",
                active_checks_values(spec),
                # The controller takes the finalizers off the checks: it must outlive them, else the
                # namespace hangs. The release waits two hours for checks that run on the workers:
                # where no worker can come up, PodsStarted ends the run before.
                after=("soperatorchecks", "slurm-cluster", "nodesets", PODS_STARTED),
                timeout_s=TIMEOUT_S,
            )
        )
    if needs_dcgm_exporter(spec):
        name = "soperator-dcgm-exporter"
        charts.append(inside(spec, name, chart_values(spec, name), after=("metrics",)))
    if spec.soperator.slack_notifier:
        charts.append(
            own(
                spec,
                "soperator-notifier",
                MONITORING,
                values=notifier_values(slack_webhook_url),
                after=("metrics", "vm-logs"),
            )
        )
    return tuple(charts)


def notifier_values(webhook_url: Any) -> dict[str, Any]:
    """The webhook, a secret; the chart puts it into a Secret of its own."""
    return {"nameOverride": "soperator-notifier", "slack": {"webhookUrl": webhook_url}}


def needs_custom_configmaps(spec: StackSpec) -> bool:
    """Whether a worker mounts one of the ConfigMaps: those with a disk for images do."""
    return any(worker.image_disk is not None for worker in spec.nodes.workers)


def needs_dcgm_exporter(spec: StackSpec) -> bool:
    """Whether GPU metrics are collected and there is a GPU."""
    has_gpus = any(preset_of(worker).gpus for worker in spec.nodes.workers)
    return has_gpus and spec.soperator.observability is not Observability.OFF


def needs_storage_classes(spec: StackSpec) -> bool:
    """Whether something claims a disk of a class that Soperator's own chart makes."""
    own_disks = any(worker.local_disks or worker.image_disk for worker in spec.nodes.workers)
    return own_disks or bool(observability_volumes(spec)) or bool(home_volume_gib(spec))


def runs_checks(spec: StackSpec) -> bool:
    """Whether active checks run: they are jobs, which a stopped cluster takes none of."""
    return spec.soperator.checks is not ChecksProfile.OFF and not is_stopped(spec)


def _observability(spec: StackSpec) -> list[Chart]:
    if spec.soperator.observability is Observability.OFF:
        return []
    crds = "victoria-metrics-operator-crds"

    def chart(release: str, name: str, repository: str, namespace: str, *after: str) -> Chart:
        values = chart_values(spec, release)
        return foreign(spec, release, repository, namespace, chart=name, values=values, after=after)

    stack, logs = "victoria-metrics-k8s-stack", "victoria-logs-single"
    collector = "opentelemetry-collector"
    return [
        foreign(spec, crds, _VICTORIA, MONITORING),
        chart("metrics", stack, _VICTORIA, MONITORING, "cert-manager", crds, "storageclasses"),
        chart("vm-logs", logs, _VICTORIA, LOGS, crds, "storageclasses"),
        chart(f"{collector}-logs", collector, _COLLECTOR, LOGS, "vm-logs"),
        own(spec, "soperator-monitoring-dashboards", MONITORING, after=("metrics",)),
    ]
