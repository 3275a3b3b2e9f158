"""`soperator serve` at the door: what is refused before a node is held, and what is ended."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from infra.cli import output
from infra.cli.main import app
from infra.clients import slurm
from infra.clients.errors import JobsError
from infra.clients.slurm import Job
from infra.clients.ssh import Result
from infra.jobs import history
from stacks.errors import UserError
from tests.ports import free_ports
from tests.unit.jobs.test_submit import OUTPUTS

RUNNER = CliRunner()


class Cluster:
    """A login node that submits job 12."""

    is_open = True

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.cancelled: list[str] = []

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        self.asked.append(command)
        return Result(command=command, exit_code=0, stdout="12\n", stderr="")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path) -> Cluster:
    made = Cluster()
    outputs = replace(OUTPUTS, jobs={"serve": ""})
    job = Job(id="12", name="serve", state="RUNNING")
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path))
    monkeypatch.setattr("infra.cli.context.caller", lambda *_: outputs)
    monkeypatch.setattr("infra.cli.context.connect", lambda *_: made)
    monkeypatch.setattr(slurm, "recent", lambda *_, **__: ())
    monkeypatch.setattr(slurm, "find", lambda *_: job)
    monkeypatch.setattr(slurm, "cancel", lambda _, ids: made.cancelled.extend(ids))
    return made


def test_a_wrong_setting_is_refused_before_a_node_is_held(cluster: Cluster) -> None:
    done = RUNNER.invoke(app, ["serve", "--set", "serve.prot=1"])
    assert done.exit_code == 1
    assert "serve.prot: unknown key; did you mean 'port'?" in done.stderr
    assert "nothing was submitted" in done.stderr
    assert cluster.asked == []


@pytest.mark.feature("S000-48", "S000-50")
def test_the_page_asks_the_running_server_through_the_tunnel_with_its_key(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[tuple[str, dict[str, Any]]] = []

    def page(url: str, **options: Any) -> SimpleNamespace:
        pages.append((url, options))
        nothing = SimpleNamespace(close=lambda: None, wait_until_up=lambda: None)
        return SimpleNamespace(**vars(nothing), address="http://127.0.0.1:7861/")

    def ends(*_: object) -> None:
        raise UserError("the chat page ended by itself")

    job = Job(id="12", name="serve", state="RUNNING")
    address = SimpleNamespace(host="worker-0", models=("base", "mine"))
    tunnel = SimpleNamespace(url="http://127.0.0.1:40001/v1")
    monkeypatch.setattr(slurm, "recent", lambda *_, **__: (job,))
    monkeypatch.setattr("infra.jobs.server.wait_until_up", lambda *_, **__: address)
    monkeypatch.setattr("infra.jobs.server.read_key", lambda *_, **__: "its key")
    monkeypatch.setattr("infra.cli.context.tunnel", lambda *_: tunnel)
    monkeypatch.setattr("infra.cli.jobs.serve.ChatPage", page)
    monkeypatch.setattr("infra.cli.jobs.serve._watch", ends)
    (port,) = free_ports(1)
    done = RUNNER.invoke(app, ["serve", "--open", "--port", str(port)])
    assert done.stdout == "http://127.0.0.1:7861/\n", done.output
    ((url, options),) = pages
    assert (url, options["port"], options["key"]) == (tunnel.url, port, "its key")
    assert len(options["token"]) >= 40
    assert options["options"] == ["--server=job 12 on worker-0"], "no public link unless asked for"
    assert cluster.cancelled == [], "it ran before this command"


def test_a_server_that_takes_its_time_is_not_waited_for_in_silence(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of 140 GB are read for minutes, and the job's log has no line for it."""
    told = threading.Event()

    def print_(text: str, **options: Any) -> None:
        print(text, **options)
        if text.startswith("still: "):
            told.set()

    def wait(*_: object, **__: object) -> SimpleNamespace:
        assert told.wait(60), "nothing was said while the server was not up"
        return SimpleNamespace(host="worker-0", models=("base",))

    job = Job(id="12", name="serve", state="RUNNING")
    monkeypatch.setattr(slurm, "recent", lambda *_, **__: (job,))
    monkeypatch.setattr("infra.jobs.server.wait_until_up", wait)
    monkeypatch.setattr(output, "QUIET_S", 0.1)
    monkeypatch.setattr(output, "print", print_, raising=False)
    done = RUNNER.invoke(app, ["serve"])
    assert done.exit_code == 0, done.output
    assert "still: job 12" in done.stderr


