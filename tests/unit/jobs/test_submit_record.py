"""What is kept of a submission here and on the login node, and what is taken from there."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cost.runs.ledger import FILE_NAME, Ledger
from infra.clients.errors import JobsError
from infra.clients.pulumi import StackOutputs
from infra.clients.ssh import Result
from infra.jobs import history
from infra.jobs.history import Submission
from infra.jobs.ledger import JobLedger, OpenBooks
from infra.jobs.recipes import PreparedJob
from infra.jobs.submit import Submitter
from infra.operate.prices import LivePriceError
from infra.render.delivery import pack
from stacks.load import StackError
from stacks.spec.slurm import JobSpec
from tests.unit.cost.run_stacks import at, forecast_entry
from tests.unit.jobs.login_node import LOST, TIMED_OUT, Killed, LoginNode
from tests.unit.jobs.raw import request, submit, submitter
from tests.unit.jobs.test_submit import OUTPUTS, Recorded

HASH = "0123456789abcdef"
FINETUNE = request("finetune")


@pytest.fixture
def node(tmp_path: Path) -> LoginNode:
    return LoginNode(tmp_path / "node")


@pytest.fixture
def outputs(node: LoginNode) -> StackOutputs:
    return node.outputs(HASH)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "here"


def call(
    node: LoginNode,
    outputs: StackOutputs,
    state: Path,
    planned: Submission | None = None,
    *,
    hold: bool = False,
) -> Submission:
    """One call of the script with its record, as a submission makes it."""
    own = here(state, node, outputs)
    planned = planned or plan(outputs)
    entries = (forecast_entry("", "15", at(8), cluster=outputs.login_host_key),)
    return own.sbatch_once(planned, FINETUNE, entries=entries, hold=hold)


def here(
    state: Path, node: Any, outputs: StackOutputs, log: Callable[[str], Any] = print
) -> Submitter:
    """What submits from a state folder, and puts back what was cut off."""
    file, spec = (
        Ledger(state / "runs" / "local" / FILE_NAME),
        SimpleNamespace(name="local", attached=None),
    )
    books = JobLedger(spec=spec, rates=None, file=file, records=(), log=print)  # type: ignore[arg-type]
    return submitter(node, outputs, state=state, log=log, code_hash=HASH, books=lambda: books)


def plan(outputs: StackOutputs) -> Submission:
    return submitter(None, outputs, code_hash=HASH).planned(FINETUNE)


def booked(state: Path) -> list[str]:
    entries = Ledger(state / "runs" / "local" / FILE_NAME).read().entries
    return [entry.job_id for entry in entries]


def records(node: LoginNode) -> list[str]:
    folder = node.folder / "code" / "submissions"
    return sorted(path.name for path in folder.iterdir() if "." not in path.name)


def record(node: LoginNode) -> Path:
    (found,) = node.folder.glob("code/submissions/*")
    return found


def left(state: Path) -> list[Path]:
    """What was sent from here and is not written down."""
    return [*(state / "runs" / "local").glob(".submit.left.*")]


def test_the_same_key_is_one_job_however_often_it_is_called(
    node: LoginNode, outputs: StackOutputs, state: Path
) -> None:
    planned = plan(outputs)
    made = [call(node, outputs, state, planned) for _ in range(3)]
    assert [each.job_id for each in made] == ["12"] * 3
    assert node.names() == ["finetune"]
    assert call(node, outputs, state).job_id == "13"


def test_an_answer_that_was_lost_is_asked_for_again(
    node: LoginNode, outputs: StackOutputs, state: Path
) -> None:
    node.cut = LOST
    assert call(node, outputs, state).job_id == "12"
    assert (node.reopened, node.names()) == (1, ["finetune"])


@pytest.mark.parametrize("known_by", ["its own record", "queue", "accounting"])
def test_a_killed_command_is_written_down_from_its_record(
    known_by: str, node: LoginNode, outputs: StackOutputs, state: Path
) -> None:
    """The script may have been killed with it, and the queue may have forgotten the job."""
    node.cut = Killed
    planned = plan(outputs)
    with pytest.raises(Killed):
        call(node, outputs, state, planned)
    if known_by != "its own record":
        record(node).write_text("")
    if known_by == "accounting":
        node.put("accounted", (node.folder / "lines").read_text())
        node.put("queue")
    lines: list[str] = []
    here(state, node, outputs, lines.append).recover()
    assert lines == [
        "finetune: job 12 was submitted by a command that was cut off; it is written down"
    ]
    (found,) = history.submissions(state, "local")
    assert found == replace(planned, job_id="12", log_path=outputs.log_path("finetune", "12"))
    assert (booked(state), records(node)) == (["12"], [])
    here(state, node, outputs, lines.append).recover()
    assert len(lines) == 1


def test_a_stack_file_that_cannot_be_read_keeps_nobody_from_looking_at_the_cluster(
    node: LoginNode, outputs: StackOutputs, state: Path
) -> None:
    """`logs` and `status` need none; a held job is decided about once it can be read."""
    node.cut = Killed
    with pytest.raises(Killed):
        call(node, outputs, state, hold=True)

    def damaged() -> JobLedger:
        raise StackError(("Pulumi.local.yaml: no such key",))

    lines: list[str] = []
    own = replace(here(state, node, outputs, lines.append), books=damaged)
    own.recover()
    assert lines == [
        "Pulumi.local.yaml: no such key; a job of a command that was cut off waits held for it"
    ]
    assert len(left(state)) == 1
    with pytest.raises(StackError), own.alone():
        pytest.fail("it went on")
    (node.folder / "held.12").unlink()  # somebody let it go
    here(state, node, outputs).recover()
    assert (booked(state), left(state)) == (["12"], [])


def test_a_held_job_that_cannot_be_decided_about_is_told(
    node: LoginNode, outputs: StackOutputs, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command passed over it without a word, and the job waited for ever."""
    node.cut = Killed
    with pytest.raises(Killed):
        call(node, outputs, state, hold=True)

    def refused(*_: object) -> None:
        raise JobsError("budget.ledger: /mnt/team has to be root's")

    monkeypatch.setattr(OpenBooks, "decide", refused)
    lines: list[str] = []
    here(state, node, outputs, lines.append).recover()
    assert len(lines) == 1
    assert lines[0].startswith("budget.ledger: /mnt/team has to be root's; job 12 is submitted and")


