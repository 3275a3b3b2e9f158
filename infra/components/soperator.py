"""Soperator and what it needs, as pinned Helm releases in dependency order.

The CRDs come with helm-soperator: the release record of helm-soperator-crds is larger than a
Kubernetes Secret may be (1.4 MB against 1 MiB).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pulumi
import pulumi_kubernetes as kubernetes

from stacks.spec import StackSpec

REGISTRY: Final = "oci://cr.eu-north1.nebius.cloud/soperator"
SYSTEM_NAMESPACE: Final = "soperator-system"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chart:
    """One prerequisite chart."""

    name: str
    version: str
    repository: str
    namespace: str
    values: dict[str, Any]


# Versions: what soperator-fluxcd 4.1.7 pins (nebius/soperator helm/soperator-fluxcd, 2026-07-30).
_CERT_MANAGER: Final = _Chart(
    name="cert-manager",
    version="v1.19.*",
    repository="https://charts.jetstack.io",
    namespace="cert-manager-system",
    values={"crds": {"enabled": True}},
)
_PROMETHEUS_CRDS: Final = _Chart(
    name="prometheus-operator-crds",
    version="19.1.*",
    repository="https://prometheus-community.github.io/helm-charts",
    namespace="monitoring-system",
    values={},
)
# Soperator's StatefulSets are apps.kruise.io; these gates are the ones its operator relies on.
_KRUISE: Final = _Chart(
    name="kruise",
    version="1.8.0",
    repository="https://openkruise.github.io/charts",
    namespace="kruise-system",
    values={
        # Bare commas: a backslash before each is for `helm --set` and would stay in the value.
        "featureGates": "ImagePullJobGate=true,RecreatePodWhenChangeVCTInCloneSetGate=true,"
        "StatefulSetAutoResizePVCGate=true,StatefulSetAutoDeletePVC=true,"
        "PreDownloadImageForInPlaceUpdate=true,ResourceDistributionGate=true",
    },
)
_MARIADB_CRDS: Final = _Chart(
    name="mariadb-operator-crds",
    version="25.10.2",
    repository="https://helm.mariadb.com/mariadb-operator",
    namespace="mariadb-operator-system",
    values={},
)
_MARIADB: Final = _Chart(
    name="mariadb-operator",
    version="25.10.2",
    repository="https://helm.mariadb.com/mariadb-operator",
    namespace="mariadb-operator-system",
    values={},
)


class Soperator(pulumi.ComponentResource):
    """Prerequisites, the operator and its checks controller."""

    ready: list[pulumi.Resource]
    """What the Slurm cluster's releases wait for."""

    def __init__(
        self,
        name: str,
        spec: StackSpec,
        *,
        provider: kubernetes.Provider,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("soperator:infra:Soperator", name, None, opts)
        self._provider = provider
        accounting = spec.slurm.accounting
        first: list[pulumi.Resource] = [self._chart(_CERT_MANAGER), self._chart(_PROMETHEUS_CRDS)]
        first.append(self._chart(_KRUISE, after=first))
        if accounting:
            crds = self._chart(_MARIADB_CRDS)
            first.append(self._chart(_MARIADB, after=[crds]))
        # The chart compares these as text.
        environment = {
            "isPrometheusCrdInstalled": "true",
            "isMariadbCrdInstalled": "true" if accounting else "false",
        }
        operator = release(
            self,
            "helm-soperator",
            "soperator",
            version=spec.cluster.soperator_version,
            namespace=SYSTEM_NAMESPACE,
            create_namespace=True,
            values={"controllerManager": {"manager": {"env": environment}}},
            provider=provider,
            after=first,
        )
        checks = release(
            self,
            "helm-soperatorchecks",
            "soperatorchecks",
            version=spec.cluster.soperator_version,
            namespace=SYSTEM_NAMESPACE,
            # It deletes nodes that are not ready for 15 minutes; their node groups make new ones.
            values={"checks": {"manager": {"env": {"isPrometheusCrdInstalled": "true"}}}},
            provider=provider,
            after=[operator],
        )
        self.ready = [operator, checks]
        self.register_outputs({})

    def _chart(self, chart: _Chart, after: list[pulumi.Resource] | None = None) -> pulumi.Resource:
        return kubernetes.helm.v3.Release(
            chart.name,
            kubernetes.helm.v3.ReleaseArgs(
                name=chart.name,
                chart=chart.name,
                version=chart.version,
                namespace=chart.namespace,
                create_namespace=True,
                repository_opts=kubernetes.helm.v3.RepositoryOptsArgs(repo=chart.repository),
                values=chart.values,
            ),
            opts=pulumi.ResourceOptions(
                parent=self, provider=self._provider, depends_on=after or []
            ),
        )


def release(
    parent: pulumi.Resource,
    chart: str,
    name: str,
    *,
    version: str,
    namespace: pulumi.Input[str],
    values: dict[str, Any],
    provider: kubernetes.Provider,
    after: list[pulumi.Resource],
    create_namespace: bool = False,
) -> kubernetes.helm.v3.Release:
    """One chart of the Soperator registry under a fixed release name."""
    return kubernetes.helm.v3.Release(
        name,
        kubernetes.helm.v3.ReleaseArgs(
            name=name,
            chart=f"{REGISTRY}/{chart}",
            version=version,
            namespace=namespace,
            create_namespace=create_namespace,
            values=values,
        ),
        opts=pulumi.ResourceOptions(parent=parent, provider=provider, depends_on=after),
    )
