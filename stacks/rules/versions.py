"""Rules of versions that go together: Soperator, Kubernetes, drivers and systems of nodes.

The facts are in compatibility.yaml; what a deployed stack may become is changes.py's.
"""

from __future__ import annotations

from typing import Final

from stacks.compatibility import KUBERNETES, SOPERATOR, SYSTEMS, numbers, release_of
from stacks.errors import Findings
from stacks.spec import StackSpec
from stacks.spec.cluster import GpuDrivers

_TABLE: Final = "stacks/compatibility.yaml"
_MATRIX: Final = "nebius mk8s node-group get-compatibility-matrix"


def check_versions(spec: StackSpec, findings: Findings) -> None:
    """Versions that are known, that this program can deploy, and that go together."""
    _check_soperator(spec, findings)
    _check_system(spec, findings)
    _check_kubernetes(spec, findings)


def _check_soperator(spec: StackSpec, findings: Findings) -> None:
    version = spec.cluster.soperator_version
    path = "cluster.soperator_version"
    row = release_of(version)
    known = SOPERATOR.get(version)
    if known is not None and known.refused is not None:
        findings.error(
            path,
            f"'{version}' cannot be deployed: {known.refused}",
            rule="cluster.soperator-refused",
        )
        return
    if known is None:
        findings.warn(
            path,
            f"'{version}' is not in {_TABLE} (has: {', '.join(SOPERATOR)}); values and versions of "
            f"charts are those of {row.version}",
            rule="cluster.soperator-unknown",
        )
    kubernetes = spec.cluster.kubernetes_version
    if row.kubernetes_min and numbers(kubernetes) < numbers(row.kubernetes_min):
        findings.error(
            "cluster.kubernetes_version",
            f"'{kubernetes}' is older than Soperator {row.version} works with; take "
            f"{row.kubernetes_min} or newer",
            rule="cluster.kubernetes-least",
        )


def _check_system(spec: StackSpec, findings: Findings) -> None:
    if spec.cluster.os not in SYSTEMS:
        findings.warn(
            "cluster.os",
            f"'{spec.cluster.os}' is not in {_TABLE} (has: {', '.join(SYSTEMS)}); only "
            f"the API can tell: {_MATRIX}",
            rule="cluster.os-unknown",
        )


def _check_kubernetes(spec: StackSpec, findings: Findings) -> None:
    cluster = spec.cluster
    row = KUBERNETES.get(cluster.kubernetes_version)
    if row is None:
        findings.warn(
            "cluster.kubernetes_version",
            f"'{cluster.kubernetes_version}' is not in the driver table of {_TABLE} "
            f"(has: {', '.join(KUBERNETES)}); only the API can tell: {_MATRIX}",
            rule="cluster.kubernetes-unknown",
        )
        return
    if cluster.gpu_drivers is GpuDrivers.OPERATORS:
        return
    platforms = {worker.platform for worker in spec.nodes.workers}
    for platform in sorted(platforms & row.drivers.keys()):
        if cluster.drivers_preset not in row.drivers[platform]:
            findings.error(
                "cluster.drivers_preset",
                f"'{cluster.drivers_preset}' is in no image of '{platform}' for Kubernetes "
                f"{cluster.kubernetes_version} (has: {', '.join(row.drivers[platform])})",
                rule="cluster.drivers",
            )
