"""A real engine killed at its worst moments: the next one works, and asks nobody.

The two states here are what kill -9 leaves in the file backend; a test cannot hit their moments,
which last microseconds, so it makes them with the engine's own files.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from infra.local import engine
from tests.engine.nebius_project import pulumi_binary
from tests.unit.local.test_locks import DEAD, lock_of

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
]


@pytest.fixture
def backend(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "Pulumi.yaml").write_text("name: soperator-stack\nruntime: python\n")
    (tmp_path / "backend").mkdir()
    return tmp_path / "backend"


def pulumi(backend: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {
        **os.environ,
        "PULUMI_BACKEND_URL": f"file://{backend}",
        "PULUMI_CONFIG_PASSPHRASE": "public",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
    }
    program = pulumi_binary()
    assert program is not None
    return subprocess.run(
        [program, "-C", backend.parent / "project", "--non-interactive", *arguments],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_stack_is_made_after_a_kill_in_stack_init(backend: Path) -> None:
    """It left a lock and no stack, of which `pulumi cancel` knows nothing."""
    lock_of(backend, DEAD)
    init = ("stack", "init", "local")
    assert "is currently locked" in pulumi(backend, *init).stderr
    assert pulumi(backend, "cancel", "--yes", "--stack", "local").returncode != 0
    assert engine.clear_dead(backend, "local")
    done = pulumi(backend, *init)
    assert done.returncode == 0, done.stderr


def test_a_state_is_read_after_a_kill_between_its_attributes_and_itself(backend: Path) -> None:
    assert pulumi(backend, "stack", "init", "local").returncode == 0
    (state,) = (backend / ".pulumi" / "stacks").glob("*/local.json")
    state.with_name("local.json.attrs").write_text("")
    lock_of(backend, DEAD)
    assert pulumi(backend, "cancel", "--yes", "--stack", "local").returncode != 0
    assert engine.clear_dead(backend, "local")
    done = pulumi(backend, "stack", "export", "--stack", "local")
    assert done.returncode == 0, done.stderr
