"""Which server is opened, what is said while it comes up, and how its key is read."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
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

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        text, code = "", 0
        if command.startswith("scontrol"):
            text = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        elif "/dev/tcp/" in command:
            self.asked.append(command)
            text = "HTTP/1.0 200 OK" if "worker-0/7860" in command else ""
        elif "endpoint.json" in command and self.stale:
            text = json.dumps(self.stale.pop(0))
        elif "endpoint.json" in command:
            is_up = len(self.states) == 1
            text, code = (json.dumps(ENDPOINT), 0) if is_up else ("", 1)
        elif command == "cat /k":
            text = self.key
        return Result(command=command, exit_code=code, stdout=text, stderr="")

    def run_bytes(self, command: str, *, stdin: bytes = b"") -> tuple[Result, bytes]:
        start = int(command.split("+")[1].split()[0]) - 1
        assert command.endswith("/logs/serve_7.log")
        return Result(command=command, exit_code=0, stdout="", stderr=""), self.log[start:]


def state(name: str, **fields: str) -> str:
    more = "".join(f" {key}={value}" for key, value in fields.items())
    return f"JobId=7 JobName=serve JobState={name} ExitCode=1:0{more}"


def wait(login: Login) -> tuple[ServerAddress, list[str]]:
    said: list[str] = []
    address = server.wait_until_up(cast("Connection", login), OUTPUTS, "7", say=said.append)
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
    assert ["worker-9" in each for each in login.asked] == [True, False, False]


def test_an_address_that_never_answers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HEALTHY_S", 0.0)
    login = Login(state("RUNNING", NodeList="worker-0"))
    login.stale = [{**ENDPOINT, "host": "worker-9"}] * 9
    with pytest.raises(JobsError, match="job 7 does not answer at http://worker-9:7860/v1"):
        wait(login)


def test_a_job_that_ends_before_it_serves_is_told_with_its_last_words() -> None:
    login = Login(state("FAILED"), log="serve.adapter: /x is no folder\n")
    with pytest.raises(JobsError, match="job 7 serve took no requests: FAILED") as caught:
        wait(login)
    assert str(caught.value).endswith("\nserve.adapter: /x is no folder")


def test_the_key_is_read_from_its_file_and_a_missing_one_is_refused() -> None:
    login = Login(state("RUNNING"))
    address = ServerAddress(host="h", port=1, models=(), needs_key=True, api_key_file="/k")
    assert server.read_key(login, address, environment={}) == "secret-of-the-server"
    open_ = replace(address, needs_key=False, api_key_file=None)
    assert server.read_key(login, open_, environment={}) is None
    login.key = ""
    with pytest.raises(JobsError, match="/k: no key can be read"):
        server.read_key(login, address, environment={})


def test_a_key_that_no_file_holds_is_this_environment_s_or_asked_for_by_name() -> None:
    address = ServerAddress(host="h", port=1, models=(), needs_key=True, api_key_file=None)
    given = {"SOPERATOR_SERVE_API_KEY": "as-it-was-there"}
    assert server.read_key(Login("x"), address, environment=given) == "as-it-was-there"
    with pytest.raises(JobsError, match="export SOPERATOR_SERVE_API_KEY here"):
        server.read_key(Login("x"), address, environment={})


def job(number: str, name: str, state: str) -> Job:
    return Job(id=number, name=name, state=state)


def test_the_newest_server_that_runs_or_waits_is_taken() -> None:
    jobs = [job("9", "serve", "RUNNING"), job("10", "serve", "PENDING")]
    jobs += [job("11", "serve", "FAILED"), job("12", "finetune", "RUNNING")]
    taken = server.open_job(jobs, "serve")
    assert taken is not None
    assert taken.id == "10"
    assert server.open_job(jobs[2:], "serve") is None


def test_several_servers_need_a_name(public_key_file: object) -> None:
    spec = load_stack("local")
    assert server.server_job(spec, None).name == "serve"
    second = JobSpec(name="serve-merged", module="workloads.serve", recipe="r")
    both = replace(spec, jobs=(*spec.jobs, second))
    assert server.server_job(both, "serve-merged") == second
    with pytest.raises(JobsError, match="several servers; name one with --job: serve, serve-m"):
        server.server_job(both, None)
    with pytest.raises(JobsError, match="'finetune' is no server"):
        server.server_job(spec, "finetune")
    none = replace(spec, jobs=())
    with pytest.raises(JobsError, match="jobs: no server; declare one"):
        server.server_job(none, None)


def test_a_signal_waits_for_the_submission_and_none_stops_the_closing() -> None:
    steps: list[str] = []
    with interrupts.as_interrupt():
        with pytest.raises(KeyboardInterrupt):
            _submit(steps)
        with interrupts.ignored():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("closed")
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert steps == ["submitted", "closed"]


def _submit(steps: list[str]) -> None:
    with interrupts.held():
        os.kill(os.getpid(), signal.SIGTERM)
        steps.append("submitted")
