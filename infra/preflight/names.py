"""Whether a name that the stack wants is taken by a resource that is not its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from infra.preflight.cloud import Cloud
from infra.preflight.finding import Finding, failed, passed
from infra.preflight.inventory import KINDS, Owner
from infra.render.names import filesystems
from stacks.spec import StackSpec

CHECK: Final = "names"


def wanted_names(spec: StackSpec) -> Iterator[tuple[str, str]]:
    """Kind of inventory.KINDS and name of each resource that the stack makes under its project."""
    name = spec.name
    if spec.nebius.subnet_id is None:
        yield "subnet", f"{name}-subnet"
        if spec.nebius.network_id is None:
            yield "network", f"{name}-network"
    yield "address", f"{name}-login"
    yield "cluster", f"{name}-kube"
    for tag, declared in filesystems(spec):
        if declared.existing_id is None:
            yield "filesystem", f"{name}-{tag}"
    for fabric in sorted({w.infiniband_fabric for w in spec.nodes.workers} - {None}, key=str):
        yield "GPU cluster", f"{name}-{fabric}"


def ask_names(cloud: Cloud, spec: StackSpec, owner: Owner) -> list[Finding]:
    """Every name that a stranger has."""
    findings = []
    wanted = list(wanted_names(spec))
    for kind, name in wanted:
        for found in cloud.list(KINDS[kind], spec.nebius.project_id):
            if found.metadata.name == name and not owner.owns(found):
                findings.append(
                    failed(
                        CHECK,
                        f"the {kind} {name!r} exists as {found.metadata.id} and is not this "
                        "stack's own",
                        "delete or rename it, or take it over: soperator adopt",
                        certain=True,
                    )
                )
    return findings or [passed(CHECK, f"{len(wanted)} names are free or this stack's own")]
