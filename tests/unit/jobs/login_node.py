"""A login node of files: a real shell runs what is sent, over an sbatch and a squeue of its own.

Owns those two programs. That Slurm itself does the same is proved in tests/local.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from infra.clients.pulumi import StackOutputs
from infra.clients.ssh import ConnectionLostError, Result
from infra.jobs.history import Submission
from tests.unit.jobs.test_submit import OUTPUTS

# Jobs are lines `id|name|state|comment`.
_SBATCH = """
for word in "$@"; do case $word in
  --test-only) echo "to start" >&2; exit ;;
  --comment=*) comment=${word#--comment=} ;;
  jobs/*) name=${word#jobs/} ;;
esac; done
case "$*" in *--hold*) touch "$NODE/held.$((12 + $(wc -l < "$NODE/queue")))" ;; esac
flock -n "$CODE/.submit.lock" true && touch "$NODE/was_not_locked"
[ ! -e "$NODE/refuses" ] || { cat "$NODE/refuses" >&2; exit 1; }
number=$((12 + $(wc -l < "$NODE/queue")))
echo "$number|(null)|sbatch $*" >> "$NODE/lines"
queue=queue
[ ! -e "$NODE/late" ] || queue=late
echo "$number|$name|PENDING|$comment" >> "$NODE/$queue"
[ ! -e "$NODE/times_out" ] || { cat "$NODE/times_out" >&2; exit 1; }
echo "$number"
"""
_SQUEUE = """
case "$*" in
  *%l\\|%r*) for held in "$NODE"/held.*; do
    id=${held##*.}
    [ ! -e "$held" ] || echo "$id|$id|ann|red|main|PENDING|N/A|N/A|1|N/A||1|1:00|JobHeldUser|job"
  done ;;
  *%F\\|%r\\|%k*) while IFS="|" read -r id name state comment; do
    reason=None
    [ ! -e "$NODE/held.$id" ] || reason=JobHeldUser
    echo "$id|$reason|$comment"
  done < "$NODE/queue" ;;
  *%F\\|%k*) awk -F'|' '{print $1 "|" $4}' "$NODE/queue" ;;
  *%A\\|%j*) awk -F'|' '{print $1 "|" $2 "|" $3 "|0:00|N/A|N/A|(null)|(None)"}' "$NODE/queue" ;;
esac
"""
_SCONTROL = """
[ "$1" != release ] || { rm "$NODE/held.$2"; exit; }
reason=None
[ ! -e "$NODE/held.$4" ] || reason=JobHeldUser
awk -F'|' -v id="$4" -v reason="$reason" '$1 == id {print "JobId=" $1 " JobName=" $2 \
" JobState=" $3 " Reason=" reason " ExitCode=0:0"; found = 1} END {exit !found}' "$NODE/queue" ||
{ echo "Invalid job id specified" >&2; exit 1; }
"""
_SACCT = """
cat "$NODE/accounted"
[ ! -e "$NODE/no_accounting" ] || { cat "$NODE/no_accounting" >&2; exit 1; }
"""


TIMED_OUT = "Socket timed out on send/recv operation"
"""What sbatch says where it gave up."""


class Killed(BaseException):
    """What stands for kill -9: nothing after it runs."""


@dataclass
class LoginNode:
    """Where commands run; `cut` is what the next sbatch's answer becomes.

    `at` gets each command before it runs, and what it raises is what came of it.
    """

    folder: Path
    cut: type[BaseException] | None = None
    reopened: int = 0
    at: Callable[[str], None] = lambda _command: None
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        programs = {"sbatch": _SBATCH, "squeue": _SQUEUE, "scontrol": _SCONTROL, "sacct": _SACCT}
        (self.folder / "bin").mkdir(parents=True)
        for name, text in programs.items():
            path = self.folder / "bin" / name
            path.write_text(f"#!/bin/bash\n{text.strip()}\n")
            path.chmod(0o755)
        (self.folder / "code").mkdir(parents=True)
        for name in ("queue", "accounted", "lines"):
            (self.folder / name).touch()

    def __enter__(self) -> LoginNode:
        return self

    def __exit__(self, *_: object) -> None: ...

    is_open = True

    def reopen(self) -> None:
        """The same node under a new connection."""
        self.reopened += 1

    def outputs(self, code_hash: str, *jobs: str) -> StackOutputs:
        """Of a stack whose live release is `code_hash`."""
        code = self.folder / "code"
        (code / "releases" / code_hash / "jobs").mkdir(parents=True, exist_ok=True)
        (code / "current").unlink(missing_ok=True)
        (code / "current").symlink_to(f"releases/{code_hash}")
        (code / "releases" / f"{code_hash}.whole").touch()
        places = {name: str(self.folder / name) for name in ("logs", "results")}
        known = dict.fromkeys((*OUTPUTS.jobs, *jobs), "")
        for name in known:
            (code / "releases" / code_hash / "jobs" / name).touch()
        return replace(OUTPUTS, code_path=str(code), code_hash=code_hash, places=places, jobs=known)

    @property
    def queue(self) -> list[list[str]]:
        """Jobs that were submitted: id, name, state, comment."""
        return [line.split("|") for line in (self.folder / "queue").read_text().splitlines()]

    def names(self) -> list[str]:
        """Names of the jobs that were submitted."""
        return [job[1] for job in self.queue]

    def put(self, name: str, text: str = "") -> None:
        """A file that the programs look at."""
        (self.folder / name).write_text(text)

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        self.asked.append(command)
        self.at(command)
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", command],
            input=stdin,
            capture_output=True,
            check=False,
            env={"PATH": path, "NODE": str(self.folder), "CODE": str(self.folder / "code")},
        )
        if self.cut is not None and "submit_once sbatch" in command:
            cut, self.cut = self.cut, None
            raise cut("the connection was lost")
        return Result(
            command=command,
            exit_code=done.returncode,
            stdout=done.stdout.decode(),
            stderr=done.stderr.decode(),
        )


LOST = ConnectionLostError


def planned(**changes: object) -> Submission:
    """A submission without its number."""
    made = Submission(
        stack="local",
        job="finetune",
        job_id="",
        code_hash="abc",
        sets=("train.max_steps=6",),
        after=None,
        log_path="",
        submitted_at="2026-11-21T08:00:00+00:00",
        cluster=OUTPUTS.login_host_key,
        idempotency_key="soperator:0123456789abcdef:00aa11bb22cc",
    )
    return replace(made, **changes)  # type: ignore[arg-type]
