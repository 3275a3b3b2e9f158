"""A cloud on the disk for emulated object storage: buckets, and an account with a key for each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.local.nebius_api import states
from infra.local.nebius_api.states import Store
from infra.providers.nebius.schema import Schema
from infra.state import Cache

PROJECT = "project-e00p"


@dataclass
class ObjectCloud:
    """What the emulated Nebius API would have stored."""

    store: Store
    schema: Schema

    def put(self, type_: str, id_: str, parent: str = PROJECT, name: str = "", **spec: Any) -> None:
        """Adds a resource."""
        message: Any = self.schema.message(type_)()
        message.metadata.id, message.metadata.parent_id = id_, parent
        message.metadata.name = name
        for key, value in spec.items():
            if key == "account_id":
                message.spec.account.service_account.id = value
            elif key == "expires_at":
                message.spec.expires_at.FromSeconds(int(value))
            else:
                setattr(message.spec, key, value)
        self.store.put(message)
        self.store.commit()

    def drop(self, id_: str) -> None:
        """Removes a resource."""
        self.store.drop(id_)
        self.store.commit()

    def add_bucket(self, name: str) -> None:
        """A bucket, and an account that may write it and nothing else."""
        self.put("nebius.storage.v1.Bucket", f"storagebucket-{name}", name=name)
        self.put("nebius.iam.v1.Group", f"group-{name}")
        member, account = f"groupmembership-{name}", f"serviceaccount-{name}"
        self.put("nebius.iam.v1.GroupMembership", member, f"group-{name}", member_id=account)
        self.permit(name, f"storagebucket-{name}", "storage.object-editor")
        self.put("nebius.iam.v2.AccessKey", _key(name), account_id=account)

    def permit(self, owner: str, resource_id: str, role: str) -> None:
        """Gives the account of a bucket a right."""
        id_ = f"accesspermit-{owner}{resource_id}"
        permit = "nebius.iam.v1.AccessPermit"
        self.put(permit, id_, f"group-{owner}", resource_id=resource_id, role=role)

    def end_key(self, name: str, at: float) -> None:
        """Lets the key of a bucket's account end at a second of the epoch."""
        account = f"serviceaccount-{name}"
        self.put("nebius.iam.v2.AccessKey", _key(name), account_id=account, expires_at=at)


def object_cloud(folder: Path) -> ObjectCloud:
    """An empty cloud in a folder."""
    schema = Schema(Cache.from_environ().root)
    return ObjectCloud(Store(folder, schema), schema)


def credentials(bucket: str) -> dict[str, str]:
    """Access key id and secret of the bucket's account."""
    key = _key(bucket)
    return {
        "access_key_id": states.key_id(key),
        "secret_access_key": states.secret(key),
    }


def _key(bucket: str) -> str:
    return f"accesskey-{bucket:0>12}"
