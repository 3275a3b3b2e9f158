"""Rules of the network and of the mk8s cluster: which network, endpoint, architecture."""

from __future__ import annotations

from stacks.catalog import ALLOWED_CIDRS_MAX, PLATFORMS
from stacks.errors import Findings
from stacks.rules.naming import check_unique, cidr_problem
from stacks.spec import StackSpec


def check_cluster(spec: StackSpec, findings: Findings) -> None:
    """One way to a network, who may reach the Kubernetes API, one architecture."""
    _check_network(spec, findings)
    _check_endpoint(spec, findings)
    _check_architecture(spec, findings)


def _check_network(spec: StackSpec, findings: Findings) -> None:
    nebius = spec.nebius
    given = [key for key in ("network_id", "subnet_id") if getattr(nebius, key) is not None]
    if nebius.discover_network and given:
        findings.error(
            "nebius.discover_network",
            f"true beside {' and '.join(given)}; name the subnet or have it found, not both",
            rule="nebius.network-choice",
        )


def _check_endpoint(spec: StackSpec, findings: Findings) -> None:
    cluster = spec.cluster
    path = "cluster.allowed_cidrs"
    if not cluster.public_endpoint:
        findings.warn(
            "cluster.public_endpoint",
            "false: `pulumi up` and every user need a route to the private address",
            rule="cluster.private-endpoint",
        )
        if cluster.allowed_cidrs:
            findings.error(
                path,
                "the Kubernetes API has no public address to guard; remove them, or set "
                "cluster.public_endpoint to true",
                rule="cluster.cidrs-unused",
            )
    if len(cluster.allowed_cidrs) > ALLOWED_CIDRS_MAX:
        findings.error(
            path,
            f"{len(cluster.allowed_cidrs)} blocks; the API takes {ALLOWED_CIDRS_MAX}: join some",
            rule="cluster.cidrs-most",
        )
    check_unique(
        cluster.allowed_cidrs, path, findings, rule="cluster.cidr-twice", advice="give it once"
    )
    for index, cidr in enumerate(cluster.allowed_cidrs):
        problem = cidr_problem(cidr)
        if problem:
            findings.error(f"{path}[{index}]", problem, rule="cluster.cidr-form")


def _check_architecture(spec: StackSpec, findings: Findings) -> None:
    """Workers and the login node run the programs of one jail."""
    groups = [("nodes.login", spec.nodes.login)]
    groups += [(f"nodes.workers[{index}]", each) for index, each in enumerate(spec.nodes.workers)]
    known = [
        (path, PLATFORMS[group.platform]) for path, group in groups if group.platform in PLATFORMS
    ]
    for path, platform in known[1:]:
        first = known[0][1]
        if platform.architecture != first.architecture:
            findings.error(
                f"{path}.platform",
                f"'{platform.name}' is {platform.architecture}, but '{first.name}' of "
                f"{known[0][0]} is {first.architecture}; both run the programs of one jail",
                rule="nodes.architecture",
            )
