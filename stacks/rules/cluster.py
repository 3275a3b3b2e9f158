"""Rules of the network and the mk8s cluster: which network, endpoint, architecture, which versions
of Soperator, Kubernetes, drivers and systems go together, and when the stack ends.

The facts of versions are in compatibility.yaml; what a deployed stack may become is changes.py's.
"""

from __future__ import annotations

import re
from typing import Final

from stacks.catalog import ALLOWED_CIDRS_MAX, PLATFORMS
from stacks.compatibility import KUBERNETES, SOPERATOR, SYSTEMS, numbers, release_of
from stacks.rules import Findings
from stacks.rules.naming import cidr_problem, word_problem
from stacks.schedule import parse_end
from stacks.spec import StackSpec
from stacks.spec.cluster import GpuDrivers

_COMPANY: Final = re.compile(r"[a-z][a-z0-9-]{0,30}[a-z0-9]")


def check_cluster(spec: StackSpec, findings: Findings) -> None:
    """One way to a network, who may reach the Kubernetes API, one architecture."""
    nebius, company = spec.nebius, spec.nebius.company_name
    if company is not None and not _COMPANY.fullmatch(company):
        findings.add("nebius.company-name", "nebius.company_name")
    given = [key for key in ("network_id", "subnet_id") if getattr(nebius, key) is not None]
    if nebius.discover_network and given:
        findings.add("nebius.network-choice", "nebius.discover_network", given=" and ".join(given))
    _check_endpoint(spec, findings)
    # Workers and the login node run the programs of one jail.
    groups = [("nodes.login", spec.nodes.login)]
    groups += [(f"nodes.workers[{index}]", each) for index, each in enumerate(spec.nodes.workers)]
    known = [
        (path, PLATFORMS[group.platform]) for path, group in groups if group.platform in PLATFORMS
    ]
    for path, platform in known[1:]:
        first = known[0][1]
        if platform.architecture != first.architecture:
            findings.add(
                "nodes.architecture",
                f"{path}.platform",
                platform=platform,
                first=first,
                known=known,
            )


def _check_endpoint(spec: StackSpec, findings: Findings) -> None:
    cluster = spec.cluster
    path = "cluster.allowed_cidrs"
    if not cluster.public_endpoint:
        findings.add("cluster.private-endpoint", "cluster.public_endpoint")
        if cluster.allowed_cidrs:
            findings.add("cluster.cidrs-unused", path)
    if len(cluster.allowed_cidrs) > ALLOWED_CIDRS_MAX:
        findings.add(
            "cluster.cidrs-most", path, count=len(cluster.allowed_cidrs), most=ALLOWED_CIDRS_MAX
        )
    findings.unique("cluster.cidr-twice", path, cluster.allowed_cidrs)
    for index, cidr in enumerate(cluster.allowed_cidrs):
        findings.add_text("cluster.cidr-form", f"{path}[{index}]", cidr_problem(cidr))


def check_versions(spec: StackSpec, findings: Findings) -> None:
    """Versions that are known, that this program can deploy, and that go together."""
    _check_soperator(spec, findings)
    refused = findings.add_text("cluster.os-form", "cluster.os", word_problem(spec.cluster.os))
    if not refused and spec.cluster.os not in SYSTEMS:
        findings.add("cluster.os-unknown", "cluster.os", known=SYSTEMS)
    _check_kubernetes(spec, findings)


def _check_soperator(spec: StackSpec, findings: Findings) -> None:
    version = spec.cluster.soperator_version
    path = "cluster.soperator_version"
    row = release_of(version)
    known = SOPERATOR.get(version)
    if known is not None and known.refused is not None:
        findings.add("cluster.soperator-refused", path, known=known)
        return
    if known is None:
        findings.add("cluster.soperator-unknown", path, known=SOPERATOR, row=row)
    kubernetes = spec.cluster.kubernetes_version
    if row.kubernetes_min and numbers(kubernetes) < numbers(row.kubernetes_min):
        findings.add("cluster.kubernetes-least", "cluster.kubernetes_version", row=row)


def _check_kubernetes(spec: StackSpec, findings: Findings) -> None:
    cluster = spec.cluster
    row = KUBERNETES.get(cluster.kubernetes_version)
    if row is None:
        findings.add("cluster.kubernetes-unknown", "cluster.kubernetes_version", known=KUBERNETES)
        return
    if cluster.gpu_drivers is GpuDrivers.OPERATORS:
        return
    platforms = {worker.platform for worker in spec.nodes.workers}
    for platform in sorted(platforms & row.drivers.keys()):
        if cluster.drivers_preset not in row.drivers[platform]:
            findings.add(
                "cluster.drivers",
                "cluster.drivers_preset",
                platform=platform,
                known=row.drivers[platform],
            )


_MOST_HOURS: Final = 30 * 24
"""An idle month is not told from a forgotten stack."""


def check_lifetime(spec: StackSpec, findings: Findings) -> None:
    """What is declared has an effect, and something can see it."""
    lifetime = spec.lifetime
    if lifetime is None:
        return
    if lifetime.until is None and lifetime.idle_hours is None:
        findings.add("lifetime.empty", "lifetime")
    if lifetime.until is not None and parse_end(lifetime.until) is None:
        findings.add("lifetime.until", "lifetime.until")
    if lifetime.idle_hours is None:
        return
    if lifetime.idle_hours > _MOST_HOURS:
        findings.add("lifetime.idle-hours", "lifetime.idle_hours", most=_MOST_HOURS)
    if not spec.slurm.accounting:
        findings.add("lifetime.idle-unseen", "lifetime.idle_hours")
    for index, job in enumerate(spec.jobs):
        if job.schedule is not None:
            findings.add("lifetime.idle-schedule", f"jobs[{index}].schedule")
