"""Ctrl-C while the engine changes a stack: it ends in order, and its lock goes with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

_ENGINE = """#!/bin/sh
trap 'sleep 1; echo released; exit {status}' INT
echo started
sleep 30 & wait
"""
_RUNS = """
import os, signal
from infra.clients.pulumi import run
signal.signal(signal.SIGINT, signal.default_int_handler)
print("status", run(["destroy"], environ=dict(os.environ), quiet=False).returncode)
"""


def _interrupted(tmp_path: Path, status: int) -> tuple[int, str]:
    engine = tmp_path / "pulumi"
    engine.write_text(_ENGINE.format(status=status))
    engine.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen(
        [sys.executable, "-c", _RUNS],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "started\n"
        os.killpg(command.pid, signal.SIGINT)  # as a terminal does
        said, _ = command.communicate(timeout=60)
    return command.returncode, said


def test_an_engine_that_was_interrupted_gives_its_lock_back(tmp_path: Path) -> None:
    """It was killed after 0.25 s: the lock stayed, and what it was making was in no state."""
    assert _interrupted(tmp_path, 1) == (-signal.SIGINT, "released\n")


def test_an_engine_that_was_at_its_end_is_done(tmp_path: Path) -> None:
    assert _interrupted(tmp_path, 0) == (0, "released\nstatus 0\n")
