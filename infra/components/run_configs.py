"""Run configs in object storage: one object for each content, so that any run's config is found."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Final

import pulumi

from infra.components.buckets import bucket_key
from infra.providers.nebius.resource import Resource
from infra.render import delivery as render
from stacks.spec import StackSpec

_KEY_DAYS: Final = 365
"""Life of the upload's access key; the first `up` in its last quarter makes the next."""


class StoredObject(pulumi.CustomResource):
    """One object of a bucket; another content needs another key."""

    key: pulumi.Output[str]

    def __init__(
        self, name: str, *, opts: pulumi.ResourceOptions, **properties: pulumi.Input[str]
    ) -> None:
        """`properties` are the plugin's inputs, which it checks."""
        secret = pulumi.ResourceOptions(additional_secret_outputs=["secret_access_key"])
        super().__init__(
            "soperator:storage:Object", name, properties, pulumi.ResourceOptions.merge(opts, secret)
        )


class RunConfigs(pulumi.ComponentResource):
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
        name: str,
        spec: StackSpec,
        *,
        bucket: Resource,
        root: Path,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("soperator:infra:RunConfigs", name, None, opts)
        key = bucket_key(
            self,
            f"{name}-config-upload",
            spec,
            bucket,
            description=f"writes run configs of {name}",
            roles=render.WRITER_ROLES,
            days=_KEY_DAYS,
            version=1,
        )
        self.store = pulumi.Output.secret(
            pulumi.Output.all(bucket.status, bucket.metadata, key.status).apply(
                lambda found: render.store(spec.nebius.region, *found)
            )
        )
        configs = render.run_configs(root, spec)
        self.keys = render.config_keys(configs)
        for path, content in configs.items():
            StoredObject(
                f"{name}-config-{PurePosixPath(path).stem}",
                endpoint=bucket.status.apply(lambda status: render.endpoint(status["domain_name"])),
                region=spec.nebius.region,
                bucket=bucket.metadata.apply(lambda metadata: metadata["name"]),
                key=self.keys[path],
                content=content.decode(),
                access_key_id=key.status.apply(lambda status: status["aws_access_key_id"]),
                secret_access_key=key.status.apply(lambda status: status["secret"]),
                opts=pulumi.ResourceOptions(parent=self, retain_on_delete=True),
            )
        self.register_outputs({"keys": self.keys})
