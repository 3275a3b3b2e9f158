"""Shared filesystems (jail, controller spool, accounting, submounts) and the image registry."""

from __future__ import annotations

from collections.abc import Mapping

import pulumi

from infra.components.base import child, kept
from infra.render.kube_cluster import filesystem_spec
from infra.render.names import filesystems
from stacks.spec import StackSpec


class Filesystems(pulumi.ComponentResource):
    """One Nebius filesystem per declaration; an existing one is used by its id."""

    ids: Mapping[str, pulumi.Input[str]]
    """Mount tag -> filesystem id."""

    def __init__(
        self, name: str, spec: StackSpec, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("soperator:infra:Filesystems", name, None, opts)
        ids: dict[str, pulumi.Input[str]] = {}
        for tag, declared in filesystems(spec):
            if declared.existing_id is not None:
                ids[tag] = declared.existing_id
                continue
            ids[tag] = child(
                self,
                "nebius:compute/v1:Filesystem",
                f"{name}-{tag}",
                parent_id=spec.nebius.project_id,
                spec=filesystem_spec(declared),
                opts=kept(spec),
            ).id
        self.ids = ids
        self.register_outputs({"ids": ids})


class Registry(pulumi.ComponentResource):
    """One registry of the project; made only where the stack declares it."""

    address: pulumi.Output[str]
    """What image names start with."""

    def __init__(
        self, name: str, spec: StackSpec, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("soperator:infra:Registry", name, None, opts)
        registry = child(
            self,
            "nebius:registry/v1:Registry",
            f"{name}-images",
            parent_id=spec.nebius.project_id,
            spec={"description": f"images of {name}"},
            opts=kept(spec),
        )
        self.address = registry.status.apply(lambda status: status["registry_fqdn"])
        self.register_outputs({"address": self.address})
