"""Which server is opened, what is said while it comes up, and how its key is read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from infra.cli import interrupts
from infra.clients.errors import JobsError
from infra.clients.pulumi import StackOutputs
from infra.clients.slurm import Job
from infra.clients.ssh import Connection, Result
from infra.jobs import server
from infra.jobs.server import ServerAddress
from stacks.load import load_stack
from stacks.spec.slurm import JobSpec
from tests.another_user import Neighbour
from tests.unit.jobs.test_submit import Recorded

ROOT = Path(__file__).parents[3]

OUTPUTS = StackOutputs(
    stack="local",
    login_ip="127.0.0.1",
    ssh_port=1,
    login_host_key="k",
    code_path="/home/code",
    code_hash="h",
    places={"logs": "/logs", "results": "/results"},
    jobs={"serve": ""},
)
ENDPOINT = {
    "host": "worker-0",
    "port": 7860,
    "models": ["m", "m-tuned"],
    "needs_key": True,
    "api_key_file": "/k",
}


class Login:
    """A login node on which a server comes up step by step: one state a look."""

    def __init__(self, *states: str, log: str = "") -> None:
        self.states = list(states)
        self.log = log.encode()
        self.key = "secret-of-the-server\n"
        self.stale: list[dict[str, object]] = []
        """What endpoint.json says before this life's server writes its own."""
        self.asked: list[str] = []
        self.taken = {"worker-0/7860"}
        """Where somebody answers."""

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        text, code = "", 0
        if command.startswith("scontrol"):
            text = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        elif "/dev/tcp/" in command:
            self.asked.append(command)
            is_taken = any(each in command for each in self.taken)
            text = "HTTP/1.0 200 OK" if is_taken else ""
        elif "endpoint.json" in command and self.stale:
            text = json.dumps(self.stale.pop(0))
        elif "endpoint.json" in command:
            is_up = len(self.states) == 1
            restarts = int("Restarts=1" in self.states[0])
            text, code = (json.dumps({**ENDPOINT, "restarts": restarts}), 0) if is_up else ("", 1)
        elif "exec 3< /k" in command:
            text = self.key
        return Result(command=command, exit_code=code, stdout=text, stderr="")

    def run_bytes(self, command: str, *, stdin: bytes = b"") -> tuple[Result, bytes]:
        start = int(command.split("+")[1].split()[0]) - 1
        assert "/logs/serve_7.log | head -c " in command
        return Result(command=command, exit_code=0, stdout="", stderr=""), self.log[start:]


def state(name: str, **fields: str) -> str:
    more = "".join(f" {key}={value}" for key, value in fields.items())
    return f"JobId=7 JobName=serve JobState={name} ExitCode=1:0{more}"


def wait(login: Login) -> tuple[ServerAddress, list[str]]:
    said: list[str] = []
    address = server.wait_until_up(cast("Connection", login), OUTPUTS, "7", log=said.append)
    return address, said


def test_the_wait_is_explained_and_the_log_is_shown_once_without_the_record() -> None:
    log = 'loading 10%\rloading 90%\nserving m\n{"schema_version": 1}\n'
    running = state("RUNNING", NodeList="worker-0")
    address, said = wait(Login(state("PENDING", Reason="Resources"), running, running, log=log))
    assert said == [
        "  loading 90%",
        "  serving m",
        "job 7 serve waits: waits until enough nodes are free",
        "job 7 serve is RUNNING on worker-0",
    ]
    assert str(address) == "http://worker-0:7860/v1"
    assert address.models == ("m", "m-tuned")


def test_the_address_of_a_life_before_a_requeue_is_not_taken() -> None:
    login = Login(state("RUNNING", NodeList="worker-0"))
    login.stale = [{**ENDPOINT, "host": "worker-9"}, {**ENDPOINT, "port": 1}]
    address, _ = wait(login)
    assert (address.host, address.port) == ("worker-0", 7860)
    assert not any("worker-9" in each for each in login.asked)


