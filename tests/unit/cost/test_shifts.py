"""A training by day and a server by night on the same nodes: hours, dollars and what they give."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from cost.bill.bill import Bill, bill, render
from cost.prices.book import layered
from cost.report.layout import Format
from stacks.schedule import partition_shifts
from stacks.spec import StackSpec
from stacks.spec.slurm import JobSpec
from tests.unit.cost.run_stacks import job_of, l40s

pytestmark = pytest.mark.usefixtures("public_key_file")
NODE_USD = Decimal("4.5688")


def day_and_night(day: str = "10:00:00", night: str = "14:00:00", **serve: int) -> StackSpec:
    """Four workers that train from 8 to 18, and one of them that serves from 18 to 8."""
    spec = l40s()
    changed = {
        "finetune": {"schedule": "0 8 * * *", "time_limit": day},
        "serve": {"schedule": "0 18 * * *", "time_limit": night, "partition": "train", **serve},
    }
    jobs: tuple[JobSpec, ...] = tuple(
        replace(job, **changed.get(job.name, {})) for job in spec.jobs
    )
    return replace(spec, jobs=jobs)


def shifts_of(of: Bill):
    (part,) = (part for part in of.parts if part.name == "shifts")
    return part.data()["shifts"][0]


def made(spec: StackSpec) -> Bill:
    return bill(spec, layered(spec))


@pytest.mark.feature("S004-30")
def test_the_day_trains_and_the_night_serves() -> None:
    """14.4 M tokens take two hours: ten hours a day are 72 M, and 504 M a week."""
    found = shifts_of(made(day_and_night()))
    train, serve = found["jobs"]
    assert (train["hours_per_week"], train["node_hours_per_week"]) == ("70", "280")
    assert train["usd_per_week"] == f"{NODE_USD * 280:.2f}"
    assert train["tokens_per_week"] == str(2000 * 3600 * 70)
    assert (serve["hours_per_week"], serve["node_hours_per_week"]) == ("98", "98")
    assert found["free_node_hours_per_week"] == str(4 * 168 - 280 - 98)
    assert found["clash_hours_per_week"] == "0"


def test_a_night_gives_its_part_of_a_days_chats() -> None:
    """Seed 000: 164 chats a day at 3.8 tokens/s on its one serving node."""
    of = made(day_and_night())
    rows = of.chats
    assert isinstance(rows, tuple)
    _, serve = shifts_of(of)["jobs"]
    expected = rows[0].chats_per_day_of_node * 98 / 24
    assert abs(Decimal(serve["chats_per_week"]) - expected) < Decimal("0.00001")


def test_a_limit_that_ends_after_the_calendar_holds_its_node_all_week() -> None:
    (found,) = partition_shifts(day_and_night(night="9" * 20))
    assert [shift.hours_per_week for shift in found.shifts] == [70, 168]


@pytest.mark.feature("S004-30")
def test_schedules_that_ask_for_more_than_there_is_say_when() -> None:
    """The training may go on to 20:00, two hours into the night."""
    spec = day_and_night(day="12:00:00")
    (found,) = partition_shifts(spec)
    assert found.clash_hours_per_week == 14
    text = " ".join(render(made(spec), Format.TABLE).split())
    assert "From Monday 18:00 on the schedules ask for more than the 4 nodes, 14.0 h a week" in text


@pytest.mark.feature("S000-116")
def test_a_run_that_is_not_over_keeps_the_next_one_out() -> None:
    """Every ten minutes, with a limit of ten hours, is a training that never stops for long."""
    spec = day_and_night()
    always = replace(job_of(spec), schedule="*/10 * * * *")
    (found,) = partition_shifts(
        replace(spec, jobs=tuple(always if job.name == "finetune" else job for job in spec.jobs))
    )
    assert found.shifts[0].hours_per_week == 168


def test_a_schedule_of_every_minute_is_counted_too() -> None:
    """40,320 runs in four weeks: nothing is looked for from midnight on for each of them."""
    spec = day_and_night()
    always = replace(job_of(spec), schedule="* * * * *", time_limit="00:00:30")
    (found,) = partition_shifts(
        replace(spec, jobs=tuple(always if job.name == "finetune" else job for job in spec.jobs))
    )
    assert found.shifts[0].hours_per_week == 84


def test_weekday_shifts_leave_the_weekend_free() -> None:
    spec = day_and_night()
    jobs = tuple(
        replace(job, schedule=job.schedule and job.schedule[:-1] + "1-5") for job in spec.jobs
    )
    (found,) = partition_shifts(replace(spec, jobs=jobs))
    assert [shift.hours_per_week for shift in found.shifts] == [50, 70]


def test_one_scheduled_job_alone_is_no_shift() -> None:
    spec = day_and_night()
    jobs = tuple(replace(job, schedule=None) if job.is_server else job for job in spec.jobs)
    alone = replace(spec, jobs=jobs)
    assert partition_shifts(alone) == ()
    assert "shifts" not in [part.name for part in made(alone).parts]
