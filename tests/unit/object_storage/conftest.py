"""Emulated object storage in a thread, over a cloud with two buckets and an account for each."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.local.object_storage.__main__ import REGION, Access, Objects, ObjectStorage, make_server
from tests.object_cloud import ObjectCloud, credentials, object_cloud

BUCKETS = ("copies", "configs")


@dataclass
class Storage:
    """A running server, and the cloud that says who may do what."""

    port: int
    folder: Path
    cloud: ObjectCloud
    access: Access
    now: float = 1_800_000_000.0
    ahead_s: float = 0
    """How far its clock is before that of who signs."""

    def client(self, bucket: str, owner: str = "", **changed: Any) -> Any:
        """An S3 client of a bucket, with the key of the account of `owner` or of that bucket."""
        from obstore.store import S3Store

        settings = {
            "endpoint": f"http://127.0.0.1:{self.port}",
            **credentials(owner or bucket),
            "region": REGION,
            "virtual_hosted_style_request": False,
            "client_options": {"allow_http": True},
            **changed,
        }
        return S3Store(bucket, **settings)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    cloud = object_cloud(tmp_path / "cloud")
    for name in BUCKETS:
        cloud.add_bucket(name)
    access = Access(tmp_path / "cloud", cloud.schema, clock=lambda: found.now)
    found = Storage(port=0, folder=tmp_path / "objects", cloud=cloud, access=access)
    calls = ObjectStorage(access, Objects(found.folder), lambda: time.time() + found.ahead_s)
    server = make_server(calls, 0)
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join(10)
    cloud.store.close()
