"""A declared job is submitted with its forecast, its plan and its line in the ledger, or not."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from cost.runs.forecast import Forecast
from cost.runs.ledger import ForecastEntry
from infra.clients.errors import JobsError
from infra.jobs import history
from infra.jobs.history import Submission
from infra.jobs.ledger import JobLedger, open_ledger
from infra.jobs.recipes import PLAN_VARIABLE, prepare, refuse_wrong
from infra.render.delivery import code_files
from stacks.load import STACKS_DIR
from stacks.spec import LifetimeSpec
from stacks.spec.cost import BudgetSpec
from tests.unit.cost.run_stacks import job_of, l40s, trained
from tests.unit.jobs.raw import submitter
from tests.unit.jobs.test_submit import OUTPUTS, Recorded

pytestmark = pytest.mark.usefixtures("public_key_file")


def books(state: Path, **changes: object) -> JobLedger:
    return open_ledger(l40s(**changes), state, print)


def sent(of: JobLedger, shell: Recorded, state: Path) -> tuple[Submission, list[str]]:
    """`finetune` of seed 000 (forecast 36.5504 USD) and what was said."""
    said: list[str] = []
    files = code_files(STACKS_DIR.parent, of.spec)
    own = submitter(shell, OUTPUTS, state=state, books=lambda: of, log=said.append)
    made = own.submit(prepare(replace(of, log=said.append), job_of(of.spec), files))
    assert not made.is_equivalent
    return made.submission, said


def test_steps_that_the_recipe_bounds_are_the_forecast_once_a_step_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """900 steps of 2 s are half an hour; epochs=null counts for nothing, 1,800 given ones do."""
    run = trained(metrics={"train_tokens_per_s": 4000, "train_step_s": 2})
    monkeypatch.setattr("cost.runs.forecast.STACKS_DIR", tmp_path / "stacks")
    of = replace(books(tmp_path), records=(run,))
    job = job_of(of.spec)
    files = dict(code_files(STACKS_DIR.parent, of.spec))
    path = f"workloads/recipes/{job.recipe}.json"
    recipe = json.loads(files[path])
    assert "epochs" in recipe["train"]
    del recipe["train"]["epochs"]
    files[path] = json.dumps({**recipe, "train": {**recipe["train"], "max_steps": 900}}).encode()
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_bytes(files[path])

    def hours(*sets: str) -> Decimal:
        found = prepare(of, job, files, sets).run
        assert isinstance(found, Forecast)
        return found.hours

    assert hours() == Decimal("0.5")
    assert hours("train.max_steps=1800") == 1
    assert hours("train.max_steps=null", "train.epochs=4") == 2
    assert isinstance(plain := replace(of, records=()).forecast(job), Forecast)
    assert (plain.hours, plain.notes) == (2, ())


def test_a_job_leaves_its_forecast_its_plan_and_its_history(tmp_path: Path) -> None:
    of, shell = books(tmp_path), Recorded()
    submission, said = sent(of, shell, tmp_path)
    assert said[0].startswith("Forecast of finetune: 2.00 h on 4 x 2gpu-64vcpu-384gb, $36.55")
    assert any(line.startswith("plan: ") for line in said)
    assert f"{PLAN_VARIABLE}=" in shell.submitted
    assert history.submissions(tmp_path, "local") == (submission,)
    (entry,) = of.file.read().entries
    assert isinstance(entry, ForecastEntry)
    assert (entry.job_id, entry.nodes_usd) == ("12", Decimal("36.550400"))


def test_the_data_of_the_job_is_looked_for_before_it_is_queued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {**OUTPUTS.places, "data": "/mnt/data"}
    monkeypatch.setitem(globals(), "OUTPUTS", replace(OUTPUTS, places=places))
    of = books(tmp_path)
    shell = Recorded(exit_code=77, stderr="/mnt/data/x/tokens_train.parquet is not there\n")
    with pytest.raises(JobsError, match=r"finetune: /mnt/data/\S+ is not there; nothing was subm"):
        sent(of, shell, tmp_path)
    assert "/tokens_train.parquet\n" in shell.submitted
    assert history.submissions(tmp_path, "local") == ()


def test_a_job_of_a_stack_that_has_ended_is_refused_before_it_is_forecast(tmp_path: Path) -> None:
    of = books(tmp_path, lifetime=LifetimeSpec(until="2026-01-01T00:00Z"))
    shell = Recorded()
    with pytest.raises(JobsError, match=r"the stack ended on 2026-01-01 00:00 UTC.*nothing was"):
        sent(of, shell, tmp_path)
    assert shell.asked == []
    assert of.file.read().entries == ()


def test_a_job_that_the_budget_has_no_room_for_is_never_begun(tmp_path: Path) -> None:
    of, shell = (
        books(tmp_path, budget=BudgetSpec(usd_per_month=Decimal(36))),
        Recorded(stdout="--\n"),
    )
    with pytest.raises(JobsError, match=r"36\.55"):
        sent(of, shell, tmp_path)
    assert not any("submit_once" in command for command in shell.asked)
    assert history.submissions(tmp_path, "local") == ()
    assert of.file.read().entries == ()


@pytest.mark.feature("S003-38")
@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ("41", "got 41, but Qwen3-14B has 40 layers; give 0 to 40"),
        ("-1", "got -1, expected >= 0"),
        ('"3"', 'got "3", expected true or false or a whole number'),
        ("some", 'got "some", expected true or false or a whole number'),
        ("2.5", "got 2.5, expected true or false or a whole number"),
        ("1.0", "got 1.0, expected true or false or a whole number"),
        ("[]", r"got \[\], expected true or false or a whole number"),
    ],
)
def test_layers_that_no_trainer_can_recompute_are_not_submitted(
    tmp_path: Path, value: str, wrong: str
) -> None:
    of = books(tmp_path)
    files = code_files(STACKS_DIR.parent, of.spec)
    sets = [f"train.gradient_checkpointing={value}"]
    with pytest.raises(
        JobsError, match=rf"\.train\.gradient_checkpointing: {wrong}.*; nothing was submitted$"
    ):
        prepare(of, job_of(of.spec), files, sets)
    if "expected" in wrong:
        with pytest.raises(JobsError, match=rf"\.train\.gradient_checkpointing: {wrong}"):
            refuse_wrong(STACKS_DIR.parent, job_of(of.spec), sets)


def test_a_job_that_does_not_train_has_no_plan_and_its_wrong_recipe_is_its_own_to_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = books(tmp_path)
    (job,) = (each for each in of.spec.jobs if each.name == "prepare-data")
    whole = prepare(of, job, code_files(STACKS_DIR.parent, of.spec)).tasks[None]
    assert (whole.plan, bool(whole.recipe)) == (None, True)
    wrong = prepare(of, job, {}).tasks[None]
    assert (wrong.plan, wrong.recipe) == (None, {})
    assert "no plan" not in capsys.readouterr().out
    assert prepare(of, job_of(of.spec), {}).tasks[None].plan is None
    assert "no plan: " in capsys.readouterr().out


def test_a_run_that_no_memory_holds_is_refused_with_what_it_needs(tmp_path: Path) -> None:
    """A recipe that names its strategy is tried all the same, as the trainer says."""
    of = books(tmp_path)
    files, job = code_files(STACKS_DIR.parent, of.spec), job_of(of.spec)
    sets = ["train.micro_batch_size=400"]
    with pytest.raises(JobsError, match=r"does not fit .*needs .* GiB.*nothing was submitted"):
        prepare(of, job, files, [*sets, "train.strategy=auto"])
    tried = prepare(of, job, files, [*sets, "train.strategy=ddp"])
    assert tried.tasks[None].plan is not None
