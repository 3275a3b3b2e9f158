"""A submission is refused with a reason before anything is queued, or is exactly one sbatch."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from infra.clients import slurm
from infra.clients.errors import JobsError, UnknownJobError
from infra.clients.pulumi import StackOutputs, outputs_from
from infra.clients.ssh import Result
from infra.jobs import history
from infra.jobs.recipes import job_args, prepared_data
from stacks.spec.slurm import JobSpec
from tests.unit.jobs.raw import request, submit, submitter
from tests.unit.jobs.test_parse import FIXTURES

OUTPUTS = StackOutputs(
    stack="local",
    login_ip="127.0.0.1",
    ssh_port=30022,
    login_host_key="ssh-ed25519 AAAA",
    code_path="/home/shared/code",
    code_hash="0123456789abcdef",
    places={"logs": "/mnt/logs", "results": "/mnt/results"},
    jobs={"prepare-data": "", "finetune": ""},
)
HASH = "0123456789abcdef"


@dataclass
class Recorded:
    """A shell that answers as it is told and remembers what it was asked."""

    stdout: str = "12\n"
    stderr: str = ""
    exit_code: int = 0
    asked: list[str] = field(default_factory=list)

    @property
    def submitted(self) -> str:
        """The one command with an sbatch."""
        (found,) = [command for command in self.asked if "submit_once sbatch" in command]
        return found

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        self.asked.append(command)
        return Result(
            command=command, exit_code=self.exit_code, stdout=self.stdout, stderr=self.stderr
        )

    def run_bytes(self, command: str, *, stdin: bytes = b"") -> tuple[Result, bytes]:
        return self.run(command, stdin=stdin), self.stdout.encode()


@pytest.mark.parametrize("has_key", [False, True])
def test_a_job_that_is_called_equal_by_our_own_key_or_none_is_not_taken_for_a_new_one(
    has_key: bool,
) -> None:
    """A new one that waits held is let go or cancelled."""
    shell = Recorded(exit_code=76)
    own, asked = submitter(shell, OUTPUTS, code_hash=HASH), request("finetune")
    planned = own.planned(asked)
    shell.stdout = f"12||{planned.idempotency_key if has_key else ''}\n"
    with pytest.raises(JobsError, match=r"^finetune: the login node answered '12\|\|.*own key"):
        own.sbatch_once(planned, asked)


@pytest.mark.feature("S000-09", "S000-11", "S001-31")
def test_a_submission_is_one_round_trip_with_the_dependency_and_the_settings() -> None:
    shell = Recorded()
    sets = ["train.max_steps=8"]
    made = submit(shell, OUTPUTS, "finetune", code_hash=HASH, sets=sets, after="11")
    (command,) = shell.asked
    assert command.endswith(
        "submit_once sbatch --parsable --dependency=afterok:11 --kill-on-invalid-dep=yes "
        f"--comment={made.idempotency_key} --export=ALL,SOPERATOR_RELEASE={HASH} "
        "jobs/finetune --set train.max_steps=8"
    )
    assert (made.job_id, made.log_path) == ("12", "/mnt/logs/finetune_12.log")


def test_a_job_may_ask_for_the_nodes_of_another() -> None:
    shell = Recorded()
    nodes = ["worker-0", "worker-1"]
    submit(shell, OUTPUTS, "finetune", code_hash=HASH, nodes=nodes)
    assert "sbatch --parsable --nodes=2 --nodelist=worker-0,worker-1 " in shell.asked[0]


def test_a_setting_cannot_leave_its_word() -> None:
    shell = Recorded()
    submit(shell, OUTPUTS, "finetune", code_hash=HASH, sets=["a=$(reboot); b"])
    assert shell.asked[0].endswith("--set 'a=$(reboot); b'")


def test_an_unknown_job_is_refused_with_the_nearest_name() -> None:
    shell = Recorded()
    with pytest.raises(JobsError, match="'fintune' is not declared; did you mean 'finetune'"):
        submit(shell, OUTPUTS, "fintune", code_hash=HASH)
    assert not shell.asked


def test_stale_code_names_both_hashes_and_both_ways_out() -> None:
    shell = Recorded(stdout="feedfeedfeedfeed\n", exit_code=75)
    with pytest.raises(JobsError, match=r"has code feedfeedfeedfeed.*`pulumi up.*--sync"):
        submit(shell, OUTPUTS, "finetune", code_hash="beefbeefbeefbeef")


def test_what_sbatch_refuses_is_said_in_its_own_words() -> None:
    text = "sbatch: error: Batch job submission failed: Job dependency problem\n"
    with pytest.raises(JobsError, match=r"finetune: sbatch: exit 1: .*Job dependency problem"):
        submit(Recorded(stdout="", stderr=text, exit_code=1), OUTPUTS, "finetune", code_hash=HASH)


@pytest.mark.parametrize("setting", ["steps", "=8", ""])
def test_a_setting_without_a_key_or_a_value_is_refused(setting: str) -> None:
    with pytest.raises(JobsError, match="not key=value"):
        job_args([setting])


@pytest.mark.parametrize("text", ["12; reboot", "-1", "", "1_2", "x"])
def test_only_a_number_reaches_the_shell_as_a_job_id(text: str) -> None:
    with pytest.raises(JobsError, match="is not a job id"):
        slurm.job_id(text)


def test_a_job_that_slurm_forgot_is_an_error_that_says_so() -> None:
    text = "slurm_load_jobs error: Invalid job id specified\nSlurm accounting storage is disabled\n"
    with pytest.raises(JobsError, match="Slurm knows no such job"):
        slurm.find(Recorded(stdout="", stderr=text, exit_code=1), "99")


@dataclass(kw_only=True)
class Forgetful:
    """A slurmctld that lost job 12, which accounting has as PENDING; `queued`: what it lists."""

    queued: str = "13\n"
    private: str = ""

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        end = "0:0|00:00:00|2026-11-21T05:44:38|Unknown|Unknown|None assigned\n"
        said, text = self.private, self.queued
        if command.startswith("scontrol show job"):
            said, text = "Invalid job id specified\n", f"12|allocation|PENDING|{end}"
        elif "sacct " in command:
            text = f"--\n12|allocation|PENDING|{end}13|tune|RUNNING|{end}"
        return Result(command=command, exit_code=0, stdout=text, stderr=said)


def test_a_job_that_accounting_alone_keeps_open_is_one_that_slurm_forgot() -> None:
    """slurmctld was killed before it saved the job, whose start `logs` waited for for ever."""
    text = "job 12: slurmctld has forgotten it.*accounting has no end of it.*runawayjobs"
    with pytest.raises(UnknownJobError, match=text):
        slurm.find(Forgetful(), "12")
    lost, runs = slurm.recent(Forgetful(), days=7)
    assert (lost.id, lost.state, lost.finished) == ("12", slurm.FORGOTTEN, True)
    assert (runs.id, runs.state) == ("13", "RUNNING"), "it came after the queue was read"


@pytest.mark.parametrize(
    "shell",
    [
        Forgetful(queued="12\n13\n"),
        Forgetful(queued="", private="PrivateData             = jobs,usage\n"),
    ],
    ids=["in the queue again", "hidden"],
)
def test_a_job_that_the_queue_may_still_have_is_not_forgotten(shell: Forgetful) -> None:
    assert slurm.find(shell, "12").state == "PENDING"
    assert [job.state for job in slurm.recent(shell, days=7)] == ["PENDING", "RUNNING"]


@pytest.mark.feature("S001-94", "S002-45")
def test_one_job_is_asked_for_by_its_number_and_taken_out_of_all_that_are_shown() -> None:
    shell = Recorded(stdout=(FIXTURES / "scontrol_22.05.txt").read_text(encoding="utf-8"))
    assert slurm.find(shell, "5").id == "5"
    assert shell.asked[0].startswith("scontrol show job --oneliner 5 || sacct --jobs=5 ")


@pytest.mark.feature("S000-61", "S002-44", "S003-80")
def test_the_queue_is_asked_for_in_the_order_and_the_words_in_which_it_is_read() -> None:
    """`%T` are whole words where `%t` is CG, and `--states=all` has those that just ended."""
    shell = Recorded(stdout="--\n")
    slurm.recent(shell, days=7)
    asked = "squeue --noheader --states=all --format='%A|%j|%T|%M|%V|%S|%E|%R'; "
    assert shell.asked[0].startswith(asked)
    fields = "JobIDRaw,JobName,State,ExitCode,Elapsed,Submit,Start,End,NodeList"
    assert f"--parsable2 --allocations --format={fields} --starttime=now-7days" in shell.asked[0]


@pytest.mark.feature("S000-61", "S003-80")
def test_without_accounting_the_queue_is_all_there_is() -> None:
    shell = Recorded(
        stdout="5|ranks|RUNNING|0:01|2026-11-21T05:44:38|2026-11-21T05:44:40|(null)|worker-0\n--\n",
        stderr="Slurm accounting storage is disabled\n",
        exit_code=1,
    )
    assert [job.id for job in slurm.recent(shell, days=7)] == ["5"]


@pytest.mark.feature("S000-61", "S003-80")
def test_a_running_job_is_as_the_queue_has_it_and_an_ended_one_as_accounting() -> None:
    """Accounting may be late by seconds, and alone has exit codes."""
    times = "2026-11-21T05:44:38|2026-11-21T05:44:40"
    queue = [
        f"5|a|RUNNING|0:09|{times}|(null)|worker-0",
        f"6|b|FAILED|0:09|{times}|(null)|worker-0",
    ]
    known = [f"5|a|PENDING|0:0|00:00:00|{times}|Unknown|None assigned"]
    known.append(f"6|b|FAILED|3:0|00:00:09|{times}|2026-11-21T05:44:49|worker-0")
    shell = Recorded(stdout="\n".join([*queue, "--", *known, ""]))
    running, ended = slurm.recent(shell, days=7)
    assert (running.id, running.state, running.where) == ("5", "RUNNING", "worker-0")
    assert (ended.id, ended.state, ended.exit_code) == ("6", "FAILED", 3)
    # By itself sacct shows a user no jobs of others, which squeue lists.
    assert shell.asked[0].startswith("squeue --noheader ")
    assert "; sacct --allusers --noheader " in shell.asked[0]


@pytest.mark.feature("S001-32", "S002-44")
def test_own_jobs_are_asked_for_under_the_name_of_whoever_entered() -> None:
    """sacct shows root the jobs of all users by itself."""
    shell = Recorded(stdout="--\n")
    slurm.recent(shell, days=7, mine=True)
    assert shell.asked[0].startswith("squeue --me --noheader ")
    assert 'sacct --user="$(id -un)" --noheader' in shell.asked[0]


def test_every_missing_output_is_named_at_once() -> None:
    words = r"login_ip, ssh_port.*run `pulumi up --stack x`.*resume --stack x"
    with pytest.raises(JobsError, match=words):
        outputs_from("x", {"code_path": "/c", "code_hash": "h", "places": {"a": "/a"}})


def test_a_new_job_drops_what_a_former_cluster_left_under_its_id(tmp_path: Path) -> None:
    made = submit(Recorded(), OUTPUTS, "finetune", code_hash=HASH)
    old = history.run_folder(tmp_path, "local", "12")
    old.mkdir(parents=True)
    (old / "run_record.json").write_text("{}")
    history.remember(tmp_path, made)
    assert [path.name for path in old.iterdir()] == ["submission.json"]
    assert history.submissions(tmp_path, "local") == (made,)


@pytest.mark.parametrize(
    "changes",
    [
        {"sets": [1]},
        {"after": 12},
        {"idempotency_key": []},
        {"job_id": "x"},
        {"job_id": "9" * 5000},
        {"log_path": None},
    ],
)
def test_a_submission_of_another_shape_is_as_good_as_none(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    made = submit(Recorded(), OUTPUTS, "finetune", code_hash=HASH)
    history.remember(tmp_path, made)
    path = history.run_folder(tmp_path, "local", "12") / "submission.json"
    assert history.read_submission(path) == made
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    assert history.read_submission(path) is None


@pytest.mark.parametrize("damage", ["cut", "byte"])
def test_a_damaged_submission_is_as_good_as_none(damage: str, tmp_path: Path) -> None:
    made = submit(Recorded(), OUTPUTS, "finetune", code_hash=HASH)
    history.remember(tmp_path, made)
    path = history.run_folder(tmp_path, "local", "12") / "submission.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] if damage == "cut" else whole.replace(b"soperator:", b"\xff"))
    assert history.submissions(tmp_path, "local") == ()
    assert history.damaged(tmp_path, "local") == (path,)


def test_a_submission_of_before_keys_had_their_name_is_read(tmp_path: Path) -> None:
    made = submit(Recorded(), OUTPUTS, "finetune", code_hash=HASH)
    history.remember(tmp_path, made)
    path = history.run_folder(tmp_path, "local", "12") / "submission.json"
    path.write_text(path.read_text().replace("idempotency_key", "mark"))
    assert history.read_submission(path) == made


@pytest.mark.parametrize(
    ("recipe", "container", "first"),
    [
        ({"train": {"dataset": "{place:data}/x"}}, None, ["/d/x/tokens_train.parquet"]),
        ({"train": {"dataset": "x", "task": "text_to_text"}}, None, ["/d/x"]),
        ({"train": {"dataset": "x"}}, "team/image:1", []),
        ({"train": {"dataset": "{place:scratch}/x"}}, None, []),
        ({"train": {"dataset": "generated"}}, None, []),
        ({"evaluate": {"dataset": "x"}}, None, []),
        ({}, None, []),
    ],
)
def test_only_what_the_login_node_can_see_is_asked_for(
    recipe: dict[str, Any], container: str | None, first: list[str]
) -> None:
    job = JobSpec(name="finetune", module="workloads.train", recipe="r", container=container)
    here = replace(OUTPUTS, places={"data": "/d"})
    assert list(prepared_data(job, recipe, here)[:1]) == first
    server = replace(job, module="workloads.serve")
    assert prepared_data(server, recipe, here) == ()


def test_a_dry_run_says_nothing_to_the_terminal_that_the_cluster_wrote() -> None:
    """A hostile login node has the script that is shown, and what sbatch says."""
    script = f"releases/{HASH}\n#!/bin/bash\n\x1b]52;c;x\a\n"
    shell = Recorded(stdout=script, stderr="to start\x1b[2J\n")
    text = submitter(shell, OUTPUTS, code_hash=HASH).dry_run(request("finetune"))
    assert text.endswith("# to start\\x1b[2J\n#!/bin/bash\n\\x1b]52;c;x\\x07\n")
