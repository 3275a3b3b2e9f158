"""Every Helm release of a stack, in order, with its chart, pinned version and values.

They are listed in values/charts/releases.yaml.j2, each one's values beside it; versions are in
stacks/compatibility.yaml. infra/components makes the releases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from infra.render.values.pods import chart_values, has_values, preset_of
from infra.render.values.slurm_cluster import (
    active_checks_values,
    is_stopped,
    nodesets_values,
    slurm_cluster_values,
)
from stacks.compatibility import release_of
from stacks.spec import StackSpec
from stacks.spec.cluster import ChecksProfile

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


def platform_charts(spec: StackSpec) -> tuple[Chart, ...]:
    """What the operator needs, the operator, and what watches over nodes."""
    return tuple(_chart(spec, row, {}) for row in _releases(spec)["platform"])


def k8up_chart(spec: StackSpec) -> Chart:
    """The operator that makes the copies of the jail, of a stack that has them."""
    return _chart(spec, _releases(spec)["backup"], {})


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
    return tuple(_chart(spec, row, known) for row in _releases(spec)["cluster"])


def _releases(spec: StackSpec) -> dict[str, Any]:
    workers = spec.nodes.workers
    return chart_values(
        spec,
        "releases",
        registry=REGISTRY,
        pods_started=PODS_STARTED,
        has_gpus=any(preset_of(worker).gpus for worker in workers),
        has_image_disks=any(worker.image_disk for worker in workers),
        has_own_disks=any(worker.local_disks or worker.image_disk for worker in workers),
        # They are jobs, which a stopped cluster takes none of.
        runs_checks=spec.soperator.checks is not ChecksProfile.OFF and not is_stopped(spec),
    )


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
        "values": _values(spec, release, known),
    }
    return Chart(**{**own, **row, "after": tuple(row.get("after", ()))})


def _values(spec: StackSpec, release: str, known: Mapping[str, Any]) -> dict[str, Any]:
    if release == "slurm-cluster":
        return slurm_cluster_values(spec, known)
    if release == "nodesets":
        return nodesets_values(spec, known)
    if release == "soperator-activechecks":
        return active_checks_values(spec)
    return chart_values(spec, release, known) if has_values(release) else {}
