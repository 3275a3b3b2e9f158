"""An emulator in this process, and `soperator init` against it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.providers.nebius import sdk
from tests.unit.nebius_api.conftest import PROJECT, Served

__all__ = ["PROJECT"]


@pytest.fixture
def served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path
) -> Iterator[Served]:
    """A fresh emulator that the environment names."""
    served: Any = Served(tmp_path / "emulator", latency_s=0)
    monkeypatch.setenv("SOPERATOR_NEBIUS_ENDPOINT", served.endpoint)
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", "local-token")
    monkeypatch.delenv("SOPERATOR_NEBIUS_KEY_FILE", raising=False)
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    sdk.shared_sdk.cache_clear()
    yield served
    sdk.shared_sdk.cache_clear()
    served.stop()


def environment_of(path: Path) -> dict[str, str]:
    """The variables that a shell has after sourcing the file."""
    import subprocess

    done = subprocess.run(
        ["bash", "-c", 'set -a; . "$0"; env -0', str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    return dict(pair.split("=", 1) for pair in done.stdout.split("\0") if pair)
