"""Jobs through the user's door: a real login node, real Slurm, the scripts that are rendered.

The invariant: what a command says about a job is what Slurm did with it.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

import stacks.load
from infra.cli import context
from infra.cli.jobs.shell import client_words
from infra.cli.main import app
from infra.clients import slurm
from infra.clients.errors import JobsError, StackPausedError
from infra.clients.ssh import Connection, ConnectionLostError, Result
from infra.clients.ssh_key import fingerprint
from infra.jobs import follow, history, nodes, top, transfer
from infra.jobs.follow import why
from infra.jobs.history import Submission
from infra.jobs.ledger import (
    expected,
    note_actual,
    open_ledger,
    report_of_cluster,
)
from infra.jobs.search import (
    leaderboard,
    prepare_search,
    runs_of,
    states_of,
    trials_to_submit,
    usd_by_job,
)
from infra.operate import sessions
from infra.operate.sessions import Guard, ask
from infra.render.delivery import code_files, hash_files
from infra.reports.acceptance import certificate
from infra.reports.acceptance.run import STAGES
from infra.setup.demo.runner import Runner, run_chain
from infra.state import CHECKOUT
from stacks.errors import UserError
from stacks.load import STACKS_DIR
from stacks.spec import StackSpec
from stacks.spec.cost import BudgetSpec, RunForecastSpec
from stacks.spec.slurm import ACCEPT_MODULE, JobSpec
from tests.local.jobs_cluster import SEARCH, JobsCluster, finish, probe_cluster, release, start
from tests.unit.jobs.raw import submit, submit_within_budget, submitter

pytestmark = pytest.mark.local


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobsCluster]:
    with probe_cluster(tmp_path_factory.mktemp("jobs")) as made:
        yield made


@pytest.fixture
def connection(cluster: JobsCluster) -> Iterator[Connection]:
    with Connection(cluster.outputs.endpoint(cluster.identity)) as opened:
        cluster.deliver(release(cluster.spec))
        yield opened


def demo_runner(
    cluster: JobsCluster,
    connection: Connection,
    state: Path,
    spec: StackSpec,
    said: list[str] | None = None,
) -> Runner:
    """What the demo runs jobs with."""
    log, files = (said if said is not None else []).append, release(cluster.spec)
    books = open_ledger(spec, state, log)
    return Runner(
        connection=connection,
        spec=spec,
        outputs=cluster.outputs,
        state=state,
        files=files,
        code_hash=hash_files(files),
        books=lambda: books,
        log=log,
    )


@pytest.mark.feature("S000-09", "S000-38", "S002-30", "S003-74")
def test_a_job_sees_its_places_its_code_and_its_settings(
    cluster: JobsCluster, connection: Connection
) -> None:
    submission = start(cluster, connection, "probe", "a.b=c d")
    status, log = finish(connection, submission)
    seen = json.loads(log.splitlines()[0])
    assert status == 0
    assert seen["SOPERATOR_PLACE_CHKPT"] == "/mnt/chkpt/users/deployer"
    assert seen["SOPERATOR_CODE_HASH"] == submission.code_hash
    assert seen["cwd"] == f"/home/shared/finetune_code/releases/{submission.code_hash}"
    assert (seen["SOPERATOR_PLATFORM"], seen["SOPERATOR_PRESET"]) == (
        "gpu-l40s-d",
        "2gpu-64vcpu-384gb",
    )
    assert seen["argv"] == ["--recipe", "none", "--set", "a.b=c d"]


@pytest.mark.feature(
    "S000-05",
    "S000-35",
    "S000-36",
    "S001-35",
    "S001-88",
    "S002-02",
    "S002-43",
    "S002-46",
    "S002-65",
    "S003-04",
    "S004-27",
)
def test_four_ranks_on_two_nodes_have_four_numbers_and_one_master(
    cluster: JobsCluster, connection: Connection
) -> None:
    """`$SLURM_NODEID` expanded on the batch host made every node rank 0 and hung the job.

    While it runs `top` samples both: without its number of nodes srun started on the first alone.
    """
    sampled = "/mnt/data/sampled"
    submission = start(cluster, connection, "ranks", f"until={sampled}")
    deadline = time.monotonic() + 60
    while (job := slurm.find(connection, submission.job_id)).state != "RUNNING":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    samples = top.watch(connection, cluster.outputs.code_path, job, every_s=1, count=1)
    assert {each.node for each in samples} == {"worker-0", "worker-1"}
    cluster.path(sampled).touch()
    status, log = finish(connection, submission)
    seen = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert status == 0
    assert {(each["rank"], each["node"]) for each in seen} == {
        (0, "worker-0"),
        (1, "worker-0"),
        (2, "worker-1"),
        (3, "worker-1"),
    }
    assert {each["MASTER_ADDR"] for each in seen} == {"worker-0"}
    assert {each["NCCL_IB_DISABLE"] for each in seen} == {"1"}
    said = {(each["NCCL_DEBUG"], each["NCCL_DEBUG_SUBSYS"]) for each in seen}
    assert said == {("INFO", "INIT,NET")}, "the stack file's, whole, on every rank"


@pytest.mark.feature("S001-38")
def test_the_exit_status_of_the_rank_that_failed_first_is_the_jobs(
    cluster: JobsCluster, connection: Connection
) -> None:
    """srun reports the highest status of all nodes: 75 of a stopped one would hide the 65."""
    submission = start(cluster, connection, "ranks", "fail_rank=3", "exit=65", "linger=60")
    status, _ = finish(connection, submission)
    assert status == 65


@pytest.mark.feature("S000-59", "S000-60", "S001-09", "S001-31", "S003-79")
def test_sbatch_on_the_login_node_runs_the_same_job(
    cluster: JobsCluster, connection: Connection
) -> None:
    typed = connection.run(
        f"cd {cluster.outputs.code_path} && sbatch --parsable --wait jobs/probe --set exit=7"
    )
    assert typed.exit_code == 7
    log = connection.run(f"cat {cluster.outputs.log_path('probe', typed.stdout.strip())}")
    assert json.loads(log.stdout.splitlines()[0])["argv"][-1] == "exit=7"


@pytest.mark.feature("S001-95", "S003-79")
def test_a_missing_python_environment_ends_the_job_with_78_and_says_what_to_do(
    cluster: JobsCluster, connection: Connection
) -> None:
    spec = replace(cluster.spec, python_env_path="/opt/none")
    files = release(spec)
    transfer.send(connection, cluster.outputs, files)
    submission = submit(connection, cluster.outputs, "probe", code_hash=hash_files(files))
    status, log = finish(connection, submission)
    assert status == 78
    assert "/opt/none/bin/python is missing: run soperator data venv -s jobs, submit again" in log


@pytest.mark.feature("S003-72")
def test_an_edit_runs_within_seconds_and_nothing_is_installed(
    cluster: JobsCluster, connection: Connection, record_property: Callable[[str, object], None]
) -> None:
    """All that `up` delivers is sent again, as `submit --sync` does it; the job says the new word.

    With the image a new package is a build: docs/delivery.md has both times.
    """
    whole = code_files(CHECKOUT, cluster.spec) | release(cluster.spec)
    transfer.send(connection, cluster.outputs, whole)
    edited = whole | {"workloads/probe.py": b"print('edited', flush=True)\n"}
    digest, began_s = hash_files(edited), time.monotonic()
    assert transfer.send(connection, cluster.outputs, edited) == digest
    made = submit(connection, cluster.outputs, "probe", code_hash=digest)
    status, log = finish(connection, made)
    took_s = time.monotonic() - began_s
    record_property("edit_to_end_s", round(took_s, 1))
    assert (status, log.splitlines()[0]) == (0, "edited")
    assert took_s < 60, "a build takes minutes"


@pytest.mark.feature("S002-44")
def test_code_that_is_not_on_the_cluster_is_refused_and_nothing_is_queued(
    cluster: JobsCluster, connection: Connection
) -> None:
    before = slurm.recent(connection, days=1)
    with pytest.raises(
        JobsError, match=r"0000000000000000 of this checkout is not there in full; run `pulumi up"
    ):
        submit(connection, cluster.outputs, "probe", code_hash="0000000000000000")
    assert slurm.recent(connection, days=1) == before


@pytest.mark.feature("S002-44")
def test_own_jobs_are_listed_without_those_of_others(
    cluster: JobsCluster, connection: Connection
) -> None:
    with cluster.root() as root:
        other = root.run("sbatch --parsable --output=/dev/null --wrap='sleep 60'").stdout.strip()
        own = start(cluster, connection, "probe", "sleep=1")
        every, mine = (
            {job.id for job in slurm.recent(connection, days=1, mine=mine)}
            for mine in (False, True)
        )
        root.run(f"scancel {other}")
    assert {other, own.job_id} <= every
    assert own.job_id in mine
    assert other not in mine
    assert finish(connection, own)[0] == 0


@pytest.mark.feature("S000-11", "S000-61", "S001-94", "S002-45", "S003-80")
def test_a_job_after_a_failed_one_is_cancelled_instead_of_waiting_for_ever(
    cluster: JobsCluster, connection: Connection
) -> None:
    # It has to fail after the looks at the second one.
    seen = "/mnt/data/seen"
    first = start(cluster, connection, "probe", f"until={seen}", "exit=3")
    second = start(cluster, connection, "second", after=first.job_id)
    waiting = slurm.find(connection, second.job_id)
    queued = {job.id: job for job in slurm.recent(connection, days=1)}[second.job_id]
    assert waiting.needs == queued.needs == (first.job_id,)
    assert why(waiting, {first.job_id: "probe"}).startswith(f"waits until probe ({first.job_id}) s")
    cluster.path(seen).touch()
    status, _ = finish(connection, second)
    assert slurm.find(connection, first.job_id).exit_code == 3
    assert slurm.find(connection, second.job_id).state == "CANCELLED"
    assert status != 0


@pytest.mark.feature("S002-79")
def test_a_search_runs_each_trial_with_its_settings_and_ranks_them(
    cluster: JobsCluster, connection: Connection, tmp_path: Path
) -> None:
    books = open_ledger(cluster.spec, tmp_path, print)
    files = release(cluster.spec)
    own = submitter(
        connection,
        cluster.outputs,
        state=tmp_path,
        books=lambda: books,
        code_hash=hash_files(files),
    )
    made = own.submit(prepare_search(books, SEARCH, files))
    assert trials_to_submit(SEARCH, own, ()) == (), "all are on their way"
    deadline = time.monotonic() + 120
    while any(task.is_active for task in states_of(connection, "trials")):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    runs = runs_of(connection, cluster.outputs, "trials")
    board = leaderboard(SEARCH, runs, states_of(connection, "trials"), {})
    assert [(row.rank, row.settings, row.state) for row in board.rows] == [
        (1, ("score=2",), "PASS"),
        (2, ("score=1",), "PASS"),
        (None, ("score=3", "exit=3"), "FAIL"),
    ]
    assert {run.array_id for run in runs} == {made.submission.job_id}
    now = datetime.now(UTC)
    used = slurm.uses(connection, "key", since=now - timedelta(hours=1), until=now).uses
    tasks = [use for use in used if use.array_id == made.submission.job_id]
    assert ([use.num_tasks for use in tasks], len(runs)) == ([1, 1, 1], 3)
    assert trials_to_submit(SEARCH, own, ()) == (2,)
    usd = usd_by_job(
        books,
        connection,
        cluster.outputs.login_host_key,
        [run.job_id for run in runs],
        now=datetime.now(UTC),
    )
    assert len(usd) == 3
    assert None not in usd.values(), "a task may end in the second of its start"
    own = {run.settings: run.job_id for run in runs}[("score=1",)]
    assert slurm.find(connection, own).name == "trials"
    log = connection.run(f"cat {cluster.outputs.log_path('trials', own)}").stdout
    assert json.loads(log.splitlines()[0])["argv"][-1] == "score=1"


@pytest.mark.feature("S001-34", "S002-88")
def test_a_cancelled_job_ends_its_log_with_a_status_that_is_not_0(
    cluster: JobsCluster, connection: Connection
) -> None:
    submission = start(cluster, connection, "probe", "lines=1000", "every=0.2")
    log = bytearray()

    def write(chunk: bytes) -> None:
        log.extend(chunk)
        if b"line 2\n" in log:
            slurm.cancel(connection, [submission.job_id])

    job = follow.follow(connection, submission.log_path, submission.job_id, write=write)
    assert (job.state, job.succeeded) == ("CANCELLED", False)
    assert job.status != 0


@pytest.mark.feature("S001-34")
def test_a_log_goes_on_at_its_byte_after_its_session_was_killed(
    cluster: JobsCluster, connection: Connection
) -> None:
    submission = start(cluster, connection, "probe", "lines=30", "every=0.1")
    log = bytearray()
    lost: list[ConnectionLostError] = []

    def write(chunk: bytes) -> None:
        log.extend(chunk)
        if b"line 5\n" in log and not lost:
            with contextlib.suppress(ConnectionLostError):
                connection.run("kill -9 $PPID")  # sshd's process of this very connection

    job = follow.follow(
        connection, submission.log_path, submission.job_id, write=write, on_lost=lost.append
    )
    assert job.succeeded
    assert lost
    numbers = [line for line in log.decode().splitlines() if line.startswith("line ")]
    assert numbers == [f"line {number}" for number in range(30)]


def test_a_pulled_job_brings_its_record_its_log_and_its_submission(
    cluster: JobsCluster, connection: Connection, tmp_path: Path
) -> None:
    submission = start(cluster, connection, "probe")
    history.remember(tmp_path, submission)
    finish(connection, submission)
    folder = transfer.pull(connection, cluster.outputs, "probe", submission.job_id, state=tmp_path)
    assert folder == tmp_path / "runs" / "jobs" / submission.job_id
    assert {path.name for path in folder.iterdir()} == {
        "run_record.json",
        "job.log",
        "submission.json",
    }
    assert history.submissions(tmp_path, "jobs") == (submission,)


def test_a_pause_fetches_what_a_job_left_and_its_log_then_ends_as_the_job_did(
    cluster: JobsCluster, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "stacks").mkdir()
    declared = folder / "Pulumi.jobs.yaml"
    declared.write_bytes((STACKS_DIR / "Pulumi.local.yaml").read_bytes())
    monkeypatch.setattr(stacks.load, "STACKS_DIR", folder)
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path))
    for name, value in {
        "spec": lambda stack: cluster.spec,
        "read": lambda stack: cluster.outputs,
        "private_key": lambda identity: cluster.identity,
    }.items():
        monkeypatch.setattr(context, name, value)
    submission = start(cluster, connection, "probe", "lines=2", "exit=3")
    history.remember(tmp_path, submission)
    assert finish(connection, submission)[0] == 3
    where = ("--stack", "jobs")
    paused = CliRunner().invoke(app, ["cluster", "pause", *where])
    assert paused.exit_code == 0, paused.output
    assert f"probe ({submission.job_id}): fetched to " in paused.output
    assert "paused: true" in declared.read_text()

    def nobody(stack: str, *_: object) -> None:
        raise StackPausedError("jobs: is paused")

    monkeypatch.setattr(context, "read", nobody)
    shown = CliRunner().invoke(app, ["logs", submission.job_id, *where])
    assert shown.exit_code == 3, shown.output
    assert "line 1\n" in shown.stdout
    assert f"job {submission.job_id}: FAILED: it ended with exit code 3" in shown.stderr


@pytest.mark.feature("S000-81")
def test_every_declared_mount_has_its_sizes_and_a_worker_tells_of_what_the_login_node_lacks(
    cluster: JobsCluster, connection: Connection
) -> None:
    wait_until_nothing_runs(connection)
    declared = dict.fromkeys(("/", "/home", "/mnt/data", "/mnt/memory"), "declared")
    found = {each.path: each for each in nodes.usage(connection, declared)}
    assert [*found] == [*declared, "/tmp"]
    assert all((each.size_bytes or 0) > 0 for each in found.values()), found
    # Here login and workers have the same mounts, so the worker is asked by itself.
    memory = {"/mnt/memory": "declared"}
    there = nodes._measured(connection, memory, nodes._ON_A_WORKER, ())["/mnt/memory"]
    assert (there.node or "").startswith("worker-")
    assert (there.size_bytes or 0) > 0


def test_a_wrong_host_key_stops_the_connection_before_anything_is_sent(
    cluster: JobsCluster, tmp_path: Path
) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True
    )
    other = (tmp_path / "other.pub").read_text()
    endpoint = replace(cluster.outputs, login_host_key=other).endpoint(cluster.identity)
    with pytest.raises(JobsError, match="the host key is not the one that the stack pins"):
        Connection(endpoint)


@pytest.mark.feature("S002-24", "S003-65")
def test_a_key_that_is_not_declared_is_refused_with_what_to_declare(
    cluster: JobsCluster, tmp_path: Path
) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True
    )
    with pytest.raises(JobsError, match=r"was refused; add its public half to login\.ssh_public"):
        Connection(cluster.outputs.endpoint(tmp_path / "other"))


def test_a_chain_that_runs_again_uses_finished_jobs_and_repeats_changed_ones(
    cluster: JobsCluster, connection: Connection, tmp_path: Path
) -> None:
    spec = replace(cluster.spec, jobs=tuple(j for j in cluster.spec.jobs if j.name != "ranks"))
    runner = demo_runner(cluster, connection, tmp_path, spec)
    first = run_chain(runner, {}).values()
    again = run_chain(runner, {}).values()
    changed = run_chain(runner, {"second": ("a=b",)}).values()
    earlier = run_chain(runner, {"probe": ("a=b",)}).values()
    assert [step.reused for step in first] == [False, False]
    assert [step.reused for step in again] == [True, True]
    assert [step.reused for step in changed] == [True, False]
    # `second` ran before the new `probe`, so what it made no longer follows from it.
    assert [step.reused for step in earlier] == [False, False]
    assert [step.job.id for step in again] == [step.job.id for step in first]


@pytest.mark.parametrize("is_script_whole", [True, False])
def test_a_job_whose_number_never_came_back_is_found_again(
    is_script_whole: bool,
    cluster: JobsCluster,
    connection: Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that is killed after sbatch and before the answer must not submit the job twice."""
    spec = replace(cluster.spec, jobs=cluster.spec.jobs[:1])
    said: list[str] = []
    runner = demo_runner(cluster, connection, tmp_path, spec, said)
    answers: list[str] = []

    class Killed(BaseException):
        """Nothing after it runs."""

    def killed(command: str, *, stdin: bytes = b"") -> Result:
        found = run(command, stdin=stdin)
        if "submit_once sbatch" in command:
            answers.append(found.stdout.strip())
            raise Killed
        return found

    run, listed = connection.run, f"ls {cluster.outputs.own_path}/submissions"
    before = connection.run(listed).stdout  # those of other tests stay
    with monkeypatch.context() as patch:
        patch.setattr(connection, "run", killed)
        with pytest.raises(Killed), runner.alone():
            runner.start(spec.jobs[0], ())
    assert history.submissions(tmp_path, "jobs") == ()
    if not is_script_whole:
        # Killed with its caller, between sbatch and the line that keeps its answer.
        newest = f"{cluster.outputs.own_path}/submissions/*"
        assert connection.run(f': > "$(ls -t {newest} | head -n 1)"').ok
    step = run_chain(runner, {})["probe"]
    assert [step.job.id] == answers
    assert step.reused
    cut_off = f"probe: job {answers[0]} was submitted by a command that was cut off"
    assert said[0].startswith(cut_off)
    assert connection.run(listed).stdout == before


