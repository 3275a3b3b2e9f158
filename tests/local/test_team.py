"""Two users with a laptop or two each, and one budget, on a real Slurm with and without accounting.

Without it Slurm forgets a job soon after its end here (MinJobAge), and members tell each other
through the folder that the stack names.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

import stacks.load
from cost.runs.ledger import BY_HAND
from infra.cli import context
from infra.cli.jobs.shell import client_words
from infra.clients import slurm
from infra.clients.pulumi import attached_outputs
from infra.clients.ssh import Connection, Result
from infra.jobs.ledger import OverBudgetError, admit_session, open_ledger
from infra.operate.sessions import ask
from tests.bench.team import USERS, Laptop, Team, measure, problems, running_team
from workloads.common import atomic, exit_codes, log, supervise

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


@pytest.fixture(autouse=True)
def _empty(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a failed test left neither runs nor keeps the jobs of the next one."""
    yield
    name = "forgetful" if "forgetful" in request.fixturenames else "team"
    made: Team = request.getfixturevalue(name)
    made.as_root(f"for user in {' '.join(USERS)}; do scancel --user=$user; done")
    made.state("UP")
    made.stand.wait(lambda: not made.queued("%A"), "the end of all jobs", 180)


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
    team.wait_until_all_ended(180)


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


def test_where_slurm_gives_whole_nodes_a_job_is_forecast_and_charged_as_such(
    team: Team, tmp_path: Path
) -> None:
    """One CPU of 64: $0.94 was its most, and Slurm gave and accounted all CPUs of the node."""
    team.as_root("scontrol update PartitionName=main OverSubscribe=EXCLUSIVE")
    try:
        ann = laptop(team, "ann", tmp_path, "{usd_per_month: 100000}")
        path = ann.folder / "stacks/Pulumi.lab.yaml"
        path.write_text(path.read_text().replace("cpus_per_task: 64", "cpus_per_task: 1"))
        said = ann.run("submit", "look", "-s", "lab", "--dry-run").output
        assert "Its time limit allows at most $60.00" in said
        ((job_id, _),) = ann.submit(1)
        team.wait_until_all_ended(120, [job_id])
        (row,) = (row for row in team.rows("JobIDRaw,AllocCPUS,ElapsedRaw") if row[0] == job_id)
        text = ann.run("cost", "spend", "-s", "lab", "--format", "json").stdout
        (usd,) = (
            each["nodes_usd"] for each in json.loads(text)["jobs"] if each["job_id"] == job_id
        )
        assert (row[1], float(usd)) == ("64", float(row[2])), "a dollar a second for a whole node"
    finally:
        team.as_root("scontrol update PartitionName=main OverSubscribe=NO")


@dataclass(frozen=True)
class Root:
    """The login node as root, for the product's own questions."""

    team: Team

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        done = self.team.stand.ssh(command)
        out, err = done.stdout, done.stderr
        return Result(command=command, exit_code=done.returncode, stdout=out, stderr=err)


