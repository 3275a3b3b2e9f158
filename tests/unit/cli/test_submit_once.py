"""A job that was submitted is never lost and never doubled, whatever cuts a command off."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cost.runs.ledger import FILE_NAME, Ledger, OpenLedger, forecasts
from infra.cli.main import app
from infra.clients.pulumi import StackOutputs
from infra.jobs import history
from infra.render.delivery import code_files, hash_files
from stacks.load import STACKS_DIR, load_stack
from tests.unit.cli.test_submit import SEARCH
from tests.unit.jobs.login_node import LOST, TIMED_OUT, Killed, LoginNode, planned
from tests.unit.jobs.raw import submitter

VERBS = [
    pytest.param(("submit", "finetune"), ["finetune"], id="submit"),
    pytest.param(("submit", "finetune", "--pipeline"), ["prepare-data", "finetune"], id="pipeline"),
    pytest.param(("submit", "lr"), ["lr"], id="search"),
]


class Machine:
    """A user's machine: a state folder, and the login node that it enters."""

    def __init__(self, state: Path, patch: pytest.MonkeyPatch) -> None:
        self.state = state
        self._patch = patch

    def run(self, *words: str) -> Result:
        self._patch.setenv("SOPERATOR_STATE", str(self.state))
        return CliRunner().invoke(app, list(words))

    def known(self) -> list[str]:
        """Ids in the history."""
        return sorted(each.job_id for each in history.submissions(self.state, "local"))

    def booked(self) -> list[str]:
        """Ids with a forecast in the ledger."""
        ledger = Ledger(self.state / "runs" / "local" / FILE_NAME)
        return sorted(job_id for _, job_id in forecasts(ledger.read().entries))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path) -> LoginNode:
    spec = replace(load_stack("local"), searches=(SEARCH,))
    made = LoginNode(tmp_path / "node")
    outputs = made.outputs(hash_files(code_files(STACKS_DIR.parent, spec)), "lr", "serve")
    monkeypatch.setattr("infra.cli.context.caller", lambda *_: outputs)
    monkeypatch.setattr("infra.clients.ssh.Connection", lambda _endpoint: made)
    monkeypatch.setattr("infra.cli.context.spec", lambda _stack: spec)
    return made


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path / "here", monkeypatch)


def other(machine: Machine, tmp_path: Path) -> Machine:
    return Machine(tmp_path / "there", machine._patch)


