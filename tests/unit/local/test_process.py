"""Recorded processes: started once, stopped whole, never mistaken for a stranger."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.local import process


def wait_until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    """Poll `condition`; fail after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not reached"
        time.sleep(0.01)


def start_sleeper(run_dir: Path, script: str = "exec sleep 1000") -> process.Process:
    """Start a shell script as the process `sleeper`."""
    return process.start("sleeper", ["sh", "-c", script], run_dir=run_dir, log=run_dir / "log")


def test_a_started_process_is_alive_and_recorded(tmp_path: Path) -> None:
    started = start_sleeper(tmp_path)
    assert process.alive("sleeper", tmp_path)
    assert process.all_processes(tmp_path) == [started]
    process.stop("sleeper", tmp_path)


def test_its_variables_are_read_at_any_moment_after_the_start(tmp_path: Path) -> None:
    """While a process is in exec, the kernel shows none: `up` took them for another Slurm's."""
    seen: set[str | None] = set()
    for _ in range(100):
        seen.add(start_sleeper(tmp_path).environment.get(process.MARK))
        process.stop("sleeper", tmp_path)
    assert seen == {str(tmp_path / "sleeper")}


def test_a_second_start_returns_the_running_process(tmp_path: Path) -> None:
    first = start_sleeper(tmp_path)
    assert start_sleeper(tmp_path) == first
    process.stop("sleeper", tmp_path)


def test_stop_ends_everything_that_the_process_forked(tmp_path: Path) -> None:
    pid_file = tmp_path / "child"
    start_sleeper(tmp_path, f"sleep 1000 & echo $! > {pid_file}; wait")
    wait_until(lambda: pid_file.exists() and pid_file.read_text().strip() != "")
    child = int(pid_file.read_text())
    assert process.stop("sleeper", tmp_path)
    assert not Path(f"/proc/{child}").exists() or process._stat(child) is None
    assert process.all_processes(tmp_path) == []


def test_stop_ends_members_that_its_leader_alone_makes_known(tmp_path: Path) -> None:
    """They do not carry our mark; the leader, which is signalled first, is gone by then."""
    ready = tmp_path / "ready"
    nameless = f"env -i sh -c 'echo $$ >> {ready}; exec sleep 1000' &"
    start_sleeper(tmp_path, f"{nameless * 20} wait")
    wait_until(lambda: ready.exists() and len(ready.read_text().split()) == 20)
    assert process.stop("sleeper", tmp_path)
    left = [pid for pid in ready.read_text().split() if process._stat(int(pid)) is not None]
    for pid in left:
        os.kill(int(pid), signal.SIGKILL)
    assert left == []


def test_stop_kills_a_process_that_ignores_term(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    started = start_sleeper(tmp_path, f"trap '' TERM; touch {ready}; while :; do sleep 1; done")
    wait_until(ready.exists)
    process.stop("sleeper", tmp_path, timeout_s=0.2)
    assert not started.alive


def test_stop_finds_the_children_of_a_killed_leader(tmp_path: Path) -> None:
    pid_file = tmp_path / "child"
    leader = start_sleeper(tmp_path, f"sleep 1000 & echo $! > {pid_file}; wait")
    wait_until(lambda: pid_file.exists() and pid_file.read_text().strip() != "")
    os.kill(leader.pid, signal.SIGKILL)
    wait_until(lambda: not leader.alive)
    assert process.stop("sleeper", tmp_path)
    assert process._stat(int(pid_file.read_text())) is None


def test_a_killed_process_is_started_again_under_the_same_name(tmp_path: Path) -> None:
    first = start_sleeper(tmp_path)
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: not process.alive("sleeper", tmp_path))
    second = start_sleeper(tmp_path)
    assert second.pid != first.pid
    assert second.alive
    process.stop("sleeper", tmp_path)


def test_a_stranger_with_a_reused_pid_is_never_stopped(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    record = {
        "name": "sleeper",
        "pid": stranger.pid,
        "start_ticks": 1,
        "boot_id": process._boot_id(),
        "argv": ["sleep"],
        "log": "",
    }
    (tmp_path / "sleeper.json").write_text(json.dumps(record))
    assert not process.alive("sleeper", tmp_path)
    assert not process.stop("sleeper", tmp_path)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_stop_of_an_unknown_name_does_nothing(tmp_path: Path) -> None:
    assert not process.stop("nothing", tmp_path)


def test_a_missing_program_names_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(process.LocalError, match="'no-such-program' is not installed; run `make"):
        process.start("x", ["no-such-program"], run_dir=tmp_path, log=tmp_path / "log")
    assert process.all_processes(tmp_path) == []


def test_a_process_outlives_the_command_that_started_it(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; from infra.local import process\n"
        f"d = Path({str(tmp_path)!r})\n"
        "process.start('sleeper', ['sleep', '1000'], run_dir=d, log=d / 'log')\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert process.alive("sleeper", tmp_path)
    assert process.stop("sleeper", tmp_path)


def test_a_starter_killed_before_the_record_leaves_no_process(tmp_path: Path) -> None:
    """The shell that waits for the record ends when its starter does."""
    child = subprocess.Popen(
        ["/bin/sh", "-c", process._WAIT_FOR_RECORD, "sh", "touch", str(tmp_path / "ran")],
        stdin=subprocess.PIPE,
    )
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(timeout=10) == 1
    assert not (tmp_path / "ran").exists()


def test_a_part_that_another_command_stops_meanwhile_is_named(tmp_path: Path) -> None:
    """`local up` beside `local down` ended in an AssertionError."""
    gone: Any = SimpleNamespace(log="log")  # its record is removed already
    with pytest.raises(process.LocalError, match=r"etcd: not ready after 0 s; is it being stopped"):
        process.serve(tmp_path, {"etcd": lambda: gone}, is_ready=lambda: False, timeout_s=0)
