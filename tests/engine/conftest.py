"""Fixtures that the engine tests share; a module with an emulator of its own overrides this one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.local.engine import PLUGINS_SETTING
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