def test_the_commands_that_say_whether_preemptible_nodes_pay_say_it(
    node: LoginNode, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the second block of docs/preemptible.md; test_faults.py runs the others."""
    text = (STACKS_DIR.parent / "docs" / "preemptible.md").read_text(encoding="utf-8")
    lines = re.findall("(?m)^soperator (.*)$", text.split("```")[3])
    told: list[str] = []
    for line in lines:
        words = shlex.split(line)
        monkeypatch.setattr("infra.cli.context.spec", lambda _, name=words[-1]: load_stack(name))
        done = machine.run(*words)
        assert done.exit_code == 0, f"{line}\n{done.output}"
        told.append(done.stdout + done.stderr)
    for said, expected in zip(told, ("budget 20", "Pays up to", "M = 86400 s"), strict=True):
        assert expected in said
    assert node.queue == []


@pytest.mark.parametrize("cut", [LOST, Killed])
@pytest.mark.parametrize(("words", "names"), VERBS)
def test_a_job_whose_number_never_came_back_is_found_by_the_next_submission(
    words: tuple[str, ...],
    names: list[str],
    cut: type[BaseException],
    node: LoginNode,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node.cut = cut
    node.reopen = unreachable
    monkeypatch.setattr("infra.jobs.submit._PATIENCE_S", 0)
    if cut is Killed:
        with pytest.raises(Killed):
            machine.run(*words)
    else:
        assert machine.run(*words).exit_code == 1
    assert (len(node.queue), machine.known()) == (1, [])
    done = machine.run(*words)
    assert done.exit_code == 0, done.output
    said = f"{names[0]}: job 12 was submitted by a command that was cut off; it is written down"
    assert said in done.stderr
    assert node.names() == names
    ids = [str(12 + index) for index in range(len(names))]
    assert (machine.known(), machine.booked()) == (ids, ids)
    assert records(node) == []
    assert list(node.folder.glob("held.*")) == [], "the stack has a budget, which has room"


def unreachable() -> None:
    """Nobody answers the call that follows a lost answer."""
    raise LOST("the connection was lost")


def records(node: LoginNode) -> list[Path]:
    """What the cluster keeps of submissions that no machine has written down."""
    return [*node.folder.glob("code/submissions/*")]


@pytest.mark.parametrize(("words", "names"), VERBS)
def test_an_answer_that_was_lost_on_the_way_is_fetched_by_the_same_command(
    words: tuple[str, ...], names: list[str], node: LoginNode, machine: Machine
) -> None:
    node.cut = LOST
    done = machine.run(*words)
    assert done.exit_code == 0, done.output
    assert "the connection was lost; trying again" in done.stderr
    assert node.names() == names
    ids = [str(12 + index) for index in range(len(names))]
    assert (machine.known(), machine.booked(), records(node)) == (ids, ids, [])


@pytest.mark.parametrize(("words", "names"), VERBS)
def test_a_submission_that_was_killed_before_the_ledger_had_it_is_put_there_by_any_command(
    words: tuple[str, ...],
    names: list[str],
    node: LoginNode,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def killed(_ledger: object, *entries: object) -> None:
        if entries:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(OpenLedger, "append", killed)
        with pytest.raises(Killed):
            machine.run(*words)
    assert (machine.known(), machine.booked()) == (["12"], [])
    done = machine.run("status")
    assert done.exit_code == 0, done.output
    assert (machine.known(), machine.booked()) == (["12"], ["12"])
    assert f"{names[0]}: job 12 was submitted by a command that was cut off" in done.stderr
    assert "cut off" not in machine.run("status").stderr


def test_an_sbatch_that_times_out_after_the_job_is_queued_is_a_submission(
    node: LoginNode, machine: Machine
) -> None:
    node.put("times_out", TIMED_OUT)
    done = machine.run("submit", "finetune")
    assert (done.exit_code, done.stdout) == (0, "12\n"), done.output
    assert "job 12 came of it all the same" in done.stderr
    assert "Socket timed out" in done.stderr
    assert (machine.known(), machine.booked()) == (["12"], ["12"])


def test_what_sbatch_refused_leaves_nothing_to_look_for(node: LoginNode, machine: Machine) -> None:
    node.put("refuses", "sbatch: error: invalid partition specified: main\n")
    done = machine.run("submit", "finetune")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "invalid partition" in done.stderr
    assert (machine.known(), machine.booked(), records(node)) == ([], [], [])


@pytest.mark.parametrize(("words", "names"), VERBS)
def test_two_machines_submit_the_same_inputs_once(
    words: tuple[str, ...], names: list[str], node: LoginNode, machine: Machine, tmp_path: Path
) -> None:
    second = other(machine, tmp_path)
    assert machine.run(*words).exit_code == 0
    done = second.run(*words)
    assert done.exit_code == 0, done.output
    assert "of the same code and settings runs or waits; it is taken" in done.stderr
    assert node.names() == names
    assert (second.known(), second.booked()) == (machine.known(), machine.booked())
    assert not (node.folder / "was_not_locked").exists(), "sbatch ran outside the lock"
    second.run(*words, "--again")
    assert len(node.names()) == 2 * len(names)


def test_a_job_that_is_taken_though_it_is_held_is_told_with_what_lets_it_go(
    node: LoginNode, machine: Machine, tmp_path: Path
) -> None:
    """It runs or waits, submit said, and nothing ever started it."""
    machine.run("submit", "finetune")
    node.put("held.12")
    for each in (machine, other(machine, tmp_path)):
        done = each.run("submit", "finetune")
        assert (done.exit_code, done.stdout) == (0, "12\n"), done.output
        told = (
            "is held (JobHeldUser) and starts once it is let go: soperator status 12 -s local says"
        )
        assert told in done.stderr
    (node.folder / "held.12").unlink()
    assert "held" not in machine.run("submit", "finetune").stderr


def test_other_settings_code_or_an_ended_job_of_another_machine_are_submitted(
    node: LoginNode, machine: Machine, tmp_path: Path
) -> None:
    second = other(machine, tmp_path)
    machine.run("submit", "finetune")
    assert second.run("submit", "finetune", "--set", "train.max_steps=8").stdout == "13\n"
    # squeue shows no ended job.
    (node.folder / "queue").write_text("")
    assert second.run("submit", "finetune").stdout == "12\n"


@pytest.mark.parametrize(("words", "names"), VERBS)
def test_the_look_for_an_earlier_job_and_the_sbatch_are_one_step_for_other_terminals(
    words: tuple[str, ...], names: list[str], node: LoginNode, machine: Machine
) -> None:
    machine.run(*words)
    node.asked.clear()
    held: list[bool] = []
    node.at = lambda _command: held.append(is_locked(machine.state))
    machine.run(*words)
    machine.run(*words, "--again")
    assert held
    assert all(held), node.asked


def is_locked(state: Path) -> bool:
    descriptor = os.open(state / "runs" / "local" / ".submit.lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_a_second_terminal_waits_for_the_first_and_says_so(
    node: LoginNode, machine: Machine
) -> None:
    order: list[str] = []
    waits = threading.Event()
    outputs: StackOutputs = node.outputs("abc")

    def second() -> None:
        say: Callable[[str], Any] = lambda line: (order.append(line), waits.set())  # noqa: E731
        with submitter(node, outputs, state=machine.state, log=say).alone():
            order.append("second")

    thread = threading.Thread(target=second)
    with submitter(node, outputs, state=machine.state, log=order.append).alone():
        thread.start()
        assert waits.wait(60)
        order.append("first")
    thread.join(60)
    said = (
        f"another submission to local is on its way from here (process {os.getpid()}); waiting for "
        "it"
    )
    assert order == [said, "first", "second"]


def test_a_server_is_submitted_once_while_it_waits(node: LoginNode, machine: Machine) -> None:
    assert machine.run("submit", "serve").stdout == "12\n"
    assert machine.run("submit", "serve").stdout == "12\n"
    assert machine.run("submit", "serve", "--again").stdout == "13\n"


def test_the_same_wait_for_the_same_job_is_one_submission(
    node: LoginNode, machine: Machine
) -> None:
    machine.run("submit", "prepare-data")
    for after, number in (("12", "13"), ("12", "13"), ("13", "14")):
        assert machine.run("submit", "finetune", "--after", after).stdout == f"{number}\n"


@pytest.mark.feature("S001-81")
def test_a_dry_run_shows_the_clusters_job_file_and_says_that_a_job_counts_already(
    node: LoginNode, machine: Machine
) -> None:
    job_file = node.folder / "code" / "current" / "jobs" / "finetune"
    job_file.write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun python\n")
    shown = machine.run("submit", "finetune", "--dry-run")
    assert "would be submitted" not in shown.stderr
    assert shown.stdout.endswith(f"\n{job_file.read_text()}"), shown.output
    machine.run("submit", "finetune")
    done = machine.run("submit", "finetune", "--dry-run")
    assert done.exit_code == 0, done.output
    assert "finetune: nothing would be submitted: job 12 counts, unless --again" in done.stderr
    assert len(node.queue) == 1


def test_a_history_that_was_cut_is_told_and_what_is_queued_is_found_all_the_same(
    node: LoginNode, machine: Machine
) -> None:
    machine.run("submit", "finetune")
    path = machine.state / "runs" / "local" / "12" / "submission.json"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    done = machine.run("submit", "finetune")
    assert done.stdout == "12\n", done.output
    assert f"{path}: damaged or of a newer version, so its job may be" in done.stderr
    assert (len(node.queue), machine.known()) == (1, ["12"])


def test_while_nobody_gets_the_lock_the_record_is_kept_and_nothing_is_submitted(
    node: LoginNode, machine: Machine
) -> None:
    """Slurm hung with the lock held: its submission was forgotten, and its job came twice."""
    node.cut = Killed
    with pytest.raises(Killed):
        machine.run("submit", "finetune")
    flock = node.folder / "bin" / "flock"
    flock.write_text("#!/bin/sh\nexit 1\n")
    flock.chmod(0o755)
    done = machine.run("submit", "finetune")
    assert (done.exit_code, done.stdout) == (1, ""), done.output
    assert "another submission holds" in done.stderr
    assert records(node) != []
    flock.unlink()
    assert machine.run("submit", "finetune").stdout == "12\n"
    assert node.names() == ["finetune"]


def test_an_id_of_a_former_cluster_does_not_hide_the_job_that_came(
    node: LoginNode, machine: Machine
) -> None:
    former = replace(planned(), job_id="12", log_path="", cluster="ssh-ed25519 AAAAformer")
    history.remember(machine.state, former)
    node.put("times_out", TIMED_OUT)
    # Slurm has finished it by the time that it is looked for, and accounting keeps no comments.
    squeue = node.folder / "bin" / "squeue"
    squeue.write_text(f"""#!/bin/bash
case "$*" in *--states=all*%F*) mv "$NODE/lines" "$NODE/accounted"; : > "$NODE/queue" ;; esac
{squeue.read_text()}""")
    done = machine.run("submit", "finetune")
    assert (done.exit_code, done.stdout) == (0, "12\n"), done.output


def test_a_job_that_runs_on_older_data_is_no_repeat_of_one_on_newer(
    node: LoginNode, machine: Machine
) -> None:
    """The login node gave back the old job, which the history had just refused as too old."""
    machine.run("submit", "prepare-data")
    assert machine.run("submit", "finetune").stdout == "13\n"
    assert machine.run("submit", "prepare-data", "--again").stdout == "14\n"
    assert machine.run("submit", "finetune").stdout == "15\n"
    assert machine.run("submit", "finetune").stdout == "15\n"
