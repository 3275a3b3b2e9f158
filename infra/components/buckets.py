"""Object storage of a stack: jail backups, versioned configs, and who may write each bucket."""

from __future__ import annotations

from collections.abc import Iterable

import pulumi

from infra.components.base import child, kept
from infra.providers.nebius.resource import Resource
from infra.providers.soperator.resources import Expiry
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


def bucket_key(
    parent: pulumi.Resource,
    name: str,
    spec: StackSpec,
    bucket: Resource,
    *,
    description: str,
    roles: Iterable[str],
    days: int,
    version: int,
) -> Resource:
    """The access key of a new account with `roles` on the bucket, through a group of its own."""
    project = spec.nebius.project_id
    account = child(
        parent,
        "nebius:iam/v1:ServiceAccount",
        name,
        parent_id=project,
        spec={"description": description},
    )
    group = child(parent, "nebius:iam/v1:Group", f"{name}-writers", parent_id=project)
    member = child(
        parent,
        "nebius:iam/v1:GroupMembership",
        f"{name}-writer",
        parent_id=group.id,
        spec={"member_id": account.id},
    )
    permits = [
        child(
            parent,
            "nebius:iam/v1:AccessPermit",
            f"{name}-{role.replace('.', '-')}",
            parent_id=group.id,
            spec={"resource_id": bucket.id, "role": role},
        )
        for role in roles
    ]
    expiry = Expiry(
        f"{name}-key-end", days=days, version=version, opts=pulumi.ResourceOptions(parent=parent)
    )
    return child(
        parent,
        "nebius:iam/v2:AccessKey",
        f"{name}-key",
        parent_id=project,
        spec={
            "account": {"service_account": {"id": account.id}},
            "expires_at": expiry.at,
            "secret_delivery_mode": "INLINE",
        },
        opts=pulumi.ResourceOptions(
            additional_secret_outputs=["status"],
            # Whoever has the key may use it at once.
            depends_on=[member, *permits],
        ),
    )
