"""A pipeline costs what its jobs cost: by forecast where there is one, at most by its limits."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from cost.bill.bill import bill, render
from cost.prices.book import layered
from cost.report.layout import Format
from cost.runs.runs import pipeline_cost, pipeline_line
from stacks.schedule import pipeline
from stacks.spec import StackSpec
from tests.unit.cost.run_stacks import l40s, rates_of

pytestmark = pytest.mark.usefixtures("public_key_file")
NODE_USD = Decimal("4.5688")


def cost_of(spec: StackSpec, name: str = "evaluate", **sets: tuple[str, ...]):
    return pipeline_cost(pipeline(spec, name), rates_of(spec), (), sets)


def test_the_pipeline_of_seed_000_is_the_sum_of_its_jobs() -> None:
    """2 h on one node, 2 h and 24 h on four, 4 h on one; 2 h of training on four are forecast."""
    found = cost_of(l40s())
    assert found.order == "prepare-data -> accept -> finetune -> evaluate"
    assert found.most_hours == 30
    assert found.most_usd == NODE_USD * (2 + 4 * 2 + 4 * 24 + 4)
    assert found.forecast_usd == NODE_USD * 4 * 2
    assert pipeline_line(found) == (
        "Pipeline prepare-data -> accept -> finetune -> evaluate: at most 30.00 h and $502.57 of "
        "its own nodes, by the time limits; 1 of 4 jobs are forecast: 2.00 h and $36.55 together."
    )


def test_settings_of_one_job_are_in_its_forecast() -> None:
    found = cost_of(l40s(), finetune=("train.epochs=1",))
    assert found.forecast_usd == NODE_USD * 4


def test_jobs_side_by_side_take_the_time_of_the_longer_one() -> None:
    spec = l40s()
    prepare, tune, end, *_ = spec.jobs
    base = replace(end, name="base", after=("prepare-data",), time_limit="02:00:00")
    both = replace(end, after=("finetune", "base"))
    found = cost_of(replace(spec, jobs=(prepare, tune, base, both)))
    assert found.most_hours == 30
    assert found.most_usd == NODE_USD * (2 + 4 * 24 + 2 + 4)


def test_the_preview_has_a_row_for_each_pipeline() -> None:
    spec = l40s()
    text = render(bill(spec, layered(spec)), Format.TABLE)
    assert "prepare-data -> accept -> finetune -> inference-" in text
    assert "original -> evaluate -> inference-trained -> compare" in text
    assert "$651.05" in text, "with a day of the one node that serves"
    plain = bill(spec, layered(spec)).parts
    assert [part.name for part in plain].count("pipelines") == 1


def test_a_stack_whose_jobs_need_no_other_has_no_such_table() -> None:
    spec = l40s()
    alone = replace(spec, jobs=tuple(replace(job, after=()) for job in spec.jobs))
    assert "pipelines" not in [part.name for part in bill(alone, layered(alone)).parts]
