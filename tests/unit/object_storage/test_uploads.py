"""Objects as resources: uploaded once, replaced by another content, seen by a refresh."""

from __future__ import annotations

from typing import Any

import pytest

from infra.providers.engine.provider import UNKNOWN, ProviderError
from infra.providers.soperator.uploads import ObjectProvider
from tests.object_cloud import credentials
from tests.unit.object_storage.conftest import Storage

URN = "urn:pulumi:test::soperator-stack::x::y"


@pytest.fixture
def provider() -> ObjectProvider:
    return ObjectProvider(tries_s=(0.0,))


def inputs(storage: Storage, owner: str = "configs", **changed: Any) -> dict[str, Any]:
    return {
        "endpoint": f"http://127.0.0.1:{storage.port}",
        "region": "eu-north1",
        "bucket": "configs",
        "key": "recipes/lora/0123.json",
        "content": '{"lora_rank": 8}',
        **credentials(owner),
        **changed,
    }


def stored(storage: Storage) -> dict[str, bytes]:
    folder = storage.folder / "storagebucket-configs"
    found = folder.iterdir() if folder.exists() else ()
    return {path.name.replace("%2F", "/"): path.read_bytes() for path in found}


def test_an_object_that_is_there_is_not_written_again(
    storage: Storage, provider: ObjectProvider
) -> None:
    """Another write would be another version of the bucket, paid for and equal."""
    id_, _ = provider.create(URN, inputs(storage))
    assert id_ == "configs/recipes/lora/0123.json"
    assert stored(storage) == {"recipes/lora/0123.json": b'{"lora_rank": 8}'}
    (path,) = (storage.folder / "storagebucket-configs").iterdir()
    before = path.stat()
    provider.create(URN, inputs(storage))
    assert path.stat().st_ino == before.st_ino


def test_a_preview_uploads_nothing(storage: Storage, provider: ObjectProvider) -> None:
    provider.preview(URN, "", {}, inputs(storage, endpoint=UNKNOWN))
    assert stored(storage) == {}


def test_another_content_is_another_object_and_another_key_id_is_not(
    storage: Storage, provider: ObjectProvider
) -> None:
    old = inputs(storage)
    new = {**old, "content": "{}", "key": "recipes/lora/4567.json"}
    assert set(provider.diff("id", old, old, new).replaces) == {"content", "key"}
    rotated = provider.diff("id", old, old, {**old, "access_key_id": "NAKI2"})
    assert rotated.replaces == ()
    assert rotated.detailed == {"access_key_id": "update"}
    assert provider.diff("id", old, old, {**old, "bucket": UNKNOWN}).replaces == ()


def test_a_refresh_tells_what_was_deleted_or_changed_by_hand(
    storage: Storage, provider: ObjectProvider
) -> None:
    old = inputs(storage)
    assert provider.read("id", old, old) is None
    provider.create(URN, old)
    found = provider.read("id", old, old)
    assert found == ("id", old, old)
    (path,) = (storage.folder / "storagebucket-configs").iterdir()
    path.write_text("by hand")
    found = provider.read("id", old, old)
    assert found is not None
    assert found[2]["content"] == "by hand"


def test_a_key_that_ended_stops_no_refresh_but_an_upload(
    storage: Storage, provider: ObjectProvider
) -> None:
    old = inputs(storage, owner="copies")
    assert provider.read("id", old, old) == ("id", old, old)
    with pytest.raises(ProviderError, match=r"needs storage\.object-editor on the bucket") as told:
        provider.create(URN, old)
    assert old["secret_access_key"] not in str(told.value)
    assert "\n" not in str(told.value)


def test_an_object_that_is_declared_to_go_goes_once(
    storage: Storage, provider: ObjectProvider
) -> None:
    old = inputs(storage)
    provider.create(URN, old)
    provider.delete("id", old)
    assert stored(storage) == {}
    provider.delete("id", old)


def test_a_bucket_that_is_not_there_is_named(storage: Storage, provider: ObjectProvider) -> None:
    with pytest.raises(ProviderError, match="no bucket 'none'"):
        provider.create(URN, inputs(storage, bucket="none"))


def test_every_input_is_a_text(storage: Storage, provider: ObjectProvider) -> None:
    _, failures = provider.check({}, {**inputs(storage), "content": "", "acl": "public"})
    assert [path for path, _ in failures] == ["acl", "content"]
