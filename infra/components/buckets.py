"""Object storage of a stack: who may write each bucket, copies of the jail, versioned run configs.

Copies have an account for one bucket, its key, k8up and a schedule. Run configs are one object for
each content, so that any run's config is found.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

import pulumi
import pulumi_kubernetes as kubernetes

from infra.components.base import Kubernetes, Part
from infra.components.releases import make_releases
from infra.providers.engine.resources import Expiry, Password, Resource
from infra.render import backup as render
from infra.render import delivery
from infra.render.charts import k8up_chart
from stacks.spec import StackSpec
from stacks.spec.storage import BackupSpec


class Buckets(Part):
    """One bucket per declared use; a stack that declares none gets none."""

    backups: Resource | None
    """For copies of the jail."""
    configs: Resource | None
    """For configurations of runs."""

    def __init__(self, spec: StackSpec, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(spec, opts)
        storage = spec.storage
        # Backups rotate by themselves; a config is found again as it was for any run.
        wants_configs = storage.config_bucket_gib is not None
        self.backups = None if storage.backup is None else self._bucket("backups", "disabled")
        self.configs = self._bucket("configs", "enabled") if wants_configs else None
        self.register_outputs({})

    def _bucket(self, noun: str, versioning: str) -> Resource:
        policy = {"versioning_policy": versioning}
        return self._child("nebius:storage/v1:Bucket", noun, policy, self._kept())


class _Writer(Part):
    """What writes into a bucket."""

    def _bucket_key(
        self,
        noun: str,
        bucket: Resource,
        *,
        description: str,
        roles: Iterable[str],
        days: int,
        version: int,
    ) -> Resource:
        """The access key of a new account with `roles` on the bucket, in a group of its own."""
        account = self._child("nebius:iam/v1:ServiceAccount", noun, {"description": description})
        group = self._child("nebius:iam/v1:Group", f"{noun}-writers")
        joined = {"member_id": account.id}
        member = self._child(
            "nebius:iam/v1:GroupMembership", f"{noun}-writer", joined, parent_id=group.id
        )
        permits = [
            self._child(
                "nebius:iam/v1:AccessPermit",
                f"{noun}-{role.replace('.', '-')}",
                {"resource_id": bucket.id, "role": role},
                parent_id=group.id,
            )
            for role in roles
        ]
        end = f"{self.pulumi_resource_name}-{noun}-key-end"
        expiry = Expiry(end, days=days, version=version, opts=self._after())
        wanted = {
            "account": {"service_account": {"id": account.id}},
            "expires_at": expiry.at,
            "secret_delivery_mode": "INLINE",
        }
        # Whoever has the key may use it at once.
        opts = pulumi.ResourceOptions(
            additional_secret_outputs=["status"], depends_on=[member, *permits]
        )
        return self._child("nebius:iam/v2:AccessKey", f"{noun}-key", wanted, opts)


class Backups(_Writer):
    """What `storage.backup` declares; the bucket itself is among Buckets."""

    password: pulumi.Output[str]
    """Secret; without it the copies cannot be read, and the state is the only place that has it."""

    def __init__(
        self,
        spec: StackSpec,
        backup: BackupSpec,
        bucket: Resource,
        provider: Kubernetes,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, opts)
        name = spec.name
        key = self._bucket_key(
            "backup",
            bucket,
            description=f"writes copies of the jail of {name}",
            roles=render.ROLES,
            days=backup.key_days,
            version=backup.key_version,
        )
        password = Password(
            f"{name}-backup-password",
            version=backup.password_version,
            opts=self._after(),
        )
        self.password = password.password
        releases = make_releases(self, [k8up_chart(spec)], provider)
        namespace = spec.cluster.namespace
        secret = kubernetes.core.v1.Secret(
            f"{name}-{render.SECRET}",
            metadata={"name": render.SECRET, "namespace": namespace},
            string_data=pulumi.Output.secret(
                pulumi.Output.all(key.status, password.password, password.earlier).apply(
                    lambda parts: render.secret_data(
                        key_id=parts[0]["aws_access_key_id"],
                        secret=parts[0]["secret"],
                        password=parts[1],
                        earlier=parts[2],
                    )
                )
            ),
            opts=self._after(provider=provider),
        )
        # A lost state file makes the next `up` choose another password and write over the secret
        # above: without this one no earlier copy could be opened any more. The namespace's end
        # takes it along.
        kubernetes.core.v1.Secret(
            f"{name}-{render.SECRET}-kept",
            metadata={
                "name": password.fingerprint.apply(render.kept_secret),
                "namespace": namespace,
            },
            string_data=pulumi.Output.secret(
                password.password.apply(lambda text: {render.PASSWORD_KEY: text})
            ),
            opts=self._after(provider=provider, retain_on_delete=True),
        )
        needs = (secret, *releases.values())
        pods = kubernetes.apiextensions.CustomResource(
            f"{name}-jail-backup-pods",
            api_version=render.API_VERSION,
            kind=render.POD_CONFIG_KIND,
            metadata=kubernetes.meta.v1.ObjectMetaArgs(name=render.POD_CONFIG, namespace=namespace),
            spec=render.pod_config_spec(),
            opts=self._after(*needs, provider=provider),
        )
        kubernetes.apiextensions.CustomResource(
            f"{name}-jail-backup-schedule",
            api_version=render.API_VERSION,
            kind=render.KIND,
            metadata=kubernetes.meta.v1.ObjectMetaArgs(name=render.SCHEDULE, namespace=namespace),
            spec=pulumi.Output.all(bucket.metadata, bucket.status, password.fingerprint).apply(
                lambda parts: render.schedule_spec(
                    backup,
                    bucket=parts[0]["name"],
                    endpoint=delivery.endpoint(parts[1]["domain_name"]),
                    repository=parts[2],
                )
            ),
            opts=self._after(*needs, pods, provider=provider),
        )
        self.register_outputs({})


_KEY_DAYS: Final = 365
"""Life of the upload's access key; the first `up` in its last quarter makes the next."""


