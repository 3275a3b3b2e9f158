"""Scaling, stragglers, pairs and spreads from numbers alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workloads.accept import compute, connectivity, training
from workloads.accept.compute import Soak
from workloads.accept.connectivity import Pair, rounds
from workloads.accept.gates import Node, gates_for, table
from workloads.accept.readiness import NodeFacts, parse_xml
from workloads.accept.training import (
    Point,
    base_of,
    efficiency_percent,
    points_of,
    slowdowns_percent,
)
from workloads.common.dist import World
from workloads.recipes.accept import (
    AcceptConfig,
    ComputeConfig,
    StorageConfig,
    TrainingConfig,
    profiled,
)

H100 = gates_for("gpu-h100-sxm", 8)


def _nodes(count: int, per_node: int = 8) -> tuple[Node, ...]:
    return table(
        [
            (f"worker-{index}", "NVIDIA H100 80GB HBM3", 79.6)
            for index in range(count)
            for _ in range(per_node)
        ]
    )


def _point(ranks: int, tokens_per_s_per_rank: float, nodes: int = 1) -> Point:
    return Point(
        ranks=ranks,
        nodes=nodes,
        tokens=int(1000 * tokens_per_s_per_rank * ranks),
        seconds=1000.0,
        model="decoder-163m",
        batch=8,
        sequence=512,
        dtype="bf16",
        loss=2.0,
    )


@pytest.mark.feature("S001-58")
def test_the_table_names_nodes_roles_and_ranks() -> None:
    master, worker = _nodes(2)
    assert (master.name, master.role, master.ranks) == ("worker-0", "master", tuple(range(8)))
    assert (worker.role, worker.ranks, worker.gpus) == ("worker", tuple(range(8, 16)), 8)
    assert asdict(worker)["gpu_memory_gib"] == 79.6


@given(st.integers(min_value=2, max_value=33))
def test_every_pair_meets_once_and_nobody_is_in_two_pairs_at_a_time(ranks: int) -> None:
    found = rounds(range(ranks))
    assert sorted(pair for each in found for pair in each) == list(combinations(range(ranks), 2))
    for each in found:
        members = [rank for pair in each for rank in pair]
        assert len(members) == len(set(members))


@pytest.mark.feature("S001-59")
def test_a_point_on_several_nodes_is_held_against_one_whole_node() -> None:
    points = [_point(1, 100), _point(8, 95), _point(16, 90, 2), _point(32, 80, 4)]
    assert base_of(points, points[3]) is points[1]
    assert base_of(points, points[1]) is points[0]
    assert base_of(points, points[0]) is None
    assert efficiency_percent(points[1], points[3]) == pytest.approx(100 * 80 / 95)


@pytest.mark.feature("S001-50")
@pytest.mark.parametrize("platform", ["gpu-h100-sxm", "gpu-h200-sxm"])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_efficiency_is_to_be_90_percent_on_whole_nodes(platform: str, nodes: int) -> None:
    scope = "node" if nodes == 1 else "cluster"
    limit = gates_for(platform, 8).limit("training.scaling_efficiency", scope=scope, nodes=nodes)
    assert limit is not None
    assert (limit.says(), limit.unit) == ("at least 90", "percent")
    assert limit.holds(90.1)
    assert not limit.holds(89.9)


@pytest.mark.feature("S001-50", "S001-59", "S002-81", "S004-26")
def test_efficiency_is_judged_at_each_point() -> None:
    points = [_point(1, 40000), _point(8, 39000), _point(16, 34000, 2)]
    checks = training.judge(points, [[1.0]] * 16, _nodes(2), H100)
    found = [check for check in checks if check.id == "training.scaling_efficiency"]
    assert [check.outcome for check in found] == ["PASS", "FAIL"]
    assert found[1].measured == pytest.approx(100 * 34 / 39)
    assert found[1].nodes == ("worker-0", "worker-1")
    assert found[1].context["model"] == "decoder-163m"
    assert found[1].context["base_ranks"] == 8


def test_more_than_all_ranks_can_do_says_that_the_base_was_held_up_and_passes_nothing() -> None:
    """A base at half speed made a cluster that lost a third of its work look perfect."""
    points = [_point(8, 20000), _point(16, 27000, 2)]
    checks = training.judge(points, [[1.0]] * 16, _nodes(2), H100)
    (found,) = [check for check in checks if check.id == "training.scaling_efficiency"]
    assert found.outcome == "NOT_RUN"
    assert "135 % is more than 16 ranks can do: the 8 that it is compared" in str(found.reason)


def test_a_loss_that_is_no_number_fails() -> None:
    bad = Point(
        **{**{name: getattr(_point(1, 1), name) for name in Point.__slots__}, "loss": float("nan")}
    )
    checks = training.judge([bad], [], _nodes(1), gates_for(None, 0))
    assert [(check.id, check.outcome) for check in checks] == [("training.loss", "FAIL")]


def test_a_slow_rank_is_found_and_its_node_named() -> None:
    work = [[0.1, 0.1, 0.11] for _ in range(16)]
    work[11] = [0.1, 0.125, 0.13]
    assert slowdowns_percent(work)[11] == pytest.approx(25)
    (check,) = (
        check
        for check in training.judge([_point(16, 40000, 2)], work, _nodes(2), H100)
        if check.id == "training.straggler_slowdown"
    )
    assert check.outcome == "FAIL"
    assert check.nodes == ("worker-1",)
    assert "rank 11 on worker-1 +25 %" in str(check.reason)


def test_one_slow_step_is_no_straggler() -> None:
    work = [[0.1, 0.1, 0.1] for _ in range(16)]
    work[3] = [0.1, 0.1, 9.0]
    assert max(slowdowns_percent(work)) == 0


def test_a_slow_link_is_blamed_on_the_node_that_all_slow_pairs_share() -> None:
    nodes = _nodes(3, 1)
    pairs = [
        Pair(one=0, other=1, is_right=True, gb_per_s=48),
        Pair(one=0, other=2, is_right=True, gb_per_s=12),
        Pair(one=1, other=2, is_right=True, gb_per_s=12.5),
    ]
    checks = connectivity.judge_pairs(pairs, nodes, 3, H100)
    (slow,) = (check for check in checks if check.outcome == "FAIL")
    assert (slow.id, slow.nodes) == ("connectivity.pair_share", ("worker-2",))
    assert slow.measured == pytest.approx(0.25)
    alone = connectivity.judge_pairs(pairs[:1], nodes[:2], 2, H100)
    assert [check.id for check in alone] == ["connectivity.nodes", "connectivity.pairs"]


@pytest.mark.feature("S001-47")
def test_a_pair_that_nobody_measured_or_that_got_other_values_fails() -> None:
    nodes = _nodes(2, 1)
    none = connectivity.judge_pairs([], nodes, 2, H100)
    assert {check.id for check in none if check.outcome == "FAIL"} == {
        "connectivity.nodes",
        "connectivity.pairs",
    }
    wrong = connectivity.judge_pairs(
        [Pair(one=0, other=1, is_right=False, gb_per_s=1)], nodes, 2, H100
    )
    failed = {check.id: check for check in wrong if check.outcome == "FAIL"}
    assert failed["connectivity.pairs"].reason == "0 of 1 pairs; wrong: 0-1"


def test_a_slow_gpu_fails_the_gate_and_the_spread() -> None:
    rows = [
        {
            "rank": rank,
            "gemm_tflops": 740.0 if rank != 5 else 690.0,
            "hbm_gb_per_s": 3000.0,
            "host_to_device_gb_per_s": 55.0,
            "is_right": True,
        }
        for rank in range(8)
    ]
    failed = {
        check.id: check
        for check in compute.judge_compute(rows, _nodes(1), H100)
        if check.outcome == "FAIL"
    }
    assert set(failed) == {"compute.gemm", "compute.gemm_spread"}
    assert failed["compute.gemm"].subject == "rank 5, the slowest of 8"


def test_a_soak_that_slows_down_or_sums_wrongly_fails() -> None:
    warm = Soak(seconds=60, round_s=(1.0, 1.0, 1.1, 1.1, 1.2, 1.2), wrong_rounds=1)
    assert warm.drift_percent == pytest.approx(20)
    outcomes = {
        check.id: check.outcome for check in compute.judge_soak(warm, [], [], _nodes(1), H100)
    }
    assert outcomes == {"soak.values": "FAIL", "soak.drift": "FAIL"}


_SMI = (Path(__file__).parent / "recorded" / "smi_2xh100.xml").read_text()


def _facts(text: str | None) -> list[NodeFacts]:
    gpus = () if text is None else parse_xml(text)
    errors = ("nvidia-smi: no answer",) if text is None else ()
    return [NodeFacts(name="worker-0", gpus=gpus, nvlinks={}, ports=(), versions={}, errors=errors)]


@pytest.mark.parametrize(
    ("before", "after", "outcome", "reason"),
    [
        (_SMI, _SMI, "PASS", None),
        (
            _SMI,
            _SMI.replace("<dram_uncorrectable>0", "<dram_uncorrectable>3"),
            "FAIL",
            "GPU 0: 3 new uncorrected ECC errors: drain the node",
        ),
        (
            _SMI,
            _SMI.replace("hw_thermal_slowdown>Not Active", "hw_thermal_slowdown>Active"),
            "FAIL",
            "GPU 0: slowed down by hw_thermal_slowdown",
        ),
        # One GPU fell off the bus; it passed.
        (_SMI, _SMI[: _SMI.rindex("<gpu ")] + "</nvidia_smi_log>", "FAIL", "1 of 2 GPUs are left"),
        # Nobody read what would have shown; it passed, or was not there.
        (
            _SMI,
            re.sub(r"uncorrectable([a-z_]*)>0", r"uncorrectable\1>N/A", _SMI),
            "NOT_RUN",
            "say: u",
        ),
        (
            _SMI,
            re.sub(r"_slowdown>(Not )?Active", "_slowdown>N/A", _SMI),
            "NOT_RUN",
            "say: what slows",
        ),
        (_SMI, None, "NOT_RUN", "no answer"),
        # All of them fell off, while nvidia-smi answers; it was NOT RUN.
        (_SMI, _SMI[: _SMI.index("<gpu ")] + "</nvidia_smi_log>", "FAIL", "0 of 2 GPUs are left"),
        # Nobody knows how many there were, or what they had; it passed, and was "new".
        (None, _SMI, "NOT_RUN", "no answer"),
        (
            re.sub(r"uncorrectable([a-z_]*)>0", r"uncorrectable\1>N/A", _SMI),
            _SMI.replace("<dram_uncorrectable>0", "<dram_uncorrectable>3"),
            "NOT_RUN",
            "GPU 0: 3 uncorrected ECC errors, of the soak or from before it",
        ),
        (None, None, "NOT_RUN", "no answer"),
    ],
)
def test_a_soak_passes_the_gpus_that_were_looked_at_and_are_as_before(
    before: str | None, after: str | None, outcome: str, reason: str | None
) -> None:
    soak = Soak(seconds=60, round_s=(1.0, 1.0, 1.0), wrong_rounds=0)
    checks = compute.judge_soak(soak, _facts(before), _facts(after), _nodes(1), H100)
    (found,) = (check for check in checks if check.id == "soak.gpus")
    assert (found.outcome, found.nodes) == (outcome, ("worker-0",))
    assert reason is None or reason in str(found.reason)


def test_a_soak_of_a_cpu_rehearsal_asks_no_gpu_that_the_machine_has() -> None:
    soak = Soak(seconds=60, round_s=(1.0, 1.0, 1.0), wrong_rounds=0)
    nodes = [replace(node, gpus=0) for node in _nodes(1)]
    silent = re.sub(r"uncorrectable([a-z_]*)>0", r"uncorrectable\1>N/A", _SMI)
    checks = compute.judge_soak(soak, _facts(silent), _facts(silent), nodes, H100)
    assert {check.outcome for check in checks} == {"PASS"}


def test_points_of_which_none_is_of_all_ranks_find_no_straggler_and_say_so() -> None:
    """It was a StatisticsError, and the stage's other checks were lost."""
    checks = training.judge([_point(2, 40000)], [[]] * 8, _nodes(1), H100)
    (found,) = (check for check in checks if check.id == "training.straggler_slowdown")
    assert (found.outcome, found.reason) == ("NOT_RUN", "no point is of all ranks")


