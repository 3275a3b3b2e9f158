"""Models and data sets from a hub and an object store, both stand-ins on loopback."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workloads.stand_in_hub import COMMIT, StandIn, serving
from workloads.common.exit_codes import ExitCode
from workloads.data.download import SOURCE_FILE, main

WEIGHTS = bytes(range(256)) * 2000
MODEL = "hf://owner/tiny"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A hub with one model, and a bucket."""
    state = StandIn(
        repos={"models/owner/tiny": {"config.json": b"{}", "weights.bin": WEIGHTS}},
        licences={"models/owner/tiny": "apache-2.0"},
        objects={"bucket/sets/a/one.jsonl": b"1" * 5000, "bucket/sets/LICENSE": b"Apache"},
    )
    for name in ("HF_TOKEN", "AWS_ACCESS_KEY_ID", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with serving(state):
        # Read once, when huggingface_hub is imported; other tests may have done that already.
        import huggingface_hub.constants as constants
        from huggingface_hub import hf_api

        monkeypatch.setattr(constants, "ENDPOINT", state.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE",
            state.url + "/{repo_id}/resolve/{revision}/{filename}",
        )  # fmt: skip
        del hf_api
        monkeypatch.setenv("AWS_ENDPOINT_URL", state.url)
        yield state


def test_licence_and_size_are_printed_before_the_first_byte(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([MODEL, str(tmp_path / "tiny"), "--describe"]) == 0
    told = capsys.readouterr().err
    assert "hf://owner/tiny: 2 files, 0.00 GiB, licence: apache-2.0" in told
    assert not hub.requests
    assert not (tmp_path / "tiny").exists()


def test_a_model_arrives_whole_with_its_origin_and_a_second_run_does_nothing(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "models" / "tiny"
    assert main([MODEL, str(target)]) == 0
    assert (target / "weights.bin").read_bytes() == WEIGHTS
    origin = json.loads((target / SOURCE_FILE).read_text())
    assert (origin["revision"], origin["licence"]) == (COMMIT, "apache-2.0")
    assert sorted(path.name for path in target.iterdir()) == [
        SOURCE_FILE,
        "config.json",
        "weights.bin",
    ]
    hub.requests.clear()
    capsys.readouterr()
    assert main([MODEL, str(target)]) == 0
    assert "holds revision 0123456789ab already; nothing to do" in capsys.readouterr().err
    assert not hub.requests


def test_a_file_that_is_not_what_the_hub_says_is_removed_and_fetched_again(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.damaged.add("weights.bin")
    target = tmp_path / "tiny"
    assert main([MODEL, str(target)]) == ExitCode.BAD_DATA
    assert "weights.bin is not what the hub has of it and was removed" in capsys.readouterr().err
    assert not target.exists()
    hub.damaged.clear()
    assert main([MODEL, str(target)]) == 0
    assert (target / "weights.bin").read_bytes() == WEIGHTS


def test_a_signed_link_of_the_hub_is_told_without_its_query(
    hub: StandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The hub sends large files to another host by links that open them for whoever has one."""
    from huggingface_hub import HfApi

    link = "https://cdn.example/xet/ab?X-Amz-Signature=c0ffee&Expires=1&Policy=eyJT~_-__"

    def refused(*_: object, **__: object) -> None:
        raise OSError(f"403 Client Error: Forbidden for url: {link} (Request ID: Root=1-67)")

    monkeypatch.setattr(HfApi, "snapshot_download", refused)
    assert main([MODEL, str(tmp_path / "tiny")]) == ExitCode.BAD_DATA
    told = capsys.readouterr().err
    assert "Forbidden for url: https://cdn.example/xet/ab?... (Request ID: Root=1-67)" in told
    assert "c0ffee" not in told
    assert "eyJT" not in told


@pytest.mark.parametrize("end", ["/?X-Sig=ab", "/a?X-Sig='ab", "/a?b='X-Sig=ab", '/a?X-Sig=a"ab'])
def test_no_part_of_a_query_is_told(end: str) -> None:
    from workloads.data.download import _line

    told = _line(OSError(f"Forbidden for url: https://cdn.example{end} (Request ID: 1)"))
    path = end.partition("?")[0]
    assert told == f"Forbidden for url: https://cdn.example{path}?... (Request ID: 1)"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("repo_info", "hf://owner/tiny: the hub did not answer: gone"),
        ("snapshot_download", "the download stopped: gone; the same command continues it"),
        ("verify_repo_checksums", "the download stopped: gone; the same command continues it"),
    ],
)
def test_a_hub_that_goes_away_is_told_with_what_to_do(
    hub: StandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    call: str,
    said: str,
) -> None:
    """The hub's client passes on what its HTTP library raises, which is no OSError."""
    import httpx2
    from huggingface_hub import HfApi

    def gone(*_: object, **__: object) -> None:
        raise httpx2.ConnectError("gone")

    target = tmp_path / "tiny"
    with monkeypatch.context() as patch:
        patch.setattr(HfApi, call, gone)
        assert main([MODEL, str(target)]) == ExitCode.BAD_DATA
    assert said in capsys.readouterr().err
    assert main([MODEL, str(target)]) == 0


def test_a_gated_model_without_a_token_says_where_to_accept_its_terms(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.gated.add("models/owner/tiny")
    assert main([MODEL, str(tmp_path / "tiny")]) == ExitCode.BAD_DATA
    told = capsys.readouterr().err
    assert "owner/tiny is gated: accept its terms at https://huggingface.co/owner/tiny" in told
    assert not hub.requests


def test_a_token_opens_a_gated_model_and_is_never_printed(
    hub: StandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hub.gated.add("models/owner/tiny")
    hub.token = "hf_right"
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert main([MODEL, str(tmp_path / "tiny")]) == ExitCode.BAD_DATA
    told = capsys.readouterr().err
    assert "the account of HF_TOKEN may not read it: ask for access at" in told
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert main([MODEL, str(tmp_path / "tiny")]) == 0
    assert "hf_" not in told + capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "code", "reason"),
    [
        ("hf://owner/none", ExitCode.BAD_DATA, "the hub shows no such model without a token"),
        ("hf://tiny", ExitCode.BAD_CONFIG, "write hf://owner/name for a model"),
        ("s3://bucket/none", ExitCode.BAD_DATA, "s3://bucket/none"),
        ("ftp://x/y", ExitCode.BAD_CONFIG, "expected hf://... or s3://..."),
    ],
)
def test_a_source_that_is_not_there_is_refused(
    hub: StandIn,
    source: str,
    code: ExitCode,
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([source, str(tmp_path / "x")]) == code
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_target_that_holds_something_else_is_never_touched(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "mine").write_text("x")
    assert main([MODEL, str(tmp_path / "tiny")]) == ExitCode.BAD_DATA
    assert "exists and is not revision 0123456789ab" in capsys.readouterr().err
    assert (tmp_path / "tiny" / "mine").read_text() == "x"


def test_too_little_space_is_refused_with_both_numbers(
    hub: StandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(0, 0, 1000))
    assert main([MODEL, str(tmp_path / "tiny")]) == ExitCode.BAD_DATA
    assert "0.00 GiB free, hf://owner/tiny needs 0.00 GiB" in capsys.readouterr().err
    assert not hub.requests


def test_a_prefix_of_a_bucket_arrives_with_its_folders(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "sets"
    assert main(["s3://bucket/sets", str(target)]) == 0
    assert (target / "a/one.jsonl").read_bytes() == b"1" * 5000
    assert "2 files, 0.00 GiB, licence: see LICENSE" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["s3://bucket/one", "s3://bucket/one/one"])
def test_an_object_that_is_called_as_its_folder_arrives(
    hub: StandIn, tmp_path: Path, source: str
) -> None:
    hub.objects = {"bucket/one/one": b"1"}
    assert main([source, str(tmp_path / "sets")]) == 0
    assert (tmp_path / "sets/one").read_bytes() == b"1"


@pytest.mark.parametrize("name", ["../escaped", "a/../../escaped", "a/./b", "./a"])
def test_an_object_whose_name_leaves_the_folder_is_refused(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Who may write to the bucket chooses the names; the download runs as root."""
    # libcurl squashes the path that it asks for, so the content lies at the short name too.
    hub.objects |= {f"bucket/sets/{name}": b"theirs", "bucket/escaped": b"theirs"}
    assert main(["s3://bucket/sets", str(tmp_path / "in" / "sets")]) == ExitCode.BAD_DATA
    said = capsys.readouterr().err
    assert f"s3://bucket/sets: holds a file named '{name}'" in said
    assert not list(tmp_path.rglob("*"))


def test_an_object_below_a_link_that_leaves_the_folder_is_refused(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from workloads.data import download

    remote = download.describe_objects("s3://bucket/sets")
    partial = tmp_path / f".sets.{remote.revision[:12]}.partial"
    (tmp_path / "elsewhere").mkdir()
    partial.mkdir()
    (partial / "a").symlink_to(tmp_path / "elsewhere")
    assert main(["s3://bucket/sets", str(tmp_path / "sets")]) == ExitCode.BAD_DATA
    assert "a/one.jsonl: leads out of" in capsys.readouterr().err
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_repository_whose_file_leaves_the_folder_is_refused(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.repos["models/owner/tiny"]["../escaped.bin"] = b"theirs"
    assert main([MODEL, str(tmp_path / "tiny")]) == ExitCode.BAD_DATA
    assert "hf://owner/tiny: holds a file named '../escaped.bin'" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*"))


def test_an_object_that_is_there_in_part_is_continued(hub: StandIn, tmp_path: Path) -> None:
    from workloads.data import download

    remote = download.describe_objects("s3://bucket/sets")
    part = tmp_path / f".sets.{remote.revision[:12]}.partial" / "a" / "one.jsonl"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"1" * 2000)
    assert main(["s3://bucket/sets", str(tmp_path / "sets")]) == 0
    assert (tmp_path / "sets/a/one.jsonl").read_bytes() == b"1" * 5000
    assert ("/bucket/sets/a/one.jsonl", "bytes=2000-4999") in hub.requests


@pytest.mark.parametrize("etag", [None, "0" * 32, f"{'0' * 32}-2"])
def test_a_part_of_other_content_is_removed_and_the_object_fetched_again(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str], etag: str | None
) -> None:
    """Its size alone was right: half of an older object of the same length, half of the new."""
    from workloads.data import download

    remote = download.describe_objects("s3://bucket/sets")
    if etag:  # of a store that encrypts, or of parts of a size that nobody knows
        hub.etags["bucket/sets/a/one.jsonl"] = etag
    part = tmp_path / f".sets.{remote.revision[:12]}.partial" / "a" / "one.jsonl"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"2" * 2000)
    assert main(["s3://bucket/sets", str(tmp_path / "sets")]) == ExitCode.BAD_DATA
    told = capsys.readouterr().err
    assert "a/one.jsonl stopped: what arrived is not what the store has of it" in told
    assert main(["s3://bucket/sets", str(tmp_path / "sets")]) == 0
    assert (tmp_path / "sets/a/one.jsonl").read_bytes() == b"1" * 5000


def test_an_object_that_was_uploaded_in_parts_is_known_by_its_etag(
    hub: StandIn, tmp_path: Path
) -> None:
    """Read once: the ETag is the MD5 of the MD5s of 8 MiB parts, as AWS's tools make them."""
    content = bytes(range(256)) * (40 << 10)  # 10 MiB
    sums = [hashlib.md5(content[at : at + (8 << 20)]).digest() for at in (0, 8 << 20)]
    hub.objects = {"bucket/big/weights": content}
    hub.etags = {"bucket/big/weights": f"{hashlib.md5(b''.join(sums)).hexdigest()}-2"}
    assert main(["s3://bucket/big", str(tmp_path / "big")]) == 0
    assert (tmp_path / "big" / "weights").read_bytes() == content
    assert [path for path, _ in hub.requests] == ["/bucket/big/weights"]


def test_credentials_arrive_on_standard_input(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an argument every user of the login node could read them."""
    import io
    import os

    monkeypatch.setattr(os, "environ", dict(os.environ))
    hub.gated.add("models/owner/tiny")
    hub.token = "hf_secret"
    given = json.dumps({"HF_TOKEN": "hf_secret", "PATH": "/nowhere"})
    monkeypatch.setattr("sys.stdin", io.StringIO(given + "\n"))
    path = os.environ["PATH"]
    assert main([MODEL, str(tmp_path / "tiny"), "--environment-from-stdin"]) == 0
    assert os.environ["PATH"] == path
