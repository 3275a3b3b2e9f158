"""Fixtures that the engine tests share; a module with an emulator of its own overrides this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.local.engine import PLUGINS_SETTING
from infra.state import CHECKOUT
from tests.engine import forked
from tests.engine.nebius_project import Emulator, running_emulator


@pytest.fixture(autouse=True, scope="module")
def plugins_without_kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of SOPERATOR_PLUGINS all but the kubernetes plugin: it would pull Soperator's own charts.

    tests/conformance holds that one against our stand-in, over charts on loopback.
    """
    given = os.environ.get(PLUGINS_SETTING)
    if not given:
        yield
        return
    folder = tmp_path_factory.mktemp("plugins")
    for program in Path(given).glob("pulumi-*"):
        if program.name != "pulumi-resource-kubernetes":
            (folder / program.name).symlink_to(program.resolve())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PLUGINS_SETTING, str(folder))
        yield


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    """An emulated cloud of its own for each test."""
    with running_emulator(tmp_path / "emulator") as running:
        yield running


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The socket of what forks programs of ours (fork_server.py)."""
    path = str(tmp_path_factory.mktemp("forks") / "socket")
    with subprocess.Popen(
        [sys.executable, "-m", "tests.engine.fork_server", path],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        yield path


@pytest.fixture(scope="module")
def forks(fork_server: str) -> Iterator[None]:
    """What `pulumi` starts of ours, and our commands, are forked; no test of faults has that."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in forked.variables(fork_server).items():
            patch.setenv(name, value)
        yield
