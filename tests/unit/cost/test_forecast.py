"""Hours and dollars before a run starts: worked by hand, or NOT KNOWN with the way to know."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from cost.bill.bill import bill
from cost.chat.unit_costs import UnitCosts
from cost.prices.book import layered
from cost.resources.estimate import Estimate, estimate
from cost.run_record import RunRecord
from cost.runs.forecast import Forecast, UnknownRun, forecast, forecasts
from cost.runs.runs import pipeline_cost, plain_run, run_lines, runs
from stacks.schedule import slurm_seconds
from stacks.spec import StackSpec
from stacks.spec.cost import ContractPriceSpec, PreemptionSpec
from stacks.spec.nodes import Billing
from tests.unit.cost.conftest import record
from tests.unit.cost.run_stacks import L40S, RUN, job_of, l40s, rates_of, trained

pytestmark = pytest.mark.usefixtures("public_key_file")
PREEMPTION = PreemptionSpec(
    preemptions_per_node_day=Decimal(1),
    checkpoint_stall_s=Decimal(60),
    restart_s=Decimal(600),
    source="assumed",
)


def known(spec: StackSpec, *records: object, sets: tuple[str, ...] = ()) -> Forecast:
    found = forecast(job_of(spec), rates_of(spec), records, sets)  # type: ignore[arg-type]
    assert isinstance(found, Forecast), found
    return found


def test_two_hours_on_four_nodes_of_seed_000_cost_what_a_hand_computes():
    """14.4M tokens at 2,000/s = 2 h; x 4 nodes x 4.5688 USD/h = 36.5504 USD."""
    found = known(l40s())
    assert (found.hours, found.nodes_usd) == (2, Decimal("36.5504"))
    assert (found.speed.measured_on, found.notes) == (None, ())


def test_the_cluster_share_is_the_nodes_and_four_fifths_of_the_rest():
    """Bill - 5 nodes, of which 4/5 for 2 hours."""
    spec = l40s()
    rates = rates_of(spec)
    rest = rates.total.hourly_low_usd - 5 * Decimal("4.5688")
    share = known(spec).cluster_share_usd
    assert share is not None
    assert abs(share - (Decimal("36.5504") + rest * 2 * 4 / 5)) < Decimal("1e-20")


def test_a_measured_speed_replaces_the_declared_one_and_says_which_job():
    found = known(l40s(), trained())
    assert (found.hours, found.nodes_usd) == (1, Decimal("18.2752"))
    assert str(found.speed) == (
        "4,000.0 tokens/s, measured on 2026-11-21: job 12 of stack l40s-dev on NVIDIA L40S"
    )


def test_the_newest_measurement_wins_whatever_the_order():
    day_before = {"started_at": "2026-11-20T05:00:00Z", "finished_at": "2026-11-20T05:01:40Z"}
    old = trained(**day_before, metrics={"train_tokens_per_s": 1})
    for records in ([old, trained()], [trained(), old]):
        assert known(l40s(), *records).hours == 1


@pytest.mark.parametrize(
    "changes", [{"recipe": "r"}, {"outcome": "FAIL"}, {"metrics": {"train_tokens_per_s": 0}}]
)
def test_a_run_of_something_else_measures_nothing(changes: dict[str, object]):
    assert known(l40s(), trained(**changes)).speed.measured_on is None


def test_a_run_on_fewer_nodes_measures_nothing():
    hardware = {**L40S, "num_nodes": 2}
    assert known(l40s(), trained(hardware=hardware)).speed.measured_on is None


def test_the_tokens_that_the_data_job_counted_are_used_and_named():
    counted = record(
        kind="prepare-data",
        job="prepare-data",
        job_id="7",
        recipe="finance_qwen3_14b",
        metrics={"num_train_tokens": 3_600_000},
    )
    found = known(l40s(), counted)
    assert found.hours == 1
    assert "job 7 counted 3,600,000 train tokens, the stack declares 7,200,000" in found.notes[0]


def test_epochs_of_the_submission_count_and_other_settings_are_named():
    found = known(l40s(), sets=("train.epochs=1", "train.max_steps=8", "train.epochs=x"))
    assert found.hours == 1
    assert found.notes == (
        (
            "--set train.max_steps=8 is not in the forecast: no run of this recipe on these nodes "
            "has told how many tokens a step reads"
        ),
        "--set train.epochs=x is no number of epochs and not in the forecast",
    )


def test_the_steps_of_the_submission_count_where_a_run_measured_them():
    """900 steps of 2 s are half an hour, whatever the epochs; $0.914 was told and $0.249 paid."""
    run = trained(metrics={"train_tokens_per_s": 4000, "train_step_s": 2})
    found = known(
        l40s(), run, sets=("train.epochs=null", "train.max_steps=no", "train.max_steps=900")
    )
    assert (found.num_tokens, found.hours) == (7_200_000, Decimal("0.5"))
    assert found.notes == (
        "--set train.max_steps=no is no number of steps and not in the forecast",
    )


def test_a_time_limit_that_is_too_short_warns():
    spec = l40s()
    jobs = tuple(
        replace(job, time_limit="01:59:59") if job.name == "finetune" else job for job in spec.jobs
    )
    (note,) = known(replace(spec, jobs=jobs)).notes
    assert note.startswith("time_limit 01:59:59 is shorter than the 2.00 hours of the forecast")


def test_a_run_without_an_entry_is_not_known_and_says_what_to_run():
    spec = l40s(runs=())
    found = forecast(job_of(spec), rates_of(spec), [])
    assert isinstance(found, UnknownRun)
    assert "run: soperator submit prepare-data --stack l40s-dev" in str(found)
    assert "declare runs: [{job: finetune, tokens_per_epoch: its num_train_tokens}]" in str(found)
    assert found.at_most_usd == 24 * 4 * Decimal("4.5688"), "its time limit is one day"


def test_a_run_whose_tokens_were_counted_says_what_to_declare():
    spec = l40s(runs=())
    counted = record(
        kind="prepare-data", recipe="finance_qwen3_14b", metrics={"num_train_tokens": 89050}
    )
    found = forecast(job_of(spec), rates_of(spec), [counted])
    assert "tokens_per_epoch: 89050}] (job 12 counted them)" in str(found)


def test_a_run_without_a_speed_is_not_known_and_says_what_to_run():
    spec = l40s(runs=(replace(RUN, train_tokens_per_s=None, source=None),))
    found = forecast(job_of(spec), rates_of(spec), [])
    assert "NOT KNOWN: the speed of qwen3_14b_qlora_8xl40s on 4 x 2gpu-64vcpu-384gb" in str(found)
    assert "soperator submit finetune --stack l40s-dev" in str(found)


def preemptible() -> StackSpec:
    spec = l40s(
        preemption=PREEMPTION,
        contract_prices=tuple(
            ContractPriceSpec(
                sku=f"gpu-l40s-d/{part}/preemptible", unit=unit, usd=Decimal(usd), source="offer",
                date=date(2026, 11, 1),
            )
            for part, unit, usd in (
                ("gpu", "GPU-hour", "0.5"), ("vcpu", "vCPU-hour", "0.005"), ("ram", "GiB-hour", "0")
            )
        ),
    )  # fmt: skip
    worker = replace(spec.nodes.workers[0], billing=Billing.PREEMPTIBLE)
    return replace(spec, nodes=replace(spec.nodes, workers=(worker,)))


def test_on_preemptible_nodes_the_hours_are_the_expected_ones():
    """A node is 2 x 0.5 + 64 x 0.005 = 1.32 USD an hour."""
    found = known(preemptible())
    assert found.busy_hours == 2
    assert found.disturbance is not None
    assert found.disturbance.slowdown is not None
    assert found.hours == 2 * found.disturbance.slowdown.factor > 2
    assert found.nodes_usd == found.hours * 4 * Decimal("1.32")


def test_preemptible_nodes_without_declared_losses_say_that_none_are_counted():
    found = known(replace(preemptible(), preemption=None))
    assert found.hours == 2
    assert "declares no preemption: no losses counted" in found.notes[0]


def test_a_run_that_would_never_end_says_so():
    always = replace(PREEMPTION, preemptions_per_node_day=Decimal(100_000))
    found = known(replace(preemptible(), preemption=always))
    assert "the run would never end" in found.notes[0]


def inputs(spec: StackSpec, rates: Estimate) -> UnitCosts:
    return UnitCosts(estimate=estimate(spec, rates.book))


def test_the_bill_gets_a_part_for_runs_and_one_for_preemption():
    spec = preemptible()
    of_runs, of_preemption = runs(inputs(spec, rates_of(spec)))
    assert of_runs.tables[0].rows[0][:3] == ("finetune", "4", "14,400,000")
    (amount,) = of_runs.amounts
    assert (amount.name, amount.usd) == ("per_run_usd[finetune]", known(spec).nodes_usd)
    (plain,) = of_preemption.data()["preemption"]  # type: ignore[misc]
    assert plain["on_demand_usd_per_useful_hour"] == "18.275200"
    assert float(plain["pays_up_to_per_node_day"]) > 1


def test_a_stack_whose_preemptible_price_is_unknown_says_so_and_prints_the_intervals():
    spec = l40s(preemption=PREEMPTION)
    _, part = runs(inputs(spec, rates_of(spec)))
    (row,) = part.tables[0].rows
    assert row[1].endswith("min")
    assert row[5:] == ("unknown", "unknown")
    assert "NOT KNOWN: price book" in part.notes[-1]


def test_the_bill_counts_the_steps_that_a_recipe_bounds_its_run_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """4,000 tokens/s x 2 s is 8,000 a step: 900 of them are half an hour, whatever runs says."""
    spec = l40s()
    recipe = tmp_path / "workloads/recipes" / f"{job_of(spec).recipe}.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text("train: {max_steps: 900}")
    monkeypatch.setattr("cost.runs.forecast.STACKS_DIR", tmp_path / "stacks")
    step = trained(metrics={"train_tokens_per_s": 4000, "train_step_s": 2})

    def of_bill(run: RunRecord) -> list[Decimal | None]:
        found = bill(spec, layered(spec), [run])
        return [each.usd for each in found.amounts if each.name.startswith("per_run_usd")]

    half_an_hour = 4 * Decimal("4.5688") / 2
    assert of_bill(step) == [half_an_hour]
    (run,) = pipeline_cost([job_of(spec)], rates_of(spec), [step]).forecasts
    assert run.hours == Decimal("0.5")
    assert of_bill(trained()) == [2 * half_an_hour], "no run told how many tokens a step reads"
    recipe.write_text("train: {max_steps: many}")
    assert of_bill(step) == [2 * half_an_hour], "the trainer itself refuses it"


def test_only_jobs_that_train_have_a_forecast():
    spec = l40s()
    assert [each.job for each in forecasts(rates_of(spec), [])] == ["finetune"]


def test_the_lines_of_a_submission_begin_with_hours_and_dollars():
    assert run_lines(known(l40s()))[0].startswith(
        "Forecast of finetune: 2.00 h on 4 x 2gpu-64vcpu-384gb, $36.55 of its own nodes ("
    )


def test_a_run_that_is_not_known_is_null_with_its_reason_in_json():
    spec = l40s(runs=())
    found = plain_run(forecast(job_of(spec), rates_of(spec), []))
    assert (found["hours"], found["nodes_usd"]) == (None, None)
    assert found["reason"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800), ("00:30", 30), ("02:00:00", 7200), ("1-00", 86400), ("1-02:03", 93780),
        ("1-00:00:01", 86401), ("UNLIMITED", None), ("", None), ("1:2:3:4", None),
        ("00:00:07", 7), ("01:02:03", 3723), ("2-00:00:01", 172801), ("0:05", 5),
    ],
)  # fmt: skip
def test_slurm_s_durations_are_seconds(text: str, seconds: int | None):
    assert slurm_seconds(text) == seconds