def test_a_requeue_by_hand_is_told_from_that_of_a_job(team: Team) -> None:
    """Steps of two have ended, with 75 and well, and their supervisors ask; of the others runs one.

    What the ranks of `hand` end with says nothing: they save for two seconds, as for a notice.
    """
    for module in (atomic, exit_codes, log, supervise):
        source = Path(module.__file__ or "").read_text()
        path = f"/home/bob/own/{module.__name__.replace('.', '/')}.py"
        team.as_root(f"mkdir -p $(dirname {path}); printf %s {shlex.quote(source)} > {path}")
    supervised = "python3 -m workloads.common.supervise --max-nodes 1 --save-s 5"
    home = "cd /home/bob/own"
    # The file says that the shell has its trap. A shell that was told and whose child was ended
    # runs its trap before its next command: there has to be one.
    saves = (
        "trap 'sleep 2; exit {}' TERM; touch /home/bob/saves-$SLURM_JOB_ID; "
        "while :; do sleep 0.2; done"
    )
    lives = {
        "own": f"{home}; {supervised} -- srun bash -c 'exit 75'; sleep 60",
        "own-server": f"{home}; {supervised} --serves -- srun true; sleep 60",
        "hand": f"srun bash -c {shlex.quote(saves.format(75))}; sleep 60",
        "hand-server": f"srun bash -c {shlex.quote(saves.format(0))}; sleep 60",
    }
    ids = {}
    for name, life in lives.items():
        script = f'#!/bin/bash\n[ -z "$SLURM_RESTART_COUNT" ] || exit 0\n{life}\n'
        team.as_root(f"printf %s {shlex.quote(script)} > /tmp/{name}.sh; chmod 755 /tmp/{name}.sh")
        words = "--account=phys --mem=100 --time=5 --requeue --output=/dev/null"
        asked = f"cd /tmp; sbatch --parsable --job-name={name} {words} /tmp/{name}.sh"
        ids[name] = team.as_root(f"su bob -c {shlex.quote(asked)}").strip()
    for name in ("hand", "hand-server"):
        saves = f"ls /home/bob/saves-{ids[name]} 2>/dev/null || true"
        team.stand.wait(lambda saves=saves: team.as_root(saves) != "", "ranks that save", 60)
        team.as_root(f"su bob -c 'scontrol requeue {ids[name]}'")
    now = datetime.now(UTC)
    asked_for = {"since": now - timedelta(hours=1), "until": now + timedelta(hours=1)}

    def ends(*known: str) -> dict[str, str]:
        uses = slurm.uses(Root(team), "key", ids=known, **asked_for).uses
        known_runs = {use.job: use.runs for use in uses if use.job_id in ids.values()}
        return {name: runs[0].state if runs else "" for name, runs in known_runs.items()}

    told = {name: "REQUEUED" if name.startswith("own") else BY_HAND for name in ids}
    try:
        with suppress(pytest.fail.Exception):  # the accounting hears of each end later
            team.stand.wait(lambda: ends() == told, "the ends of all steps", 60)
        assert (ends(), ends(*ids.values())) == (told, told)
    finally:
        team.as_root(f"scancel {' '.join(ids.values())}")
        team.wait_until_all_ended(180)


def test_a_neighbour_neither_queues_a_job_again_nor_ends_changes_or_enters_it(team: Team) -> None:
    """Of the same account, where root, the owner and Slurm's operators may."""
    words = "--account=phys --time=5 --requeue --output=/dev/null"
    asked = f"cd /tmp; sbatch --parsable --job-name=probe {words} --wrap='sleep 240'"
    job_id = team.as_root(f"su bob -c {shlex.quote(asked)}").strip()
    shown = f"squeue --noheader --jobs={job_id} --format='%T|%j|%l|%k|%S'"
    team.stand.wait(lambda: "RUNNING" in team.as_root(shown), "the job", 60)
    before, script = team.as_root(shown), f"/tmp/script-{job_id}"
    tries = (
        f"scontrol requeue {job_id}",
        f"scontrol requeuehold {job_id}",
        f"scontrol hold {job_id}",
        f"scontrol suspend {job_id}",
        f"scontrol update JobId={job_id} Comment=mine Name=mine",
        f"scontrol write batch_script {job_id} {script}",
        f"scancel {job_id}",
        f"scancel --signal=USR1 --batch {job_id}",
        f"srun --overlap --jobid={job_id} true",
    )
    try:
        for command in tries:
            done = team.stand.ssh(f"su ann -c {shlex.quote(f'cd /tmp; {command}')}")
            # Slurm 22.05 ends a refused `write` with 0.
            assert re.search("denied|Invalid user id", done.stdout + done.stderr), (command, done)
        assert team.as_root(f"ls {script} 2>/dev/null; {shown}") == before
        restarts = f"scontrol show job {job_id} | grep -o 'Restarts=[0-9]*'"
        assert team.as_root(restarts).strip() == "Restarts=0"
    finally:
        team.as_root(f"scancel {job_id}")
        team.wait_until_all_ended(180)


# What `scrontab -u` asks of slurmctld, without the look at its caller that the command has before;
# Debian's Slurm has the library and no command.
SCRONTAB = """
import ctypes, sys
verb, uid, text = sys.argv[1], int(sys.argv[2]), " ".join(sys.argv[3:]).encode() + b"\\n"
slurm = ctypes.CDLL(open("/tmp/library").readline().strip(), ctypes.RTLD_GLOBAL)
slurm.slurm_init(None)
slurm.slurm_update_crontab.restype = ctypes.c_void_p
if verb == "list":
    held, disabled = ctypes.c_char_p(), ctypes.c_char_p()
    code = slurm.slurm_request_crontab(uid, ctypes.byref(held), ctypes.byref(disabled))
    print(code, (held.value or b"").decode())
elif verb == "remove":
    print(slurm.slurm_remove_crontab(uid, uid))
else:
    slurm.slurm_update_crontab(uid, uid, text, None)
"""