def test_the_port_of_a_life_before_a_requeue_is_not_asked_on_the_same_node() -> None:
    """A neighbour may listen there by now; it would get the prompts, and a key that goes on."""
    login = Login(state("RUNNING", Restarts="1", NodeList="worker-0"))
    login.stale = [{**ENDPOINT, "port": 6666, "restarts": 0}] * 3
    login.taken = {"worker-0/6666", "worker-0/7860"}
    address, _ = wait(login)
    assert address.port == 7860
    assert not any("6666" in each for each in login.asked)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({**ENDPOINT, "port": float("inf")}),
        json.dumps({**ENDPOINT, "models": 7}),
        json.dumps([ENDPOINT]),
        "[" * 100_000,
    ],
)
def test_a_file_that_says_no_address_is_an_error_in_one_line(text: str) -> None:
    job = Job(id="7", name="serve", state="RUNNING")
    with pytest.raises(JobsError, match=r"endpoint\.json: is damaged"):
        server.read_address(Recorded(stdout=text), OUTPUTS, job)


def test_a_host_that_is_no_text_is_no_node_of_the_job() -> None:
    login = Login(state("RUNNING", NodeList="worker-0"))
    login.stale = [{**ENDPOINT, "host": ["worker-0"]}]
    assert wait(login)[0].host == "worker-0"


def test_an_address_that_never_answers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HEALTHY_S", 0.0)
    login = Login(state("RUNNING", NodeList="worker-0"))
    login.stale = [{**ENDPOINT, "port": 1}] * 9
    with pytest.raises(JobsError, match="job 7 does not answer at http://worker-0:1/v1"):
        wait(login)


def test_a_server_that_lost_its_node_has_its_whole_time_to_load_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_LOAD_S", 0.8)
    now_s = [100.0]
    clock = SimpleNamespace(
        monotonic=lambda: now_s[-1], sleep=lambda wait_s: now_s.append(now_s[-1] + wait_s)
    )
    monkeypatch.setattr(server, "time", clock)
    running, waits = state("RUNNING", NodeList="worker-0"), state("PENDING", Reason="BeginTime")
    assert wait(Login(running, waits, waits, running, running, running))[0].port == 7860
    with pytest.raises(JobsError, match=r"job 7 runs and takes no requests after 0.8 s"):
        wait(Login(*[running] * 9))
    moves = Login(*[running] * 9)
    moves.stale = [{**ENDPOINT, "port": port} for port in range(1, 10)]
    with pytest.raises(JobsError, match=r"job 7 runs and takes no requests after 0.8 s"):
        wait(moves)