def test_what_was_cut_off_is_written_down_though_prices_cannot_be_read(
    node: LoginNode, outputs: StackOutputs, state: Path
) -> None:
    """They are for a held job alone, and every command passed over it without a word."""
    node.cut = Killed
    with pytest.raises(Killed):
        call(node, outputs, state)

    def damaged() -> JobLedger:
        raise LivePriceError("prices.json: is damaged")

    replace(here(state, node, outputs), books=damaged).recover()
    assert (booked(state), left(state)) == (["12"], [])


def test_a_record_of_which_no_job_came_is_forgotten(
    node: LoginNode, outputs: StackOutputs, state: Path
) -> None:
    """The login node died between the record and sbatch."""
    call(node, outputs, state)
    (node.folder / "queue").write_text("")
    record(node).write_text("")
    os.utime(record(node), (0, 0))
    with here(state, node, outputs, pytest.fail).alone():
        assert (booked(state), records(node)) == ([], [])


def test_the_call_of_a_killed_command_that_began_late_is_found_as_well(
    node: LoginNode, outputs: StackOutputs, state: Path
) -> None:
    """It still waited for the lock on the login node when the next command looked."""
    waiting: list[tuple[str, bytes]] = []

    class Slow:
        """A login node that has got the call, and has not begun with it."""

        def run(self, command: str, *, stdin: bytes = b"") -> Result:
            waiting.append((command, stdin))
            raise Killed

    with pytest.raises(Killed):
        call(Slow(), outputs, state)  # type: ignore[arg-type]
    here(state, node, outputs, pytest.fail).recover()
    ((command, stdin),) = waiting
    node.run(command, stdin=stdin)
    here(state, node, outputs).recover()
    assert (booked(state), left(state), records(node)) == (["12"], [], [])
    with pytest.raises(Killed):
        call(Slow(), outputs, state)  # type: ignore[arg-type]
    os.utime(left(state)[0], (0, 0))
    here(state, node, outputs, pytest.fail).recover()
    assert left(state) == [], "after five minutes none begins any more"


