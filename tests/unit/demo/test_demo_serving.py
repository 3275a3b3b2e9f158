"""The demo's server over runs that were killed: one at most, and never a person's.

Slurm is played by a table of jobs; that real jobs do this is proved in tests/local.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from infra.clients import slurm
from infra.clients.errors import JobsError
from infra.clients.pulumi import StackOutputs
from infra.clients.slurm import Job
from infra.clients.ssh import Result
from infra.jobs import follow, history, recipes, transfer
from infra.jobs.history import Submission, Submitted
from infra.jobs.recipes import Request
from infra.jobs.submit import Submitter
from infra.render.delivery import hash_files
from infra.setup.demo import runner
from infra.setup.demo.runner import Runner, Step, roles, serve_and_load
from stacks.errors import UserError
from stacks.load import load_stack
from tests.unit.jobs.raw import request

KEY = "ssh-ed25519 AAAA"


class Killed(BaseException):
    """What stands for kill -9: nothing after it runs."""


@dataclass
class Slurm:
    """Jobs by id; servers run until they are cancelled, load tests end when they are followed."""

    state: Path
    jobs: dict[str, Job] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)
    load_ends: str = "COMPLETED"
    server_ends: str | None = None
    """State in which a server is found at once, where it does not come up."""
    killed_at: str | None = None
    """The job in whose following the demo is killed."""

    def find(self, _shell: object, wanted: str) -> Job:
        if wanted not in self.jobs:
            raise JobsError("gone")
        return self.jobs[wanted]

    def cancel(self, _shell: object, ids: list[str]) -> None:
        if self.killed_at is not None:
            return
        self.cancelled += ids
        for each in ids:
            self.jobs[each] = replace(self.jobs[each], state="CANCELLED")

    def add(self, name: str, sets: tuple[str, ...], code_hash: str) -> Submission:
        """A job in the queue, as a submission leaves it."""
        number = str(len(self.jobs) + 1)
        state = self.server_ends if name == "serve" and self.server_ends else "RUNNING"
        self.jobs[number] = Job(id=number, name=name, state=state, where="worker-0")
        made = Submission(
            stack="local",
            job=name,
            job_id=number,
            code_hash=code_hash,
            sets=sets,
            after=None,
            log_path="",
            submitted_at=f"2026-11-21T08:00:{int(number):02d}+00:00",
            cluster=KEY,
        )
        history.remember(self.state, made)
        return made

    def follow(self, _connection: object, _path: str, job_id: str, **_: object) -> Job:
        job = self.jobs[job_id]
        if job.name == self.killed_at:
            raise Killed
        if job.name == "load":
            self.jobs[job_id] = replace(job, state=self.load_ends)
        return self.jobs[job_id]

    def pull(self, _to: object, _outputs: object, _job: str, job_id: str, *, state: Path) -> Path:
        folder = history.run_folder(state, "local", job_id)
        (folder / "run_record.json").write_text(json.dumps({"outcome": "PASS"}))
        (folder / "job.log").write_text("its last words\n")
        return folder

    def run(self, command: str) -> Result:
        """The shell of the login node: every file is there and every server answers."""
        if command.startswith("cat "):
            endpoint = {"host": "127.0.0.1", "port": 7, "models": ["base"]}
            endpoint |= {"needs_key": False, "api_key_file": None}
            answer = json.dumps(endpoint)
        else:
            answer = "HTTP/1.1 200 OK"
        return Result(command=command, exit_code=0, stdout=answer, stderr="")

    def run_bytes(self, command: str) -> tuple[Result, bytes]:
        """A log."""
        return Result(command=command, exit_code=0, stdout="", stderr=""), b"its last words\n"

    def names(self) -> list[str]:
        return [job.name for job in self.jobs.values()]

    def running(self) -> list[str]:
        return [job.id for job in self.jobs.values() if not job.finished]


@dataclass(frozen=True)
class Books:
    """A ledger that nobody writes."""

    log: Callable[[str], None] = print


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    played = Slurm(tmp_path)
    monkeypatch.setattr(slurm, "find", played.find)
    monkeypatch.setattr(slurm, "cancel", played.cancel)
    monkeypatch.setattr(slurm, "recent", lambda *_, **__: tuple(played.jobs.values()))
    monkeypatch.setattr(follow, "follow", played.follow)
    monkeypatch.setattr(transfer, "pull", played.pull)

    def prepare(_books: object, job: Any, _files: object, sets: tuple[str, ...]) -> Any:
        return request(job.name, sets=sets)

    def submit(self: Submitter, asked: Request, **_: Any) -> Submitted:
        made = played.add(asked.name, asked.sets, self.code_hash)
        return Submitted(submission=made, is_equivalent=False)

    monkeypatch.setattr(recipes, "prepare", prepare)
    monkeypatch.setattr(Submitter, "submit", submit)
    return played


@pytest.fixture
def demo(cluster: Slurm, tmp_path: Path, public_key_file: Path) -> Callable[..., dict[str, Step]]:
    """Serves and loads the adapter of a fine-tune, by one run of the demo."""
    spec = load_stack("local", environ={"SOPERATOR_SSH_PUBLIC_KEY_FILE": str(public_key_file)})
    outputs = StackOutputs(
        stack="local",
        login_ip="127.0.0.1",
        ssh_port=22,
        login_host_key=KEY,
        code_path="/code",
        code_hash="",
        places=dict(spec.storage.places),
        jobs={job.name: "" for job in spec.jobs},
    )

    def run(adapter: str = "/mnt/chkpt/finetune/2/final") -> dict[str, Step]:
        files = {"workloads/x.py": b""}
        runner = Runner(
            connection=cluster,  # pyright: ignore[reportArgumentType]
            spec=spec,
            outputs=outputs,
            state=tmp_path,
            files=files,
            code_hash=hash_files(files),
            books=Books,  # pyright: ignore[reportArgumentType]
            log=lambda _text: None,
        )
        folder = tmp_path / "tuned"
        folder.mkdir(exist_ok=True)
        record = {"outcome": "PASS", "artifacts": {"adapter_dir": adapter}}
        (folder / "run_record.json").write_text(json.dumps(record))
        job = Job(id="2", name="finetune", state="COMPLETED")
        tuned = Step(job=job, reused=False, folder=folder)
        return serve_and_load(runner, tuned, {"load": ("load.sweep=[1]",)})

    return run


Demo = Callable[..., dict[str, Step]]


def test_the_adapter_of_the_fine_tune_is_served_asked_and_the_server_ended(
    demo: Demo, cluster: Slurm, tmp_path: Path
) -> None:
    steps = demo()
    assert list(steps) == ["serve", "load"]
    assert (cluster.names(), cluster.running()) == (["serve", "load"], [])
    served, loaded = history.submissions(tmp_path, "local")
    assert served.sets == ("serve.adapter=/mnt/chkpt/finetune/2/final", "serve.port=0")
    assert loaded.sets[0] == 'load.target.serve_job="1"'
    assert loaded.sets[-1] == "load.sweep=[1]"
    assert not (tmp_path / "demo" / "server.json").exists()


def test_a_second_run_submits_nothing(demo: Demo, cluster: Slurm) -> None:
    demo()
    steps = demo()
    assert cluster.names() == ["serve", "load"]
    assert [step.reused for step in steps.values()] == [True, True]


@pytest.mark.parametrize("job", ["load", "serve"])
def test_the_server_of_a_killed_run_is_used_again(demo: Demo, cluster: Slurm, job: str) -> None:
    """Killed while the load test runs, and between its end and the server's."""
    cluster.killed_at = job
    with pytest.raises(Killed):
        demo()
    cluster.killed_at = None
    steps = demo()
    assert (cluster.names(), cluster.running()) == (["serve", "load"], [])
    assert steps["serve"].reused