def test_a_job_of_another_machine_that_waits_is_taken_and_one_that_ended_is_not(
    cluster: JobsCluster, connection: Connection, tmp_path: Path
) -> None:
    digest, sets = hash_files(release(cluster.spec)), ("sleep=60",)

    def ask() -> Submission:
        return submit(
            connection,
            cluster.outputs,
            "probe",
            code_hash=digest,
            sets=sets,
            oldest=0,
        )

    first = ask()
    found = ask()
    assert (found.job_id, found.idempotency_key) == (first.job_id, first.idempotency_key)
    slurm.cancel(connection, [first.job_id])
    finish(connection, first)
    second = ask()
    assert second.job_id != first.job_id
    slurm.cancel(connection, [second.job_id])
    finish(connection, second)


@pytest.mark.feature("S001-95")
def test_a_failed_job_ends_the_chain_with_its_last_words(
    cluster: JobsCluster, connection: Connection, tmp_path: Path
) -> None:
    spec = replace(cluster.spec, jobs=cluster.spec.jobs[:1])
    runner = demo_runner(cluster, connection, tmp_path, spec)
    with pytest.raises(UserError, match=r"probe \(job \d+\) ended FAILED with 65(.|\n)*line 0"):
        run_chain(runner, {"probe": ("lines=1", "exit=65")})


