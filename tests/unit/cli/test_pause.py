"""`cluster pause` and `resume` change one line, say what it saves, and can be repeated."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

import stacks.load
from cost.bill.bill import pause_saving
from cost.prices.book import PriceBook
from infra.cli.jobs.submit import prepare
from infra.cli.main import app
from infra.clients.errors import JobsError, NothingThereError
from infra.clients.pulumi import outputs_from
from infra.jobs.history import Submission, remember, run_folder
from stacks.changes import set_paused
from stacks.errors import UserError
from stacks.load import STACKS_DIR, load_stack
from tests import SHIPPED


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path) -> Path:
    """Copies of the shipped stacks that the command may change."""
    found = tmp_path / "stacks"
    found.mkdir()
    for path in STACKS_DIR.glob("Pulumi.*.yaml"):
        (found / path.name).write_bytes(path.read_bytes())
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(stacks.load, "STACKS_DIR", found)
    monkeypatch.setattr(
        stacks.load,
        "load_stack",
        lambda name, environ=None: load_stack(name, found, environ=environ),
    )
    return found


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_a_submission_between_a_pause_and_its_up_is_told_what_comes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The login node is still there and takes it, and the next `up` ends it."""
    prepare(load_stack("local", folder), [], {})
    assert "paused" not in capsys.readouterr().err
    assert run("cluster", "pause", "--stack", "local").exit_code == 0
    prepare(load_stack("local", folder), [], {})
    assert "local: declared as paused: the next `pulumi up` takes the workers away from what " in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_a_pause_adds_one_line_and_keeps_every_comment(folder: Path, name: str) -> None:
    path = folder / f"Pulumi.{name}.yaml"
    before = lines(path)
    result = run("cluster", "pause", "--stack", name)
    assert result.exit_code == 0, result.output
    after = lines(path)
    assert [line for line in after if line not in before] == ["    paused: true"]
    assert [line for line in after if line in before] == before
    assert load_stack(name, folder).nodes.paused


def test_a_second_pause_changes_nothing_and_says_so(folder: Path) -> None:
    path = folder / "Pulumi.l40s-dev.yaml"
    run("cluster", "pause", "--stack", "l40s-dev")
    before = path.read_bytes()
    result = run("cluster", "pause", "--stack", "l40s-dev")
    assert result.exit_code == 0
    assert "already declared as paused" in result.output
    assert path.read_bytes() == before


def test_a_resume_brings_back_what_was_declared(folder: Path) -> None:
    before = load_stack("h100-prod", folder)
    run("cluster", "pause", "--stack", "h100-prod")
    result = run("cluster", "resume", "--stack", "h100-prod")
    assert "declared as running" in result.output
    assert load_stack("h100-prod", folder) == before


def submission(stack: str, job_id: str) -> Submission:
    return Submission(
        stack=stack,
        job="finetune",
        job_id=job_id,
        code_hash="0123",
        sets=(),
        after=None,
        log_path="/x",
        submitted_at="2026-11-22T10:00:00Z",
        cluster="key",
    )


