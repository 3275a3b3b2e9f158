"""Shipped stacks, and the emulator as the API that the environment names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from infra.providers.nebius import sdk
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing
from tests.unit.nebius_api.conftest import Served


@pytest.fixture
def stack(public_key_file: Path) -> Callable[..., StackSpec]:
    """`stack("h100-prod", billing)`: the shipped stack, its workers billed so."""

    def load(name: str, billing: Billing = Billing.ON_DEMAND) -> StackSpec:
        spec = load_stack(name)
        workers = tuple(replace(worker, billing=billing) for worker in spec.nodes.workers)
        return replace(spec, nodes=replace(spec.nodes, workers=workers))

    return load


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("emulator"), latency_s=0.02)
    yield served
    served.stop()


@pytest.fixture
def emulator(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """The emulator, which the environment names; no fault is planted in it."""
    monkeypatch.setenv(sdk.ENDPOINT_VARIABLE, served.endpoint)
    monkeypatch.setenv(sdk.TOKEN_VARIABLE, "local-token")
    served.emulator.faults.plant([])
    served.emulator.calls.clear()
    sdk.shared_sdk.cache_clear()
    yield served
    if sdk.shared_sdk.cache_info().currsize:
        sdk.shared_sdk().sync_close()
    sdk.shared_sdk.cache_clear()