def test_a_submission_is_forecast_held_to_the_budget_and_settled(
    cluster: JobsCluster, connection: Connection, tmp_path: Path
) -> None:
    """Without accounting: the queue's short memory and the ledger are all there is."""
    run = RunForecastSpec(
        job="probe", tokens_per_epoch=3600, train_tokens_per_s=Decimal(1), source="this test"
    )
    # 4.57 USD fit once, not twice; the jobs of the other tests cost some cents of it.
    budget = BudgetSpec(usd_per_month=Decimal(8))
    books = open_ledger(replace(cluster.spec, runs=(run,), budget=budget), tmp_path, print)
    said: list[str] = []

    def ask(*, force: bool = False) -> Submission:
        run = books.forecast(books.spec.jobs[0])
        return submit_within_budget(
            books,
            connection,
            expected(run, cluster.outputs.login_host_key),
            lambda: start(cluster, connection, "probe"),
            force=force,
            log=said.append,
        )

    first = ask()
    assert said[-1].endswith("$0.00 reserved)")
    before = slurm.recent(connection, days=1)
    with pytest.raises(JobsError, match=r"\$4\.57 is more than what is left: .*\$4\.57 reserved"):
        ask()
    assert len(slurm.recent(connection, days=1)) == len(before)
    finish(connection, first)
    note = note_actual(books, connection, cluster.outputs.login_host_key, first.job_id)
    assert note.startswith(f"job {first.job_id}: $0.0")
    ask(force=True)
    assert "$0.00 reserved" in said[-1], "the first has ended, so the second fits without force"
    now = datetime.now(UTC)
    report = report_of_cluster(
        books,
        connection,
        cluster=cluster.outputs.login_host_key,
        since=now - timedelta(hours=1),
        until=now,
        now=now,
    )
    assert first.job_id in [row.use.job_id for row in report.jobs]
    assert report.notes[0].startswith("Accounting is off on this cluster")


