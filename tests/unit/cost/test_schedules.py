"""A scheduled job costs its pipeline as often as the schedule comes in the month of the bill."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from cost.bill.bill import bill, render
from cost.prices.book import layered
from cost.report.layout import Format
from cost.runs.runs import PipelineCost, pipeline_cost, schedule_cost, schedule_lines
from stacks.schedule import pipeline
from stacks.spec import StackSpec
from tests.unit.cost.run_stacks import l40s, rates_of

pytestmark = pytest.mark.usefixtures("public_key_file")
NODE_USD = Decimal("4.5688")


def scheduled(schedule: str | None, name: str = "finetune") -> StackSpec:
    spec = l40s()
    jobs = (replace(job, schedule=schedule if job.name == name else None) for job in spec.jobs)
    return replace(spec, jobs=tuple(jobs))


def once(spec: StackSpec, name: str = "finetune") -> PipelineCost:
    return pipeline_cost(pipeline(spec, name), rates_of(spec), ())


def test_a_daily_training_costs_a_month_of_days_with_what_it_needs() -> None:
    found = schedule_cost(once(scheduled("@daily")))
    assert found is not None
    times = Decimal(730) / 24
    assert found.most_usd == NODE_USD * (2 + 4 * 2 + 4 * 24) * times
    assert found.forecast_usd == NODE_USD * 4 * 2 * times
    assert found.most_hours == 730  # 26 h a day are more than there are


def test_a_training_that_is_submitted_again_at_its_end_costs_a_month_of_its_nodes_at_most() -> None:
    """Its schedule comes 4,380 times a month, and a run of 24 hours leaves most of them out."""
    found = schedule_cost(once(scheduled("*/10 * * * *")))
    assert found is not None
    month = NODE_USD * 730
    assert found.most_usd is not None
    assert found.forecast_usd is not None
    assert abs(found.most_usd - 9 * month) < Decimal("0.001")  # 1 prepares, 4 accept, 4 train
    assert abs(found.forecast_usd - 4 * month) < Decimal("0.001")


def test_the_dry_run_names_the_next_three_times_and_the_month() -> None:
    now = datetime(2026, 11, 21, 18, 30, tzinfo=UTC)
    (line,) = schedule_lines(once(scheduled("0 2 * * 1-5")), now)
    assert "next 2026-11-23 02:00, 2026-11-24 02:00, 2026-11-25 02:00 UTC" in line
    assert "21.7 times a month: at most $10,516.08" in line


def test_a_job_without_a_schedule_has_no_line() -> None:
    assert schedule_lines(once(scheduled(None)), datetime(2026, 11, 21, tzinfo=UTC)) == ()


def test_the_preview_has_a_row_for_each_schedule() -> None:
    spec = scheduled("@daily")
    text = render(bill(spec, layered(spec)), Format.TABLE)
    assert "@daily: prepare-data -> accept -> finetune" in text
    assert "$14,730.57" in text


def test_a_stack_without_schedules_has_no_such_table() -> None:
    spec = scheduled(None)
    assert "schedules" not in [part.name for part in bill(spec, layered(spec)).parts]
