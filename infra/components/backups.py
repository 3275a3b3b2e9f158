"""Copies of the jail in object storage: an account for one bucket, its key, k8up and a schedule."""

from __future__ import annotations

from collections.abc import Mapping

import pulumi
import pulumi_kubernetes as kubernetes

from infra.components.buckets import bucket_key
from infra.components.releases import make_releases
from infra.providers.nebius.resource import Resource
from infra.providers.soperator.resources import Password
from infra.render import backup as render
from infra.render.delivery import endpoint
from stacks.spec import StackSpec
from stacks.spec.storage import BackupSpec


class Backups(pulumi.ComponentResource):
    """What `storage.backup` declares; the bucket itself is among Buckets."""

    password: pulumi.Output[str]
    """Secret; without it the copies cannot be read, and the state is the only place that has it."""

    def __init__(
        self,
        name: str,
        spec: StackSpec,
        backup: BackupSpec,
        *,
        bucket: Resource,
        provider: kubernetes.Provider,
        kubeconfig: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("soperator:infra:Backups", name, None, opts)
        mine = pulumi.ResourceOptions(parent=self)
        key = bucket_key(
            self,
            f"{name}-backup",
            spec,
            bucket,
            description=f"writes copies of the jail of {name}",
            roles=render.ROLES,
            days=backup.key_days,
            version=backup.key_version,
        )
        password = Password(f"{name}-backup-password", version=backup.password_version, opts=mine)
        self.password = password.password
        releases = make_releases(
            self, [render.k8up_chart()], provider=provider, kubeconfig=kubeconfig
        )
        self._schedule(name, spec, backup, bucket, key, password, provider, releases)
        self.register_outputs({})

    def _schedule(
        self,
        name: str,
        spec: StackSpec,
        backup: BackupSpec,
        bucket: Resource,
        key: Resource,
        password: Password,
        provider: kubernetes.Provider,
        releases: Mapping[str, pulumi.Resource],
    ) -> None:
        namespace = spec.cluster.namespace
        mine = pulumi.ResourceOptions(parent=self, provider=provider)
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
            opts=mine,
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
            string_data=pulumi.Output.secret(password.password.apply(render.kept_data)),
            opts=pulumi.ResourceOptions.merge(mine, pulumi.ResourceOptions(retain_on_delete=True)),
        )
        inside = pulumi.ResourceOptions.merge(
            mine, pulumi.ResourceOptions(depends_on=[secret, *releases.values()])
        )
        pods = kubernetes.apiextensions.CustomResource(
            f"{name}-jail-backup-pods",
            api_version=render.API_VERSION,
            kind=render.POD_CONFIG_KIND,
            metadata=kubernetes.meta.v1.ObjectMetaArgs(name=render.POD_CONFIG, namespace=namespace),
            spec=render.pod_config_spec(),
            opts=inside,
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
                    endpoint=endpoint(parts[1]["domain_name"]),
                    repository=parts[2],
                )
            ),
            opts=pulumi.ResourceOptions.merge(inside, pulumi.ResourceOptions(depends_on=[pods])),
        )
