"""`local demo` killed on every stretch of its way: each next run goes on, and one finishes.

One state folder for the whole way, as a user has one; a copy of the checkout, because the SSH port
of the login node is declared in the stack file. About twice the time of one reduced demo.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from infra.local import cloud
from infra.local.cloud import EMULATOR, Cloud
from infra.local.process import LocalError
from infra.local.slurm.pod import SLURM_SETTING
from infra.state import CHECKOUT, Cache, Ports, State
from tests.ports import free_base, free_node_port

# About four minutes on two free cores; on busy ones generation alone takes ten times as long.
pytestmark = [pytest.mark.local, pytest.mark.nightly, pytest.mark.timeout(3600)]

STATE_VARIABLES = ("PULUMI_", "NEBIUS_", "SOPERATOR_")
MADE = re.compile(r"-e00[0-9a-f]{16}$")
"""Ids that the emulator gave out; those of its seed data are spoken."""
FINISHED = [
    ("prepare-data", "COMPLETED"),
    ("finetune", "COMPLETED"),
    ("evaluate", "COMPLETED"),
    # Slurm's word for a server that was told to end; its record says PASS.
    ("serve", "CANCELLED"),
    ("load", "COMPLETED"),
]
"""Every job that Slurm knows at the end: each ran once, the server too."""
STEP_S = 1500


@dataclass
class Demo:
    """The demo of one copied checkout, started and killed as a user would."""

    checkout: Path
    embedded: Cloud
    lines: list[str] = field(default_factory=list)
    """What the newest run printed."""
    process: subprocess.Popen[str] | None = None

    def start(self, *options: str) -> None:
        """Starts it in a process group of its own."""
        self.lines = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "infra.cli.main", "local", "demo", "--reduced", *options],
            cwd=self.checkout,
            env=self.environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()

    def environ(self) -> dict[str, str]:
        """The environment of a shell that was told nothing but where stack and Slurm live."""
        kept = {
            n: v
            for n, v in os.environ.items()
            if n == SLURM_SETTING or not n.startswith(STATE_VARIABLES)
        }
        return {
            **kept,
            "PYTHONPATH": str(self.checkout),
            "SOPERATOR_STATE": str(self.embedded.state.root),
            "SOPERATOR_CACHE": str(self.embedded.cache.root),
            cloud.PORT_SETTING: str(self.embedded.ports.base),
        }

    def said(self, pattern: str) -> bool:
        """Whether the newest run printed a line with this."""
        return any(re.search(pattern, line) for line in self.lines)

    def kill_when(self, is_reached: Callable[[], bool], where: str) -> None:
        """kill -9 of the whole process group at that point."""
        assert self.process is not None
        deadline = time.monotonic() + STEP_S
        while not is_reached():
            assert self.process.poll() is None, f"it ended before {where}:\n{self.text()}"
            assert time.monotonic() < deadline, f"it never came to {where}:\n{self.text()}"
            time.sleep(0.02)
        self.kill()

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def finish(self, *options: str) -> None:
        """Runs it to its end, which must be a good one."""
        self.start(*options)
        assert self.process is not None
        self.process.wait(STEP_S)
        assert self.process.returncode == 0, self.text()

    def text(self) -> str:
        return "".join(self.lines)

    def jobs(self) -> list[tuple[str, str]]:
        """Name and state of every job that Slurm's accounting knows."""
        argv = [sys.executable, "-m", "infra.cli.main", "status", "--format", "json"]
        done = subprocess.run(
            argv, cwd=self.checkout, env=self.environ(), capture_output=True, text=True, check=True
        )
        return [(job["name"], job["state"]) for job in json.loads(done.stdout)]

    def declared_ids(self) -> Counter[str]:
        """Ids of the cloud resources that the engine's state holds; no operation is open there."""
        stacks = self.embedded.state.pulumi / ".pulumi" / "stacks"
        (file,) = stacks.glob("*/local.json")
        latest = json.loads(file.read_text())["checkpoint"]["latest"]
        assert not latest.get("pending_operations")
        resources = latest.get("resources") or []
        return Counter(each["id"] for each in resources if each["type"].startswith("nebius:"))

    def made_ids(self) -> Counter[str]:
        """Ids of the resources that the cloud has, but for those of its seed data."""
        path = self.embedded.state.local / EMULATOR / "nebius.sqlite"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            rows = database.execute("SELECT id FROM resources").fetchall()
        return Counter(id_ for (id_,) in rows if MADE.search(id_))

    def _read(self, process: subprocess.Popen[str]) -> None:
        lines = self.lines
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                lines.append(line)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """A copy of the checkout whose stack declares a free SSH port; nothing of it runs yet."""
    folder = tmp_path / "checkout"
    hidden = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info")
    shutil.copytree(CHECKOUT, folder, ignore=hidden)
    (folder / ".venv").symlink_to(CHECKOUT / ".venv")
    file = folder / "stacks" / "Pulumi.local.yaml"
    text, count = re.subn(r"ssh_port: \d+", f"ssh_port: {free_node_port()}", file.read_text())
    assert count == 1
    file.write_text(text)
    embedded = Cloud(
        state=State(tmp_path / "state"), cache=Cache.from_environ(), ports=Ports(free_base())
    )
    try:
        cloud.check_machine(embedded)
    except LocalError as error:
        pytest.skip(str(error))
    made = Demo(folder, embedded)
    try:
        yield made
    finally:
        made.kill()
        cloud.down(embedded, purge=True)


@pytest.mark.feature("S002-31")
def test_a_demo_killed_on_every_stretch_finishes_the_job_once(demo: Demo) -> None:
    state = demo.embedded.state
    demo.start()
    demo.kill_when((state.run / "etcd.json").exists, "the start of the local cloud")
    demo.start()
    demo.kill_when(lambda: demo.said("pulumi up: 20 resources"), "20 resources")
    demo.start()
    demo.kill_when(lambda: demo.said("prepare-data: submitted"), "the first submission")
    demo.start()
    demo.kill_when(lambda: demo.said(r"job \d+ finetune is RUNNING"), "the fine-tune")
    demo.start()
    demo.kill_when(lambda: demo.said(r"job \d+ evaluate is RUNNING"), "the evaluation")
    demo.start()
    demo.kill_when(lambda: demo.said(r"job \d+ serve is RUNNING"), "the start of the server")
    demo.start()
    demo.kill_when(lambda: demo.said(r"job \d+ load is RUNNING"), "the load test")
    demo.start()
    demo.kill_when(lambda: demo.said("pulumi up, measured cost"), "the last `pulumi up`")
    demo.finish()
    assert state.report.is_file()
    # Whether a load keeps the SLO is up to how busy the machine is.
    assert demo.said("^Cost per chat at full load")
    assert demo.said("^- What does a chat cost?")
    assert demo.jobs() == FINISHED
    assert demo.made_ids() == demo.declared_ids()

    demo.finish("--destroy")
    assert demo.said("evaluate: job 3 did this with the same code and settings")
    assert demo.said("serve: job 4 served this and was measured")
    assert demo.said("Destroyed: no process, mount or file is left outside ")
    assert demo.declared_ids() == demo.made_ids() == Counter()