@pytest.mark.feature("S004-26")
@pytest.mark.parametrize(
    ("world", "per_node", "points"),
    [
        (16, 8, (1, 2, 4, 8, 16)),
        (32, 8, (1, 2, 4, 8, 16, 32)),
        (24, 8, (1, 2, 4, 8, 16, 24)),
        (4, 1, (1, 2, 4)),
        (1, 1, (1,)),
    ],
)
def test_points_are_1_2_4_in_a_node_then_whole_nodes_then_all(
    world: int, per_node: int, points: tuple[int, ...]
) -> None:
    assert points_of(TrainingConfig(), world, per_node) == points


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [2, 3, 100, 512])
def test_the_product_that_values_are_held_against_is_exact(size: int, dtype: torch.dtype) -> None:
    left, right, product = compute.known_product(size, dtype, torch.device("cpu"))
    # float64 adds these whole numbers exactly.
    assert torch.equal(left.double() @ right.double(), product.double())
    assert torch.equal(left @ right, product)
    assert product.dtype == dtype
    assert 0 < product.min() <= product.max() <= 255, "zeros would be in memory that nobody wrote"
    again, _, _ = compute.known_product(size, dtype, torch.device("cpu"))
    assert torch.equal(left, again)
    with pytest.raises(ValueError, match="matrix_size: got 1, expected >= 2"):
        ComputeConfig(matrix_size=1)


