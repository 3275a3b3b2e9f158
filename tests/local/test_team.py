"""Two users with a laptop or two each, and one budget, on a real Slurm with accounting."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import stacks.load
from infra.cli import context
from tests.bench.team import Laptop, Team, measure, problems, running_team

pytestmark = pytest.mark.local


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    with running_team(tmp_path_factory.mktemp("team")) as made:
        yield made


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop puts its own folders in these places."""
    monkeypatch.setenv("SOPERATOR_STATE", "")
    monkeypatch.setattr(stacks.load, "STACKS_DIR", stacks.load.STACKS_DIR)
    monkeypatch.setattr(context, "spec", context.spec)


def laptop(team: Team, user: str, folder: Path, budget: str) -> Laptop:
    made = Laptop(user, team.keys[user], team.stand.ssh_port, team.host_key, folder / user)
    made.attach(budget)
    return made


def test_no_dollar_is_lost_or_counted_twice_when_two_users_submit_at_once(
    team: Team, tmp_path: Path
) -> None:
    found = measure(team, tmp_path, count=24, num_laptops=4, num_fit=5)
    assert problems(found) == [], found
    assert found["sacct_usd"] != "0"
    alone = Laptop("bob", team.keys["bob"], 0, "", tmp_path / "laptop-1")
    spend = ("cost", "spend", "-s", "lab", "--by", "user")
    first = json.loads(alone.run(*spend, "--format", "json").stdout)["groups"]
    assert [each["user"] for each in first] in (["ann", "bob"], ["bob", "ann"])
    assert json.loads(alone.run(*spend, "--format", "json").stdout)["groups"] == first
    table = alone.run(*spend).stdout
    assert "Jobs by user" in table
    assert "Reserved" in table


def _die_before_the_decision(of: Laptop) -> None:
    import infra.jobs.ledger

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    infra.jobs.ledger.slurm.queue = die
    of.submit(1)


def kill_in_the_middle(of: Laptop) -> None:
    """kill -9 between sbatch and the look at the budget."""
    worker = multiprocessing.get_context("spawn").Process(
        target=_die_before_the_decision, args=(of,)
    )
    worker.start()
    worker.join()
    assert worker.exitcode == -signal.SIGKILL


def test_a_job_whose_submission_was_killed_is_decided_by_the_next_command(
    team: Team, tmp_path: Path
) -> None:
    ann = laptop(team, "ann", tmp_path, "{usd_per_month: 100000}")
    team.state("DOWN")
    kill_in_the_middle(ann)
    (held,) = team.queued("%A|%r")
    job_id, _, reason = held.partition("|")
    assert reason == "JobHeldUser"
    said = ann.run("status", "-s", "lab").stderr
    assert f"job {job_id} was submitted by a command that was cut off" in said
    assert team.queued("%A|%r") != [held]
    ledger = ann.folder / "state/runs/lab/ledger.jsonl"
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert [x["job_id"] for x in lines if x["kind"] == "forecast"] == [job_id]
    kill_in_the_middle(ann)
    ann.declare("{usd_per_month: 1}")
    said = ann.run("status", "-s", "lab").stderr
    assert "was taken back before it could start; the command that submitted it was cut" in said
    assert team.queued("%A") == [job_id]
    team.as_root(f"scancel {job_id}")
    team.state("UP")
    team.wait_until_all_ended(60)


def test_what_another_member_submits_by_hand_is_reserved_whatever_it_says(
    team: Team, tmp_path: Path
) -> None:
    """Two minutes of a whole node; its comment and its name promise that it is free."""
    ann = laptop(team, "ann", tmp_path, "{usd_per_month: 100000, usd_per_user: 59}")
    team.state("DOWN")
    sbatch = "sbatch --parsable --account=phys --time=2 --cpus-per-task=64 --hold"
    words = f"cd /tmp; {sbatch} --comment=usd=0 --job-name=free --output=/dev/null --wrap=true"
    job_id = team.as_root(f'su bob -c "{words}"').strip()
    spend = ann.run("cost", "spend", "-s", "lab", "--by", "user", "--format", "json").stdout
    reserved = {each["user"]: each["reserved_usd"] for each in json.loads(spend)["groups"]}
    assert reserved["bob"] == "120.000000"
    (refused,) = ann.submit(1)
    assert "the cost up to the time limit of $60.00 is more than what is left: user ann" in refused
    assert f"reserved by bob $120.00 (job {job_id})" in refused
    assert "was taken back before it could start" in refused
    assert team.queued("%A") == [job_id]
    team.as_root(f"scancel {job_id}")
    team.state("UP")