@pytest.mark.parametrize(
    "host", ["worker-9", "10.0.0.66", "worker-0.evil.example", "127.evil.example"]
)
def test_a_host_that_is_no_node_of_the_job_gets_neither_prompts_nor_key(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(server, "_HEALTHY_S", 0.0)
    login = Login(state("RUNNING", NodeList="worker-0"))
    login.stale = [{**ENDPOINT, "host": host}] * 9
    with pytest.raises(JobsError, match=rf"{host}:7860/v1, which is no node of it \(worker-0\)"):
        wait(login)
    assert not login.asked


def test_a_job_that_ends_before_it_serves_is_told_with_its_last_words() -> None:
    login = Login(state("FAILED"), log="serve.adapter: /x is no folder\n")
    with pytest.raises(JobsError, match="job 7 serve took no requests: FAILED") as caught:
        wait(login)
    assert str(caught.value).endswith("\nserve.adapter: /x is no folder")


def test_the_key_is_read_from_its_file_and_a_missing_one_is_refused() -> None:
    login = Login(state("RUNNING"))
    address = ServerAddress(host="h", port=1, models=(), needs_key=True, has_key_file=True)
    asked = {"results": "/r", "environment": {}}
    assert server.read_key(login, address, "/k", **asked) == "secret-of-the-server"
    open_ = replace(address, needs_key=False, has_key_file=False)
    assert server.read_key(login, open_, "/k", **asked) is None
    login.key = ""
    with pytest.raises(JobsError, match="/k: no key of the job's user can be read"):
        server.read_key(login, address, "/k", **asked)


class Shell:
    """The login node is this machine."""

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        done = subprocess.run(["bash", "-c", command], input=stdin, capture_output=True)
        return Result(
            command=command,
            exit_code=done.returncode,
            stdout=done.stdout.decode(),
            stderr=done.stderr.decode(),
        )


@pytest.mark.parametrize("made", ["ln -s ../secret 7/api_key", "echo mine > 7/api_key"])
def test_a_secret_of_roots_is_read_for_no_server_of_another_user(
    neighbour: Neighbour, made: str
) -> None:
    """What is read as the key is sent to the server, whose user is somebody else."""
    (neighbour.folder / "secret").write_text("of root")
    neighbour.run(f"mkdir 7; {made}")
    results = str(neighbour.folder / "7")
    address = ServerAddress(host="h", port=1, models=(), needs_key=True, has_key_file=True)
    found = {"results": results, "environment": {}}
    if "ln" not in made:
        assert server.read_key(Shell(), address, f"{results}/api_key", **found) == "mine"
        (neighbour.folder / "7" / "api_key").write_text("of root")
        os.chown(neighbour.folder / "7" / "api_key", 0, 0)
    with pytest.raises(JobsError, match=r"7/api_key: no key of the job's user .*is a .* of "):
        server.read_key(Shell(), address, f"{results}/api_key", **found)


def test_the_key_is_in_the_file_that_the_recipe_declares_whatever_the_job_says(
    public_key_file: Path,
) -> None:
    spec = load_stack("local")
    job = next(each for each in spec.jobs if each.is_server)
    named = ["serve.api_key_file={place:chkpt}/k"]
    outputs = replace(OUTPUTS, places=spec.storage.places).as_user("ann")
    assert server.key_file(ROOT, outputs, job, (), results="/r/7") == "/r/7/api_key"
    own = f"{spec.storage.places['chkpt']}/users/ann"
    assert server.key_file(ROOT, outputs, job, named, results="/r/7") == f"{own}/k"


def test_a_key_that_no_file_holds_is_this_environment_s_or_asked_for_by_name() -> None:
    address = ServerAddress(host="h", port=1, models=(), needs_key=True, has_key_file=False)
    given = {"SOPERATOR_SERVE_API_KEY": "as-it-was-there"}
    key = server.read_key(Login("x"), address, "/k", results="/r", environment=given)
    assert key == "as-it-was-there"
    with pytest.raises(JobsError, match="export SOPERATOR_SERVE_API_KEY here"):
        server.read_key(Login("x"), address, "/k", results="/r", environment={})


def job(number: str, name: str, state: str) -> Job:
    return Job(id=number, name=name, state=state)


def test_the_newest_server_that_runs_or_waits_is_taken() -> None:
    jobs = [job("9", "serve", "RUNNING"), job("10", "serve", "PENDING")]
    jobs += [job("11", "serve", "FAILED"), job("12", "finetune", "RUNNING")]
    taken = server.open_job(jobs, "serve")
    assert taken is not None
    assert taken.id == "10"
    assert server.open_job(jobs[2:], "serve") is None


def test_of_several_servers_the_one_called_serve_is_meant_or_a_name_is_needed(
    public_key_file: object,
) -> None:
    spec = load_stack("local")
    assert server.server_job(spec, None).name == "serve"
    second = JobSpec(name="serve-merged", module="workloads.serve", recipe="r")
    third = replace(second, name="other")
    assert server.server_job(replace(spec, jobs=(second,)), None) == second
    both = replace(spec, jobs=(second, *spec.jobs))
    assert server.server_job(both, "serve-merged") == second
    assert server.server_job(both, None).name == "serve"
    with pytest.raises(JobsError, match="several servers; name one with --job: other, serve-m"):
        server.server_job(replace(spec, jobs=(second, third)), None)
    with pytest.raises(JobsError, match="'finetune' is no server"):
        server.server_job(spec, "finetune")
    none = replace(spec, jobs=())
    with pytest.raises(JobsError, match="jobs: no server; declare one"):
        server.server_job(none, None)


def test_a_signal_waits_for_the_submission_and_none_stops_the_closing() -> None:
    steps: list[str] = []

    def close() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        steps.append("closed")

    def work() -> None:
        with interrupts.closed_whole() as closing:
            closing.callback(close)
            with pytest.raises(KeyboardInterrupt):
                _submit(steps)
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == ["submitted", "closed"]


def _submit(steps: list[str]) -> None:
    with interrupts.held():
        os.kill(os.getpid(), signal.SIGTERM)
        steps.append("submitted")