@pytest.mark.parametrize("wrong", ["nobody gets the lock", "sbatch refuses"])
def test_a_repeated_call_that_is_refused_forgets_nothing_of_the_first_which_may_still_submit(
    wrong: str, node: LoginNode, outputs: StackOutputs, state: Path
) -> None:
    """The first held the lock or waited for it when its connection was lost."""
    first: list[str] = []

    def lost(command: str) -> None:
        if not first:
            first.append(command)
            raise LOST("the connection was lost")

    node.at = lost
    programs = node.folder / "bin"
    if wrong == "sbatch refuses":
        node.put("refuses", "sbatch: error: Slurm temporarily unable to accept job\n")
        said = "unable to accept job"
    else:
        (programs / "flock").write_text("#!/bin/sh\nexit 1\n")
        (programs / "flock").chmod(0o755)
        said = "another submission holds.*whether a job came of it is not known: the next command"
    with pytest.raises(JobsError, match=said):
        call(node, outputs, state)
    for program in (programs / "flock", node.folder / "refuses"):
        program.unlink(missing_ok=True)
    node.run(first[0], stdin=pack({}))
    here(state, node, outputs).recover()
    assert (node.names(), booked(state), left(state)) == (["finetune"], ["12"], [])


def test_what_a_signal_ended_on_the_login_node_may_have_submitted(
    node: LoginNode, outputs: StackOutputs, state: Path
) -> None:
    """A shell that stays around the script tells its end as an exit status of its own."""

    class Ended:
        """A login node that kills the script after its sbatch."""

        def run(self, command: str, *, stdin: bytes = b"") -> Result:
            node.run(command, stdin=stdin)
            record(node).write_text("")
            return Result(command=command, exit_code=137, stdout="", stderr="Killed\n")

    with pytest.raises(JobsError, match="Killed; whether a job came of it is not known"):
        call(Ended(), outputs, state)  # type: ignore[arg-type]
    here(state, node, outputs).recover()
    assert (booked(state), left(state)) == (["12"], [])


def test_a_copy_of_what_was_left_ends_no_command(
    node: LoginNode, outputs: StackOutputs, state: Path
) -> None:
    call(node, outputs, state)
    (path,) = left(state)
    copy = path.with_name(f"{path.name}.sync-conflict-1")
    copy.write_bytes(path.read_bytes())
    for _ in range(2):
        with here(state, node, outputs).alone():
            assert (booked(state), left(state)) == (["12"], [copy])


