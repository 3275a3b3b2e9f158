"""Set-up takes of Pulumi's site only the archive that it knows, and plugins by their checksums."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path

import pytest

from infra.setup.tools import __main__ as parts
from infra.setup.tools.__main__ import SetupError
from infra.state import PULUMI_VERSION, Cache, State

ARCHIVE = f"/releases/sdk/pulumi-v{PULUMI_VERSION}-linux-x64.tar.gz"
NAMES = ["pulumi", "pulumi-language-python"]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """Pulumi's site and its releases on loopback: path -> what lies there."""
    held: dict[str, bytes] = {"": b""}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            self.send_response(200 if self.path.rstrip("/") in held else 404)
            self.end_headers()
            self.wfile.write(held.get(self.path.rstrip("/"), b""))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(parts, "_SITE", url)
    monkeypatch.setattr(parts, "_RELEASES", url + "/{name}/{version}")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    yield held
    server.shutdown()
    server.server_close()


def released(*, extra: str | None = None) -> bytes:
    """An archive in the form of the release: programs below one folder."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name in (*NAMES, *([extra] if extra else [])):
            member = tarfile.TarInfo(f"pulumi/{name}")
            member.mode, member.size = 0o755, 3
            archive.addfile(member, io.BytesIO(b"#!\n"))
    return file.getvalue()


@pytest.mark.feature("S002-20")
def test_the_released_engine_is_unpacked_when_it_is_the_known_one(
    site: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site[ARCHIVE] = released()
    monkeypatch.setattr(parts, "_ENGINE_SHA256", hashlib.sha256(site[ARCHIVE]).hexdigest())
    parts._install_engine(Cache(tmp_path))
    programs = Cache(tmp_path).pulumi.parent
    assert sorted(path.name for path in programs.iterdir()) == NAMES
    assert all(path.stat().st_mode & 0o111 for path in programs.iterdir())


@pytest.mark.feature("S002-20")
def test_another_archive_is_never_unpacked_and_the_engine_is_built_of_hashed_modules(
    site: dict[str, bytes],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    site[ARCHIVE] = released(extra="theirs")
    built = []
    monkeypatch.setattr(parts, "build_go", lambda name, *args, **kwargs: built.append(name))
    parts._install_engine(Cache(tmp_path))
    assert built == ["pulumi"]
    digest = hashlib.sha256(site[ARCHIVE]).hexdigest()
    told = capsys.readouterr().err.replace("\n", "")
    assert f"{ARCHIVE}: its SHA-256 is {digest}, not {parts._ENGINE_SHA256}" in told
    there = {path.name for path in Cache(tmp_path).pulumi.parent.iterdir()}
    assert not there & {"pulumi", "theirs"}


def test_an_archive_that_ends_early_is_never_unpacked(
    site: dict[str, bytes], tmp_path: Path
) -> None:
    site[ARCHIVE] = released()[:-20]
    with pytest.raises(SetupError, match="its SHA-256 is"):
        parts._download(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_processor_without_a_known_checksum_gets_no_download(
    site: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(SetupError, match="no checksum of the release is known for aarch64"):
        parts._download(tmp_path)


def plugins(site: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """Install both plugins by an engine that only tells what it was given; each call a line."""
    asked = folder / "asked"
    pulumi = folder / "bin" / "pulumi"
    pulumi.parent.mkdir()
    pulumi.write_text(f'#!/bin/sh\necho "${{@%/*}} $(sha256sum <"$8")" >>{asked}\n')
    pulumi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{pulumi.parent}:/usr/bin:/bin")
    monkeypatch.setattr(parts, "search_path", lambda path, *_: path)
    monkeypatch.setattr(parts, "link_plugins", lambda home: [])
    parts._install_plugins(State(folder), Cache(folder))
    return asked.read_text().splitlines() if asked.exists() else []


VERSION = metadata.version("pulumi-command")
PLUGIN = f"pulumi-resource-command-v{VERSION}-linux-amd64.tar.gz"
SUMS = f"/command/{VERSION}/pulumi-command_{VERSION}_checksums.txt"


@pytest.mark.feature("S002-20")
def test_a_plugin_is_installed_when_its_release_says_its_checksum(
    site: dict[str, bytes],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    digest = hashlib.sha256(b"plugin").hexdigest()
    site[f"/releases/plugins/{PLUGIN}"] = b"plugin"
    site[SUMS] = f"{'a' * 64}  {PLUGIN.replace('linux', 'darwin')}\n{digest}  {PLUGIN}\n".encode()
    (asked,) = plugins(site, monkeypatch, tmp_path)
    assert asked.startswith(f"plugin install resource command {VERSION} --reinstall --file ")
    assert digest in asked
    told = capsys.readouterr().err.replace("\n", "")
    assert "pulumi-kubernetes" in told, "its release has no checksums here"
    assert "no plugin is taken without its checksum" in told


@pytest.mark.parametrize(
    ("sums", "why"),
    [
        (f"{'a' * 64}  {PLUGIN}", "its SHA-256 is"),
        (f"{'a' * 64}  another.tar.gz", f"has no {PLUGIN}"),
        ("not found", "no plugin is taken without its checksum"),
        ("<html>", "no plugin is taken without its checksum"),
    ],
)
def test_a_plugin_that_its_release_does_not_vouch_for_is_never_given_to_the_engine(
    site: dict[str, bytes],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    sums: str,
    why: str,
) -> None:
    site[f"/releases/plugins/{PLUGIN}"] = b"plugin"
    site[SUMS] = sums.encode()
    assert plugins(site, monkeypatch, tmp_path) == []
    assert why in capsys.readouterr().err.replace("\n", "")
