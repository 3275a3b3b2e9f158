"""Object storage of a stack: jail backups and versioned configs."""

from __future__ import annotations

import pulumi

from infra.components.base import child, kept
from infra.providers.nebius.resource import Resource
from stacks.spec import StackSpec


class Buckets(pulumi.ComponentResource):
    """One bucket per declared use; a stack that declares none gets none."""

    backups: Resource | None
    """For copies of the jail."""
    configs: Resource | None
    """For configurations of runs."""

    def __init__(
        self, name: str, spec: StackSpec, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("soperator:infra:Buckets", name, None, opts)
        storage = spec.storage
        # Backups rotate by themselves; a config is found again as it was for any run.
        self.backups = (
            None
            if storage.backup is None
            else self._bucket(f"{name}-backups", spec, versioning="disabled")
        )
        self.configs = (
            None
            if storage.config_bucket_gib is None
            else self._bucket(f"{name}-configs", spec, versioning="enabled")
        )
        self.register_outputs({})

    def _bucket(self, name: str, spec: StackSpec, *, versioning: str) -> Resource:
        return child(
            self,
            "nebius:storage/v1:Bucket",
            name,
            parent_id=spec.nebius.project_id,
            spec={"versioning_policy": versioning},
            opts=kept(spec),
        )
