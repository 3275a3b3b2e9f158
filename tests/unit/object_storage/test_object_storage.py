"""Emulated object storage: what a well kept S3 client and restic need, and who is let in."""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import threading
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import GenericError, PermissionDeniedError

from infra.local.object_storage.__main__ import (
    REGION,
    Access,
    Objects,
    ObjectStorage,
    Request,
    S3Error,
    make_server,
    refused,
)
from tests.object_cloud import PROJECT, credentials, object_cloud
from tests.unit.object_storage.conftest import Storage


def keys(client: obstore.store.S3Store, prefix: str = "") -> list[str]:
    return [each["path"] for page in obstore.list(client, prefix) for each in page]


def test_an_object_is_read_as_it_was_written_until_it_is_deleted(storage: Storage) -> None:
    client = storage.client("configs")
    obstore.put(client, "runs/lora.json", b"0123456789")
    assert obstore.get(client, "runs/lora.json").bytes().to_bytes() == b"0123456789"
    assert obstore.get_range(client, "runs/lora.json", start=2, end=5).to_bytes() == b"234"
    assert obstore.head(client, "runs/lora.json")["size"] == 10
    obstore.delete(client, "runs/lora.json")
    with pytest.raises(FileNotFoundError):
        obstore.head(client, "runs/lora.json")


def test_a_download_compares_what_arrived_with_the_store(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    """Signed requests; an ETag that is no MD5, so the object is read again: `storage`'s own."""
    from workloads.data import download

    settings = {f"AWS_{name.upper()}": value for name, value in credentials("configs").items()}
    settings |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{storage.port}", "AWS_REGION": REGION}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    obstore.put(storage.client("configs"), "set/one", b"1" * 5000)
    remote = download.describe_objects("s3://configs/set")
    part = tmp_path / f".set.{remote.revision[:12]}.partial" / "one"
    part.parent.mkdir()
    part.write_bytes(b"2" * 2000)
    assert download.main(["s3://configs/set", str(tmp_path / "set")]) != 0
    assert "what arrived is not what the store has of it" in capfd.readouterr().err
    assert download.main(["s3://configs/set", str(tmp_path / "set")]) == 0
    assert (tmp_path / "set" / "one").read_bytes() == b"1" * 5000


def test_a_list_has_every_page_of_a_prefix_in_order(storage: Storage) -> None:
    client = storage.client("configs")
    names = [f"runs/{number:04} a+b.json" for number in range(1005)]
    for name in reversed(names):
        obstore.put(client, name, b"x")
    obstore.put(client, "other/one", b"x")
    assert keys(client, "runs") == names
    assert obstore.list_with_delimiter(client)["common_prefixes"] == ["other", "runs"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("1", "<IsTruncated>true</IsTruncated><NextContinuationToken>a</NextContinuationToken>"),
        ("0", "<MaxKeys>0</MaxKeys><IsTruncated>false</IsTruncated>"),
        ("many", "<Code>InvalidArgument</Code>"),
    ],
)
def test_a_page_is_as_long_as_it_is_asked_for(storage: Storage, asked: str, told: str) -> None:
    """A page of none would begin again for ever where it said that more are to come."""
    bucket, objects = storage.access.bucket("copies"), Objects(storage.folder)
    assert bucket is not None
    for key in ("a", "b"):
        objects.put(bucket.id, key, b"1")
    query = {"list-type": "2", "max-keys": asked}
    call = Request(method="GET", bucket=bucket, key="", query=query, headers={}, body=b"")
    try:
        answer = ObjectStorage(storage.access, objects)._dispatch(call)
    except S3Error as error:
        answer = refused(error)
    assert told.encode() in answer.body


def test_what_is_written_lies_on_the_disk_of_the_bucket_and_of_no_other(storage: Storage) -> None:
    obstore.put(storage.client("configs"), "one", b"x")
    assert keys(storage.client("copies")) == []
    assert [path.read_bytes() for path in (storage.folder / "storagebucket-configs").iterdir()] == [
        b"x"
    ]


def test_the_key_of_another_buckets_account_neither_reads_nor_writes(storage: Storage) -> None:
    obstore.put(storage.client("configs"), "one", b"x")
    stranger = storage.client("configs", owner="copies")
    with pytest.raises(PermissionDeniedError, match="may not read 'configs'"):
        obstore.get(stranger, "one")
    with pytest.raises(PermissionDeniedError, match="may not write to 'configs'"):
        obstore.put(stranger, "two", b"x")


