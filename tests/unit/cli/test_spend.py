"""`soperator submit` and `soperator cost spend` at the door: what is said, and with which code."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from cost.runs.ledger import ActualEntry, ForecastEntry, Ledger
from infra.cli.main import app
from infra.clients.pulumi import StackOutputs
from infra.clients.ssh import Result as Ran
from tests.unit.cost.run_stacks import actual_entry, forecast_entry
from tests.unit.jobs.test_submit import OUTPUTS

RUNNER = CliRunner()
NOW = datetime.now(UTC)
SCRIPT = "#!/bin/bash\n"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path) -> Path:
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path))
    return tmp_path


class Cluster:
    """A login node that submits, and whose accounting is off."""

    asked: list[str]

    def __init__(self) -> None:
        self.asked = []

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, command: str, *, stdin: bytes = b"") -> Ran:
        self.asked.append(command)
        if "--test-only" in command:
            said = "sbatch: Job 12 to start at 2026-11-21T08:00:00"
            shown = f"releases/0123\n{SCRIPT}"
            return Ran(command=command, exit_code=0, stdout=shown, stderr=said)
        if "squeue" in command and "sacct" not in command:
            return Ran(command=command, exit_code=0, stdout="", stderr="")
        if "squeue" in command and "submit_once sbatch" not in command:
            off = "Slurm accounting storage is disabled\n"
            return Ran(command=command, exit_code=1, stdout="--\n", stderr=off)
        return Ran(command=command, exit_code=0, stdout="12\n", stderr="")


@pytest.fixture
def cluster(state: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()

    def read(stack: str, *_: object) -> StackOutputs:
        return OUTPUTS

    monkeypatch.setattr("infra.cli.context.caller", read)
    monkeypatch.setattr("infra.cli.context.connect", lambda *_: made)
    return made


def run(*words: str) -> Result:
    return RUNNER.invoke(app, list(words))


def ledger(state: Path, stack: str = "local") -> Ledger:
    return Ledger(state / "runs" / stack / "ledger.jsonl")


def test_a_submission_tells_of_a_damaged_record_and_goes_on(cluster: Cluster, state: Path) -> None:
    path = state / "runs" / "local" / "7" / "run_record.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    done = run("submit", "finetune")
    assert (done.exit_code, done.stdout) == (0, "12\n"), done.output
    assert f"damaged run record, left out: {path}: not valid JSON" in done.stderr


def test_a_submission_prints_its_id_and_says_what_is_not_known(
    cluster: Cluster, state: Path
) -> None:
    done = run("submit", "finetune")
    assert done.exit_code == 0, done.output
    assert done.stdout == "12\n"
    assert "Run of finetune: NOT KNOWN: the speed of smollm2_135m_lora_2xcpu" in done.stderr
    assert "budget" in done.stderr
    (entry,) = ledger(state).read().entries
    assert isinstance(entry, ForecastEntry)
    assert (state / "runs" / "local" / "12" / "submission.json").exists()


def test_json_holds_the_submission_and_its_forecast(cluster: Cluster) -> None:
    found = json.loads(run("submit", "finetune", "--format", "json").stdout)
    assert (found["job_id"], found["forecast"]["job"]) == ("12", "finetune")


def test_a_dry_run_says_the_forecast_and_writes_nothing(cluster: Cluster, state: Path) -> None:
    done = run("submit", "finetune", "--dry-run")
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith(SCRIPT)
    assert "Run of finetune: NOT KNOWN" in done.stderr
    assert not ledger(state).path.exists()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train.lora.rnk=8", "train.lora.rnk: unknown key; did you mean 'rank'?"),
        ("train.max_steps=many", 'train.max_steps: got "many", expected a whole number'),
        ("train.method=qlorra", 'train.method: got "qlorra", expected one of lora, full, qlora'),
    ],
)
def test_a_wrong_setting_is_refused_before_a_node_is_held(
    cluster: Cluster, setting: str, words: str
) -> None:
    done = run("submit", "finetune", "--set", setting)
    assert done.exit_code == 1
    assert words in done.stderr
    assert "nothing was submitted" in done.stderr
    assert cluster.asked == []


@pytest.mark.feature("S000-61")
def test_the_list_of_jobs_goes_back_as_far_as_is_asked(cluster: Cluster) -> None:
    run("status")
    run("status", "--days", "30")
    week, month = (each for each in cluster.asked if "squeue" in each)
    assert week.endswith("--starttime=now-7days")
    assert month.endswith("--starttime=now-30days")


@pytest.mark.feature("S001-33")
def test_the_queue_is_watched_until_an_interrupt(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("infra.cli.jobs.follow.time", SimpleNamespace(sleep=pause))
    run("status", "--watch")
    assert paused == [2.0, 2.0]
    assert sum("squeue" in command for command in cluster.asked) == 2
    paused.clear()
    run("status", "--watch", "--every", "5")
    assert paused == [5.0, 5.0], "seed 001 looks every five seconds"
    assert run("status", "--watch", "--every", "0.5").exit_code == 2


def test_an_unknown_job_is_refused_before_anything_is_asked(cluster: Cluster) -> None:
    done = run("submit", "fintune")
    assert done.exit_code == 1
    assert "did you mean 'finetune'" in done.stderr
    assert cluster.asked == []


def spent(state: Path) -> None:
    """Two hours that ended an hour ago, forecast at 15 USD."""
    start = NOW - timedelta(hours=3)
    ledger(state).append(
        forecast_entry("1", "15", start),
        actual_entry("1", "18.2752", start, start + timedelta(hours=2)),
    )


def test_spend_prints_what_the_ledger_knows_without_a_cluster(state: Path) -> None:
    spent(state)
    done = run("cost", "spend", "--ledger", "--format", "json", "--since", "2020-01-01")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["notes"][0].startswith("From the ledger alone")
    (job,) = found["jobs"]
    assert (job["state"], job["forecast_usd"]) == ("COMPLETED", "15.000000")


def test_spend_on_a_cluster_without_accounting_uses_the_ledger_and_says_so(
    cluster: Cluster, state: Path
) -> None:
    spent(state)
    done = run("cost", "spend", "--since", "2020-01-01")
    assert done.exit_code == 0, done.output
    assert "Accounting is off on this cluster" in done.stdout
    assert "finetune" in done.stdout


def test_a_stack_is_not_billed_for_the_time_before_it_came_up(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half an hour after its first `up` a stack had a bill of three weeks."""
    up = NOW - timedelta(minutes=28)
    monkeypatch.setattr("infra.cli.context.first_up", lambda _stack: up)
    done = run("cost", "spend", "--since", "2020-01-01", "--format", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["since"].startswith(f"{up:%Y-%m-%dT%H:%M}")
    assert f"the period starts at {up:%Y-%m-%dT%H:%M} UTC, when it first came up" in done.stderr
    later = f"{NOW - timedelta(minutes=5):%Y-%m-%dT%H:%M}"
    shown = json.loads(run("cost", "spend", "--since", later, "--format", "json").stdout)
    assert shown["since"].startswith(later)


def test_spend_goes_to_a_file_whole(state: Path) -> None:
    target = state / "spend.csv"
    done = run("cost", "spend", "--ledger", "--format", "csv", "--output", str(target))
    assert done.stdout.strip() == str(target)
    assert target.read_text().startswith("stack,since,until,kind,name")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--since", "2999-01-01"), "--since 2999-01-01: in the future"),
        (("--until", "2999-01-01"), "--until 2999-01-01: in the future"),
        (("--since", "last week"), "--since last week: not a time; write 2026-11-01"),
        (("--since", "2026-02-01", "--until", "2026-01-01"), "not after 2026-02-01T00:00"),
        (("--stack", "locl"), "did you mean 'local'"),
    ],
)
def test_a_period_or_a_stack_that_cannot_be_is_refused(
    state: Path, words: tuple[str, ...], said: str
) -> None:
    done = run("cost", "spend", "--ledger", *words)
    assert done.exit_code == 1
    assert said in done.stderr
    assert done.stdout == ""


