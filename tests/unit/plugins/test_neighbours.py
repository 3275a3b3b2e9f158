"""Another user of the machine finds the ports of the engine's plugins, and is told nothing."""

import os
import socket
import subprocess

import grpc
import pytest
from google.protobuf import empty_pb2
from pulumi.runtime.proto import language_pb2 as language
from pulumi.runtime.proto import language_pb2_grpc, provider_pb2_grpc
from pulumi.runtime.proto import provider_pb2 as pb

from infra.providers.engine import serve
from infra.state import CHECKOUT
from tests import another_user

pytestmark = another_user.as_root
# grpc._channel: what insecure_channel imports by itself, when it is too late.
IMPORTS = """
import grpc, grpc._channel
from pulumi.runtime.proto import language_pb2 as language
from pulumi.runtime.proto import language_pb2_grpc, provider_pb2_grpc
from pulumi.runtime.proto import provider_pb2 as pb
from infra.providers.engine.provider import marshal
"""
CALL = """
with grpc.insecure_channel("127.0.0.1:{port}") as channel:
    try:
        print({call})
    except grpc.RpcError as error:
        print(error.code().name, error.details())
"""
LOCAL_COMMAND = """provider_pb2_grpc.ResourceProviderStub(channel).Create(pb.CreateRequest(
    urn="urn:pulumi:s::p::command:local:Command::c", type="command:local:Command",
    properties=marshal({"create": "id -u"})), wait_for_ready=True)"""
REFUSED = "PERMISSION_DENIED {name}: asked by uid 65534; it answers uid 0, which started it"


@pytest.fixture
def started():
    """Port of a stand-in of ours, started as the engine starts it."""
    running = []

    def start(name):
        program = CHECKOUT / "infra" / "local" / "plugins" / "bin" / name
        path = f"{CHECKOUT}/.venv/bin:{os.environ['PATH']}"
        environ = {**os.environ, "PATH": path, "PYTHONPATH": str(CHECKOUT)}
        plugin = subprocess.Popen([program], stdout=subprocess.PIPE, text=True, env=environ)
        running.append(plugin)
        assert plugin.stdout is not None
        return int(plugin.stdout.readline())

    yield start
    for plugin in running:
        plugin.kill()
        plugin.communicate()


def ask(port: int, call: str) -> str:
    return another_user.run_python(IMPORTS, CALL.format(port=port, call=call))


def test_a_plugin_runs_nothing_for_a_neighbour_and_answers_its_owner(started):
    port = started("pulumi-resource-command")
    assert ask(port, LOCAL_COMMAND).startswith(REFUSED.format(name="plugin command"))
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        owners = provider_pb2_grpc.ResourceProviderStub(channel)
        assert owners.GetPluginInfo(empty_pb2.Empty()).version
        # The program runs no command on this machine: the stand-in has no way to.
        request = pb.CheckRequest(urn="urn:pulumi:s::p::command:local:Command::c")
        with pytest.raises(grpc.RpcError, match="command:local:Command"):
            owners.Check(request)


def test_the_language_host_runs_no_program_of_a_neighbour(started, tmp_path):
    (tmp_path / "__main__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    port = started("pulumi-language-python")
    run = (
        "language_pb2_grpc.LanguageRuntimeStub(channel).Run(language.RunRequest(info="
        f"language.ProgramInfo(program_directory={str(tmp_path)!r}, entry_point='.'), "
        f"pwd={str(tmp_path)!r}, project='p', stack='s'), wait_for_ready=True)"
    )
    assert ask(port, run).startswith(REFUSED.format(name="language host"))
    assert not (tmp_path / "ran").exists()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        owners = language_pb2_grpc.LanguageRuntimeStub(channel)
        assert owners.Handshake(language.LanguageHandshakeRequest()) is not None


def test_a_connection_that_its_user_closed_is_nobodys():
    """The kernel gives what is left of it to uid 0."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        theirs = another_user.run_python(
            "import socket", f"c = socket.create_connection(('127.0.0.1', {port}))\n"
            "c.sendall(b'x'); print(c.getsockname()[1]); c.close()"
        )  # fmt: skip
        assert serve._uid_of(f"ipv4:127.0.0.1:{theirs}", port) is None
        with socket.create_connection(("127.0.0.1", port)) as ours:
            peer = f"ipv4:127.0.0.1:{ours.getsockname()[1]}"
            assert serve._uid_of(peer, port) == os.geteuid()


@pytest.mark.parametrize("away", ["told_owner", "tcp_sockets"])
def test_a_caller_is_known_by_the_kernels_answer_and_by_its_tables_alone(away, monkeypatch):
    monkeypatch.setattr(serve, away, lambda *_: None if away == "told_owner" else [])
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as ours:
            assert serve._uid_of(f"ipv4:127.0.0.1:{ours.getsockname()[1]}", port) == os.geteuid()
