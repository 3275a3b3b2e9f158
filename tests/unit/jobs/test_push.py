"""What crosses the connection in a push: a real shell, and a folder instead of a cluster."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.clients.errors import EndedError, JobsError
from infra.clients.ssh import Result
from infra.jobs import transfer as pushing
from infra.jobs.transfer import default_name, destination, fetch, push

PLACES = {"data": "/mnt/data", "model": "/mnt/model", "scratch": "/mnt/memory"}


class LocalShell:
    """Runs commands here; after `lives` commands the connection is lost."""

    def __init__(self, *, lives: int = 1000, path: Path | None = None) -> None:
        self.commands: list[str] = []
        self.lives = lives
        self.environ = {**os.environ, **({"PATH": f"{path}:{os.environ['PATH']}"} if path else {})}

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        self.lives -= 1
        if self.lives < 0:
            raise JobsError("the connection was lost")
        self.commands.append(command)
        done = subprocess.run(
            ["sh", "-c", command], input=stdin, capture_output=True, check=False, env=self.environ
        )
        return Result(
            command=command,
            exit_code=done.returncode,
            stdout=done.stdout.decode(),
            stderr=done.stderr.decode(),
        )

    def run_bytes(self, command: str, *, stdin: bytes = b"") -> tuple[Result, bytes]:
        result = self.run(command, stdin=stdin)
        return result, result.stdout.encode()

    @property
    def pieces(self) -> int:
        """How many pieces of files were sent."""
        return sum(command.startswith("cat >>") for command in self.commands)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with names that need quoting."""
    folder = tmp_path / "here"
    for name, content in {
        "a.bin": bytes(range(256)) * 400,
        "sub/it's $(odd) \\ name": b"odd",
        "empty": b"",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def content_of(folder: Path) -> dict[str, bytes]:
    """Returns every file of a folder."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.feature("S002-31")
def test_a_folder_arrives_whole_and_a_second_push_sends_nothing(
    source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "there" / "data"
    said: list[str] = []
    sent_bytes = push(LocalShell(), source, str(target), log=said.append)
    assert content_of(target) == content_of(source)
    assert sent_bytes == 256 * 400 + 3
    assert "3 files" in said[0]
    assert said[-1] == "3 of 3 files sent, 0.00 GiB; the others were there already"
    shell = LocalShell()
    assert (push(shell, source, str(target), log=said.append), shell.pieces) == (0, 0)
    assert said[-1].startswith("0 of 3 files sent")


def test_a_lost_connection_is_continued_where_it_stopped(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushing, "_PIECE_BYTES", 10_000)
    target = tmp_path / "there"
    with pytest.raises(JobsError, match="the connection was lost"):
        push(LocalShell(lives=6), source, str(target), log=lambda _: None)
    assert not (target / "a.bin").exists(), "a file has its name only when it is whole"
    said: list[str] = []
    shell = LocalShell()
    push(shell, source, str(target), log=said.append)
    assert content_of(target) == content_of(source)
    assert "a.bin: continued at 40000 of 102400 bytes" in said
    assert shell.pieces == 7 + 1


@pytest.mark.feature("S002-31")
def test_a_file_of_the_same_size_with_other_content_is_sent_again(
    source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "there"
    push(LocalShell(), source, str(target), log=lambda _: None)
    (target / "sub/it's $(odd) \\ name").write_bytes(b"bad")
    assert push(LocalShell(), source, str(target), log=lambda _: None) == len(b"odd")
    assert content_of(target) == content_of(source)


def test_the_pieces_of_an_earlier_version_are_not_continued(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushing, "_PIECE_BYTES", 10_000)
    target = tmp_path / "there"
    with pytest.raises(JobsError):
        push(LocalShell(lives=6), source, str(target), log=lambda _: None)
    (source / "a.bin").write_bytes(b"new" * 30_000)
    push(LocalShell(), source, str(target), log=lambda _: None)
    assert (target / "a.bin").read_bytes() == b"new" * 30_000


def test_a_file_that_arrives_changed_never_gets_its_name(source: Path, tmp_path: Path) -> None:
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    (bin_dir / "cat").write_text("#!/bin/sh\necho damaged\n")
    (bin_dir / "cat").chmod(0o755)
    target = tmp_path / "there"
    with pytest.raises(JobsError, match=r"a\.bin: arrived with another hash and was removed"):
        push(LocalShell(path=bin_dir), source, str(target), log=lambda _: None)
    assert content_of(target) == {}


@pytest.mark.parametrize("answer", ["", "\\n", "x", "x\\0", "  \\0"])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_node_whose_hashes_are_none_is_told_in_one_line(
    source: Path, tmp_path: Path, answer: str, is_there: bool
) -> None:
    there, programs = tmp_path / "there", tmp_path / "bin"
    if is_there:
        push(LocalShell(), source, str(there), log=lambda _: None)
    programs.mkdir()
    (programs / "sha256sum").write_text(f"#!/bin/sh\ncat > /dev/null\nprintf '{answer}'\n")
    (programs / "sha256sum").chmod(0o755)
    with pytest.raises(JobsError, match="arrived with another hash") as caught:
        push(LocalShell(path=programs), source, str(there), log=lambda _: None)
    assert "\n" not in str(caught.value)


def test_too_little_space_is_refused_before_a_byte_is_sent(source: Path, tmp_path: Path) -> None:
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    (bin_dir / "df").write_text("#!/bin/sh\necho Avail\necho 1000\n")
    (bin_dir / "df").chmod(0o755)
    shell = LocalShell(path=bin_dir)
    with pytest.raises(JobsError, match=r"0\.00 GiB free, 0\.00 GiB to send; enlarge"):
        push(shell, source, str(tmp_path / "there"), log=lambda _: None)
    assert shell.pieces == 0


def test_one_file_takes_the_name_of_its_target(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "there" / "rows.bin"
    push(LocalShell(), source / "a.bin", str(target), log=lambda _: None)
    assert target.read_bytes() == (source / "a.bin").read_bytes()
    assert list(content_of(target.parent)) == ["rows.bin"]


def test_a_dry_run_only_says_what_would_cross(source: Path, tmp_path: Path) -> None:
    shell = LocalShell()
    said: list[str] = []
    push(shell, source, str(tmp_path / "there"), log=said.append, dry_run=True)
    assert not shell.commands
    assert (len(said), said[1][:22]) == (2, "0 of 3 files sent, 0.0")


def test_nothing_to_push_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobsError, match="no such file or folder here"):
        push(LocalShell(), tmp_path / "none", "/x", log=lambda _: None)
    with pytest.raises(JobsError, match="has no file"):
        push(LocalShell(), tmp_path, "/x", log=lambda _: None)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("data", "/mnt/data/finance"),
        ("data/", "/mnt/data/finance"),
        ("model/Qwen/Qwen3-14B", "/mnt/model/Qwen/Qwen3-14B"),
    ],
)
def test_a_target_is_a_place_and_a_path_in_it(target: str, path: str) -> None:
    assert destination(PLACES, target, name="finance") == path


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("/mnt/data", "is no place of this stack; places are: data, model, scratch"),
        ("scratch/x", "/mnt/memory is the memory of the login node there, which no worker sees"),
        ("dta/x", "'dta' is no place of this stack"),
        ("data/../x", "stays inside it"),
        ("data//etc", "stays inside it"),
    ],
)
def test_a_target_outside_the_places_is_refused(target: str, reason: str) -> None:
    with pytest.raises(JobsError, match=reason):
        destination(PLACES, target, name="x")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("hf://Qwen/Qwen3-14B@main", "Qwen/Qwen3-14B"),
        (
            "hf://datasets/glaiveai/glaive-function-calling-v2",
            "glaiveai/glaive-function-calling-v2",
        ),
        ("s3://bucket/sets/finance/", "finance"),
    ],
)
def test_a_remote_source_keeps_its_name(source: str, name: str) -> None:
    assert default_name(source) == name


def test_a_name_that_is_not_utf_8_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    """It was a traceback of the connection. The cluster's own such names are left alone."""
    (tmp_path / os.fsdecode(b"caf\xe9")).write_text("latin-1")
    with pytest.raises(JobsError, match=r"caf\\udce9'\): the name .* is not UTF-8; rename it"):
        push(LocalShell(), tmp_path, str(tmp_path / "there"), log=lambda _: None)
    with pytest.raises(JobsError, match="is not UTF-8; rename it"):
        destination(PLACES, "data", name=os.fsdecode(b"caf\xe9"))


@pytest.mark.parametrize("name", ["line\nbreak", "of\n7 two", "separator\u2028"])
def test_what_others_keep_in_a_shared_place_has_any_name(
    name: str, source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "there"
    target.mkdir()
    (target / name).write_bytes(b"theirs")
    push(LocalShell(), source, str(target), log=lambda _: None)
    assert content_of(target) == {**content_of(source), name: b"theirs"}


def test_what_others_closed_in_a_shared_place_keeps_nobody_from_pushing(
    source: Path, tmp_path: Path
) -> None:
    (tmp_path / "find").write_text("#!/bin/sh\necho find: ./x: Permission denied >&2\nexit 1\n")
    (tmp_path / "find").chmod(0o755)
    target = tmp_path / "there"
    push(LocalShell(path=tmp_path), source, str(target), log=lambda _: None)
    assert content_of(target) == content_of(source)


def test_a_filesystem_that_does_not_tell_its_free_space_is_refused(
    source: Path, tmp_path: Path
) -> None:
    (tmp_path / "df").write_text("#!/bin/sh\necho Avail\necho -\n")
    (tmp_path / "df").chmod(0o755)
    with pytest.raises(JobsError, match="there: df printed '-' for a number"):
        push(LocalShell(path=tmp_path), source, str(tmp_path / "there"), log=lambda _: None)


def test_what_keeps_a_download_from_starting_is_written_out(tmp_path: Path) -> None:
    """Where no code was delivered, `see above` pointed at nothing."""

    class Streams:
        def stream(self, command: str, *, poll_s: float, stdin: bytes) -> Iterator[bytes]:
            done = subprocess.run(["sh", "-c", command], input=stdin, capture_output=True)
            yield done.stdout
            raise EndedError("no message", done.returncode)

    said = bytearray()
    with pytest.raises(JobsError, match=r"hf://a/b: not there \(exit [12]\); see above"):
        fetch(
            Streams(),  # type: ignore[arg-type]
            code_path=str(tmp_path / "none"),
            source="hf://a/b",
            target="/mnt/model/a/b",
            environ={},
            write=said.extend,
        )
    assert b"none/current" in said