def test_on_a_full_disk_here_nothing_is_sent_that_could_not_be_found_again(
    node: LoginNode, outputs: StackOutputs, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("infra.files.write", full)
    with pytest.raises(JobsError, match=r"No space left on device; nothing was submitted: make"):
        call(node, outputs, state)
    assert node.asked == []


def test_without_accounting_the_queue_and_the_record_are_enough(
    node: LoginNode, outputs: StackOutputs, state: Path
) -> None:
    node.put("no_accounting", "Slurm accounting storage is disabled\n")
    node.put("times_out", TIMED_OUT)
    assert call(node, outputs, state).job_id == "12"


@pytest.mark.parametrize("silent", ["squeue", "sacct"])
def test_a_slurm_that_does_not_answer_leaves_open_whether_a_job_came(
    silent: str, node: LoginNode, outputs: StackOutputs, state: Path
) -> None:
    node.put("times_out", TIMED_OUT)
    program = node.folder / "bin" / silent
    program.write_text("#!/bin/sh\necho Unable to contact slurm controller >&2\nexit 1\n")
    with pytest.raises(JobsError, match=r"Unable to contact.*is not known: the next command looks"):
        call(node, outputs, state)
    said = "Unable to contact.*cut off is not known: try again"
    with pytest.raises(JobsError, match=said), here(state, node, outputs).alone():
        pytest.fail("it went on")
    assert (len(records(node)), booked(state)) == (1, [])


@pytest.mark.parametrize("sbatch", ["timed out", "was killed"])
def test_a_job_that_slurm_lists_late_is_found_and_not_submitted_again(
    sbatch: str, node: LoginNode, outputs: StackOutputs, state: Path
) -> None:
    """slurmctld was busy: it took the call that sbatch had given up, after the look-up."""
    node.put("times_out", TIMED_OUT if sbatch == "timed out" else "")
    node.put("late")
    with pytest.raises(JobsError, match=r"may still come.* in \d+ s.*is not known"):
        call(node, outputs, state)
    with (
        pytest.raises(JobsError, match="may still come"),
        here(state, node, outputs).alone(),
    ):
        pytest.fail("it went on")
    node.put("queue", (node.folder / "late").read_text())
    with here(state, node, outputs).alone():
        assert (booked(state), records(node)) == (["12"], [])


def test_an_sbatch_without_an_answer_is_over_after_a_minute(
    node: LoginNode, outputs: StackOutputs, state: Path
) -> None:
    node.put("times_out", "Unable to contact slurm controller (connect failure)")
    node.put("late")
    with pytest.raises(JobsError, match="may still come"):
        call(node, outputs, state)
    folder = record(node).parent
    os.utime(record(node), (0, 0))
    with here(state, node, outputs, pytest.fail).alone():
        assert (booked(state), records(node)) == ([], [])
    assert not [*folder.iterdir()]


def test_what_sbatch_refuses_leaves_no_record(
    node: LoginNode, outputs: StackOutputs, state: Path
) -> None:
    node.put("refuses", "sbatch: error: invalid partition specified: main\n")
    with pytest.raises(JobsError, match="invalid partition"):
        call(node, outputs, state)
    assert (records(node), left(state)) == ([], [])


def test_of_a_cluster_that_was_made_anew_nothing_is_taken(
    node: LoginNode, outputs: StackOutputs, state: Path
) -> None:
    """Ids start again there, and its filesystem may be the old one."""
    call(node, outputs, state)
    anew = replace(outputs, login_host_key="ssh-ed25519 AAAAanew")
    here(state, node, anew, pytest.fail).recover()
    assert (history.submissions(state, "local"), len(left(state))) == ((), 1)
    os.utime(left(state)[0], (0, 0))
    here(state, node, anew, pytest.fail).recover()
    assert (history.submissions(state, "local"), records(node), left(state)) == ((), [], [])


def test_a_job_of_a_cluster_is_found_once_the_stack_leads_there_again(
    node: LoginNode, outputs: StackOutputs, state: Path, tmp_path: Path
) -> None:
    """An attached stack went to another cluster and back: the job came to no ledger."""
    call(node, outputs, state)
    other = LoginNode(tmp_path / "other")
    elsewhere = replace(other.outputs(HASH), login_host_key="ssh-ed25519 AAAAother")
    with here(state, other, elsewhere, pytest.fail).alone():
        pass
    here(state, node, outputs).recover()
    assert (booked(state), left(state)) == (["12"], [])


def test_another_machine_takes_nothing_of_a_record_that_is_not_its_own(
    node: LoginNode, outputs: StackOutputs, state: Path, tmp_path: Path
) -> None:
    call(node, outputs, state)
    there = tmp_path / "there"
    made = call(node, outputs, there)
    here(there, node, outputs, lambda _line: None).recover()
    assert [each.job_id for each in history.submissions(there, "local")] == [made.job_id]
    assert len(records(node)) == 1


@pytest.mark.parametrize(
    "text", ["{}", "id 12; reboot", "id x", "id 9999999999999999999", "12", "id 12\0", "x" * 70_000]
)
def test_the_record_is_read_as_what_a_stranger_wrote(
    text: str, node: LoginNode, outputs: StackOutputs, state: Path
) -> None:
    """Forged, changed or too long: nothing comes of it but a number of a job."""
    call(node, outputs, state)
    record(node).write_text(text)
    (node.folder / "queue").write_text("")
    here(state, node, outputs, pytest.fail).recover()
    assert (history.submissions(state, "local"), booked(state)) == ((), [])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"submission": {}}',
        '{"entries": ["x"]}',
        '{"entries": ["{\\"schema_version\\": 99}"]}',
        '{"entries": 5}',
        '{"entries": [5]}',
    ],
)
def test_what_is_left_here_and_unreadable_keeps_nobody_from_submitting(
    text: str, node: LoginNode, outputs: StackOutputs, state: Path
) -> None:
    call(node, outputs, state)
    (path,) = left(state)
    path.write_text(text)
    lines: list[str] = []
    here(state, node, outputs, pytest.fail).recover()
    with here(state, node, outputs, lines.append).alone():
        assert booked(state) == []
    again = "so its job may be submitted once more: upgrade, or remove it"
    assert lines == [f"{path}: damaged or of a newer version, {again}"]


