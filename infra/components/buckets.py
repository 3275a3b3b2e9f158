"""Object storage of a stack: jail backups and versioned configs."""

from __future__ import annotations

import pulumi

from infra.components.base import child, kept
from stacks.spec import StackSpec


class Buckets(pulumi.ComponentResource):
    """One bucket per declared use; a stack that declares none gets none."""

    def __init__(
        self, name: str, spec: StackSpec, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("soperator:infra:Buckets", name, None, opts)
        storage = spec.storage
        declared = {
            "backups": storage.backup is not None,
            "configs": storage.config_bucket_gib is not None,
        }
        for use in (use for use, wanted in declared.items() if wanted):
            child(
                self,
                "nebius:storage/v1:Bucket",
                f"{name}-{use}",
                parent_id=spec.nebius.project_id,
                # A config is found again as it was for any run; backups rotate by themselves.
                spec={"versioning_policy": "enabled" if use == "configs" else "disabled"},
                opts=kept(spec),
            )
        self.register_outputs({})