def test_a_viewer_reads_and_does_not_write(storage: Storage) -> None:
    obstore.put(storage.client("configs"), "one", b"x")
    storage.cloud.permit("copies", PROJECT, "storage.viewer")
    viewer = storage.client("configs", owner="copies")
    assert obstore.get(viewer, "one").bytes().to_bytes() == b"x"
    with pytest.raises(PermissionDeniedError, match="may not write"):
        obstore.put(viewer, "one", b"y")


def test_a_wrong_secret_an_unknown_key_and_one_that_ended_are_refused(storage: Storage) -> None:
    with pytest.raises(PermissionDeniedError, match="SignatureDoesNotMatch"):
        obstore.put(storage.client("configs", secret_access_key="wrong"), "one", b"x")
    with pytest.raises(PermissionDeniedError, match="InvalidAccessKeyId"):
        obstore.put(storage.client("configs", access_key_id="NAKI-NONE"), "one", b"x")
    storage.cloud.end_key("configs", storage.now + 60)
    obstore.put(storage.client("configs"), "one", b"x")
    storage.now += 60
    with pytest.raises(PermissionDeniedError, match="it has ended"):
        obstore.put(storage.client("configs"), "one", b"x")


def test_a_call_without_a_signature_gets_nothing(storage: Storage) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", storage.port, timeout=10)
    connection.request("GET", "/configs/one")
    answer = connection.getresponse()
    assert answer.status == 403
    assert b"<Code>AccessDenied</Code>" in answer.read()
    connection.close()


def test_an_open_connection_does_not_keep_the_server_from_its_end(tmp_path: Path) -> None:
    """Clients keep theirs for minutes."""
    cloud = object_cloud(tmp_path)
    access = Access(tmp_path, cloud.schema)
    server = make_server(ObjectStorage(access, Objects(tmp_path / "objects")), 0)
    serving = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    serving.start()
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request("GET", "/configs/one")
    connection.getresponse().read()
    server.shutdown()
    ending = threading.Thread(target=server.server_close, daemon=True)
    ending.start()
    ending.join(10)
    assert not ending.is_alive()
    connection.close()
    cloud.store.close()


def test_a_deleted_bucket_is_gone_and_one_of_the_same_name_starts_empty(storage: Storage) -> None:
    client = storage.client("configs")
    obstore.put(client, "one", b"x")
    storage.cloud.drop("storagebucket-configs")
    with pytest.raises(FileNotFoundError, match="NoSuchBucket"):
        obstore.put(client, "one", b"x")
    storage.cloud.put("nebius.storage.v1.Bucket", "storagebucket-new", name="configs")
    storage.cloud.permit("configs", "storagebucket-new", "storage.object-editor")
    assert keys(client) == []


@pytest.mark.parametrize("ahead_s", [840, -840, 960, -960])
def test_a_signature_of_another_time_than_now_is_refused(storage: Storage, ahead_s: float) -> None:
    """Real ones last for 15 minutes: a client with a wrong clock is refused here too."""
    client = storage.client("configs")
    obstore.put(client, "one", b"x")
    storage.ahead_s = ahead_s
    if abs(ahead_s) < 900:
        assert keys(client) == ["one"]
        return
    with pytest.raises(GenericError, match="RequestTimeTooSkewed"):
        keys(client)


@pytest.mark.parametrize("date", ["", "yesterday", "20261128T120000"])
def test_a_signature_without_its_time_is_refused(storage: Storage, date: str) -> None:
    calls = ObjectStorage(storage.access, Objects(storage.folder))
    key = credentials("configs")["access_key_id"]
    scope = f"Credential={key}/20261128/{REGION}/s3/aws4_request"
    claim = f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=0"
    headers = {"authorization": claim, "x-amz-date": date}
    answer = calls.answer("GET", "/configs", headers, b"")
    assert (answer.status, b"x-amz-date" in answer.body) == (403, True)


@pytest.mark.skipif(shutil.which("restic") is None, reason="no restic: run `make setup`")
def test_restic_copies_prunes_and_restores_through_it(storage: Storage, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "note").write_text("first")
    key = credentials("copies")
    environ = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": key["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": key["secret_access_key"],
        "RESTIC_PASSWORD": "of the test",
        "RESTIC_REPOSITORY": f"s3:http://127.0.0.1:{storage.port}/copies/repository",
    }

    def restic(*arguments: str) -> str:
        command = ["restic", "--no-cache", *arguments]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    restic("init")
    restic("backup", str(source))
    (source / "note").write_text("second")
    restic("backup", str(source))
    restic("forget", "--keep-last", "1", "--prune")
    restic("restore", "latest", "--target", str(tmp_path / "back"))
    assert (tmp_path / "back" / source.relative_to("/") / "note").read_text() == "second"
    restic("check")
