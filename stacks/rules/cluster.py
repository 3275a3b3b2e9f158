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
        problem = (
            f"{company!r}; write 2 to 32 lower-case letters, digits and '-', the first a letter, "
            "the last no '-'"
        )
        findings.add("nebius.company-name", "nebius.company_name", problem)
    given = [key for key in ("network_id", "subnet_id") if getattr(nebius, key) is not None]
    if nebius.discover_network and given:
        problem = f"true beside {' and '.join(given)}; name the subnet or have it found, not both"
        findings.add("nebius.network-choice", "nebius.discover_network", problem)
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
            problem = (
                f"'{platform.name}' is {platform.architecture}, but '{first.name}' of "
                f"{known[0][0]} is {first.architecture}; both run the programs of one jail"
            )
            findings.add("nodes.architecture", f"{path}.platform", problem)


def _check_endpoint(spec: StackSpec, findings: Findings) -> None:
    cluster = spec.cluster
    path = "cluster.allowed_cidrs"
    if not cluster.public_endpoint:
        problem = "false: `pulumi up` and every user need a route to the private address"
        findings.add("cluster.private-endpoint", "cluster.public_endpoint", problem)
        if cluster.allowed_cidrs:
            problem = (
                "the Kubernetes API has no public address to guard; remove them, or set "
                "cluster.public_endpoint to true"
            )
            findings.add("cluster.cidrs-unused", path, problem)
    if len(cluster.allowed_cidrs) > ALLOWED_CIDRS_MAX:
        problem = (
            f"{len(cluster.allowed_cidrs)} blocks; the API takes {ALLOWED_CIDRS_MAX}: join some"
        )
        findings.add("cluster.cidrs-most", path, problem)
    findings.unique("cluster.cidr-twice", path, cluster.allowed_cidrs, advice="give it once")
    for index, cidr in enumerate(cluster.allowed_cidrs):
        findings.add("cluster.cidr-form", f"{path}[{index}]", cidr_problem(cidr))


_TABLE: Final = "stacks/compatibility.yaml"
_MATRIX: Final = "nebius mk8s node-group get-compatibility-matrix"


def check_versions(spec: StackSpec, findings: Findings) -> None:
    """Versions that are known, that this program can deploy, and that go together."""
    _check_soperator(spec, findings)
    refused = findings.add("cluster.os-form", "cluster.os", word_problem(spec.cluster.os))
    if not refused and spec.cluster.os not in SYSTEMS:
        problem = (
            f"'{spec.cluster.os}' is not in {_TABLE} (has: {', '.join(SYSTEMS)}); only "
            f"the API can tell: {_MATRIX}"
        )
        findings.add("cluster.os-unknown", "cluster.os", problem)
    _check_kubernetes(spec, findings)


def _check_soperator(spec: StackSpec, findings: Findings) -> None:
    version = spec.cluster.soperator_version
    path = "cluster.soperator_version"
    row = release_of(version)
    known = SOPERATOR.get(version)
    if known is not None and known.refused is not None:
        problem = f"'{version}' cannot be deployed: {known.refused}"
        findings.add("cluster.soperator-refused", path, problem)
        return
    if known is None:
        problem = (
            f"'{version}' is not in {_TABLE} (has: {', '.join(SOPERATOR)}); values and versions of "
            f"charts are those of {row.version}"
        )
        findings.add("cluster.soperator-unknown", path, problem)
    kubernetes = spec.cluster.kubernetes_version
    if row.kubernetes_min and numbers(kubernetes) < numbers(row.kubernetes_min):
        problem = (
            f"'{kubernetes}' is older than Soperator {row.version} works with; take "
            f"{row.kubernetes_min} or newer"
        )
        findings.add("cluster.kubernetes-least", "cluster.kubernetes_version", problem)


def _check_kubernetes(spec: StackSpec, findings: Findings) -> None:
    cluster = spec.cluster
    row = KUBERNETES.get(cluster.kubernetes_version)
    if row is None:
        problem = (
            f"'{cluster.kubernetes_version}' is not in the driver table of {_TABLE} "
            f"(has: {', '.join(KUBERNETES)}); only the API can tell: {_MATRIX}"
        )
        findings.add("cluster.kubernetes-unknown", "cluster.kubernetes_version", problem)
        return
    if cluster.gpu_drivers is GpuDrivers.OPERATORS:
        return
    platforms = {worker.platform for worker in spec.nodes.workers}
    for platform in sorted(platforms & row.drivers.keys()):
        if cluster.drivers_preset not in row.drivers[platform]:
            problem = (
                f"'{cluster.drivers_preset}' is in no image of '{platform}' for Kubernetes "
                f"{cluster.kubernetes_version} (has: {', '.join(row.drivers[platform])})"
            )
            findings.add("cluster.drivers", "cluster.drivers_preset", problem)


_MOST_HOURS: Final = 30 * 24
"""An idle month is not told from a forgotten stack."""


def check_lifetime(spec: StackSpec, findings: Findings) -> None:
    """What is declared has an effect, and something can see it."""
    lifetime = spec.lifetime
    if lifetime is None:
        return
    if lifetime.until is None and lifetime.idle_hours is None:
        problem = "neither until nor idle_hours, so it ends nothing; give one of them, or remove it"
        findings.add("lifetime.empty", "lifetime", problem)
    if lifetime.until is not None and parse_end(lifetime.until) is None:
        problem = f"'{lifetime.until}' is no time with its zone; write 2026-12-24T18:00Z"
        findings.add("lifetime.until", "lifetime.until", problem)
    if lifetime.idle_hours is None:
        return
    if lifetime.idle_hours > _MOST_HOURS:
        problem = f"{lifetime.idle_hours} is more than {_MOST_HOURS}; declare less, or an end"
        findings.add("lifetime.idle-hours", "lifetime.idle_hours", problem)
    if not spec.slurm.accounting:
        problem = (
            "nobody knows when the last job ended: slurm.accounting is off; switch it on, or "
            "declare lifetime.until alone"
        )
        findings.add("lifetime.idle-unseen", "lifetime.idle_hours", problem)
    for index, job in enumerate(spec.jobs):
        if job.schedule is not None:
            problem = (
                "an idle stack is paused (lifetime.idle_hours), and then no schedule runs any "
                "more; take idle_hours out and declare lifetime.until, or take the schedule out"
            )
            findings.add("lifetime.idle-schedule", f"jobs[{index}].schedule", problem)