def test_a_neighbour_neither_reads_nor_writes_the_schedules_of_another(team: Team) -> None:
    """Asked as `scrontab -u` does; root, who may, shows that the same words work."""
    team.as_root(f"printf %s {shlex.quote(SCRONTAB)} > /tmp/scron.py; chmod 755 /tmp/scron.py")
    prefix = "$(dirname $(dirname $(command -v scontrol)))/lib"
    team.as_root(f"find {prefix} -name libslurmfull.so > /tmp/library; chmod 644 /tmp/library")
    bob, line = USERS["bob"], "0 0 1 1 * /bin/true"

    def asks(user: str, words: str) -> str:
        return team.as_root(f"su {user} -c 'cd /tmp; python3 /tmp/scron.py {words}'").strip()

    asks("bob", f'write {bob} "{line}"')
    assert asks("bob", f"list {bob}") == f"0 {line}"
    try:
        code, _, held = asks("ann", f"list {bob}").partition(" ")
        assert (code != "0", held) == (True, "")
        asks("ann", f'write {bob} "* * * * * id"')
        assert asks("ann", f"remove {bob}") != "0"
        assert asks("bob", f"list {bob}") == f"0 {line}"
        if team.as_root("command -v scrontab || true"):
            tries = {
                "-u bob -l": "",
                "-u bob -r": "",
                "-u bob -": "* * * * * id",
                "-": "#SCRON --uid=bob\n* * * * * id",
            }
            for words, text in tries.items():
                asked = f"printf '{text}\n' | su ann -c 'cd /tmp; scrontab {words}'"
                done = team.stand.ssh(asked)
                assert (done.returncode != 0, line in done.stdout) == (True, False), (words, done)
            assert asks("bob", f"list {bob}") == f"0 {line}"
        asks("root", f'write {bob} "1 {line}"')
        assert asks("root", f"list {bob}") == f"0 1 {line}"
    finally:
        assert asks("root", f"remove {bob}") == "0"


def test_of_two_sessions_in_one_second_the_first_alone_starts(team: Team, tmp_path: Path) -> None:
    """Each fits by itself and was looked at before the other was there; bob decides first."""
    spent = laptop(team, "ann", tmp_path / "look", "{usd_per_month: 1}").run(
        *("cost", "spend", "-s", "lab", "--by", "user", "--format", "json")
    )
    budget_usd = float(json.loads(spent.stdout)["budget"]["spent_usd"]) + 90
    laptops = [
        laptop(team, user, tmp_path, f"{{usd_per_month: {budget_usd}}}") for user in ("ann", "bob")
    ]
    with ExitStack() as stack:
        held = {}
        for of in laptops:
            # Settled as by `soperator shell`: until then what ended counts as whole nodes. It also
            # makes this laptop the one whose spec and state are used.
            of.run("cost", "spend", "-s", "lab")
            outputs = attached_outputs(context.spec("lab"))
            books = open_ledger(context.spec("lab"), context.state_root(), print)
            asked = ask(books.rates, gpus=0, cpus=64, partition="main", hours=1 / 60)
            assert round(asked.most_usd or 0) == 60
            asked = replace(asked, options=(*asked.options, "--hold"))
            words = [*client_words(outputs, of.key), asked.srun("true")]
            session = stack.enter_context(subprocess.Popen(words, stderr=subprocess.PIPE))
            stack.callback(session.kill)  # or its exit waits for ever, and hides what failed
            connection = stack.enter_context(Connection(outputs.endpoint(of.key)))
            known = partial(slurm.id_of, connection, asked.name)
            team.stand.wait(lambda known=known: known() is not None, "the session", 120)
            admit = partial(admit_session, books, connection, asked, outputs.login_host_key)
            held[of.user] = session, admit
        with pytest.raises(OverBudgetError, match=r"reserved by ann \$60.00"):
            held["bob"][1]()
        assert held["ann"][1]()
        for user, (session, _) in held.items():
            poll = session.poll
            team.stand.wait(lambda poll=poll: poll() is not None, f"end of {user}'s session", 120)
        assert held["ann"][0].returncode == 0
        assert held["bob"][0].returncode != 0


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    with running_team(tmp_path_factory.mktemp("forgetful"), accounting=False) as made:
        made.as_root("install -d -m 1777 /mnt/team")
        yield made


