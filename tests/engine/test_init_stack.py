"""`soperator init` with the real engine: the stack is in its backend, its file as it was written.

The checkout is a copy, because the engine reads stacks/ of the checkout it runs in.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.state import CHECKOUT, Cache
from tests.engine.nebius_project import Emulator, pulumi_binary, running_emulator
from tests.engine.object_storage import running_storage

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
]
PROJECT = "project-e00p"
ANSWERS = ("--name=prod", "--worker=gpu-h100-sxm/8gpu-128vcpu-1600gb", "--nodes=2")
_OWNED = ("PULUMI_", "NEBIUS_", "SOPERATOR_", "AWS_")


class Checkout:
    """A copy of this one, with a state folder of its own and an emulated cloud."""

    def __init__(self, root: Path, port: int, key: Path) -> None:
        self.root, self.state = root / "checkout", root / "state"
        for name in ("infra", "stacks", "cost", "workloads"):
            hidden = shutil.ignore_patterns("__pycache__")
            shutil.copytree(CHECKOUT / name, self.root / name, ignore=hidden)
        for name in ("Pulumi.yaml", "__main__.py", "pyproject.toml", "requirements-workloads.lock"):
            shutil.copy(CHECKOUT / name, self.root)
        (self.root / ".venv").symlink_to(CHECKOUT / ".venv")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWNED)}
        self.options = (f"--project={PROJECT}", "--fabric=fabric-6", f"--ssh-key={key}")
        self.environ = {
            **kept,
            "PYTHONPATH": str(self.root),
            "SOPERATOR_STATE": str(self.state),
            "SOPERATOR_CACHE": str(Cache.from_environ().root),
            "SOPERATOR_NEBIUS_ENDPOINT": f"http://127.0.0.1:{port}",
            "NEBIUS_IAM_TOKEN": "local-token",
            "SOPERATOR_SSH_PUBLIC_KEY_FILE": str(key),
        }

    @property
    def file(self) -> Path:
        """The stack that `init` writes."""
        return self.root / "stacks" / "Pulumi.prod.yaml"

    def init(self, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """`soperator init`, from another folder than the checkout."""
        argv = [sys.executable, "-m", "infra.cli.main", "init", *ANSWERS, *self.options, *options]
        return subprocess.run(
            argv,
            cwd=self.root,
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            check=False,
        )

    def shell(self, line: str, printed: str) -> subprocess.CompletedProcess[str]:
        """A command after the lines that `init` printed for this shell, against the emulator."""
        _, _, rest = printed.partition("next, in this shell:\n")
        first, second, third = (each.strip() for each in rest.splitlines())
        assert third == "pulumi up --stack prod"
        emulated = f"export SOPERATOR_NEBIUS_ENDPOINT={self.environ['SOPERATOR_NEBIUS_ENDPOINT']}"
        program = f'soperator() {{ "{sys.executable}" -m infra.cli.main "$@"; }}'
        script = "\n".join((program, first, emulated, second, line))
        return subprocess.run(
            ["bash", "-euc", script],
            cwd=self.root,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def checkout(tmp_path: Path, emulator: Emulator, public_key_file: Path) -> Iterator[Checkout]:
    return Checkout(tmp_path, emulator.port, public_key_file)


@pytest.mark.feature("S002-25", "S003-59", "S003-67")
def test_a_new_user_gets_a_stack_that_the_printed_lines_preview(checkout: Checkout) -> None:
    done = checkout.init("--backend=file")
    assert done.returncode == 0, done.stderr
    assert "made     stack prod in these states, selected" in done.stdout
    written = checkout.file.read_bytes()
    listed = checkout.shell("pulumi stack ls --json", done.stdout)
    assert [one["name"] for one in json.loads(listed.stdout)] == ["prod"], listed.stderr
    preview = checkout.shell("pulumi preview --stack prod --non-interactive", done.stdout)
    assert preview.returncode == 0, preview.stdout + preview.stderr
    assert "prod-kube" in preview.stdout
    # The engine would write a salt of its own into a file without one: then nobody has its secrets.
    assert checkout.file.read_bytes() == written


@pytest.mark.feature("S002-25")
def test_a_second_init_makes_nothing_and_a_lost_state_is_made_again(checkout: Checkout) -> None:
    assert checkout.init("--backend=file").returncode == 0
    written = checkout.file.read_bytes()
    again = checkout.init("--backend=file")
    assert again.returncode == 0, again.stderr
    assert "nothing to do: everything was there" in again.stdout
    (state,) = checkout.state.rglob(".pulumi/stacks/soperator-stack/prod.json")
    state.unlink()
    third = checkout.init("--backend=file")
    assert "made     stack prod" in third.stdout
    assert state.is_file()
    assert checkout.file.read_bytes() == written


@pytest.mark.feature("S003-58")
def test_states_lie_in_the_bucket_of_the_project_with_the_deployer_s_key(
    tmp_path: Path, public_key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine itself signs, writes and reads; the object storage knows keys and their rights."""
    objects, cloud = tmp_path / "objects", tmp_path / "cloud"
    with running_storage(objects, cloud) as address:
        monkeypatch.setenv("SOPERATOR_LOCAL_OBJECT_STORAGE", address)
        with running_emulator(cloud) as emulator:
            checkout = Checkout(tmp_path, emulator.port, public_key_file)
            done = checkout.init()
            assert done.returncode == 0, done.stderr
            assert "states   s3://soperator-state-" in done.stdout
            listed = checkout.shell("pulumi stack ls --json", done.stdout)
            assert [one["name"] for one in json.loads(listed.stdout)] == ["prod"], listed.stderr
            again = checkout.init()
            assert "nothing to do: everything was there" in again.stdout, again.stderr
    states = [path.name for path in objects.rglob("*prod.json*") if path.is_file()]
    assert ".pulumi%2Fstacks%2Fsoperator-stack%2Fprod.json" in states


def test_states_are_not_left_behind_by_another_backend(checkout: Checkout) -> None:
    assert checkout.init("--backend=file").returncode == 0
    other = checkout.init("--backend=bucket")
    assert other.returncode == 1
    assert "--backend bucket: the states of this project lie in file://" in other.stderr


def test_an_engine_that_is_missing_is_told_and_the_next_run_goes_on(
    checkout: Checkout, tmp_path: Path
) -> None:
    nothing = {"PATH": "/usr/bin:/bin", "SOPERATOR_CACHE": str(tmp_path / "no-cache")}
    if shutil.which("pulumi", path=nothing["PATH"]):
        pytest.skip("pulumi is in /usr/bin of this machine, which the project does not ship")
    first = checkout.init("--backend=file", **nothing)
    assert first.returncode == 1
    (line,) = first.stderr.splitlines()[-1:]
    assert "pulumi: not on PATH; run `make setup`" in line
    assert "what was made stays" in line
    second = checkout.init("--backend=file")
    assert second.returncode == 0, second.stderr
    assert "made     stack prod" in second.stdout
    assert "made     serviceaccount" not in second.stdout