def test_an_answer_that_is_no_number_is_refused(
    node: LoginNode, outputs: StackOutputs, state: Path
) -> None:
    """The id is all that is taken from the cluster."""
    call(node, outputs, state)
    record(node).write_text("id ../../12\n")
    (node.folder / "queue").write_text("")

    class Hostile:
        """Answers the look-up by itself."""

        def run(self, command: str, *, stdin: bytes = b"") -> Result:
            if command.endswith(" submit_once"):
                return Result(command=command, exit_code=0, stdout="../../12\n", stderr="")
            return node.run(command, stdin=stdin)

    lines: list[str] = []
    here(state, Hostile(), outputs, lines.append).recover()
    assert [line.partition(" (")[0] for line in lines] == ["'../../12' is not a job id"]
    assert history.submissions(state, "local") == ()


def test_a_folder_of_records_that_is_a_link_is_refused_by_name(
    node: LoginNode, outputs: StackOutputs, state: Path, tmp_path: Path
) -> None:
    (tmp_path / "theirs").mkdir()
    (node.folder / "code" / "submissions").symlink_to(tmp_path / "theirs")
    with pytest.raises(JobsError, match=r"submissions on \S+: is a symbolic link.*nothing was"):
        call(node, outputs, state)
    assert (node.queue, list((tmp_path / "theirs").iterdir())) == ([], [])


def test_records_and_their_folder_are_the_users_alone(
    node: LoginNode, outputs: StackOutputs, state: Path
) -> None:
    call(node, outputs, state)
    folder = node.folder / "code" / "submissions"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_a_state_folder_without_locks_is_refused_in_a_line_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network folder without a lock daemon ended submit in a traceback."""

    def no_locks(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    said = r"\.submit\.lock: No locks available; nothing was submitted: set SOPERATOR_STATE"
    with (
        pytest.raises(JobsError, match=said),
        here(tmp_path, Recorded(), OUTPUTS).alone(),
    ):
        pytest.fail("it went on without the lock")


def test_over_nfs_what_was_cut_off_is_written_down_and_who_waits_is_told_by_whom(
    node: LoginNode, outputs: StackOutputs, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS takes no exclusive lock of a file that is open to read alone: flock(2)."""
    flock, seen = fcntl.flock, list[str]()
    path = state / "runs" / "local" / ".submit.lock"

    def of_nfs(descriptor: int, operation: int) -> None:
        mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        if operation & fcntl.LOCK_EX and mode == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, operation)

    node.cut = Killed
    with pytest.raises(Killed):
        call(node, outputs, state)
    path.write_text("1\n")
    node.at = lambda _command: seen.append(path.read_text())
    monkeypatch.setattr(fcntl, "flock", of_nfs)
    here(state, node, outputs).recover()
    assert (booked(state), {*seen}) == (["12"], {f"{os.getpid()}\n"})