class RunConfigs(_Writer):
    """The recipes of the stack's jobs and its own config, under keys that carry their hash.

    An object that is replaced or no longer declared leaves the state and stays in the bucket: a run
    record names the config that it ran with.
    """

    keys: dict[str, str]
    """Path in the release -> key in the bucket."""
    store: pulumi.Output[dict[str, str]]
    """What opens the bucket; secret."""

    def __init__(
        self,
        spec: StackSpec,
        bucket: Resource,
        root: Path,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, opts)
        key = self._bucket_key(
            "config-upload",
            bucket,
            description=f"writes run configs of {spec.name}",
            roles=delivery.WRITER_ROLES,
            days=_KEY_DAYS,
            version=1,
        )
        self.store = pulumi.Output.secret(
            pulumi.Output.all(bucket.status, bucket.metadata, key.status).apply(
                lambda found: delivery.store(spec.nebius.region, *found)
            )
        )
        configs = delivery.run_configs(root, spec)
        self.keys = delivery.config_keys(configs)
        for path, content in configs.items():
            wanted = {
                "endpoint": bucket.status.apply(
                    lambda status: delivery.endpoint(status["domain_name"])
                ),
                "region": spec.nebius.region,
                "bucket": bucket.metadata.apply(lambda metadata: metadata["name"]),
                "key": self.keys[path],
                "content": content.decode(),
                "access_key_id": key.status.apply(lambda status: status["aws_access_key_id"]),
                "secret_access_key": key.status.apply(lambda status: status["secret"]),
            }
            # Another content needs another key.
            pulumi.CustomResource(
                "soperator:storage:Object",
                f"{spec.name}-config-{PurePosixPath(path).stem}",
                wanted,
                self._after(retain_on_delete=True, additional_secret_outputs=["secret_access_key"]),
            )
        self.register_outputs({"keys": self.keys})