def wait_until_nothing_runs(connection: Connection) -> None:
    """Returns once every job of the cluster has ended."""
    deadline = time.monotonic() + 60
    while left := [job for job in slurm.recent(connection, days=1) if not job.finished]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


@pytest.mark.feature("S002-29")
def test_a_session_is_planned_entered_and_gone_with_its_guard(
    cluster: JobsCluster, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real srun: two sessions take every GPU, the third is told to wait, and all of it ends."""
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path))
    rates = open_ledger(cluster.spec, tmp_path, print).rates
    asks = [ask(rates, gpus=2, cpus=None, partition=None, hours=0.1) for _ in range(3)]
    held: list[Guard] = []
    wait_until_nothing_runs(connection)  # the test before leaves a job to its end
    try:
        for asked in asks[:2]:
            sessions.num_waiting(connection, asked, waits=False)
            end = sessions.end(asked)
            held.append(Guard(connection, start=sessions.held(asked), end=end))
            found = sessions.wait_for(held[-1], None, say=print)
            assert found.host.startswith("worker-")
        with pytest.raises(JobsError, match="no 2 GPUs are free in partition main: 0 jobs wait"):
            sessions.num_waiting(connection, asks[2], waits=False)
        assert all(guard.close() for guard in held)
    finally:
        for guard in held:
            guard.close()
    wait_until_nothing_runs(connection)
    asked = ask(rates, gpus=1, cpus=None, partition=None, hours=0.1)
    inside = (
        f"{sessions.environment(cluster.spec, cluster.outputs)}; echo on $SLURMD_NODENAME in $PWD"
    )
    remote = asked.srun("bash", "-c", inside, options=["--pty"])
    words = client_words(cluster.outputs, cluster.identity, options=("-tt",))
    done = subprocess.run(
        [*words, remote], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert re.search(r"on worker-\d in .*/releases/", done.stdout), done


@pytest.mark.feature(
    "S000-03",
    "S001-01",
    "S001-13",
    "S001-15",
    "S001-47",
    "S001-56",
    "S001-58",
    "S002-71",
    "S004-26",
)
def test_a_quick_acceptance_of_both_nodes_is_certified(
    cluster: JobsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readiness to soak as one Slurm job on both workers; the certificate names them."""
    job = JobSpec(
        name="accept",
        module=ACCEPT_MODULE,
        recipe="accept_cpu",
        nodes=2,
        gpus_per_node=1,
        restarts=0,
        time_limit="00:20:00",
    )
    spec = replace(cluster.spec, jobs=(job,), searches=())
    outputs = replace(cluster.outputs, jobs={job.name: ""})
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    for name, value in {
        "spec": lambda stack: spec,
        "read": lambda stack: outputs,
        "local_code": lambda stack: code_files(CHECKOUT, spec),
        "private_key": lambda identity: cluster.identity,
    }.items():
        monkeypatch.setattr(context, name, value)
    sets = ("accept.soak_s=0", "accept.training.steps=3", "accept.training.warmup=1")
    words = [
        "cluster",
        "accept",
        "--stack",
        spec.name,
        "--profile",
        "quick",
        "--sync",
        "--format",
        "json",
    ]
    folder = tmp_path / "certificate"
    done = CliRunner().invoke(
        app, [*words, "-o", str(folder), *(word for each in sets for word in ("--set", each))]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["outcome"], tuple(found["stages"])) == ("PASS", STAGES)
    assert [(node["name"], node["role"], node["ranks"]) for node in found["nodes"]] == [
        ("worker-0", "master", [0]),
        ("worker-1", "worker", [1]),
    ]
    assert found["runs"][0]["launcher"] == "slurm"
    assert [point["ranks"] for point in found["measurements"]["training"]["points"]] == [1, 2]
    shared = {row["place"] for row in found["measurements"]["storage"] if row["is_shared"]}
    assert {"data", "model", "chkpt", "results"} <= shared, "each reads its neighbour's file"
    assert not list(cluster.path("/mnt/data").glob(".accept-*"))
    public = certificate.public_key(cluster.identity)
    checked = certificate.verify(folder / "certificate.html", public)
    assert checked == {**found, "signed_by": fingerprint(public)}
    (evidence,) = found["evidence"]
    assert (evidence["job_id"], evidence["attested"]) == (found["runs"][0]["job_id"], False)