def test_a_state_folder_that_cannot_be_written_stops_the_submission(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    said = "nothing was submitted: make its folder yours"
    with pytest.raises(JobsError, match=said), here(tmp_path, Recorded(), OUTPUTS).alone():
        pytest.fail("it went on without the lock")


def test_data_that_is_not_there_is_refused_before_the_job_waits_for_a_gpu(
    node: LoginNode, outputs: StackOutputs, tmp_path: Path
) -> None:
    """In the same round trip; a login node without the place cannot tell."""
    root = tmp_path / "data"
    outputs = replace(outputs, places={**outputs.places, "data": str(root)})
    path = root / "prepared" / "x" / "tokens_train.parquet"
    job = JobSpec(name="finetune", module="workloads.train", recipe="r")
    recipe = {"train": {"dataset": "prepared/x"}}
    tasks = {None: PreparedJob(job=job, run=FINETUNE.run, plan=None, recipe=recipe)}

    def sent(after: str | None = None) -> str:
        own, asked = here(tmp_path, node, outputs), request("finetune", tasks=tasks, after=after)
        return own.sbatch_once(own.planned(asked), asked).job_id

    assert sent() == "12", "there is no such place here"
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(JobsError) as refused:
        sent()
    assert str(refused.value) == (
        f"finetune: {path} is not on the cluster, or is empty; prepare it first (soperator submit "
        "finetune --pipeline -s STACK submits what finetune needs), bring it with soperator data "
        "push -s STACK, or name the job that makes it with --after ID; nothing was submitted"
    )
    assert sent(after="11") == "13"
    path.write_bytes(b"PAR1")
    assert sent() == "14"


def test_plans_are_dated_when_they_came(
    node: LoginNode, outputs: StackOutputs, tmp_path: Path
) -> None:
    """The archive has no times, for equal ones to be equal; a filesystem that clears by age has."""
    plan = SimpleNamespace(to_bytes=lambda: b"{}")
    job = JobSpec(name="finetune", module="workloads.train", recipe="r")
    tasks = {None: PreparedJob(job=job, run=FINETUNE.run, plan=plan, recipe={})}  # type: ignore[arg-type]
    own, asked = here(tmp_path, node, outputs), request("finetune", tasks=tasks)
    own.sbatch_once(own.planned(asked), asked)
    (written,) = (Path(outputs.own_path) / "plans").iterdir()
    assert (written.read_bytes(), time.time() - written.stat().st_mtime < 3600) == (b"{}", True)


@pytest.mark.parametrize("odd", ["a[$(touch $NODE/ran)]", "x", ""])
def test_what_the_queue_shows_in_the_place_of_a_number_is_neither_counted_nor_run(
    odd: str, node: LoginNode, outputs: StackOutputs
) -> None:
    digest = (plan(outputs).idempotency_key or "").rpartition(":")[0]
    node.put("queue", f"{odd}|finetune|PENDING|{digest}:aa\n")
    made = submit(node, outputs, "finetune", code_hash=HASH, oldest=3)
    assert [job[0] for job in node.queue] == [odd, made.job_id]
    assert not (node.folder / "ran").exists()


@pytest.mark.parametrize("number", ["9" * 19, "9" * 5000, "\N{ARABIC-INDIC DIGIT THREE}"])
def test_a_number_that_slurm_never_gives_is_no_job(
    number: str, node: LoginNode, outputs: StackOutputs
) -> None:
    program = node.folder / "bin" / "sbatch"
    program.write_text(f"#!/bin/bash\necho {number}\n")
    with pytest.raises(JobsError, match="instead of a job id"):
        submit(node, outputs, "finetune", code_hash=HASH)