def test_a_server_that_lost_its_node_is_found_again_at_the_same_page(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page asked the old node for ever, with the key that the server had there."""
    job = Job(id="12", name="serve", state="RUNNING")
    states = iter(("RUNNING", "PENDING", "RUNNING", "FAILED"))
    nodes = iter(("worker-0", "worker-1"))
    open_pages: list[tuple[str, str]] = []
    closed: list[str] = []
    looks: list[object] = []

    def wait(*_: object, on_look: object = None, **__: object) -> SimpleNamespace:
        looks.append(on_look)
        return SimpleNamespace(host=next(nodes), models=("base",))

    def page(url: str, *, key: str, options: list[str], port: int, **_: Any) -> SimpleNamespace:
        assert len(open_pages) == len(closed), "the former one has the port"
        open_pages.append((key, options[0]))
        return SimpleNamespace(
            close=lambda: closed.append(key),
            wait_until_up=lambda: None,
            is_running=True,
            address=f"http://127.0.0.1:{port}/",
        )

    monkeypatch.setattr(slurm, "recent", lambda *_, **__: (job,))
    monkeypatch.setattr(slurm, "find", lambda *_: replace(job, state=next(states)))
    monkeypatch.setattr("infra.jobs.server.wait_until_up", wait)
    monkeypatch.setattr("infra.cli.context.node_watch", lambda _: "the watch")
    monkeypatch.setattr("infra.jobs.server.read_key", lambda _, at, *__, **___: f"of {at.host}")
    monkeypatch.setattr("infra.cli.context.tunnel", lambda *_: SimpleNamespace(url="u"))
    monkeypatch.setattr("infra.cli.jobs.serve.ChatPage", page)
    monkeypatch.setattr("infra.cli.jobs.serve._LOOK_EVERY_S", 0)
    monkeypatch.setattr("infra.cli.jobs.serve._ASK_EVERY_S", 0)
    (port,) = free_ports(1)
    done = RUNNER.invoke(app, ["serve", "--open", "--port", str(port)])
    assert done.exit_code == 1
    assert "job 12 was taken from worker-0 and comes back by itself" in done.stderr
    assert looks == ["the watch"] * 2, "why its nodes do not come is told then, too"
    assert open_pages == [
        ("of worker-0", "--server=job 12 on worker-0"),
        ("of worker-1", "--server=job 12 on worker-1"),
    ]
    assert closed == ["of worker-0", "of worker-1"]
    assert done.stdout.count(f"http://127.0.0.1:{port}/") == 2


@pytest.mark.feature("S000-50")
def test_a_port_of_the_page_that_is_taken_is_refused_before_a_node_is_held(
    cluster: Cluster,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = RUNNER.invoke(app, ["serve", "--open", "--port", port])
    assert done.exit_code == 1
    assert f"--port {port}: [Errno 98] Address already in use; choose another" in done.stderr
    assert cluster.asked == []


def test_a_server_that_could_not_be_written_down_is_ended(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise JobsError("no space left")

    monkeypatch.setattr(history, "remember", full)
    done = RUNNER.invoke(app, ["serve", "--open", "--port", "0"])
    assert (done.exit_code, cluster.cancelled) == (1, ["12"]), done.output
    assert "job 12 is told to end" in done.stderr
