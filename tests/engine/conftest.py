"""Fixtures that the engine tests share; a module with an emulator of its own overrides this one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.nebius_project import Emulator, running_emulator


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    """An emulated cloud of its own for each test."""
    with running_emulator(tmp_path / "emulator") as running:
        yield running
