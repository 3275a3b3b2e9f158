"""Which presets a model fits on: order, prices, reasons, and what this project can run."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from itertools import pairwise

import pytest

from cost.prices.book import Price, PriceBook, Unit
from cost.report.layout import Format, render_report
from cost.resources.lines import node_rate
from cost.size.answer import GPUS_ASKED, training_answer, verdicts_on
from cost.size.choice import (
    Choice,
    Gpus,
    best,
    choices,
    gpu_presets,
    shardings,
    verdicts,
)
from cost.size.memory import GIB, Dtype, Method, Serving, Strategy, Training, usable_bytes
from cost.size.shape import SizeError, load_shape
from stacks.catalog import PLATFORMS
from stacks.spec.nodes import BootDiskSpec, NodeGroupSpec

BOOK = PriceBook.load("nebius")
LORA_14B = Training(sequence_length=2048, gradient_checkpointing=True)


def by_preset(choices: tuple[Choice, ...]) -> dict[str, Choice]:
    """Returns the choices by platform and preset."""
    return {f"{each.platform}/{each.preset}": each for each in choices}


def test_every_preset_with_gpus_has_one_row() -> None:
    found = choices(load_shape("Qwen3-14B"), LORA_14B, BOOK)
    assert len(found) == len(by_preset(found)) == len(list(gpu_presets()))


@pytest.mark.feature("S000-18")
def test_the_first_is_the_cheapest_that_fits_and_runs_here() -> None:
    found = choices(load_shape("Qwen3-14B"), LORA_14B, BOOK)
    good = [each for each in found if each.fits and each.runs_here]
    assert found[: len(good)] == tuple(good)
    prices = [each.usd_per_hour for each in good if each.usd_per_hour is not None]
    assert prices == sorted(prices)
    assert good[len(prices) :] == [each for each in good if each.usd_per_hour is None]


@pytest.mark.feature("S000-18")
@pytest.mark.parametrize("cheap", ["eu-north1", "eu-west1"])
def test_a_platform_has_the_price_of_its_cheapest_region(cheap: str) -> None:
    dear = {region: Decimal(6) for region in PLATFORMS["gpu-h200-sxm"].regions}
    prices = [
        Price(
            sku="gpu-h200-sxm/gpu",
            unit=Unit.GPU_HOUR,
            usd=usd,
            source="order 7",
            date=date(2026, 11, 1),
            region=region,
            covers_vm=True,
        )
        for region, usd in {**dear, cheap: Decimal(5)}.items()
    ]
    found = by_preset(choices(load_shape("Qwen3-14B"), LORA_14B, BOOK.with_prices(prices)))
    choice = found["gpu-h200-sxm/8gpu-128vcpu-1600gb"]
    assert (choice.usd_per_hour, choice.region) == (40, cheap)


def test_a_price_is_that_of_the_bill() -> None:
    found = by_preset(choices(load_shape("Qwen3-14B"), LORA_14B, BOOK, gpus=8))
    choice = found["gpu-l40s-d/2gpu-64vcpu-384gb"]
    group = NodeGroupSpec(
        platform=choice.platform,
        preset=choice.preset,
        boot_disk=BootDiskSpec(size_gib=64),
        min_nodes=4,
        max_nodes=4,
    )
    rate = node_rate(group, BOOK.in_region(choice.region))
    assert (choice.nodes, choice.gpus) == (4, 8)
    assert choice.usd_per_hour == 4 * rate.usd  # type: ignore[union-attr]


def test_on_the_book_of_seed_000_only_l40s_has_a_price() -> None:
    found = choices(load_shape("Qwen3-14B"), LORA_14B, PriceBook.load("nebius-2026-09"))
    priced = {each.platform for each in found if each.usd_per_hour is not None}
    assert priced == {"gpu-l40s-d"}
    assert by_preset(found)["gpu-l40s-d/2gpu-64vcpu-384gb"].usd_per_hour == Decimal("4.5688")
    loser = by_preset(found)["gpu-h100-sxm/8gpu-128vcpu-1600gb"]
    assert "price: price book 'nebius-2026-09' has no" in loser.reason


def test_every_row_behind_the_first_says_what_keeps_it_there() -> None:
    first, *rest = choices(load_shape("Qwen3-32B"), LORA_14B, BOOK)
    assert first.fits
    assert first.runs_here
    for each in rest:
        assert any(
            words in each.reason
            for words in ("than the first", "most of it", "not run by this project", "price:")
        ), each.reason


def test_a_model_too_large_for_ddp_names_the_strategy_that_would_do() -> None:
    training = Training(method=Method.FULL, gradient_checkpointing=True)
    found = by_preset(choices(load_shape("Qwen3-32B"), training, BOOK))
    choice = found["gpu-b200-sxm/8gpu-160vcpu-1792gb"]
    assert choice.fits
    assert choice.runs_here
    assert choice.strategy == "fsdp x 8, gathered once"
    less = found["gpu-h200-sxm/8gpu-128vcpu-1600gb"]
    assert (less.strategy, less.fits) == ("fsdp x 8", True), "64 GiB of whole layers beside it"


def test_qlora_runs_where_one_gpu_holds_it_and_is_not_divided() -> None:
    shape = load_shape("Qwen3-32B")
    training = Training(method=Method.QLORA, gradient_checkpointing=True)
    by_strategy = {
        each.sharding.strategy: each for each in verdicts_on(shape, training, gpus=8, memory_gb=80)
    }
    assert by_strategy[Strategy.DDP].usable_here
    assert "qlora under fsdp" in by_strategy[Strategy.FSDP].reason


@pytest.mark.feature("S004-18", "S004-19", "S004-20", "S004-21", "S004-23", "S004-24")
def test_strategies_are_compared_with_degrees_that_the_model_allows() -> None:
    shape = load_shape("Qwen2-7B")  # 28 heads over 4 key heads, 28 layers
    found = {
        each.strategy: each for each in shardings(shape, Gpus(nodes=2, per_node=8, usable=GIB))
    }
    assert list(found) == [
        Strategy.DDP,
        Strategy.ZERO1,
        Strategy.ZERO2,
        Strategy.HSDP,
        Strategy.FSDP,
        Strategy.TENSOR,
        Strategy.PIPELINE,
        Strategy.THREE_D,
        Strategy.OFFLOAD,
    ]
    assert all(each.gpus == 16 for each in found.values())
    assert (found[Strategy.HSDP].label, found[Strategy.HSDP].parts) == ("hsdp 2 x 8", 8)
    assert found[Strategy.TENSOR].tensor == 4
    assert found[Strategy.PIPELINE].pipeline == 4
    assert found[Strategy.THREE_D].label == "3d (tensor 4 x pipeline 4 x data 1)"


@pytest.mark.feature("S004-18", "S004-19", "S004-21", "S004-23")
@pytest.mark.parametrize(
    ("model", "length", "nodes", "label"),
    [
        ("Qwen3-8B", 8192, 1, "tensor (tensor 8 x data 1)"),
        ("Qwen3-32B", 2048, 4, "pipeline (pipeline 32 x data 1)"),
        ("Qwen3-14B", 4096, 2, "3d (tensor 8 x pipeline 2 x data 1)"),
    ],
)
def test_a_model_whose_rows_fit_no_whole_layers_is_advised_to_divide_these(
    model: str, length: int, nodes: int, label: str
) -> None:
    """All of it trained on GPUs of 48 GB, and nothing computed again in the backward pass."""
    training = Training(method=Method.FULL, sequence_length=length, gradient_accumulation=8)
    gpus = Gpus(nodes=nodes, per_node=8, usable=usable_bytes(48), host_bytes=1600 * GIB)
    advised = best(verdicts(load_shape(model), training, gpus))
    assert (advised.sharding.label, advised.fits, advised.runs_here) == (label, True, False)
    strategy = advised.sharding.strategy
    assert advised.reason.endswith(f"not run by this project: strategy {strategy}")


def test_one_gpu_has_nothing_to_divide_but_can_offload() -> None:
    found = shardings(load_shape("Qwen3-8B"), Gpus(nodes=1, per_node=1, usable=GIB))
    assert [each.strategy for each in found] == [Strategy.DDP, Strategy.OFFLOAD]


@pytest.mark.feature("S004-20")
def test_offload_is_judged_by_the_memory_of_the_node() -> None:
    shape = load_shape("Qwen3-8B")
    training = Training(method=Method.FULL, gradient_checkpointing=True)
    small = Gpus(nodes=1, per_node=1, usable=usable_bytes(48), host_bytes=96 * GIB)
    large = Gpus(nodes=1, per_node=1, usable=usable_bytes(48), host_bytes=192 * GIB)
    assert not verdicts(shape, training, small)[-1].fits
    assert "a node for its state" in verdicts(shape, training, small)[-1].reason
    assert verdicts(shape, training, large)[-1].fits


def test_a_node_must_hold_the_model_while_it_is_loaded() -> None:
    shape = load_shape("Qwen3-14B")
    small = Gpus(nodes=1, per_node=2, usable=usable_bytes(80), host_bytes=48 * GIB)
    (ddp, *_) = verdicts(shape, LORA_14B, small)
    assert not ddp.fits
    assert ddp.reason == "needs 55.0 GiB of 48.0 GiB a node to load the model"


def test_the_strategy_with_the_least_traffic_wins_and_one_that_runs_here_before_it() -> None:
    shape = load_shape("Qwen2-7B")
    training = Training(method=Method.FULL, sequence_length=4096, gradient_checkpointing=True)
    on_h200 = verdicts_on(shape, training, gpus=4, memory_gb=141)
    on_h100 = verdicts_on(shape, training, gpus=4, memory_gb=80)
    assert best(on_h200).sharding.strategy is Strategy.DDP
    assert next(each for each in on_h100 if each.fits).sharding.strategy is Strategy.ZERO1
    assert best(on_h100).sharding.strategy is Strategy.FSDP
    assert best(verdicts_on(shape, training, gpus=1, memory_gb=8)).sharding.strategy is Strategy.DDP


@pytest.mark.feature("S000-69")
def test_serving_takes_as_many_gpus_as_it_needs() -> None:
    serving = Serving(streams=16, context_tokens=10_000)
    found = by_preset(choices(load_shape("Qwen3-14B"), serving, BOOK))
    assert found["gpu-h100-sxm/1gpu-16vcpu-200gb"].strategy == "one GPU"
    two = found["gpu-l40s-d/2gpu-64vcpu-384gb"]
    assert (two.fits, two.runs_here, two.strategy) == (True, False, "tensor 2")
    assert not found["gpu-l40s-d/1gpu-16vcpu-96gb"].fits


def test_serving_in_8_bits_is_planned_and_not_run_here() -> None:
    found = choices(load_shape("Qwen3-14B"), Serving(dtype=Dtype.INT8), BOOK)
    assert all("dtype int8" in each.reason for each in found)
    assert not any(each.runs_here for each in found)


def test_an_answer_is_plain_values_and_text_of_one_computation() -> None:
    answer = training_answer("Qwen3-14B", LORA_14B, BOOK)
    values, text = json.loads(json.dumps(answer.data())), render_report(answer, Format.TABLE)
    assert values["gpus"] == GPUS_ASKED
    for strategy in values["strategies"]:
        parts = dict(strategy["bytes_per_gpu"])
        assert parts.pop("total") == sum(parts.values())
    first = values["presets"][0]
    assert f"{first['nodes']} x {first['platform']}" in text
    assert all(line.isascii() for line in text.splitlines())


@pytest.mark.parametrize("values", [{"gpus": 0}, {"gpu_memory_gb": -1}])
def test_numbers_below_one_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(SizeError, match="expected 1 or more"):
        training_answer("Qwen3-14B", LORA_14B, BOOK, **values)  # type: ignore[arg-type]


def test_more_memory_a_gpu_is_never_less_usable() -> None:
    sizes = [usable_bytes(gb) for gb in (24, 40, 48, 80, 141, 180, 288)]
    assert all(few < many for few, many in pairwise(sizes))
    assert usable_bytes(48) < 44.40 * GIB


def test_an_answer_says_how_many_layers_are_recomputed_and_refuses_more_than_there_are() -> None:
    found = training_answer("Qwen3-14B", Training(gradient_checkpointing=10), BOOK)
    assert "10 of 40 layers recomputed" in render_report(found, Format.TABLE)
    assert (found.data()["gradient_checkpointing"], found.data()["layers"]) == (10, 40)
    with pytest.raises(SizeError, match=r"--checkpointing-layers: got 41, but Qwen3-14B has 40"):
        training_answer("Qwen3-14B", Training(gradient_checkpointing=41), BOOK)
