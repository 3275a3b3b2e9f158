"""The environment on shared storage: whole or not at all, pinned by hash, and an edit is live."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from infra.clients.errors import JobsError
from infra.clients.ssh import Result
from infra.jobs import transfer
from infra.render.delivery import WORKLOADS_LOCK, PackageSource, venv_script, version_of
from stacks.errors import UserError
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.cluster import AttachedSpec

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Here:
    """Runs on this machine what the login node would run; uv comes from .venv, as from its PATH."""

    home: str = "/nonexistent"

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        done = subprocess.run(
            ["bash", "-c", command],
            input=stdin,
            capture_output=True,
            env={"PATH": path, "HOME": self.home},
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


def wheel(folder: Path, version: str) -> bytes:
    """Writes a wheel of the package `tiny` and returns its line of a lock file."""
    info = f"tiny-{version}.dist-info"
    files = {
        "tiny.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{name},sha256={digest(text.encode())},{len(text)}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    path = folder / f"tiny-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    pin = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"tiny=={version} --hash=sha256:{pin}\n".encode()


def digest(content: bytes) -> str:
    raw = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return raw.rstrip(b"=").decode()


@pytest.fixture
def spec(public_key_file: Path, tmp_path: Path) -> StackSpec:
    """`local` with its environment and its code in a folder of the test."""
    return replace(
        load_stack("local"), python_env_path=f"{tmp_path}/jail/env", code_path=f"{tmp_path}/code"
    )


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    return folder


def make(spec: StackSpec, wheels: Path, lock: bytes, here: Here | None = None) -> transfer.Venv:
    files = {**transfer.lock_files(ROOT), WORKLOADS_LOCK: lock}
    return transfer.make(here or Here(), spec, files, PackageSource(wheelhouse=str(wheels)))


def python(spec: StackSpec, code: str) -> str:
    return subprocess.run(
        [f"{spec.python_env_path}/bin/python", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    ).stdout.strip()


@pytest.mark.feature("S003-71", "S003-75", "S003-77")
def test_it_is_made_once_from_a_wheelhouse_and_an_edit_of_the_code_is_live(
    spec: StackSpec, wheels: Path
) -> None:
    lock = wheel(wheels, "1.0")
    releases = [Path(spec.code_path) / "releases" / name / "workloads" for name in ("a", "b")]
    for release in releases:
        release.mkdir(parents=True)
    current = Path(spec.code_path) / "current"
    current.symlink_to("releases/a")
    first = make(spec, wheels, lock)
    assert first.seconds is not None
    assert python(spec, "import tiny; print(tiny.VERSION)") == "1.0"
    again = make(spec, wheels, lock)
    assert (again.seconds, again.version) == (None, first.version)
    for text in ("before", "after"):
        (releases[0] / "__init__.py").write_text(f"TEXT = {text!r}\n")
        assert python(spec, "import workloads; print(workloads.TEXT)") == text
    (releases[1] / "__init__.py").write_text("TEXT = 'next release'\n")
    current.unlink()
    current.symlink_to("releases/b")
    assert python(spec, "import workloads; print(workloads.TEXT)") == "next release"


@pytest.mark.feature("S003-75")
def test_another_lock_takes_its_place_in_one_step_and_the_old_one_stays_for_running_jobs(
    spec: StackSpec, wheels: Path
) -> None:
    before, after = wheel(wheels, "1.0"), wheel(wheels, "2.0")
    make(spec, wheels, before)
    old = Path(spec.python_env_path).resolve()
    assert make(spec, wheels, after).version == version_of(after)
    assert python(spec, "import tiny; print(tiny.VERSION)") == "2.0"
    assert (old / "bin" / "python").exists()
    assert make(spec, wheels, before).version == version_of(before), "the way back is a link"


@pytest.mark.feature("S003-75")
def test_while_one_is_made_a_second_one_is_refused(spec: StackSpec, wheels: Path) -> None:
    """Both would write the same folder on the filesystem that they share."""
    lock = wheel(wheels, "1.0")
    made = make(spec, wheels, lock).path
    assert Path(f"{made}.lock").stat().st_mode & 0o777 == 0o600, "else any user could hold it"
    with Path(f"{made}.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(JobsError, match="another one is being made; wait for it"):
            make(spec, wheels, lock)
    assert make(spec, wheels, lock).seconds is None


def test_a_python_of_roots_own_is_refused_as_no_users_job_can_run_it(
    spec: StackSpec, wheels: Path
) -> None:
    """uv fetches Python into the home of who calls it, and root's is closed to all others."""
    lock = wheel(wheels, "1.0")
    make(spec, wheels, lock)
    home = str(Path(spec.python_env_path, "bin", "python").resolve().parent)
    with pytest.raises(
        JobsError, match=r"python3\.11 is root's alone: install Python 3.11 for all"
    ):
        make(spec, wheels, lock, Here(home))


