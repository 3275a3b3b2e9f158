"""Ranks and their devices: one GPU a rank, NCCL between GPUs, gloo between CPUs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from workloads.common.dist import World, world
from workloads.common.exit_codes import ConfigError


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """How the process group of local rank 1 of 2 was asked for."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(dist, "init_process_group", lambda **options: made.append(options))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    for name, value in {"RANK": 3, "LOCAL_RANK": 1, "WORLD_SIZE": 4}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    return made


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int, taken: list[torch.device]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)


@pytest.mark.feature("S000-05", "S002-39", "S003-03", "S003-33", "S003-51")
def test_ranks_with_gpus_meet_over_nccl(
    groups: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[torch.device] = []
    with_gpus(monkeypatch, 2, taken)
    with world(timeout_s=60) as here:
        assert (here.rank, here.world_size) == (3, 4)
    (options,) = groups
    assert options["backend"] == "cpu:gloo,cuda:nccl"
    assert options["timeout"].total_seconds() == 60


@pytest.mark.feature("S003-51")
def test_the_ranks_of_a_checkpoint_wait_for_each_other_as_long_as_is_declared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They have a group of their own, which torch would let wait for half an hour."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(dist, "new_group", lambda **options: made.append(options))
    here = World(rank=0, local_rank=0, world_size=2, device=torch.device("cpu"))
    here.apart(60)
    assert [options["timeout"].total_seconds() for options in made] == [60]


@pytest.mark.feature("S003-04")
def test_a_rank_has_one_gpu_of_its_own(
    groups: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[torch.device] = []
    with_gpus(monkeypatch, 2, taken)
    with world() as here:
        assert here.device == torch.device("cuda", 1)
    assert taken == [torch.device("cuda", 1)]
    with_gpus(monkeypatch, 1, taken)
    with pytest.raises(ConfigError, match="this node shows 1 GPUs to the job"), world():
        pass


@pytest.mark.feature("S003-33")
@pytest.mark.parametrize(
    ("backend", "expected"), [(None, "cpu:gloo,cuda:nccl"), ("nccl", "cpu:gloo,cuda:nccl"),
                              ("gloo", "gloo")]
)  # fmt: skip
def test_ranks_with_gpus_meet_over_the_backend_that_is_asked_for(
    groups: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    backend: str | None,
    expected: str,
) -> None:
    """Gloo has no use for the device, which NCCL opens its connections with."""
    with_gpus(monkeypatch, 2, [])
    with world(backend=backend) as here:
        assert here.device == torch.device("cuda", 1)
    (options,) = groups
    assert options["backend"] == expected
    assert options["device_id"] == (None if backend == "gloo" else here.device)


@pytest.mark.feature("S003-33")
def test_ranks_without_gpus_meet_over_gloo(
    groups: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpus(monkeypatch, 0, [])
    with world() as here:
        assert here.device == torch.device("cpu")
    assert groups[0]["backend"] == "gloo"
    assert groups[0]["device_id"] is None
