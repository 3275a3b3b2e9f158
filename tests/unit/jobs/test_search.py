"""A search is one sbatch of what is left of it; its board ranks what passed and names the rest."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cost.runs.ledger import ForecastEntry
from infra.clients.errors import JobsError
from infra.clients.ssh import Result
from infra.jobs import history
from infra.jobs.history import Submission, SubmittedJobs
from infra.jobs.ledger import JobLedger, open_ledger
from infra.jobs.recipes import PreparedJob, plan_name
from infra.jobs.search import (
    TaskState,
    TrialRun,
    leaderboard,
    prepare_search,
    runs_of,
    states_of,
    trials_to_submit,
)
from infra.render.delivery import code_files, hash_files, pack
from stacks.load import STACKS_DIR
from stacks.rules.jobs import TRIALS_MOST
from stacks.spec.cost import BudgetSpec
from stacks.spec.slurm import AxisSpec, Goal, SearchSpec
from tests.unit.cost.run_stacks import l40s
from tests.unit.jobs.raw import submit, submitter, task
from tests.unit.jobs.test_submit import HASH, OUTPUTS

RATES = AxisSpec(key="train.learning_rate", values=("1e-5", "2e-5", "4e-5"))
SEARCH = SearchSpec(name="lr", job="finetune", metric="last_loss", grid=(RATES,), at_once=2)
SETTINGS = SEARCH.settings
WITH_SEARCH = replace(OUTPUTS, jobs={"lr": "", "finetune": ""})


@dataclass
class Cluster:
    """A login node that has these results and this queue."""

    results: dict[str, tuple[str, tuple[str, ...], dict[str, Any] | None]] = field(
        default_factory=dict
    )
    """Job id -> array id, settings, record."""
    queue: str = ""
    accounted: str = ""
    known: str = "--\n"
    """Ids that the queue lists when it is asked once more."""
    asked: list[str] = field(default_factory=list)
    stdin: list[bytes] = field(default_factory=list)

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        self.asked.append(command)
        self.stdin.append(stdin)
        text = "12\n"
        if command == "bash -s":
            text = "".join(
                f"{job}\n{_trial(*of[:2])}\n{'' if of[2] is None else json.dumps(of[2])}\n"
                for job, of in self.results.items()
            )
        elif command.startswith("squeue --array"):
            text = f"{self.queue}--\n{self.accounted}"
        elif "squeue" in command and "submit_once" not in command:
            text = self.known
        return Result(command=command, exit_code=0, stdout=text, stderr="")


def _trial(array: str, settings: tuple[str, ...]) -> str:
    return json.dumps({"search": "lr", "array": array, "trial": 0, "settings": settings})


def passed(loss: float) -> dict[str, Any]:
    return {"outcome": "PASS", "reason": None, "metrics": {"last_loss": loss}}


def ledger_in(state: Path, **changes: object) -> JobLedger:
    return open_ledger(l40s(**changes), state, print)


def sent(
    of: JobLedger,
    cluster: Cluster,
    state: Path,
    store: dict[str, str] | None = None,
    **changes: Any,
) -> Submission:
    """The array; what else a search changes is in `changes`."""
    files = code_files(STACKS_DIR.parent, of.spec)
    trials = prepare_search(of, replace(SEARCH, **changes), files)
    own = submitter(
        cluster,
        WITH_SEARCH,
        state=state,
        books=lambda: of,
        code_hash=hash_files(files),
        store=lambda: store,
    )
    return own.submit(trials).submission


@pytest.mark.usefixtures("public_key_file")
def test_the_data_of_every_trial_is_looked_for_before_the_array_is_queued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {**WITH_SEARCH.places, "data": "/mnt/data"}
    monkeypatch.setitem(globals(), "WITH_SEARCH", replace(WITH_SEARCH, places=places))
    cluster = Cluster()
    rates = AxisSpec(key="train.learning_rate", values=("1e-5", "2e-5"))
    data = AxisSpec(key="train.dataset", values=("one", "two"))
    sent(ledger_in(tmp_path), cluster, tmp_path, grid=(rates, data))
    command = cluster.asked[0]
    for name in ("one", "two"):
        assert command.count(f"/mnt/data/{name}/tokens_train.parquet") == 1


def equivalent(cluster: Cluster, state: Path) -> SubmittedJobs:
    return SubmittedJobs(
        connection=cluster, outputs=WITH_SEARCH, state=state, code_hash=HASH, log=lambda _: None
    )


@pytest.mark.usefixtures("public_key_file")
def test_a_search_is_one_sbatch_with_a_plan_for_each_task(tmp_path: Path) -> None:
    of, cluster = ledger_in(tmp_path), Cluster()
    made = sent(of, cluster, tmp_path)
    command = cluster.asked[0]
    assert [each.count("submit_once sbatch") for each in cluster.asked] == [1, 0]
    assert command.endswith("jobs/lr")
    assert "--array=0,1,2%2" in command
    assert [f"SOPERATOR_PLAN_{number}=" in command for number in range(4)] == [True] * 3 + [False]
    assert (made.job, made.job_id) == ("lr", "12")
    (entry,) = of.file.read().entries
    assert isinstance(entry, ForecastEntry)
    assert entry.nodes_usd == Decimal("109.651200")


def many(number: int) -> dict[int | None, PreparedJob]:
    """Tasks of which each has a plan and a config of its own."""
    return {each: task(b"%d" % each, {"a": each}) for each in range(number)}


def test_the_largest_search_is_one_argument_of_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """execve(2), MAX_ARG_STRLEN."""
    cluster = Cluster()
    config = "soperator-h100-prod-configs-0123456789ab/runs/finance_qwen3_14b/0123456789abcdef.json"
    monkeypatch.setattr("infra.jobs.recipes.keep", lambda *_: config)
    submit(cluster, WITH_SEARCH, "lr", code_hash=HASH, tasks=many(TRIALS_MOST), store={})
    assert cluster.asked[-1].count(config) == TRIALS_MOST
    assert len(cluster.asked[-1].encode()) < 128 * 1024
    plans = [b"%d" % number for number in range(TRIALS_MOST)]
    assert cluster.stdin[-1] == pack({plan_name(each): each for each in plans})


def test_a_command_that_no_shell_takes_is_refused_before_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    monkeypatch.setattr("infra.jobs.recipes.keep", lambda *_: "b" * 200)
    with pytest.raises(
        JobsError, match=r"500 tasks .* nothing was submitted: declare two searches"
    ):
        submit(cluster, WITH_SEARCH, "lr", code_hash=HASH, tasks=many(TRIALS_MOST), store={})
    assert cluster.asked == []


@pytest.mark.usefixtures("public_key_file")
def test_each_task_names_the_config_of_its_own_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[float] = []

    def keep(_store: object, _recipe: str, content: bytes) -> str:
        kept.append(json.loads(content)["train"]["learning_rate"])
        return f"bucket/{len(kept)}"

    monkeypatch.setattr("infra.jobs.recipes.keep", keep)
    cluster = Cluster()
    sent(ledger_in(tmp_path), cluster, tmp_path, store={"bucket": "b"})
    assert kept == [1e-5, 2e-5, 4e-5]
    for number in range(3):
        assert f"SOPERATOR_RUN_CONFIG_{number}=bucket/{number + 1}" in cluster.asked[0]


@pytest.mark.usefixtures("public_key_file")
def test_a_search_that_the_month_has_no_room_for_is_refused_whole(tmp_path: Path) -> None:
    of, cluster = ledger_in(tmp_path, budget=BudgetSpec(usd_per_month=Decimal(100))), Cluster()
    with pytest.raises(JobsError, match=r"lr: the forecast of \$109\.65 is more than what is left"):
        sent(of, cluster, tmp_path)
    assert not any("sbatch" in command for command in cluster.asked)


@pytest.mark.usefixtures("public_key_file")
def test_a_search_over_its_own_limit_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    cluster = Cluster()
    with pytest.raises(JobsError, match=r"is over searches\.lr\.max_usd.*nothing was submitted"):
        sent(ledger_in(tmp_path), cluster, tmp_path, max_usd=Decimal(100))
    assert cluster.asked == []


def test_without_a_submission_every_trial_is_left(tmp_path: Path) -> None:
    assert trials_to_submit(SEARCH, equivalent(Cluster(), tmp_path), ()) == (0, 1, 2)


def test_what_passed_or_is_on_its_way_is_not_left(tmp_path: Path) -> None:
    cluster = Cluster(
        results={"13": ("12", SETTINGS[0], passed(1.0)), "14": ("12", SETTINGS[1], None)},
        queue="14|12|1|RUNNING\n12|12|2|PENDING\n",
    )
    remembered(tmp_path)
    assert trials_to_submit(SEARCH, equivalent(cluster, tmp_path), ()) == ()
    cluster.queue = "14|12|1|FAILED\n"
    assert trials_to_submit(SEARCH, equivalent(cluster, tmp_path), ()) == (1, 2)


def test_what_ran_with_other_code_or_settings_is_left(tmp_path: Path) -> None:
    cluster = Cluster(results={"13": ("12", SETTINGS[0], passed(1.0))})
    remembered(tmp_path)
    assert trials_to_submit(SEARCH, equivalent(cluster, tmp_path), ("train.max_steps=9",)) == (
        0,
        1,
        2,
    )
    assert trials_to_submit(SEARCH, replace(equivalent(cluster, tmp_path), code_hash="x"), ()) == (
        0,
        1,
        2,
    )


def remembered(state: Path) -> None:
    made = Submission(
        stack="local",
        job="lr",
        job_id="12",
        code_hash=HASH,
        sets=(),
        after=None,
        log_path="",
        submitted_at="2026-11-21T08:00:00+00:00",
        cluster=OUTPUTS.login_host_key,
    )
    history.remember(state, made)


def test_accounting_tells_tasks_that_the_queue_forgot_and_the_queue_is_never_late() -> None:
    cluster = Cluster(
        queue="15|12|2|RUNNING\n12|12|3|PENDING\n12|12|4|PENDING\n",
        accounted="13|12_0|COMPLETED\n14|12_1|CANCELLED by 0\n15|12_2|PENDING\n9|9|FAILED\n"
        "16|12_5|\n",
    )
    found = {(task.job_id, task.number, task.state) for task in states_of(cluster, "lr")}
    assert found == {
        ("13", 0, "COMPLETED"),
        ("14", 1, "CANCELLED"),
        ("15", 2, "RUNNING"),
        ("12", 3, "PENDING"),
        ("12", 4, "PENDING"),
        ("16", 5, ""),
    }


@pytest.mark.parametrize(("known", "state"), [("15\n", "RUNNING"), ("--\n", "FORGOTTEN")])
def test_a_task_that_slurmctld_forgot_is_not_on_its_way(known: str, state: str) -> None:
    """Accounting calls it RUNNING for ever, and the search waited for it."""
    cluster = Cluster(queue="14|12|1|RUNNING\n", accounted="14|12_1|RUNNING\n15|12_2|RUNNING\n")
    cluster.known = known
    found = {task.job_id: task for task in states_of(cluster, "lr")}
    assert (found["15"].state, found["15"].is_active) == (state, state == "RUNNING")
    assert found["14"].is_active


def test_a_damaged_mark_is_no_run() -> None:
    @dataclass
    class Damaged(Cluster):
        def run(self, command: str, *, stdin: bytes = b"") -> Result:
            text = f'13\n{{"search": "lr", "arr\n\n14\n[]\n{{}}\n15\n{"[" * 100_000}\n\n'
            return Result(command=command, exit_code=0, stdout=text, stderr="")

    assert runs_of(Damaged(), WITH_SEARCH, "lr") == ()


def trial_run(job_id: str, number: int, record: dict[str, Any] | None) -> TrialRun:
    return TrialRun(job_id=job_id, array_id="12", settings=SETTINGS[number], record=record)


@pytest.mark.feature("S002-79")
@pytest.mark.parametrize(("goal", "best"), [(Goal.LOWEST, 1), (Goal.HIGHEST, 0)])
def test_trials_are_ranked_by_the_declared_end_of_the_metric(goal: Goal, best: int) -> None:
    runs = [
        trial_run("13", 0, passed(2.0)),
        trial_run("14", 1, passed(1.5)),
        trial_run("15", 2, {"outcome": "FAIL", "reason": "loss is NaN", "metrics": {}}),
    ]
    usd = {"13": Decimal(3), "14": Decimal(4), "15": Decimal(1)}
    board = leaderboard(replace(SEARCH, goal=goal), runs, (), usd)
    assert board.best is not None
    assert board.best.number == best
    assert [row.rank for row in board.rows] == [1, 2, None]
    last = board.rows[-1]
    assert (last.state, last.reason, last.usd) == ("FAIL", "loss is NaN", 1)
    assert board.usd == 8


def test_what_has_no_result_says_why() -> None:
    runs = [trial_run("13", 0, None), trial_run("14", 1, {"outcome": "PASS", "metrics": {}})]
    states = [
        TaskState(job_id="13", array_id="12", number=0, state="NODE_FAIL"),
        TaskState(job_id="12", array_id="12", number=2, state="PENDING"),
    ]
    board = leaderboard(SEARCH, runs, states, {})
    assert [row.state for row in board.rows] == ["NODE_FAIL", "NO METRIC", "PENDING"]
    assert leaderboard(SEARCH, (), (), {}).rows[0].state == "NOT SUBMITTED"


LONG = pytest.param(10**400, id="more than a float holds")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), LONG, True, "1.0", None])
def test_a_metric_that_is_no_number_is_not_ranked(value: object) -> None:
    record = {"outcome": "PASS", "metrics": {"last_loss": value}}
    assert leaderboard(SEARCH, [trial_run("13", 0, record)], (), {}).best is None


def test_the_newest_run_of_a_trial_counts_and_every_one_is_paid() -> None:
    former = TrialRun(job_id="9", array_id="8", settings=("train.x=1",), record=passed(0.1))
    runs = [trial_run("14", 0, passed(1.0)), trial_run("13", 0, passed(9.0)), former]
    board = leaderboard(SEARCH, runs, (), {"13": Decimal(2), "14": Decimal(3), "9": Decimal(5)})
    assert board.best is not None
    assert (board.best.job_id, board.best.value) == ("14", 1.0)
    assert (board.usd, board.num_former) == (10, 1)