def test_a_ledger_of_another_version_is_one_line_with_file_and_line(state: Path) -> None:
    spent(state)
    with ledger(state).path.open("a") as file:
        file.write('{"schema_version": 7}\n')
    done = run("cost", "spend", "--ledger")
    assert done.exit_code == 1
    assert done.stderr.startswith(
        f"soperator: {ledger(state).path}:3: schema_version: got number 7"
    )


def test_a_ledger_that_was_cut_is_reported_and_the_rest_is_printed(state: Path) -> None:
    spent(state)
    with ledger(state).path.open("a") as file:
        file.write('{"schema_version": 1, "kind": "act')
    done = run("cost", "spend", "--ledger", "--since", "2020-01-01", "--format", "json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert len(found["jobs"]) == 1
    assert f"{ledger(state).path}:3: not a JSON object" in found["notes"][0]


def test_pulling_a_job_writes_its_cost_down(
    cluster: Cluster, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = NOW - timedelta(minutes=10)
    row = (
        f"12|12|root|(null)|main|COMPLETED|{start:%Y-%m-%dT%H:%M:%S}|{NOW:%Y-%m-%dT%H:%M:%S}|2|N/A|"
        "worker-[0-1]|2|1:00|None|finetune\n--\n"
    )
    shown = "JobId=12 JobName=finetune JobState=COMPLETED ExitCode=0:0 NodeList=worker-[0-1]"

    def answer(command: str, *, stdin: bytes = b"") -> Ran:
        off = "Slurm accounting storage is disabled\n"
        if "squeue" in command:
            return Ran(command=command, exit_code=1, stdout=row, stderr=off)
        return Ran(command=command, exit_code=0, stdout=f"{shown}\n", stderr="")

    monkeypatch.setattr(cluster, "run", answer)
    folder = state / "runs" / "local" / "12"
    monkeypatch.setattr("infra.jobs.transfer.pull", lambda *_, **__: folder)
    done = run("pull", "12")
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(state / "runs" / "local" / "12")
    assert done.stderr.startswith("job 12: $1.5")
    (entry,) = ledger(state).read().entries
    assert isinstance(entry, ActualEntry)
