"""Verbs that need no cluster, on the shipped stacks and with a stand-in for the pulumi CLI."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from cost.prices.book import layered
from cost.resources.estimate import estimate
from infra.cli import context
from infra.cli.machine import doctor, local
from infra.cli.machine.doctor import price_ages
from infra.cli.main import app
from infra.clients import slurm
from infra.clients.errors import JobsError
from infra.clients.pulumi import outputs_from, read_first_up, read_outputs
from infra.clients.ssh import Result
from infra.local import offline
from infra.local.process import LocalError
from infra.operate.restore import JailSnapshot, Plan
from infra.setup.demo import runner
from infra.state import State
from stacks.load import load_stack
from tests.unit.local.test_locks import lock_of
from tests.unit.report.reports import write_runs

RUNNER = CliRunner()
_UNKNOWN = "slurm_load_jobs error: Invalid job id specified"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path) -> Path:
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path))
    return tmp_path


def pulumi(folder: Path, script: str) -> dict[str, str]:
    """An environment in which `pulumi` is this shell script."""
    program = folder / "bin" / "pulumi"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    return {"PATH": path, "PULUMI_BACKEND_URL": f"file://{folder}"}


@pytest.mark.parametrize("format", ["table", "json", "markdown", "csv", "html"])
def test_cost_prints_every_stack_in_every_format(state: Path, format: str) -> None:
    result = RUNNER.invoke(app, ["cost", "--stack", "l40s-dev", "--format", format])
    assert result.exit_code == 0, result.output
    assert "18,116" in result.output or "18116" in result.output


def test_cost_compares_two_stacks(state: Path) -> None:
    result = RUNNER.invoke(app, ["cost", "--stack", "l40s-dev", "--compare", "local"])
    assert result.exit_code == 0, result.output


def test_an_unknown_stack_is_refused_with_the_nearest_name(state: Path) -> None:
    result = RUNNER.invoke(app, ["cost", "--stack", "l40-dev"])
    assert result.exit_code == 1
    assert "l40s-dev" in result.stderr


def test_chat_cost_without_any_speed_says_what_to_run(state: Path) -> None:
    result = RUNNER.invoke(app, ["cost", "chat", "--stack", "local"])
    assert result.exit_code == 1
    assert "soperator submit evaluate --stack local" in result.stderr


def test_chat_cost_uses_what_was_measured(state: Path) -> None:
    write_runs(state)
    result = RUNNER.invoke(app, ["cost", "chat", "--stack", "local", "--format", "json"])
    rows = json.loads(result.stdout)["chats"]
    assert [row["basis"] for row in rows] == ["measured", "measured"]


def test_chat_cost_shares_another_bill_as_seed_000_does(state: Path) -> None:
    arguments = ["cost", "chat", "--stack", "l40s-dev", "--usd", "19000", "--days", "30"]
    result = RUNNER.invoke(app, arguments)
    assert [
        line.split()[-1] for line in result.stdout.split("$19,000.00")[1].splitlines()[4:7]
    ] == [
        "$3.86",
        "$0.244",
        "$0.0733",
    ]


@pytest.mark.parametrize("usd", ["0", "-1", "NaN", "much", "1e400", "1e-30"])
def test_chat_cost_refuses_a_bill_that_is_no_money(state: Path, usd: str) -> None:
    result = RUNNER.invoke(app, ["cost", "chat", "--stack", "l40s-dev", "--usd", usd])
    assert result.exit_code == 1
    assert f"--usd {usd}: expected a number from 0.01 to" in result.stderr


@pytest.mark.parametrize("format", ["table", "json", "markdown", "csv", "html"])
def test_chat_cost_prints_every_format(state: Path, format: str) -> None:
    result = RUNNER.invoke(app, ["cost", "chat", "--stack", "l40s-dev", "--format", format])
    assert result.exit_code == 0, result.output
    assert "Single Batch Finetuned" in result.stdout
    assert result.stdout.count("<svg") == (3 if format == "html" else 0)


def test_report_prints_the_path_of_the_page(state: Path) -> None:
    write_runs(state)
    result = RUNNER.invoke(app, ["report", "--stack", "local"])
    assert result.stdout.strip() == str(state / "report.html")
    assert (state / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("verb", ["cost", "cost chat", "report"])
def test_a_damaged_record_is_refused_by_every_verb_that_prints_what_it_measured(
    state: Path, verb: str
) -> None:
    path = state / "runs" / "l40s-dev" / "7" / "run_record.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"schema_version": 1, "kind')
    result = RUNNER.invoke(app, [*verb.split(), "--stack", "l40s-dev"])
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"soperator: {path}: not valid JSON")
    assert not (state / "report.html").exists()


@pytest.mark.parametrize(
    "words", [["cost", "spend", "--ledger"], ["cost", "spend", "--ledger", "--format=json"]]
)
def test_a_damaged_record_is_told_in_one_line_by_a_verb_that_can_do_without(
    state: Path, words: list[str]
) -> None:
    for job in ("7", "8"):
        path = state / "runs" / "l40s-dev" / job / "run_record.json"
        path.parent.mkdir(parents=True)
        path.write_text('{"schema_version": 1, "kind')
    result = RUNNER.invoke(app, [*words, "--stack", "l40s-dev"])
    assert result.exit_code == 0, result.output
    assert result.stdout
    (line,) = [each for each in result.stderr.splitlines() if "record" in each]
    first = state / "runs" / "l40s-dev" / "7" / "run_record.json"
    assert line.startswith(f"damaged run record, left out: {first}: not valid JSON")
    assert line.endswith("(and 1 more); pull the job again or remove the file")


def test_a_report_that_cannot_be_written_is_refused_and_leaves_nothing(state: Path) -> None:
    folder = state / "folder.html"
    folder.mkdir()
    result = RUNNER.invoke(app, ["report", "--stack", "local", "--output", str(folder)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"soperator: {folder}: Is a directory; nothing was written: give a file in a folder that "
        "is there and yours\n"
    )
    assert not [each.name for each in state.iterdir() if "part" in each.name]


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("error: get stack secrets manager: incorrect passphrase", "does not open this stack's"),
        ("error: no stack named 'x' found", "not deployed in this backend; run `pulumi up"),
        ("error: unable to open bucket file:///x", "not deployed in this backend"),
        (
            "error: current stack does not have output property 'kubeconfig'",
            "x: not up, or not to its end; run `pulumi up --stack x`",
        ),
        ("error: something else broke", "pulumi stack output: something else broke"),
    ],
)
def test_what_pulumi_refuses_is_one_line_that_says_what_to_do(
    tmp_path: Path, printed: str, said: str
) -> None:
    environ = pulumi(tmp_path, f'echo "{printed}" >&2; exit 255')
    with pytest.raises(JobsError, match=said) as caught:
        read_outputs("x", environ)
    assert "\n" not in str(caught.value)


def test_a_stack_came_up_with_the_first_update_of_its_history(tmp_path: Path) -> None:
    entries = [
        {"kind": kind, "startTime": f"2026-11-22T{hour}:30:00.000Z"}
        for kind, hour in (("update", 12), ("destroy", 11), ("update", "09"), ("refresh", "08"))
    ]
    environ = pulumi(tmp_path, f"case \"$*\" in *--page-size*) echo '{json.dumps(entries)}';; esac")
    found = read_first_up("x", environ)
    assert found == datetime(2026, 11, 22, 9, 30, tzinfo=UTC)
    for nothing in ("echo '[]'", "exit 255", "echo '[{}]'"):
        environ = pulumi(tmp_path, nothing)
        assert read_first_up("x", environ) is None


def test_without_pulumi_the_way_to_get_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobsError, match="make setup"):
        read_outputs("x", {"PATH": str(tmp_path)})


def test_cancel_refuses_a_job_that_never_was(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """scancel says nothing about one, and the command claimed to have ended it."""

    class Cluster:
        def __enter__(self) -> Cluster:
            return self

        def __exit__(self, *_: object) -> None: ...

        def run(self, command: str) -> Result:
            known = command.startswith("scancel")
            return Result(
                command=command,
                exit_code=0 if known else 1,
                stdout="",
                stderr="" if known else _UNKNOWN,
            )

    monkeypatch.setattr("infra.cli.context.caller", lambda *_: None)
    monkeypatch.setattr("infra.cli.context.connect", lambda *_: Cluster())
    done = RUNNER.invoke(app, ["cancel", "999"])
    assert done.exit_code == 1
    assert "Slurm knows no such job" in done.stderr


def answering(monkeypatch: pytest.MonkeyPatch, shown: Callable[[str], str]) -> list[str]:
    """A cluster on which every command works and shows this; the commands that it was asked."""
    asked: list[str] = []

    class Cluster:
        def __enter__(self) -> Cluster:
            return self

        def __exit__(self, *_: object) -> None: ...

        def run(self, command: str) -> Result:
            asked.append(command)
            return Result(command=command, exit_code=0, stdout=shown(command), stderr="")

    monkeypatch.setattr("infra.cli.context.caller", lambda *_: None)
    monkeypatch.setattr("infra.cli.context.connect", lambda *_: Cluster())
    return asked


def test_cancel_says_what_has_ended_already(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It claimed to have asked a completed job to end."""
    shown = "JobId=28 JobName=finetune JobState=COMPLETED ExitCode=0:0 NodeList=worker-0\n"
    asked = answering(monkeypatch, lambda _command: shown)
    done = RUNNER.invoke(app, ["cancel", "28"])
    assert done.exit_code == 0, done.output
    assert done.stderr.strip() == "finetune (28) has ended already: COMPLETED"
    assert not [command for command in asked if "scancel" in command]