def run_to_the_end(team: Team, of: Laptop) -> str:
    """The id of a job of a few seconds, which is over."""
    ((job_id, _),) = of.submit(1)
    began_s = time.monotonic()
    while job_id in team.queued("%A"):  # also as COMPLETING, which has no end to tell yet
        assert time.monotonic() - began_s < 180
    return job_id


def test_without_accounting_what_ended_unseen_is_told_by_its_owner(
    forgetful: Team, tmp_path: Path
) -> None:
    told = "usd_per_month: 150, ledger: /mnt/team"
    ann = laptop(forgetful, "ann", tmp_path, f"{{{told}}}")
    bob = laptop(forgetful, "bob", tmp_path, "{usd_per_month: 150}")
    alone = bob.run("submit", "look", "-s", "lab", "--again").stderr
    assert "Slurm keeps no accounts there and the stack names no budget.ledger" in alone
    bob.declare(f"{{{told}}}")
    seen = run_to_the_end(forgetful, ann)
    text = ann.run("cost", "spend", "-s", "lab", "--format", "json").stdout
    (cost_usd,) = (float(x["nodes_usd"]) for x in json.loads(text)["jobs"] if x["job_id"] == seen)
    run_to_the_end(forgetful, ann)  # and nobody looks
    forgetful.forget_soon()
    known = "squeue --noheader --all --states=all --format=%A"
    forgetful.stand.wait(
        lambda: not forgetful.as_root(known).split(), "Slurm to forget both jobs", 150
    )
    spend = bob.run("cost", "spend", "-s", "lab", "--by", "user", "--format", "json").stdout
    groups = {each["user"]: each for each in json.loads(spend)["groups"]}
    assert float(groups["ann"]["nodes_usd"]) == pytest.approx(cost_usd)
    assert float(groups["ann"]["reserved_usd"]) == 60, "of the other nothing but its limit is known"
    ann.run("cost", "spend", "-s", "lab")  # and tells anew what Slurm has forgotten
    forged = "cd /mnt/team; for each in $(id -u ann).*; do rm -f $each; echo > $each; done; true"
    forgetful.as_root(f"su bob -c {shlex.quote(forged)}")
    again = bob.run("cost", "spend", "-s", "lab", "--by", "user", "--format", "json").stdout
    assert json.loads(again)["groups"] == json.loads(spend)["groups"]
    bob.declare("{usd_per_month: 100, ledger: /mnt/team}")
    (refused,) = bob.submit(1)
    assert "is more than what is left" in refused
    assert "reserved by ann $60.00" in refused


def test_a_slurm_that_hides_jobs_of_others_is_told_and_what_members_tell_counts(
    forgetful: Team, tmp_path: Path
) -> None:
    ann = laptop(forgetful, "ann", tmp_path, "{usd_per_month: 500, ledger: /mnt/team}")
    bob = laptop(forgetful, "bob", tmp_path, "{usd_per_month: 500, ledger: /mnt/team}")
    spend = ("cost", "spend", "-s", "lab", "--by", "user", "--format", "json")
    hidden = "(PrivateData=jobs): of what other members spend"
    forgetful.state("DOWN")
    try:
        ((job_id, _),) = ann.submit(1)
        before = json.loads(bob.run(*spend).stdout)
        assert hidden not in json.dumps(before)
        forgetful.hide_jobs()
        seen = f"su bob -c 'squeue --noheader --all --jobs={job_id}' 2>/dev/null || true"
        assert forgetful.as_root(seen) == ""
        after = json.loads(bob.run(*spend).stdout)
        assert hidden in json.dumps(after["notes"])
        reserved = [
            {each["user"]: each["reserved_usd"] for each in told["groups"]}["ann"]
            for told in (before, after)
        ]
        assert reserved[0] == reserved[1], "the limit of a job that waits, by whoever tells it"
        assert hidden in bob.run("submit", "look", "-s", "lab", "--again").stderr
        said = bob.attach("{usd_per_month: 500, ledger: /mnt/team}")
        assert "(PrivateData=jobs): a budget counts those of budget.ledger" in said
    finally:
        forgetful.as_root("scancel --state=PENDING --user=ann,bob; true")
        forgetful.state("UP")
