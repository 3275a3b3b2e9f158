"""kill -9 of each process of an `up` at its worst moment, and two at once: the next run heals.

The real engine with the emulator's own process. The moment is the worst there is: the cloud has
committed a create, and nobody has been told.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.local.nebius_api.errors import Faults
from infra.local.nebius_api.states import Store
from infra.providers.nebius.schema import Schema
from infra.state import Cache
from tests.engine.cloud_content import Content, content, unfinished
from tests.engine.nebius_project import (
    PROJECT,
    Emulator,
    Project,
    filesystem,
    pulumi_binary,
    running_emulator,
)
from tests.nightly import at_night

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
]
MIDDLE = r"SubnetService\.Create$"
DECLARED = {
    "jail": filesystem("jail"),
    "net": ("nebius:vpc/v1:Network", {"parent_id": PROJECT, "name": "net"}, {}),
    "sub": (
        "nebius:vpc/v1:Subnet",
        {"parent_id": PROJECT, "name": "sub"},
        {"network_id": "id of net"},
    ),
}
# The official host starts the program as a process of its own, the stand-in runs it itself.
COMMAND_LINES = {
    "program": ("pulumi-language-python-exec", "infra.local.plugins.language_host"),
    "plugin": ("infra.providers.nebius",),
}
_HELD_S = 120.0


@pytest.fixture
def project(tmp_path: Path, emulator: Emulator) -> Project:
    return _project(tmp_path / "project", emulator)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Content:
    """What one undisturbed `up` makes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with running_emulator(folder / "emulator") as emulator:
        _project(folder / "project", emulator).up()
        return _content(emulator)


def _project(folder: Path, emulator: Emulator) -> Project:
    folder.mkdir()
    project = Project(folder, emulator.port)
    project.declare(**DECLARED)
    return project


def _content(emulator: Emulator) -> Content:
    """All that the cloud holds, its seed too, with nothing still running."""
    emulator.kill()
    store = Store(emulator.folder, Schema(Cache.from_environ().root))
    try:
        assert unfinished(store) == []
        return content(store, {})
    finally:
        store.close()


@pytest.fixture
def held(emulator: Emulator, project: Project) -> Iterator[subprocess.Popen[str]]:
    """An `up` in whose middle the cloud has committed a create and does not answer."""
    faults = Faults(emulator.folder)
    fault = {"method": MIDDLE, "code": "SLOW", "seconds": _HELD_S, "when": "after"}
    faults.plant([fault])
    engine = project.start("up", "--yes", "--skip-preview")
    try:
        _wait(lambda: not faults.pending(), "the call in the middle")
        yield engine
    finally:
        faults.plant([])
        engine.kill()
        engine.communicate()


def _wait(is_met: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not is_met():
        assert time.monotonic() < deadline, f"no {what}"
        time.sleep(0.02)


def _find(engine: subprocess.Popen[str], part: str) -> int:
    """The pid of a part of the engine, by its command line."""
    parents, found = {}, []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat[1])
            if any(words in line for words in COMMAND_LINES[part]):
                found.append(int(entry.name))
    return next(pid for pid in found if _is_below(pid, engine.pid, parents))


def _is_below(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        if pid == ancestor:
            return True
        pid = parents[pid]
    return False


@pytest.mark.parametrize("part", [at_night("engine"), at_night("program"), "plugin"])
def test_a_part_that_is_killed_in_the_middle_leaves_what_the_next_up_completes(
    emulator: Emulator,
    project: Project,
    undisturbed: Content,
    held: subprocess.Popen[str],
    part: str,
) -> None:
    pid = held.pid if part == "engine" else _find(held, part)
    os.kill(pid, signal.SIGKILL)
    Faults(emulator.folder).plant([])
    output, _ = held.communicate(timeout=120)
    assert held.returncode != 0
    assert "Traceback" not in output
    if part == "engine":
        project.run("cancel", "--yes")
    project.up()
    project.up("--expect-no-changes")
    assert _content(emulator) == undisturbed


@pytest.mark.nightly
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_cloud_that_dies_in_the_middle_leaves_what_the_next_up_completes(
    emulator: Emulator, project: Project, undisturbed: Content, when: str
) -> None:
    Faults(emulator.folder).plant([{"method": MIDDLE, "code": "KILL", "when": when}])
    output = project.up(fails=True)
    assert "create Subnet 'sub': no answer from the emulated Nebius API" in output
    emulator.start()
    project.up()
    project.up("--expect-no-changes")
    assert _content(emulator) == undisturbed


def test_a_second_up_at_the_same_time_is_refused_and_makes_nothing(
    emulator: Emulator, project: Project, undisturbed: Content, held: subprocess.Popen[str]
) -> None:
    refused = project.up(fails=True)
    assert "the stack is currently locked by 1 lock(s)" in refused
    assert "Traceback" not in refused
    assert held.poll() is None
    Faults(emulator.folder).plant([])
    output, _ = held.communicate(timeout=120)
    assert held.returncode == 0, output
    project.up("--expect-no-changes")
    assert _content(emulator) == undisturbed