def _of(tiles: Sequence[int]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A product that adds these tiles of 16 of eight."""
    columns = [16 * tile + each for tile in tiles for each in range(16)]
    return lambda left, right: left[:, columns] @ right[columns]


@pytest.mark.parametrize(
    "wrong",
    [
        *(_of([tile for tile in range(8) if tile != left_out]) for left_out in range(8)),
        _of([0, 0, 2, 3, 4, 5, 6, 7]),
        lambda left, right: left[:, [*range(16), *range(112)]] @ right,
        lambda left, right: left.roll(64, 1) @ right,
        lambda left, right: left @ right.roll(16, 0),
        lambda left, right: left.roll(16, 0) @ right,
        lambda left, right: (left @ right).roll(64, 1),
        lambda left, right: left.T @ right,
        lambda left, right: (left @ right).T,
        lambda left, right: (left @ right).index_fill(0, torch.tensor([127]), -1),
        lambda left, right: (
            left.index_put((torch.tensor(5), torch.tensor(90)), torch.tensor(0.0)) @ right
        ),
    ],
)
def test_a_product_that_is_wrong_anywhere_is_seen(
    wrong: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of constant matrices every order is right, and a tile that was added in place of another."""

    def multiply(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(wrong(left, right))

    monkeypatch.setattr(torch, "matmul", multiply)
    here = World(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"))
    (row,) = compute.measure_compute(here, ComputeConfig(matrix_size=128, copy_mb=1, iterations=1))
    assert row["is_right"] is False


@pytest.mark.feature("S001-52", "S001-53", "S001-54", "S001-55")
def test_quick_repeats_less_and_keeps_the_sizes_that_limits_speak_of() -> None:
    full = AcceptConfig()
    quick = profiled(AcceptConfig(profile="quick"))
    assert quick.collectives.sizes_mb == full.collectives.sizes_mb == (1, 10, 100, 1000, 8000)
    assert (quick.soak_s, quick.training.steps) == (60, 20)
    assert profiled(full) == full


class _BesideAWrongRank(World):
    """A rank that is right beside one whose copy of the sum is wrong."""

    def sum(self, values: list[float]) -> list[float]:
        return [value + 1 for value in values] if len(values) == 1 else values


def test_a_sum_that_arrived_wrong_on_any_rank_is_wrong() -> None:
    tiny = TrainingConfig(
        name="tiny", vocabulary=8, width=4, layers=1, heads=1, sequence=2, batch=1
    )
    here = {"rank": 0, "local_rank": 0, "world_size": 1, "device": torch.device("cpu")}
    assert compute.measure_soak(World(**here), tiny, 0).wrong_rounds == 0
    found = compute.measure_soak(_BesideAWrongRank(**here), tiny, 0)
    assert found.wrong_rounds == len(found.round_s) == 3


class _Distributed(World):
    """One rank that asks the others, who are none."""

    @property
    def is_distributed(self) -> bool:
        return True

    def broadcast(self, value: Any) -> Any:
        return value


@pytest.mark.parametrize(("shift", "wrong"), [(0, 0), (4, 3)])
def test_a_sum_whose_parts_are_elsewhere_is_wrong(
    shift: int, wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All elements of the soak's message were 1."""

    def reduce(tensor: torch.Tensor, **_: Any) -> None:
        tensor.copy_(tensor.roll(shift) if tensor.numel() > 8 else tensor)

    monkeypatch.setattr(torch.distributed, "all_reduce", reduce)
    tiny = TrainingConfig(
        name="tiny", vocabulary=8, width=4, layers=1, heads=1, sequence=2, batch=1
    )
    here = _Distributed(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"))
    assert compute.measure_soak(here, tiny, 0).wrong_rounds == wrong


@pytest.mark.feature("S001-49")
def test_too_few_tokens_fail_and_those_of_another_batch_or_sequence_are_not_judged() -> None:
    check = "training.tokens_per_s_per_gpu"
    for changes, outcome in (
        ({}, "PASS"),
        ({"tokens": 8 * 32_999 * 1000}, "FAIL"),
        ({"batch": 4}, "NOT_RUN"),
        ({"sequence": 64}, "NOT_RUN"),
    ):
        point = replace(_point(8, 40000), **changes)
        found = {each.id: each for each in training.judge([point], [], _nodes(1), H100)}
        assert found[check].outcome == outcome
    own = replace(_point(8, 40000), model="ours", batch=4)
    assert check not in {each.id for each in training.judge([own], [], _nodes(1), H100)}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: TrainingConfig(layers=1),
            "name: decoder-163m has another shape .layers 1, not 12",
        ),
        (lambda: TrainingConfig(batch=0), "batch: got 0, expected > 0"),
        (lambda: TrainingConfig(name="x", heads=0), "heads: got 0, expected > 0"),
        (lambda: ComputeConfig(iterations=0), "iterations: got 0, expected > 0"),
        (lambda: ComputeConfig(copy_mb=0), "copy_mb: got 0, expected > 0"),
        (
            lambda: StorageConfig(file_mb=1, block_kib=64, random_block_kib=4096),
            "random_block_kib: got 4096, a file has 960 KiB",
        ),
    ],
)
def test_settings_that_measure_nothing_are_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_products_are_timed_with_values_that_cost_power(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    matmul = torch.matmul

    def look(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        seen.append(min(int(left.unique().numel()), int(right.unique().numel())))
        return matmul(left, right, out=out)

    monkeypatch.setattr(torch, "matmul", look)
    here = World(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"))
    (row,) = compute.measure_compute(here, ComputeConfig(matrix_size=16, copy_mb=1, iterations=2))
    assert row["is_right"]
    assert min(seen[1:]) > 100
