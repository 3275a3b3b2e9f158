"""Two users on several laptops submit at once against one budget: `python -m tests.bench.team`.

On a real Slurm with accounting, attached to as ordinary users. First nothing can start, so that the
number of jobs that fit is exact; then they run, and what ended makes room for others. Every dollar
is counted once more from sacct alone. Ends with 1 where one is lost, counted twice, or over the
budget. tests/local/test_team.py does it with few submissions.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.local.slurm_stand import CLUSTER, Stand, running_stand

USERS = {"ann": 20011, "bob": 20012}
ACCOUNT = "phys"
_FORGETFUL = "MinJobAge=45"  # long enough for its owner to look
LIMIT_S = 60
"""Time limit of a job, which has a node for itself: at a dollar a second, so many dollars."""


@dataclass(frozen=True)
class Team:
    """A cluster of others with two members of one account."""

    stand: Stand
    keys: dict[str, Path]

    def as_root(self, command: str) -> str:
        done = self.stand.ssh(command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def hide_jobs(self) -> None:
        """Users see their own jobs alone from now on."""
        self._configure(_FORGETFUL, "PrivateData=jobs")

    def forget_soon(self) -> None:
        """Slurm forgets what has ended within ten seconds from now on, the least that it takes."""
        self._configure("MinJobAge=2")

    def _configure(self, *lines: str) -> None:
        """Lines of slurm.conf beside those of the charts; returns once slurmctld has the last."""
        values = self.stand.values()
        values[CLUSTER]["customSlurmConfig"] = "".join(f"{line}\n" for line in lines)
        self.stand.apply(values)
        name, _, value = lines[-1].partition("=")
        shown = f"scontrol show config | grep '^{name} ' || true"
        self.stand.wait(lambda: value in self.as_root(shown).partition("=")[2].split(), lines[-1])

    @property
    def host_key(self) -> str:
        return self.stand.host_key.with_suffix(".pub").read_text()

    def state(self, word: str) -> None:
        """UP: jobs start; DOWN: they wait."""
        self.as_root(f"scontrol update PartitionName=main State={word}")

    def rows(self, fields: str) -> list[list[str]]:
        """Jobs of the account as sacct alone tells them."""
        asked = f"--allusers --accounts={ACCOUNT} --starttime=2026-01-01 --format={fields}"
        text = self.as_root(f"TZ=UTC0 sacct --noheader --parsable2 --allocations {asked}")
        return [line.split("|") for line in text.splitlines()]

    def queued(self, fields: str) -> list[str]:
        return self.as_root(f"squeue --noheader --all --format={shlex.quote(fields)}").split()

    def wait_until_all_ended(self, timeout_s: float, ids: Collection[str] = ()) -> None:
        # Accounting is late by seconds: it has to know each job, and each end, too.
        def is_over() -> bool:
            states = {row[0]: row[1] for row in self.rows("JobIDRaw,State")}
            is_known = states.keys() >= set(ids)
            active = {"RUNNING", "PENDING", "COMPLETING"} & set(states.values())
            return is_known and not active and not self.queued("%A")

        self.stand.wait(is_over, "end of all jobs", timeout_s)


@contextlib.contextmanager
def running_team(folder: Path, *, accounting: bool = True) -> Iterator[Team]:
    """Starts one; skips where this machine cannot. Without accounting Slurm soon forgets jobs."""
    from infra.render.login import teams_script
    from stacks.load import KEY_FILE_VARIABLE, load_stack
    from stacks.spec.slurm import AccountSpec

    keys = {user: folder / user for user in USERS}
    for path in keys.values():
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path]
        subprocess.run(words, check=True)
    local = load_stack("local", environ={KEY_FILE_VARIABLE: f"{keys['ann']}.pub"})
    account = AccountSpec(name=ACCOUNT, users=tuple(USERS))
    spec = replace(local, slurm=replace(local.slurm, accounts=(account,)))
    with running_stand(folder / "stand") as stand:
        values = stand.values(spec if accounting else None)
        if not accounting:
            values[CLUSTER]["customSlurmConfig"] = f"{_FORGETFUL}\n"
        stand.apply(values)
        stand.wait_idle("worker-[0-1]")
        team = Team(stand, keys)
        for user, uid in USERS.items():
            public = Path(f"{keys[user]}.pub").read_text().strip()
            home = f"/home/{user}"
            team.as_root(
                f"set -e; echo {user}:x:{uid}:{uid}::{home}:/bin/bash >> /etc/passwd; "
                f"echo {user}:x:{uid}: >> /etc/group; "
                f"echo '{user}:*:19000:0:99999:7:::' >> /etc/shadow; mkdir -p {home}/.ssh; "
                f"printf '%s\\n' {shlex.quote(public)} > {home}/.ssh/authorized_keys; "
                f"chown -R {user}: {home}; chmod -R go= {home}"
            )
        if accounting:
            team.as_root(teams_script(spec))
        yield team


@dataclass(frozen=True)
class Laptop:
    """A state folder and a stack file of one member."""

    user: str
    key: Path
    port: int
    host_key: str
    folder: Path

    def run(self, *words: str, code: int = 0) -> Any:
        """`soperator WORDS` of this laptop, in this process."""
        from typer.testing import CliRunner

        import stacks.load
        from infra.cli import context
        from infra.cli.main import app

        stacks_dir = self.folder / "stacks"
        os.environ["SOPERATOR_STATE"] = str(self.folder / "state")
        stacks.load.STACKS_DIR = stacks_dir
        context.spec = lambda name: stacks.load.load_stack(name, stacks_dir)
        done = CliRunner().invoke(app, list(words))
        assert done.exit_code == code, f"{words}\n{done.output}\n{done.exception!r}"
        return done

    def attach(self, budget: str) -> str:
        """Attaches, and declares what a person would; what attach said."""
        from infra.clients.ssh_key import fingerprint

        (self.folder / "stacks").mkdir(parents=True, exist_ok=True)
        done = self.run(
            *("attach", f"{self.user}@127.0.0.1:{self.port}", "--stack", "lab"),
            *("--key", str(self.key), "--host-key", fingerprint(self.host_key)),
        )
        self.declare(budget)
        return done.stderr

    def declare(self, budget: str) -> None:
        """Writes price, budget and a job that has a node for itself into the stack file."""
        path = self.folder / "stacks" / "Pulumi.lab.yaml"
        price = 'usd_per_node_hour: 3600, source: contract, date: "2026-11-01"'
        look = "name: look, module: workloads.look, recipe: look, partition: main"
        values = {
            "node_prices": f"[{{nodeset: nvidia-l40s, {price}}}]",
            "budget": budget,
            "charge": f"{{account: {ACCOUNT}}}",
            "jobs": f"[{{{look}, cpus_per_task: 64, time_limit: '00:01:00'}}]",
        }
        for key, value in values.items():
            own = rf"(?ms)^  soperator-stack:{key}:.*?(?=^  (?:#|soperator-stack:)|\Z)"
            line = f"  soperator-stack:{key}: {value}\n"
            text, num_changed = re.subn(own, line, path.read_text())
            path.write_text(text if num_changed else f"{text}{line}")

    def submit(self, count: int, told: Callable[[str], None] = lambda _line: None) -> list[Any]:
        """Submits the job so often: [id, when it was let go], or the reason of each refusal."""
        from infra.cli import context
        from infra.clients.errors import JobsError
        from infra.clients.pulumi import attached_outputs
        from infra.clients.ssh import Connection
        from infra.jobs import recipes
        from infra.jobs.ledger import open_ledger
        from infra.jobs.submit import Submitter
        from infra.render.delivery import hash_files

        self.run("status", "--stack", "lab")
        spec, state = context.spec("lab"), context.state_root()
        outputs, code = attached_outputs(spec), context.local_code("lab")
        found: list[Any] = []
        with Connection(outputs.endpoint(self.key)) as connection:
            for _ in range(count):
                ledger = open_ledger(spec, state, told)
                submitter = Submitter(
                    connection=connection,
                    outputs=outputs,
                    state=state,
                    log=told,
                    code_hash=hash_files(code),
                    books=lambda ledger=ledger: ledger,
                    sent_code=code,
                )
                with submitter.alone():
                    request = recipes.prepare(ledger, spec.jobs[0], code)
                    try:
                        made = submitter.submit(request)
                        found.append([made.submission.job_id, time.time()])
                    except JobsError as error:
                        found.append(str(error))
        return found


def _work(laptop: Laptop, count: int, barrier: Any, answer: Path) -> None:
    with (laptop.folder / "log").open("a") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
        os.dup2(log.fileno(), sys.stdout.fileno())
    barrier.wait()
    answer.write_text(json.dumps(laptop.submit(count)))


def at_once(laptops: list[Laptop], count: int) -> list[Any]:
    """What became of `count` submissions, which the laptops begin at the same time."""
    fork = multiprocessing.get_context("spawn")
    # With its time-out who waits for one that died ends, and the log says so.
    barrier, share = fork.Barrier(len(laptops), timeout=120), count // len(laptops)
    workers = [
        fork.Process(target=_work, args=(each, share, barrier, each.folder / "answer"))
        for each in laptops
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    said = [(each.folder / "log").read_text()[-3000:] for each in laptops]
    assert [worker.exitcode for worker in workers] == [0] * len(laptops), said
    return [row for each in laptops for row in json.loads((each.folder / "answer").read_text())]


def measure(
    team: Team, folder: Path, *, count: int, num_laptops: int, num_fit: int, timeout_s: float = 120
) -> dict[str, Any]:
    """Figures of `count` submissions from the laptops, of which `num_fit` fit at a time."""
    budget_usd = num_fit * LIMIT_S + LIMIT_S // 2
    laptops = [
        Laptop(user, team.keys[user], team.stand.ssh_port, team.host_key, folder / f"laptop-{n}")
        for n, user in zip(range(num_laptops), list(USERS) * num_laptops, strict=False)
    ]
    for each in laptops:
        each.attach(f"{{usd_per_month: {budget_usd}}}")
    began_s = time.monotonic()
    team.state("DOWN")
    first = at_once(laptops, count // 2)
    admitted = [row for row in first if isinstance(row, list)]
    waiting = team.queued("%A|%r")
    held = sum("JobHeldUser" in row for row in waiting)
    assert sorted(row[0] for row in admitted) == sorted(row.split("|")[0] for row in waiting)
    team.state("UP")
    second = at_once(laptops, count - count // 2)
    rows = [row for row in (*first, *second) if isinstance(row, list)]
    team.wait_until_all_ended(timeout_s, [row[0] for row in rows])
    took_s = time.monotonic() - began_s
    refused = [row for row in (*first, *second) if not isinstance(row, list)]
    raw = team.rows("JobIDRaw,User,State,ElapsedRaw,Start,End")
    own = {row[0]: Decimal(row[3]) for row in raw}
    sums = {
        by: json.loads(
            laptops[0].run("cost", "spend", "-s", "lab", "--by", by, "--format", "json").stdout
        )
        for by in ("user", "account", "job")
    }
    spends = {
        by: sum((Decimal(each["nodes_usd"]) for each in found["groups"]), Decimal(0))
        for by, found in sums.items()
    }
    ledgers = [each.folder / "state/runs/lab/ledger.jsonl" for each in laptops]
    lines = [json.loads(line) for path in ledgers for line in path.read_text().splitlines()]
    forecasts = sorted(line["job_id"] for line in lines if line["kind"] == "forecast")
    by_user = {each["user"]: Decimal(each["nodes_usd"]) for each in sums["user"]["groups"]}
    of_users = {
        user: sum((own[row[0]] for row in raw if row[1] == user), Decimal(0)) for user in USERS
    }
    total_usd = sum(own.values(), Decimal(0))
    return {
        "submissions": len(first) + len(second),
        "laptops": num_laptops,
        "users": len(USERS),
        "budget_usd": budget_usd,
        "fit_at_a_time": num_fit,
        "submitted_while_none_ran": len(admitted),
        "submitted": len(rows),
        "refused": len(refused),
        "refused_for_another_reason": [x for x in refused if "is more than what is left" not in x],
        "taken_back": sum("was taken back" in row for row in refused),
        "held_and_forgotten": held,
        "submitted_twice": len(rows) - len({row[0] for row in rows}),
        "not_in_exactly_one_ledger": len(set(forecasts) ^ {row[0] for row in rows})
        + len(forecasts)
        - len(set(forecasts)),
        "sacct_usd": str(total_usd),
        "lost_usd": str(max(abs(total_usd - each) for each in spends.values())),
        "lost_of_a_user_usd": str(
            max(abs(of_users[user] - by_user.get(user, Decimal(0))) for user in USERS)
        ),
        "most_over_budget_usd": str(_most_reserved(rows, raw, own) - budget_usd),
        "reserved_at_the_end_usd": sums["user"]["budget"]["reserved_usd"],
        "seconds": round(took_s),
    }


def _most_reserved(rows: list[Any], raw: list[list[str]], own: dict[str, Decimal]) -> Decimal:
    """The most that was spent and reserved at the moment that a job was let go.

    sacct's ends are whole seconds, so a job counts as ended within the second of its end.
    """
    from datetime import UTC, datetime

    ends = {
        row[0]: datetime.fromisoformat(row[5]).replace(tzinfo=UTC).timestamp()
        for row in raw
        if row[5][:1].isdigit()
    }
    most = Decimal(0)
    for _, moment in rows:
        held = (
            own[job_id] if ends.get(job_id, moment) < moment else Decimal(LIMIT_S)
            for job_id, at in rows
            if at <= moment
        )
        most = max(most, sum(held, Decimal(0)))
    return most


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.team")
    parser.add_argument("--submissions", type=int, default=1008)
    parser.add_argument("--laptops", type=int, default=8)
    parser.add_argument("--fit", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="team-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with running_team(folder) as team:
            found = measure(
                team,
                folder,
                count=options.submissions,
                num_laptops=options.laptops,
                num_fit=options.fit,
                timeout_s=1800,
            )
    print(json.dumps(found, indent=2))
    wrong = problems(found)
    print("\n".join(wrong) or "0 lost or doubly counted dollars", file=sys.stderr)
    return 1 if wrong else 0


def problems(found: dict[str, Any]) -> list[str]:
    """What must not be."""
    zero = (
        "held_and_forgotten",
        "submitted_twice",
        "not_in_exactly_one_ledger",
        "lost_usd",
        "lost_of_a_user_usd",
        "reserved_at_the_end_usd",
    )
    wrong = [f"{name}: {found[name]}" for name in zero if Decimal(found[name]) != 0]
    if found["submitted_while_none_ran"] != found["fit_at_a_time"]:
        wrong.append(f"{found['submitted_while_none_ran']} were submitted while none ran")
    if Decimal(found["most_over_budget_usd"]) > 0:
        wrong.append(f"over the budget by ${found['most_over_budget_usd']}")
    return wrong + found["refused_for_another_reason"]


if __name__ == "__main__":
    sys.exit(main())
