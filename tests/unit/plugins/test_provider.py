"""The plugin base answers the engine's calls; a test plays the engine over a real channel."""

import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from typing import Any

import grpc
import pytest
from google.protobuf import empty_pb2
from google.rpc import status_pb2
from pulumi.runtime.proto import provider_pb2 as pb
from pulumi.runtime.proto import provider_pb2_grpc

from infra.clients.errors import UnreachableError
from infra.providers.engine.provider import (
    UNKNOWN,
    Diff,
    PartialError,
    Provider,
    ProviderError,
    Secret,
    marshal,
    unmarshal,
)
from infra.providers.engine.serve import start

URN = "urn:pulumi:dev::proj::demo:index:Group$demo:index:Disk::boot"


class Disks(Provider):
    """A small plugin: disks with a size, a platform that cannot change, and a password."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def configure(self, variables):
        self.calls.append(("configure", variables))

    def check(self, old, new):
        wrong = [("size", "'0' is not a size; at least 1 GiB")] if new.get("size") == 0 else []
        return {"type": "ssd", **new}, wrong

    def diff(self, id, old_inputs, old_state, new):
        base = super().diff(id, old_inputs, old_state, new)
        replaces = tuple(path for path in base.detailed if path == "platform")
        return Diff(replaces=replaces, detailed=base.detailed, stables=("id",))

    def of(self, type_):
        self.calls.append(("of", type_))
        return self

    def preview(self, urn, id, old_state, new):
        return {**new, "serial": old_state.get("serial", UNKNOWN)}

    def create(self, urn, inputs):
        self.calls.append(("create", inputs))
        if inputs.get("size") == 13:
            raise PartialError("disk-1: quota\nreached", id="disk-1", state={"size": 12})
        if inputs.get("size") == 14:
            raise KeyError("size")
        return "disk-1", {**inputs, "serial": "s-1", "token": Secret("t")}

    def update(self, urn, id, old_state, new):
        return {**new, "serial": old_state["serial"], "token": old_state["token"]}

    def read(self, id, state, inputs):
        return None if id == "gone" else (id, {**state, "size": 9}, {**inputs, "size": 9})

    def delete(self, id, state):
        refusal = UnreachableError if id == "far" else ProviderError
        raise refusal("disk-1: still attached to vm-1;\n  detach it first")


@pytest.fixture
def disks():
    return Disks()


@pytest.fixture
def stub(disks):
    server, port = start(disks, "demo", "1.0.0")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield provider_pb2_grpc.ResourceProviderStub(channel)
    server.stop(None).wait()


def test_the_type_comes_from_the_urn_when_the_engine_sends_none(stub, disks):
    stub.Create(pb.CreateRequest(urn=URN, properties=marshal({"size": 1})))
    assert disks.calls == [("of", "demo:index:Disk"), ("create", {"size": 1})]


def test_check_returns_defaults_and_every_problem(stub):
    answer = stub.Check(pb.CheckRequest(urn=URN, news=marshal({"size": 0})))
    assert unmarshal(answer.inputs) == {"type": "ssd", "size": 0}
    assert [(f.property, f.reason) for f in answer.failures] == [
        ("size", "'0' is not a size; at least 1 GiB")
    ]


def test_secret_inputs_reach_the_plugin_plain_and_come_back_secret(stub, disks):
    inputs = marshal({"size": 1, "password": Secret("p")})
    state = unmarshal(stub.Create(pb.CreateRequest(urn=URN, properties=inputs)).properties)
    assert disks.calls[-1][1] == {"size": 1, "password": "p"}
    assert state["password"] == Secret("p")
    assert state["token"] == Secret("t")


def test_a_secret_output_stays_secret_through_an_update(stub):
    """The token is no input: only the old state says that it is secret."""
    olds = marshal({"size": 1, "serial": "s", "token": Secret("t")})
    request = pb.UpdateRequest(id="disk-1", urn=URN, olds=olds, news=marshal({"size": 2}))
    state = unmarshal(stub.Update(request).properties)
    assert state == {"size": 2, "serial": "s", "token": Secret("t")}


def test_a_preview_has_no_id_and_keeps_unknown_outputs_unknown(stub):
    answer = stub.Create(pb.CreateRequest(urn=URN, properties=marshal({"size": 1}), preview=True))
    assert answer.id == ""
    assert unmarshal(answer.properties)["serial"] is UNKNOWN


def test_diff_tells_the_engine_which_path_forces_a_replacement(stub):
    request = pb.DiffRequest(
        id="disk-1",
        urn=URN,
        old_inputs=marshal({"platform": "a", "size": 1, "old": 1}),
        news=marshal({"platform": "b", "size": 2, "new": 1}),
    )
    answer = stub.Diff(request)
    kinds = {path: pb.PropertyDiff.Kind.Name(d.kind) for path, d in answer.detailedDiff.items()}
    assert kinds == {
        "platform": "UPDATE_REPLACE",
        "size": "UPDATE",
        "old": "DELETE",
        "new": "ADD",
    }
    assert answer.hasDetailedDiff
    assert list(answer.replaces) == ["platform"]
    assert list(answer.stables) == ["id"]
    assert answer.changes == pb.DiffResponse.DIFF_SOME


def test_equal_inputs_are_no_change(stub):
    same = marshal({"size": 1})
    answer = stub.Diff(pb.DiffRequest(id="disk-1", urn=URN, old_inputs=same, news=same))
    assert answer.changes == pb.DiffResponse.DIFF_NONE


def test_a_resource_that_is_gone_reads_as_an_empty_id(stub):
    assert stub.Read(pb.ReadRequest(id="gone", urn=URN)).id == ""
    found = stub.Read(pb.ReadRequest(id="d", urn=URN, inputs=marshal({"password": Secret("p")})))
    assert unmarshal(found.inputs) == {"password": Secret("p"), "size": 9}


@pytest.mark.parametrize("id_", ["disk-1", "far"])
def test_a_refusal_of_the_plugin_or_of_its_client_is_one_line_without_a_traceback(stub, id_):
    with pytest.raises(grpc.RpcError) as caught:
        stub.Delete(pb.DeleteRequest(id=id_, urn=URN))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "disk-1: still attached to vm-1; detach it first"


def test_a_defect_of_the_plugin_is_one_line_too(stub):
    with pytest.raises(grpc.RpcError) as caught:
        stub.Create(pb.CreateRequest(urn=URN, properties=marshal({"size": 14})))
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert caught.value.details() == "KeyError: 'size'"


def test_a_half_made_resource_is_handed_to_the_engine_with_its_state(stub):
    """Without it the engine forgets the resource and the next `up` makes a second one."""
    with pytest.raises(grpc.RpcError) as caught:
        stub.Create(pb.CreateRequest(urn=URN, properties=marshal({"size": 13})))
    sent: Any = caught.value.trailing_metadata()
    trailer = dict(sent)["grpc-status-details-bin"]
    detail = pb.ErrorResourceInitFailed()
    assert status_pb2.Status.FromString(trailer).details[0].Unpack(detail)
    assert (detail.id, unmarshal(detail.properties)) == ("disk-1", {"size": 12})
    assert list(detail.reasons) == ["disk-1: quota reached"]


def test_configuration_reaches_the_plugin_and_changes_of_it_are_no_replacement(stub, disks):
    stub.Configure(pb.ConfigureRequest(args=marshal({"endpoint": Secret("e")})))
    assert disks.calls == [("configure", {"endpoint": "e"})]
    request = pb.DiffRequest(old_inputs=marshal({"a": "1"}), news=marshal({"a": "2"}))
    answer = stub.DiffConfig(request)
    assert (list(answer.diffs), list(answer.replaces)) == (["a"], [])


def test_cancel_sets_the_event_that_long_waits_look_at(stub, disks):
    stub.Cancel(empty_pb2.Empty())
    assert disks.cancelled.is_set()


def test_functions_are_refused_by_name(stub):
    with pytest.raises(grpc.RpcError) as caught:
        stub.Invoke(pb.InvokeRequest(tok="demo:index:lookup"))
    assert caught.value.details() == "demo:index:lookup: plugin demo has no functions"


def test_the_server_listens_on_the_loopback_address_only(disks):
    server, port = start(disks, "demo", "1.0.0")
    try:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) == 0
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.2", port)) != 0
    finally:
        server.stop(None).wait()


PLUGIN = textwrap.dedent("""
    from infra.providers.engine.provider import Provider
    from infra.providers.engine.serve import serve
    serve(Provider(), "demo", "1.0.0")
""")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_plugin_leaves_quietly(number):
    with subprocess.Popen(
        [sys.executable, "-c", PLUGIN], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdigit()
        process.send_signal(number)
        try:
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()  # or its exit waits for ever, and hides that this one was in vain
    assert (process.returncode, out, err) == (0, "", "")


def test_a_plugin_ends_when_its_engine_was_killed():
    """SIGKILL on the engine tells nobody; the plugin must notice by itself."""
    engine = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen([sys.executable, '-c', {PLUGIN!r}], stdout=subprocess.PIPE)\n"
        "p.stdout.readline(); print(p.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", engine], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        plugin = int(parent.stdout.readline())
        handle = os.pidfd_open(plugin)
        parent.kill()
    with os.fdopen(handle):
        ready, _, _ = select.select([handle], [], [], 20)
    assert ready, f"plugin {plugin} still runs 20 s after its engine died"
