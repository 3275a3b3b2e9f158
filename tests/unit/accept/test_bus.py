"""Bandwidth of collectives: factors, nccl-tests' text, numbers that contradict themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from workloads.accept import collectives, connectivity
from workloads.accept.collectives import (
    BUS_FACTORS,
    Transfer,
    algorithm,
    aligned,
    arithmetic_trouble,
    judge,
    parse,
    transfer,
)
from workloads.accept.gates import ProgramError, gates_for
from workloads.common.dist import World
from workloads.recipes.accept import CollectivesConfig

GB_8 = 8 * 10**9
RECORDED = Path(__file__).parent / "recorded"


def _text(name: str) -> str:
    return (RECORDED / name).read_text()


@pytest.mark.parametrize(
    ("op", "ranks", "factor"),
    [
        # doc/PERFORMANCE.md of nccl-tests.
        ("all_reduce", 8, 1.75),
        ("all_reduce", 16, 1.875),
        ("all_gather", 8, 0.875),
        ("reduce_scatter", 8, 0.875),
        ("send_recv", 16, 1.0),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(op: str, ranks: int, factor: float) -> None:
    assert BUS_FACTORS[op](ranks) == factor
    row = transfer(op, ranks, 10**9, 0.01)
    assert row.algbw_gb_per_s == pytest.approx(100)
    assert row.busbw_gb_per_s == pytest.approx(100 * factor)
    assert arithmetic_trouble(row) is None


def test_recorded_output_of_16_h100_is_read_with_the_slower_of_both_columns() -> None:
    rows = parse(_text("nccl_all_reduce_16xh100.txt"), op="all_reduce", ranks=16)
    assert [row.bytes for row in rows] == [2**29, 2**30, 2**31, 2**32, 2**33]
    assert [row.busbw_gb_per_s for row in rows][-2:] == [392.27, 391.45]
    assert rows[-1].time_s == pytest.approx(0.041145)
    assert {row.wrong for row in rows} == {0}
    assert not [trouble for row in rows if (trouble := arithmetic_trouble(row))]


def test_the_wrong_number_of_ranks_shows_in_recorded_output() -> None:
    for row in parse(_text("nccl_all_reduce_16xh100.txt"), op="all_reduce", ranks=8):
        trouble = arithmetic_trouble(row)
        assert trouble is not None
        assert "bus factor 1.875 was used, all_reduce over 8 ranks has 1.75" in trouble


def test_a_bandwidth_that_its_size_and_time_do_not_give_is_told() -> None:
    row = transfer("all_reduce", 8, 10**9, 0.01)
    # MiB counted as MB, or bits as bytes: both numbers are wrong by the same share.
    wrong = replace(row, algbw_gb_per_s=100 * 1.0486, busbw_gb_per_s=175 * 1.0486)
    trouble = arithmetic_trouble(wrong)
    assert trouble is not None
    assert "are 100 GB/s, not 104.9" in trouble


@pytest.mark.feature("S001-48")
def test_a_slow_fabric_fails_and_a_sound_one_passes() -> None:
    gates = gates_for("gpu-h100-sxm", 8)
    found = {}
    for name in ("16xh100", "slow"):
        rows = parse(_text(f"nccl_all_reduce_{name}.txt"), op="all_reduce", ranks=16)
        placed = [replace(row, scope="cluster", nodes=("worker-0", "worker-1")) for row in rows]
        checks = {check.id: check for check in judge(placed, gates, "ring")}
        found[name] = checks["collectives.all_reduce"]
    assert [check.outcome for check in found.values()] == ["PASS", "FAIL"]
    assert found["slow"].measured == 155.56
    assert found["slow"].nodes == ("worker-0", "worker-1")


def test_a_prefix_of_the_launcher_and_no_error_check_are_read() -> None:
    rows = parse(_text("nccl_all_reduce_slow.txt"), op="all_reduce", ranks=16)
    assert len(rows) == 8
    assert {row.wrong for row in rows} == {None}


def test_output_that_was_cut_short_is_no_result() -> None:
    text = _text("nccl_all_reduce_a6000.txt")
    with pytest.raises(ProgramError, match="4 rows and no 'Avg bus bandwidth'"):
        parse(text.partition("# Out of bounds")[0], op="all_reduce", ranks=2)
    with pytest.raises(ProgramError, match="no row of results; its last line: # Avg bus"):
        parse("4 1 float sum 0 0 0 0 0 0 0 0\n# Avg bus bandwidth : 0\n", op="all_reduce", ranks=2)
    with pytest.raises(ProgramError, match="no row of results; its last line: no NCCL"):
        parse("something\nno NCCL\n", op="all_reduce", ranks=2)


@pytest.mark.parametrize(
    "edit",
    [
        ("47.48   47.48      0\n", "47.48   47.48      7\n"),
        ("47.49   47.49      0   180902", "47.49   47.49      7   180902"),
    ],
)
def test_elements_that_arrive_wrong_fail_whatever_the_speed(edit: tuple[str, str]) -> None:
    """Those of the faster column were lost with its time."""
    sound = _text("nccl_all_reduce_a6000.txt")
    rows = parse(sound.replace(*edit), op="all_reduce", ranks=2)
    assert sum(row.wrong or 0 for row in rows) == 7
    placed = [replace(row, nodes=("worker-0",)) for row in rows]
    checks = {check.id: check for check in judge(placed, gates_for("gpu-l40s-d", 2), None)}
    assert checks["collectives.values"].outcome == "FAIL"
    assert checks["collectives.values"].nodes == ("worker-0",)


@pytest.mark.parametrize(
    ("gpus", "environment", "way"),
    [
        (8, {}, "nvls"),
        (4, {}, "ring"),  # NVLS starts above four
        (8, {"NCCL_ALGO": "Ring"}, "ring"),
        (8, {"NCCL_ALGO": "NVLSTree"}, "nvls"),
        (8, {"NCCL_NVLS_ENABLE": "0"}, "ring"),
        (8, {"NCCL_ALGO": "^NVLS,NVLSTree"}, "ring"),  # all but these
        (8, {"NCCL_ALGO": "^Ring"}, "nvls"),
    ],
)
def test_nccl_may_reduce_in_the_switch_above_four_gpus(
    gpus: int, environment: dict[str, str], way: str
) -> None:
    assert algorithm(gpus, environment) == way


def _row(num_bytes: int, busbw: float, source: str = "torch", wrong: int | None = 0) -> Transfer:
    """An all-reduce of eight ranks on one node."""
    at = {"wrong": wrong, "source": source, "nodes": ("worker-0",)}
    return transfer("all_reduce", 8, num_bytes, num_bytes * 1.75 / busbw / 1e9, **at)


@pytest.mark.parametrize("ranks", [8, 16, 24, 48, 56])
def test_a_message_has_equal_parts_and_no_byte_less_than_asked(ranks: int) -> None:
    num_bytes = aligned(8 * 10**9, 4 * ranks)
    assert num_bytes % (4 * ranks) == 0
    assert 0 <= num_bytes - 8 * 10**9 < 4 * ranks


def _two_ranks(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Tensor], Tensor]) -> World:
    """Rank 0 of two, whose messages to itself come `spoil`ed; 1 is what the other's have more."""

    def into(tensor: Tensor, right: Tensor) -> None:
        tensor.copy_(spoil(right))

    def scatter(own: Tensor, whole: Tensor, group: object = None) -> None:
        own.copy_(spoil(2 * whole + 1)[: len(own)])

    def exchange(operations: Any) -> list[Any]:
        sent, got = operations
        into(got.tensor, sent.tensor + 1)
        return []

    for name, replaced in {
        "barrier": lambda **_: None,
        "all_reduce": lambda tensor, **_: into(tensor, 2 * tensor + 1),
        "all_gather_into_tensor": lambda got, own, **_: into(got, torch.cat([own, own + 1])),
        "reduce_scatter_tensor": scatter,
        "P2POp": lambda _op, tensor, *_: SimpleNamespace(tensor=tensor),
        "batch_isend_irecv": exchange,
    }.items():
        monkeypatch.setattr(torch.distributed, name, replaced)
    return World(rank=0, local_rank=0, world_size=2, device=torch.device("cpu"))


