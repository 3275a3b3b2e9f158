"""Container images that users push."""

from __future__ import annotations

import pulumi

from infra.components.base import child, kept
from stacks.spec import StackSpec


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
