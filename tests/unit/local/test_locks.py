"""Locks of the file backend: the dead are removed, the living kept, whoever took them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.local import engine

DEAD = 2**22 + 1  # above every pid that Linux gives out


def lock_of(backend: Path, pid: int | None, name: str = "a") -> Path:
    """A lock as the pulumi with this pid writes it; None is a file that is no lock."""
    path = backend / ".pulumi" / "locks" / "organization" / "soperator-stack" / "local"
    path.mkdir(parents=True, exist_ok=True)
    path = path / f"{name}.json"
    path.write_text("" if pid is None else json.dumps({"pid": pid, "username": "root"}))
    path.with_name(f"{name}.json.attrs").write_text("{}")
    return path


@pytest.fixture
def living(tmp_path: Path) -> Iterator[int]:
    """A process whose program is called pulumi."""
    program = tmp_path / "pulumi"
    shutil.copy2(shutil.which("sleep") or "", program)
    process = subprocess.Popen([program, "600"])
    # Popen returns at the exec, which closes its pipe before it gives the process the new name.
    while Path(f"/proc/{process.pid}/comm").read_text() != "pulumi\n":
        time.sleep(0.001)
    yield process.pid
    process.kill()
    process.wait()


def test_the_locks_of_dead_engines_go_and_need_no_stack(tmp_path: Path, living: int) -> None:
    for name, pid in {"a": DEAD, "b": os.getpid(), "c": None}.items():
        lock_of(tmp_path, pid, name)
    kept = lock_of(tmp_path, living, "d")
    assert engine.holders(tmp_path, "local") == [living]
    assert engine.clear_dead(tmp_path, "local")
    assert sorted(kept.parent.iterdir()) == [kept, kept.with_name("d.json.attrs")]
    assert not engine.clear_dead(tmp_path, "local")


def test_only_attributes_that_the_kill_cut_are_dropped(tmp_path: Path) -> None:
    lock_of(tmp_path, DEAD)
    states = tmp_path / ".pulumi" / "stacks" / "soperator-stack"
    states.mkdir(parents=True)
    for name, text in {
        "local.json.attrs": "",
        "local.json.bak.attrs": '{"md5": "q',
        "local.json": "{}",
        "other.json.attrs": "",
    }.items():
        (states / name).write_text(text)
    (whole := states / "local.json.gz.attrs").write_text('{"md5": null}\n')
    engine.clear_dead(tmp_path, "local")
    kept = {"local.json", whole.name, "other.json.attrs"}
    assert {path.name for path in states.iterdir()} == kept