def test_cancel_ends_an_array_whose_last_task_is_over(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That task has the array's id: the search was said to have ended, and the others ran on."""
    task = "ArrayJobId=12 JobName=sweep ExitCode=1:0 NodeList=worker-0 JobState="

    def shown(command: str) -> str:
        if command.startswith("squeue"):
            return "RUNNING\n" if "--jobs=12" in command else "--\n"
        return f"JobId=13 {task}RUNNING\nJobId=12 {task}FAILED\n"

    asked = answering(monkeypatch, shown)
    done = RUNNER.invoke(app, ["cancel", "12"])
    assert done.exit_code == 0, done.output
    assert [command for command in asked if "scancel" in command] == ["scancel 12"]
    assert "asked to end 12" in done.stderr


def test_a_queue_that_is_not_told_is_no_empty_one() -> None:
    class Cluster:
        def run(self, command: str) -> Result:
            error = "slurm_load_jobs error: Unable to contact slurm controller"
            return Result(command=command, exit_code=1, stdout="", stderr=error)

    with pytest.raises(JobsError, match=r"squeue: exit 1: .*contact slurm controller"):
        slurm.has_open_tasks(Cluster(), "12")


@pytest.mark.parametrize("words", [["-f"], ["--follow"], ["--no-follow"]])
def test_logs_takes_what_people_type(
    state: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    def absent(*_: object) -> None:
        raise JobsError("reached the stack")

    monkeypatch.setattr("infra.cli.context.caller", absent)
    done = RUNNER.invoke(app, ["logs", *words, "12"])
    assert "reached the stack" in done.stderr


def test_a_paused_stack_says_that_its_results_stay_and_how_to_have_them() -> None:
    values = {
        **dict.fromkeys(("login_ip", "login_host_key", "code_path"), "x"),
        "ssh_port": 22,
        "places": {},
        "jobs": {},
        "code_hash": "",
    }
    with pytest.raises(
        JobsError, match=r"is paused: .* all else stays .* soperator cluster resume"
    ):
        outputs_from("local", values)


def test_doctor_takes_every_credential_that_the_program_takes(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said FAIL to a user whose nebius CLI was logged in, where `pulumi up` worked."""

    def token() -> str:
        return doctor.credentials("h100-prod")[-1].outcome

    profile = state / "config.yaml"
    monkeypatch.setattr(doctor, "CLI_CONFIG", profile)
    monkeypatch.delenv("NEBIUS_IAM_TOKEN", raising=False)
    monkeypatch.delenv("SOPERATOR_NEBIUS_KEY_FILE", raising=False)
    assert token() == "FAIL"
    profile.touch()
    assert token() == "PASS"
    profile.unlink()
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", "x")
    assert token() == "PASS"


def test_doctor_takes_the_service_account_that_init_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said FAIL, NEBIUS_IAM_TOKEN is not set, to a stack that `soperator init` had set up."""
    key = tmp_path / "key.json"
    monkeypatch.setattr(doctor, "CLI_CONFIG", tmp_path / "none.yaml")
    monkeypatch.delenv("NEBIUS_IAM_TOKEN", raising=False)
    monkeypatch.setenv("SOPERATOR_NEBIUS_KEY_FILE", str(key))
    lost = doctor.credentials("h100-prod")[-1]
    assert (lost.check, lost.outcome) == ("service account key", "FAIL")
    assert str(key) in lost.seen
    key.write_text("{}", encoding="utf-8")
    key.chmod(0o600)
    found = doctor.credentials("h100-prod")[-1]
    assert (found.check, found.outcome, found.seen) == ("service account key", "PASS", str(key))
    key.chmod(0o644)
    assert doctor.credentials("h100-prod")[-1].fix == f"run: chmod 600 {key}"


def test_the_emulator_never_gets_the_token_of_the_cloud(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a shell with a token alone; it was refused there, and doctor said that it is no good."""
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", "of-the-cloud")
    monkeypatch.delenv("SOPERATOR_NEBIUS_ENDPOINT", raising=False)
    monkeypatch.delenv("PULUMI_BACKEND_URL", raising=False)
    assert context.environ()["NEBIUS_IAM_TOKEN"] != "of-the-cloud"
    monkeypatch.setattr(doctor, "ask", lambda *_, **__: ())
    doctor.asked("local")
    assert os.environ["SOPERATOR_NEBIUS_ENDPOINT"].startswith("http://127.0.0.1:")
    assert os.environ["NEBIUS_IAM_TOKEN"] != "of-the-cloud"


@pytest.mark.parametrize("verb", ["backup", "restore"])
def test_an_interrupted_copy_says_what_ends_it(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said `kubectl delete restore`, without name and namespace, which ends nothing."""

    def interrupt(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    class Client:
        def close(self) -> None:
            pass

    snapshot = JailSnapshot(id="a" * 64, at=None, repository="s3:r")
    plan = Plan(name="back-1", snapshot=snapshot, backend={}, path=None, into_jail=False)
    monkeypatch.setattr(context, "kube_client", lambda _stack: Client())
    for name, answer in {
        "copy_now": interrupt,
        "run": interrupt,
        "new_name": lambda: "now-1",
        "make_plan": lambda *_, **__: plan,
        "choose": lambda *_: snapshot,
        "schedule_spec": lambda *_: {"backend": {}},
        "list_snapshots": lambda *_: (snapshot,),
        "longest_backup_s": lambda *_: None,
    }.items():
        monkeypatch.setattr(f"infra.operate.restore.{name}", answer)
    words = ["latest", "--yes"] if verb == "restore" else []
    done = RUNNER.invoke(app, ["cluster", verb, *words, "--stack", "h100-prod"])
    name = {"backup": "now-1", "restore": "back-1"}[verb]
    assert f"kubectl -n soperator delete {verb}s.k8up.io {name} ends it" in done.stderr


def test_the_demo_without_root_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for step in ("_prepare", "_bring_up"):
        monkeypatch.setattr(f"infra.cli.machine.local.{step}", lambda *_: pytest.fail("it went on"))
    done = RUNNER.invoke(app, ["local", "demo"])
    assert done.exit_code == 1
    assert "needs root" in done.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.usefixtures("public_key_file")
def test_prices_older_than_the_policy_allows_are_a_warning() -> None:
    spec = load_stack("h100-prod")
    bill = estimate(spec, layered(spec))
    oldest = bill.price_date
    assert oldest is not None
    limit = timedelta(days=spec.policy.max_price_age_days)
    assert price_ages(spec, bill, oldest + limit).outcome == "PASS"
    late = price_ages(spec, bill, oldest + limit + timedelta(days=1))
    assert late.outcome == "WARN"
    assert "older than 90 days" in late.seen
    none = replace(bill, components=())
    assert price_ages(spec, none, oldest).outcome == "WARN"


def test_the_demo_runs_on_the_embedded_cloud_whatever_the_shell_chose(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the backend and the token of a project, after `soperator init`."""
    monkeypatch.setenv("PULUMI_BACKEND_URL", "s3://ours")
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", "of-the-cloud")
    monkeypatch.delenv("SOPERATOR_NEBIUS_ENDPOINT", raising=False)
    found = local._environ()
    assert found["PULUMI_BACKEND_URL"].startswith(f"file://{state}")
    assert found["SOPERATOR_NEBIUS_ENDPOINT"].startswith("http://127.0.0.1:")
    assert found["NEBIUS_IAM_TOKEN"] != "of-the-cloud"


def test_what_a_killed_pulumi_was_making_is_forgotten(tmp_path: Path) -> None:
    path = lock_of(tmp_path, 2**22 + 1)
    said: list[str] = []
    environ = pulumi(tmp_path, f"echo $@ >> {tmp_path}/asked")
    runner.release_lock("local", environ=environ, say=said.append)
    assert not path.exists()
    (forget,) = (tmp_path / "asked").read_text().splitlines()
    assert forget.startswith("refresh --clear-pending-creates --target urn:pulumi:local::")
    assert said == ["a killed run left the stack locked; unlocked"]


def test_the_failure_of_pulumi_shows_its_errors_and_names_the_file(tmp_path: Path) -> None:
    environ = pulumi(tmp_path, "echo noise; echo 'error: quota of GPUs is 0'; exit 3")
    with pytest.raises(Exception, match=r"ended with 3(.|\n)*log\nerror: quota of GPUs is 0"):
        runner.run(["up"], stack="x", environ=environ, log=tmp_path / "log", say=print)


def test_what_was_there_before_is_no_leftover(tmp_path: Path) -> None:
    before = tmp_path / "before.json"
    runner.remember(before)
    assert runner.find(tmp_path, before) == []


def test_a_new_file_in_a_watched_folder_is_a_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = tmp_path / "mnt"
    watched.mkdir()
    monkeypatch.setattr(runner, "_WATCHED", (str(watched),))
    before = tmp_path / "state" / "before.json"
    runner.remember(before)
    (watched / "data").mkdir()
    assert runner.find(tmp_path / "state", before) == [f"file {watched / 'data'}"]


@pytest.mark.parametrize("text", [None, '{"/mnt": ['])
def test_without_what_was_there_before_nothing_is_proved_of_files(
    tmp_path: Path, text: str | None
) -> None:
    before = tmp_path / "before.json"
    if text is not None:
        before.write_text(text)
    (line,) = runner.find(tmp_path, before)
    assert line.startswith(f"perhaps files: {before} does not say what was there before (")


def test_what_mount_makes_at_its_first_use_on_a_machine_is_no_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fresh container has no /run/mount until the first pod is mounted."""
    run = tmp_path / "run"
    run.mkdir()
    monkeypatch.setattr(runner, "_WATCHED", (str(run),))
    monkeypatch.setattr(runner, "_OF_THE_SYSTEM", frozenset({str(run / "mount")}))
    before = tmp_path / "state" / "before.json"
    runner.remember(before)
    (run / "mount").mkdir()
    assert runner.find(tmp_path / "state", before) == []


def test_the_emulator_of_previews_is_a_leftover_while_it_runs(state: Path) -> None:
    before = state / "before.json"
    runner.remember(before)
    offline.start(State(state))
    try:
        (line,) = runner.find(state, before)
    finally:
        offline.stop(State(state))
    assert "infra.local.nebius_api" in line
    assert runner.find(state, before) == []


def test_the_emulator_of_previews_is_not_found_without_its_log(state: Path) -> None:
    """The log names its port."""
    offline.start(State(state))
    try:
        (State(state).offline / "nebius-api.log").unlink()
        with pytest.raises(LocalError, match="not running"):
            offline.endpoint(State(state))
    finally:
        offline.stop(State(state))


def test_local_down_also_stops_the_emulator_of_previews(state: Path) -> None:
    """It lived on after `make clean`, with its state folder gone."""
    offline.start(State(state))
    assert RUNNER.invoke(app, ["local", "down"]).exit_code == 0
    with pytest.raises(LocalError, match="not running"):
        offline.endpoint(State(state))