def test_a_python_below_the_home_of_a_user_of_an_attached_cluster_is_that_users(
    spec: StackSpec, wheels: Path
) -> None:
    """Nobody else runs jobs with it, and all that is the user's may lie below the home."""
    attached = AttachedSpec(
        host="login.example.org", user="ann", host_key="ssh-ed25519 AAAA", identity="/id",
        folder="/home/ann/soperator/lab", python="/usr/bin/python3", slurm="25.11.3",
        nodesets=(), partitions=(),
    )  # fmt: skip
    own, lock = replace(spec, attached=attached), wheel(wheels, "1.0")
    make(own, wheels, lock)
    home = str(Path(own.python_env_path, "bin", "python").resolve().parent)
    assert make(own, wheels, lock, Here(home)).seconds is None
    assert make(own, wheels, wheel(wheels, "2.0"), Here(home)).seconds is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a link to another user, which only root may")
@pytest.mark.parametrize("name", ["env.lock", "env.cache", "env.new"])
def test_what_another_user_put_beside_the_environment_is_refused(
    spec: StackSpec, wheels: Path, tmp_path: Path, name: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("whole")
    planted = Path(spec.python_env_path).with_name(name)
    planted.parent.mkdir()
    planted.symlink_to(victim)
    os.chown(planted, 5, 60, follow_symlinks=False)
    with pytest.raises(JobsError, match=rf"{name}: is a symbolic link of games, .*root's: mv -T"):
        make(spec, wheels, wheel(wheels, "1.0"))
    assert victim.read_text() == "whole"


def test_a_file_that_is_not_the_locked_one_is_refused_and_the_one_before_stays(
    spec: StackSpec, wheels: Path
) -> None:
    make(spec, wheels, wheel(wheels, "1.0"))
    wheel(wheels, "2.0")
    forged = f"tiny==2.0 --hash=sha256:{'0' * 64}\n".encode()
    with pytest.raises(JobsError, match="the one before is as it was"):
        make(spec, wheels, forged)
    assert python(spec, "import tiny; print(tiny.VERSION)") == "1.0"
    assert not Path(f"{spec.python_env_path}-{version_of(forged)}").exists()


def test_an_environment_that_the_image_brings_is_left_alone(spec: StackSpec, wheels: Path) -> None:
    foreign = Path(spec.python_env_path)
    (foreign / "bin").mkdir(parents=True)
    with pytest.raises(JobsError, match="move it away, or declare another python_env_path"):
        make(spec, wheels, wheel(wheels, "1.0"))
    assert [path.name for path in foreign.iterdir()] == ["bin"]


@pytest.mark.feature("S003-76")
def test_an_index_takes_the_place_of_the_default_one_and_a_second_one_stands_beside_it(
    spec: StackSpec,
) -> None:
    source = PackageSource(index="https://mirror.example/simple", extra_index="https://cu.example")
    script = venv_script(spec, b"", source)
    assert "--default-index https://mirror.example/simple --index https://cu.example " in script
    assert "--index-url https://mirror.example/simple --extra-index-url https://cu.ex" in script
    assert "-index" not in venv_script(spec, b"", PackageSource())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"index": "mirror.example/simple"}, "--index mirror.example/simple: write https://HOST"),
        ({"index": "https://[::1/simple"}, r"--index https://\[::1/simple: write https://HOST"),
        ({"extra_index": "https://me:secret@mirror.example"}, "put it into ~/.netrc"),
        ({"extra_index": "https://me:[secret@mirror.example"}, "put it into ~/.netrc"),
        ({"index": "https://me:sec/secret@mirror.example"}, "--index: write https://HOST/PATH$"),
        ({"wheelhouse": "wheels"}, "give an absolute path on the cluster"),
        ({"wheelhouse": "/w", "index": "https://mirror.example"}, "leave --index"),
    ],
)
def test_a_source_that_cannot_work_is_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        PackageSource(**values)
    assert "secret" not in str(caught.value)


def test_a_lock_without_hashes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.lock").write_text("torch==2.15.0\n")
    with pytest.raises(JobsError, match="no line has a hash"):
        transfer.lock_files(ROOT, tmp_path / "own.lock")


@pytest.mark.feature("S003-76")
def test_the_shipped_lock_pins_the_wheels_of_cuda() -> None:
    """GPU jobs need no CUDA of the jail: torch's own wheels of it are pinned with their hashes."""
    text = transfer.lock_files(ROOT)[WORKLOADS_LOCK].decode()
    pinned = [line.split("==")[0] for line in text.splitlines() if "==" in line]
    assert {"torch", "nvidia-nccl-cu13"} <= set(pinned)


def test_an_answer_that_is_none_of_the_script_s_is_told(spec: StackSpec) -> None:
    """A ~/.bashrc may print to every command."""

    @dataclass(frozen=True)
    class Chatty(Here):
        def run(self, command: str, *, stdin: bytes = b"") -> Result:
            return Result(command=command, exit_code=0, stdout="made 3 4 welcome", stderr="")

    files = {WORKLOADS_LOCK: b"--hash=sha256:"}
    with pytest.raises(JobsError, match="unexpected answer: 'made 3 4 welcome'"):
        transfer.make(Chatty(), spec, files, PackageSource())