@pytest.fixture
def deployed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A stack with jobs 3, 4 and 5, of which 3 is here and 5 has left nothing; what is fetched."""
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path))
    for job_id in ("3", "4", "5"):
        remember(tmp_path, submission("h100-prod", job_id))
    (run_folder(tmp_path, "h100-prod", "3") / "run_record.json").write_text("{}")
    asked: list[str] = []

    def pull(_connection: object, _outputs: object, _job: str, job_id: str, **_: object) -> Path:
        asked.append(job_id)
        if job_id == "5":
            raise NothingThereError("job 5: no results")
        made = run_folder(tmp_path, "h100-prod", job_id)
        (made / "run_record.json").write_text("{}")
        (made / "job.log").write_text("the log of job 4\n")
        return made

    outputs = SimpleNamespace(login_host_key="key")
    monkeypatch.setattr("infra.cli.context.caller", lambda *_: outputs)
    monkeypatch.setattr("infra.cli.context.connect", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr("infra.jobs.transfer.pull", pull)
    return asked


def test_a_pause_fetches_what_is_not_here_and_names_who_left_nothing(
    deployed: list[str], tmp_path: Path
) -> None:
    result = run("cluster", "pause", "--stack", "h100-prod")
    assert result.exit_code == 0, result.output
    assert deployed == ["4", "5"]
    assert f"finetune (4): fetched to {run_folder(tmp_path, 'h100-prod', '4')}" in result.output
    assert "and jobs 5 have no result here" in result.output


def test_a_stack_whose_results_cannot_be_fetched_is_not_paused_unless_told_to(
    deployed: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise JobsError("login node: no route to host")

    monkeypatch.setattr("infra.cli.context.connect", lost)
    result = run("cluster", "pause", "--stack", "h100-prod")
    assert result.exit_code == 1
    assert "no route to host\n" in result.output
    assert "results of jobs 4, 5 are not on this machine" in result.output
    assert not load_stack("h100-prod", folder).nodes.paused
    assert run("cluster", "pause", "--stack", "h100-prod", "--no-fetch").exit_code == 0
    assert load_stack("h100-prod", folder).nodes.paused
    assert deployed == []


def test_results_that_were_fetched_are_read_while_the_stack_is_paused(
    deployed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("cluster", "pause", "--stack", "h100-prod")
    values = dict.fromkeys(
        ("login_ip", "ssh_port", "login_host_key", "code_path", "places", "jobs"), "x"
    )
    monkeypatch.setattr(
        "infra.cli.context.caller",
        lambda stack, _: outputs_from(stack, {**values, "code_hash": ""}),
    )
    pulled = run("pull", "4", "--stack", "h100-prod")
    assert pulled.exit_code == 0, pulled.output
    assert pulled.stdout.strip() == str(run_folder(tmp_path, "h100-prod", "4"))
    assert "h100-prod: is paused; this is job 4 as it was when it was fetched" in pulled.stderr
    record = run_folder(tmp_path, "h100-prod", "4") / "run_record.json"
    for written, status, said in (
        ('{"exit_code": 0, "job": "finetune"}', 0, "job 4: COMPLETED"),
        ('{"exit_code": 72, "job": "finetune"}', 72, "job 4: FAILED: the loss or a gradient"),
        ("{}", 69, "job 4: how it ended is not known here: no run record was fetched with it"),
    ):
        record.write_text(written)
        shown = run("logs", "4", "--stack", "h100-prod")
        assert (shown.stdout, shown.exit_code) == ("the log of job 4\n", status)
        assert said in shown.stderr
    assert run("logs", "4", "--stack", "h100-prod", "--no-follow").exit_code == 0
    for verb in ("pull", "logs"):
        refused = run(verb, "5", "--stack", "h100-prod")
        assert refused.exit_code == 1
        assert "all else stays on its filesystems" in refused.stderr


def test_a_pause_and_a_resume_leave_the_file_as_it_was(folder: Path) -> None:
    path = folder / "Pulumi.h100-prod.yaml"
    before = path.read_bytes()
    run("cluster", "pause", "--stack", "h100-prod")
    assert path.read_bytes() != before
    run("cluster", "resume", "--stack", "h100-prod")
    assert path.read_bytes() == before


def test_the_saving_is_what_the_workers_cost_to_the_cent(folder: Path) -> None:
    """Seed 000: five nodes at 4.5688 USD an hour and five disks of 558 GiB at 0.053 USD a month."""
    expected = 5 * 4.5688 * 730 + 5 * 558 * 0.053
    result = run("cluster", "pause", "--stack", "l40s-dev")
    (hour, month) = re.search(r"\$([\d,.]+) an hour, \$([\d,.]+) a month", result.output).groups()
    assert float(month.replace(",", "")) == pytest.approx(expected, abs=0.005)
    assert float(hour) == pytest.approx(expected / 730, abs=0.005)
    assert "pulumi up --stack l40s-dev" in result.output


def test_the_saving_is_the_same_whether_asked_before_or_after(folder: Path) -> None:
    running = load_stack("h100-prod", folder)
    run("cluster", "pause", "--stack", "h100-prod")
    book = PriceBook.load(running.prices)
    assert pause_saving(load_stack("h100-prod", folder), book) == pause_saving(running, book)


def test_a_stack_that_is_not_there_is_refused(folder: Path) -> None:
    result = run("cluster", "pause", "--stack", "nosuch")
    assert result.exit_code == 1
    assert "nosuch" in result.stderr


HEAD = "config:\n  soperator-stack:nodes:"


def test_a_switch_that_is_there_keeps_its_place_and_its_comment() -> None:
    text = f"{HEAD}\n    system: {{a: 1}}\n    paused: false  # weekend\n    workers: []\n"
    assert set_paused(text, paused=True) == text.replace("false", "true")


def test_a_switch_of_something_else_is_left_alone() -> None:
    text = f"{HEAD}\n    system:\n      paused: false\n"
    changed = set_paused(text, paused=True)
    assert changed == f"{HEAD}\n    paused: true\n    system:\n      paused: false\n"


@pytest.mark.parametrize(
    "text", [f"{HEAD} {{system: 1}}\n", "config: {}\n", "a: 1\n", f"{HEAD} |\n    paused: no\n"]
)
def test_a_shape_that_cannot_be_edited_safely_is_refused_with_the_line_to_write(text: str) -> None:
    with pytest.raises(UserError, match=r"write it by hand: `paused: true`"):
        set_paused(text, paused=True)


def test_a_resume_that_cannot_be_written_says_the_line_of_a_resume() -> None:
    with pytest.raises(UserError, match=r"`paused: false` .* 'soperator-stack:nodes.paused' false"):
        set_paused(f"{HEAD} {{paused: true}}\n", paused=False)