@pytest.mark.parametrize("op", [*BUS_FACTORS, "pair"])
@pytest.mark.parametrize(
    ("spoil", "is_right"),
    [
        (lambda right: right, True),
        (lambda right: right.roll(4), False),  # parts in another order
        (lambda right: right.roll(len(right) // 2), False),
        (lambda right: right.index_fill(0, torch.tensor([3]), 0), False),
        (lambda right: right * 0 - 1, False),  # nothing came
    ],
)
def test_messages_whose_parts_are_elsewhere_or_missing_are_wrong(
    op: str, spoil: Callable[[Tensor], Tensor], is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All elements had one value: a part in the place of another was right."""
    world = _two_ranks(monkeypatch, spoil)
    if op == "pair":
        assert connectivity._meet(world, 0, 1, 1000).is_right is is_right
        return
    config = CollectivesConfig(iterations=1, warmup=0)
    _, wrong = collectives._time(world, op, 1000, (0, 1), 1, config, None)
    assert (wrong == 0) is is_right


def test_sizes_below_every_limit_are_not_run() -> None:
    rows = [_row(10**6, 20), _row(10**8, 300)]
    checks = {check.id: check for check in judge(rows, gates_for("gpu-h100-sxm", 8), "nvls")}
    assert checks["collectives.all_reduce"].outcome == "NOT_RUN"
    assert "the limit speaks of 8000 MB and more" in str(checks["collectives.all_reduce"].reason)
    assert [check.id for check in judge(rows, gates_for("gpu-l40s-d", 2), "ring")] == [
        "collectives.values",
        "collectives.arithmetic",
    ], "hardware without a limit has no such check"


def test_a_good_row_of_one_program_hides_no_bad_row_of_another() -> None:
    for first, second in (("torch", "nccl-tests"), ("nccl-tests", "torch")):
        rows = [_row(GB_8, 300, first), _row(GB_8, 470, second)]
        found = [
            (check.outcome, check.context["source"])
            for check in judge(rows, gates_for("gpu-h100-sxm", 8), "nvls")
            if check.id == "collectives.all_reduce"
        ]
        assert found == [("FAIL", first), ("PASS", second)]


def test_values_that_nobody_looked_at_are_not_run() -> None:
    gates = gates_for("gpu-l40s-d", 2)
    blind, seen = _row(10**6, 20, "nccl-tests", None), _row(10**6, 20)
    for rows, outcome in (([blind], "NOT_RUN"), ([blind, seen], "PASS")):
        (values, _) = judge(rows, gates, None)
        assert (values.id, values.outcome) == ("collectives.values", outcome)
        assert values.subject == f"{len(rows) - 1} of {len(rows)} rows"


def test_wrong_elements_of_a_large_message_are_counted_in_little_memory() -> None:
    """A count in one piece takes twice the message: L40S has no room for that beside 8 GB."""
    came = torch.zeros(3 * 2**24 + 5)
    expected = came.clone()
    expected[[0, 2**24, -1]] = 1
    with torch.profiler.profile(profile_memory=True) as profile:
        assert collectives.count_wrong(came, expected) == 3
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    assert 0 < largest <= 8 * 2**24