def test_the_server_of_a_killed_run_that_serves_another_adapter_is_ended(
    demo: Demo, cluster: Slurm
) -> None:
    cluster.killed_at = "load"
    with pytest.raises(Killed):
        demo()
    cluster.killed_at = None
    demo(adapter="/mnt/chkpt/finetune/9/final")
    assert cluster.names() == ["serve", "load", "serve", "load"]
    assert cluster.cancelled == ["1", "3"]


def test_a_server_that_a_person_submitted_is_left_alone(demo: Demo, cluster: Slurm) -> None:
    theirs = cluster.add("serve", ("serve.adapter=/mnt/chkpt/latest",), "another")
    demo()
    assert cluster.running() == [theirs.job_id]


def test_a_load_test_that_fails_ends_the_server_and_the_next_run_starts_both_anew(
    demo: Demo, cluster: Slurm
) -> None:
    cluster.load_ends = "FAILED"
    with pytest.raises(UserError, match=r"load \(job 2\) ended FAILED(.|\n)*its last words"):
        demo()
    assert cluster.running() == []
    cluster.load_ends = "COMPLETED"
    demo()
    assert (cluster.names(), cluster.running()) == (["serve", "load"] * 2, [])


def test_a_server_that_does_not_come_up_is_an_error_with_its_last_words(
    demo: Demo, cluster: Slurm
) -> None:
    cluster.server_ends = "FAILED"
    with pytest.raises(JobsError, match=r"job 1 serve took no requests(.|\n)*its last words"):
        demo()
    assert cluster.names() == ["serve"]


def test_a_fine_tune_without_an_adapter_is_refused_before_a_server_is_submitted(
    demo: Demo, cluster: Slurm
) -> None:
    with pytest.raises(UserError, match=r"names no adapter_dir; .* set train\.method=lora"):
        demo(adapter="")
    assert cluster.names() == []


def test_a_stack_without_server_or_load_test_is_refused_with_what_is_missing(
    public_key_file: Path,
) -> None:
    spec = load_stack("local", environ={"SOPERATOR_SSH_PUBLIC_KEY_FILE": str(public_key_file)})
    found = roles(spec)
    assert (found.tune.name, found.server.name, found.load.name) == ("finetune", "serve", "load")
    with pytest.raises(UserError, match=r"needs a job of workloads\.serve and of workloads\.load"):
        roles(replace(spec, jobs=(found.tune,)))


def test_the_chain_has_no_server_no_load_test_and_no_acceptance_test(
    public_key_file: Path,
) -> None:
    spec = load_stack("local", environ={"SOPERATOR_SSH_PUBLIC_KEY_FILE": str(public_key_file)})
    order = [job.name for job in runner.in_order(spec)]
    assert order == ["prepare-data", "finetune", "evaluate"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"job": "serve", "sets": 1}'])
def test_a_damaged_mark_is_none(demo: Demo, cluster: Slurm, tmp_path: Path, text: str) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "server.json").write_text(text)
    demo()
    assert cluster.names() == ["serve", "load"]
