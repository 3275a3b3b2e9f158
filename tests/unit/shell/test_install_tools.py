"""The tools of the login node: what is installed as root is what the lock file names."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from stacks.load import STACKS_DIR

SCRIPT = STACKS_DIR.parent / "workloads" / "monitoring" / "install_tools.sh"
LOCK = SCRIPT.with_name("tools.lock")
# A python that makes environments and keeps what pip was told.
PYTHON = """#!/bin/bash
echo "$@" >> "$CALLS"
if [ "$2" = venv ]; then
  mkdir -p "${!#}/bin" "${!#}/lib/python3.11/site-packages"
  cp "$0" "${!#}/bin/python"
fi
"""


def test_every_package_is_installed_by_its_hash(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs" / "bin"
    jobs.mkdir(parents=True)
    for path in (jobs / "python", tmp_path / "python3"):
        path.write_text(PYTHON)
        path.chmod(0o755)
    calls = tmp_path / "calls"
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(calls)}
    done = subprocess.run(
        ["bash", str(SCRIPT), str(tmp_path / "jobs")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    (installed,) = [line for line in calls.read_text().splitlines() if " install " in line]
    assert f"--no-deps --require-hashes -r {LOCK}" in installed
    assert re.fullmatch(r".*/jobs-tools: jupyterlab==\S+ tensorboard==\S+", done.stdout.strip())


def test_the_lock_names_a_hash_for_each_and_the_jobs_own_versions() -> None:
    pins = re.split(r"\n(?=[a-z0-9])", LOCK.read_text())[1:]
    assert len(pins) > 50
    assert [pin for pin in pins if "--hash=sha256:" not in pin] == []
    jobs = (STACKS_DIR.parent / "requirements-workloads.lock").read_text()
    theirs = dict(re.findall(r"^([a-z0-9_.-]+)==(\S+)", jobs, re.MULTILINE))
    ours = dict(re.findall(r"^([a-z0-9_.-]+)==(\S+)", LOCK.read_text(), re.MULTILINE))
    assert {name: ours[name] for name in ours if name in theirs} == {
        name: theirs[name] for name in theirs if name in ours
    }
    for name in re.findall(r"^([a-z]+)==", SCRIPT.with_name("tools.in").read_text(), re.MULTILINE):
        assert name in ours
