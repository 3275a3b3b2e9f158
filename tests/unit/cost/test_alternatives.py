"""What is proposed instead is valid, priced, honest about what is not known, and best first."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.chat.unit_costs import UnitCosts
from cost.choose.alternatives import (
    Shortage,
    alternatives,
    alternatives_report,
    candidates,
    parse_shortage,
)
from cost.prices.book import layered
from cost.report.layout import WIDTH, Format, render_report
from cost.resources.estimate import estimate
from cost.runs.forecast import Forecast, UnknownRun
from stacks.catalog import PLATFORMS
from stacks.check import check
from stacks.errors import Level, UserError
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.cost import ContractPriceSpec, PolicySpec, QuotaSpec, RunForecastSpec
from stacks.spec.nodes import Billing, DataDisksSpec, NfsSpec
from tests import SHIPPED
from tests.nightly import law
from tests.unit.cost.conftest import record
from tests.unit.cost.policies import inputs_of, with_policy

pytestmark = pytest.mark.usefixtures("public_key_file")


def layered_inputs(spec: StackSpec) -> UnitCosts:
    return inputs_of(spec, book=layered(spec))


@pytest.mark.parametrize("name", SHIPPED)
def test_nothing_is_proposed_that_the_checks_refuse(name: str):
    inputs = layered_inputs(load_stack(name))
    for item in alternatives(inputs):
        errors = [each for each in check(item.candidate.spec) if each.level is Level.ERROR]
        assert errors == []


@pytest.mark.parametrize("name", SHIPPED)
def test_the_changed_keys_are_the_whole_change(name: str):
    """The figures printed are those of the stack with exactly the printed changes."""
    spec = load_stack(name)
    for item in alternatives(layered_inputs(spec)):
        again = estimate(item.candidate.spec, layered(item.candidate.spec))
        assert again.total.high_usd == item.estimate.total.high_usd
        assert item.candidate.changes
        assert all(change.before != change.after for change in item.candidate.changes)


def test_the_cheapest_comes_first_and_none_is_dearer_than_what_is_declared():
    inputs = layered_inputs(load_stack("h100-prod"))
    found = alternatives(inputs)
    amounts = [item.estimate.total.high_usd for item in found]
    assert amounts == sorted(amounts)
    assert amounts[-1] < inputs.estimate.total.high_usd


def test_what_keeps_every_limit_comes_before_what_is_cheaper_and_breaks_one():
    """A contract makes on-demand nodes cheaper than preemptible ones, which the policy wants."""
    contract = ContractPriceSpec(
        sku="gpu-h200-sxm/gpu",
        unit="GPU-hour",
        usd=Decimal(1),
        source="offer",
        date=date(2026, 11, 1),
    )
    spec = replace(
        load_stack("h200-elastic"),
        contract_prices=(contract,),
        policy=PolicySpec(on_demand_gpus=False),
    )
    found = alternatives(layered_inputs(spec), [parse_shortage("gpu-h200-sxm@eu-north1")])
    num_broken = [len(item.broken) for item in found]
    assert num_broken == sorted(num_broken)
    kept, *_, broken = found
    assert (kept.broken, len(broken.broken)) == ((), 1)
    cheapest = min(found, key=lambda item: item.estimate.total.high_usd)
    assert cheapest.broken


def test_preemptible_nodes_of_the_same_preset_change_one_key():
    """16 H100 over 730 hours at the difference of the two prices of the book."""
    inputs = layered_inputs(load_stack("h100-prod"))
    found = alternatives(inputs)
    same = next(item for item in found if len(item.candidate.changes) == 1)
    assert [str(change) for change in same.candidate.changes] == [
        "nodes.workers[worker].billing: on-demand -> preemptible"
    ]
    dear = inputs.estimate.book.prices["gpu-h100-sxm/gpu"].usd
    cheap = inputs.estimate.book.prices["gpu-h100-sxm/gpu/preemptible"].usd
    saved = inputs.estimate.total.high_usd - same.estimate.total.high_usd
    assert saved == 16 * 730 * (dear - cheap)
    assert "nodes can be taken away: jobs must save and resume" in same.candidate.notes


def test_without_capacity_dearer_hardware_is_proposed_and_the_short_one_is_not():
    inputs = layered_inputs(load_stack("h100-prod"))
    found = alternatives(inputs, [parse_shortage("gpu-h100-sxm")])
    assert found
    assert {item.candidate.spec.nodes.workers[0].platform for item in found} >= {"gpu-h200-sxm"}
    for item in found:
        assert item.candidate.spec.nodes.workers[0].platform != "gpu-h100-sxm"
    assert any(item.estimate.total.high_usd > inputs.estimate.total.high_usd for item in found)


def test_a_server_beside_the_cluster_is_short_of_its_hardware_too():
    """Proposed were stacks whose machine of NFS could not be had."""
    spec = load_stack("h100-prod")
    nfs = NfsSpec(
        platform="cpu-d3",
        preset="32vcpu-128gb",
        boot_disk=spec.nodes.login.boot_disk,
        data_disks=DataDisksSpec(size_gib=93, count=1),
    )
    short = parse_shortage("cpu-d3/32vcpu-128gb")
    assert not short.holds(spec)
    assert short.holds(replace(spec, nfs=nfs))
    inside = replace(spec.nodes.login, platform="cpu-d3", preset="32vcpu-128gb")
    assert short.holds(replace(spec, nodes=replace(spec.nodes, nfs=inside)))


def test_a_shortage_in_one_region_sends_the_stack_to_another():
    inputs = layered_inputs(load_stack("h200-elastic"))
    found = alternatives(inputs, [parse_shortage("gpu-h200-sxm@eu-north1")])
    moved = [item for item in found if item.candidate.spec.nebius.region != "eu-north1"]
    assert moved
    assert any("the data must be copied" in note for note in moved[0].candidate.notes)


def test_a_stack_over_its_quota_gets_what_stays_within():
    spec = load_stack("h100-prod")
    short = replace(spec, quotas=(QuotaSpec(name="compute.instance.gpu.h100", limit=8),))
    found = alternatives(layered_inputs(short))
    assert found
    for item in found:
        assert item.candidate.spec.nodes.workers[0].platform != "gpu-h100-sxm"


def test_jobs_keep_their_gpus_when_nodes_hold_more_of_them():
    """Four nodes of two GPUs become two of four; the node that serves chats stays one."""
    shapes = [
        item
        for item in candidates(load_stack("l40s-dev"))
        if item.worker is not None and item.worker.preset == "4gpu-128vcpu-768gb"
    ]
    finetune = {job.name: job for job in shapes[0].spec.jobs}["finetune"]
    assert (finetune.nodes, finetune.gpus_per_node) == (2, 4)
    nodes = {item.worker.name: item.worker.max_nodes for item in shapes if item.worker}
    assert nodes == {"worker": 2, "worker-serve": 1}


def test_gpus_with_less_memory_are_proposed_only_where_the_jobs_have_passed():
    spec = load_stack("h200-elastic")
    platforms = {item.worker.platform for item in candidates(spec) if item.worker}
    assert "gpu-h100-sxm" not in platforms
    proven = frozenset({("gpu-h100-sxm", "1gpu-16vcpu-200gb")})
    platforms = {item.worker.platform for item in candidates(spec, proven=proven) if item.worker}
    assert "gpu-h100-sxm" in platforms


def test_hours_are_known_where_a_speed_is_and_not_known_where_it_was_of_other_nodes():
    """5M tokens at 1,000 a second are 1.39 hours; on another preset nobody has measured them."""
    spec = load_stack("h200-elastic")
    run = RunForecastSpec(
        job="finetune",
        tokens_per_epoch=5_000_000,
        train_tokens_per_s=Decimal(1000),
        source="a test",
    )
    found = alternatives(layered_inputs(replace(spec, runs=(run,), preemption=None)))
    by_preset = {item.candidate.spec.nodes.workers[0].preset: item for item in reversed(found)}
    (same,) = by_preset["1gpu-16vcpu-200gb"].runs
    assert isinstance(same, Forecast)
    assert round(same.hours, 2) == Decimal("1.39")
    (other,) = by_preset["8gpu-128vcpu-1600gb"].runs
    assert isinstance(other, UnknownRun)


def test_a_measured_run_on_the_other_preset_makes_its_hours_known():
    spec = load_stack("h200-elastic")
    finetune = {job.name: job for job in spec.jobs}["finetune"]
    run = RunForecastSpec(job="finetune", tokens_per_epoch=3_600_000)
    measured = record(
        kind="train",
        recipe=finetune.recipe,
        metrics={"train_tokens_per_s": 2000},
        hardware={
            "platform": "gpu-h200-sxm",
            "preset": "8gpu-128vcpu-1600gb",
            "device": "NVIDIA H200",
            "num_nodes": 1,
            "num_gpus_declared": 4,
        },
    )
    calm = replace(spec, runs=(run,), preemption=None)
    inputs = inputs_of(calm, [measured], layered(spec))
    other = next(
        item
        for item in alternatives(inputs)
        if item.candidate.spec.nodes.workers[0].preset == "8gpu-128vcpu-1600gb"
    )
    (known,) = other.runs
    assert isinstance(known, Forecast)
    assert known.hours == Decimal("0.5")


def test_a_contract_price_holds_in_another_region_too():
    spec = load_stack("h200-elastic")
    contract = ContractPriceSpec(
        sku="gpu-h200-sxm/gpu",
        unit="GPU-hour",
        usd=Decimal(2),
        source="offer",
        date=date(2026, 11, 1),
    )
    inputs = layered_inputs(replace(spec, contract_prices=(contract,)))
    found = alternatives(inputs, [parse_shortage("gpu-h200-sxm@eu-north1")])
    same = [
        item
        for item in found
        if item.candidate.worker
        and item.candidate.worker.billing is Billing.ON_DEMAND
        and item.candidate.worker.preset == "1gpu-16vcpu-200gb"
    ]
    assert same[0].estimate.total.high_usd == inputs.estimate.total.high_usd


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu-h10-sxm", "did you mean 'gpu-h100-sxm'?"),
        ("gpu-h100-sxm/8gpu", "is not a preset of gpu-h100-sxm"),
        ("gpu-h100-sxm@eu-west1", "is not offered in 'eu-west1'"),
    ],
)
def test_a_shortage_of_unknown_hardware_is_refused_with_the_nearest(text: str, said: str):
    with pytest.raises(UserError) as caught:
        parse_shortage(text)
    assert said in str(caught.value)


def test_a_shortage_may_name_preset_and_region():
    assert parse_shortage("gpu-h100-sxm/8gpu-128vcpu-1600gb@eu-north1") == Shortage(
        platform="gpu-h100-sxm", preset="8gpu-128vcpu-1600gb", region="eu-north1"
    )


def test_the_table_fits_the_page_and_names_every_key_to_change():
    inputs = with_policy("h100-prod", max_usd_per_month=Decimal(25000))
    found = alternatives(inputs, limit=5)
    part = alternatives_report(inputs, found)
    text = render_report(part, Format.TABLE)
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    flat = " ".join(text.split())
    for item in found:
        assert all(str(change) in flat for change in item.candidate.changes)


def test_where_nothing_is_cheaper_the_page_says_what_would_change_that():
    inputs = layered_inputs(load_stack("l40s-dev"))
    part = alternatives_report(inputs, ())
    assert part.tables == ()
    assert "less memory" in part.notes[0]


GPU_PRESETS = sorted(
    (platform.name, preset.name)
    for platform in PLATFORMS.values()
    for preset in platform.presets.values()
    if preset.gpus and "eu-north1" in platform.regions
)


@law(25, shares_fixtures=True)
@given(hardware=st.sampled_from(GPU_PRESETS), num_nodes=st.integers(1, 12))
def test_no_change_takes_gpus_from_a_job(
    public_key_file: Path, hardware: tuple[str, str], num_nodes: int
):
    spec = load_stack("local")
    platform, preset = hardware
    worker = replace(
        spec.nodes.workers[0],
        platform=platform,
        preset=preset,
        min_nodes=num_nodes,
        max_nodes=num_nodes,
    )
    spec = replace(spec, nodes=replace(spec.nodes, workers=(worker,)))
    before = {job.name: job.nodes * job.gpus_per_node for job in spec.jobs}
    for item in candidates(spec):
        after = {job.name: job.nodes * job.gpus_per_node for job in item.spec.jobs}
        assert after == before
