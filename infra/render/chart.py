"""One Helm release, and the three kinds of charts that a stack takes: where each comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from stacks.compatibility import release_of
from stacks.spec import StackSpec

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


def foreign(
    spec: StackSpec,
    name: str,
    repository: str,
    namespace: str,
    values: Mapping[str, Any] | None = None,
    after: tuple[str, ...] = (),
) -> Chart:
    """A chart of somebody else, from their repository."""
    return Chart(
        release=name,
        chart=name,
        repository=repository,
        version=foreign_version(spec, name),
        namespace=namespace,
        values=values or {},
        after=after,
    )


def own(
    spec: StackSpec,
    name: str,
    namespace: str,
    values: Mapping[str, Any] | None = None,
    after: tuple[str, ...] = (),
    timeout_s: int | None = None,
) -> Chart:
    """A chart of Soperator: published names carry `helm-`, and all have one version."""
    return Chart(
        release=name,
        chart=f"{REGISTRY}/helm-{name}",
        version=spec.cluster.soperator_version,
        namespace=namespace,
        values=values or {},
        after=after,
        timeout_s=timeout_s,
    )


def inside(
    spec: StackSpec,
    name: str,
    values: Mapping[str, Any],
    after: tuple[str, ...] = (),
    timeout_s: int | None = None,
) -> Chart:
    """A chart of Soperator in the namespace of the cluster, which the program makes itself."""
    chart = own(spec, name, spec.cluster.namespace, values, after, timeout_s)
    return replace(chart, creates_namespace=False)
