"""Emulated object storage in a thread, over a cloud with two buckets and an account for each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.local.nebius_api import access_keys
from infra.local.nebius_api.store import Store
from infra.local.object_storage.access import Access
from infra.local.object_storage.objects import Objects
from infra.local.object_storage.server import REGION, ObjectStorage, make_server
from infra.local.state import Cache
from infra.nebius.schema import Schema

PROJECT = "project-e00p"
BUCKETS = ("copies", "configs")


@dataclass
class Storage:
    """A running server, and the cloud that says who may do what."""

    port: int
    folder: Path
    cloud: Store
    schema: Schema
    now: float = 1_800_000_000.0

    def put(self, type_: str, id_: str, parent: str = PROJECT, name: str = "", **spec: Any) -> None:
        """Adds a resource to the cloud."""
        message = self.schema.message(type_)()
        message.metadata.id, message.metadata.parent_id = id_, parent
        message.metadata.name = name
        for key, value in spec.items():
            if key == "account_id":
                message.spec.account.service_account.id = value
            elif key == "expires_at":
                message.spec.expires_at.FromSeconds(int(value))
            else:
                setattr(message.spec, key, value)
        self.cloud.put(message)
        self.cloud.commit()

    def client(self, bucket: str, owner: str = "", **changed: Any) -> Any:
        """An S3 client of a bucket, with the key of the account of `owner` or of that bucket."""
        from obstore.store import S3Store

        key = f"accesskey-{(owner or bucket):0>12}"
        settings = {
            "endpoint": f"http://127.0.0.1:{self.port}",
            "access_key_id": access_keys.key_id(key),
            "secret_access_key": access_keys.secret(key),
            "region": REGION,
            "virtual_hosted_style_request": False,
            "client_options": {"allow_http": True},
            **changed,
        }
        return S3Store(bucket, **settings)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    schema = Schema(Cache.from_environ().root)
    cloud = Store(tmp_path / "cloud", schema)
    found = Storage(port=0, folder=tmp_path / "objects", cloud=cloud, schema=schema)
    for name in BUCKETS:
        found.put("nebius.storage.v1.Bucket", f"storagebucket-{name}", name=name)
        found.put("nebius.iam.v1.Group", f"group-{name}")
        found.put(
            "nebius.iam.v1.GroupMembership",
            f"groupmembership-{name}",
            f"group-{name}",
            member_id=f"serviceaccount-{name}",
        )
        found.put(
            "nebius.iam.v1.AccessPermit",
            f"accesspermit-{name}",
            f"group-{name}",
            resource_id=f"storagebucket-{name}",
            role="storage.object-editor",
        )
        found.put(
            "nebius.iam.v2.AccessKey",
            f"accesskey-{name:0>12}",
            account_id=f"serviceaccount-{name}",
        )
    access = Access(tmp_path / "cloud", schema, clock=lambda: found.now)
    server = make_server(ObjectStorage(access, Objects(found.folder)), 0)
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join(10)
    cloud.close()
