"""A resource plugin as a process, called as the engine calls it: official or stand-in alike."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import empty_pb2
from google.rpc import status_pb2
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, provider_pb2_grpc
from pulumi.runtime.proto import provider_pb2 as pb

from infra.providers.engine.provider import UNKNOWN, Secret, marshal, reveal, unmarshal


class RefusedError(Exception):
    """The plugin answered with an error; `state` is what it says was made all the same."""

    def __init__(self, text: str, *, id: str = "", state: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.id = id
        self.state = state


class _Engine(engine_pb2_grpc.EngineServicer):
    """The engine's side: keeps every line that the plugin wants to be shown."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def Log(self, request, context):
        severity = engine_pb2.LogSeverity.Name(request.severity).lower()
        self.lines.append((severity, request.message))
        return empty_pb2.Empty()


class Plugin:
    """A configured plugin process."""

    def __init__(
        self,
        stub: provider_pb2_grpc.ResourceProviderStub,
        engine: _Engine,
        process: subprocess.Popen[str],
    ) -> None:
        self._stub = stub
        self._engine = engine
        self._process = process

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()

    def take_lines(self, *severities: str) -> list[str]:
        """What was shown since the last call, of these severities or of all."""
        taken, self._engine.lines = self._engine.lines, []
        return [text for level, text in taken if text and (not severities or level in severities)]

    def call(self, method: str, request: Any, timeout_s: float = 120) -> Any:
        """The answer of one call, or RefusedError."""
        try:
            return getattr(self._stub, method)(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise _refusal(error) from None

    def cancel(self) -> None:
        """What the engine sends when the user interrupts."""
        self._stub.Cancel(empty_pb2.Empty())


class Resource:
    """One resource of a program through its life, with the engine's own choices between calls."""

    def __init__(self, plugin: Plugin, type_: str, name: str) -> None:
        self._plugin = plugin
        self._type = type_
        self._name = name
        self.urn = f"urn:pulumi:dev::proj::{type_}::{name}"
        self.id = ""
        self.inputs: dict[str, Any] = {}
        self.state: dict[str, Any] = {}
        """As the engine would store them: secrets are wrapped."""

    def check(self, declared: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs as they go to the state; RefusedError with every failure."""
        answer = self._plugin.call(
            "Check",
            pb.CheckRequest(
                urn=self.urn,
                olds=marshal(self.inputs) if self.id else None,
                news=marshal(declared),
                randomSeed=b"\1" * 32,
                name=self._name,
                type=self._type,
            ),
        )
        if answer.failures:
            wrong = (f"{each.property}: {each.reason}" for each in answer.failures)
            raise RefusedError("; ".join(wrong))
        return unmarshal(answer.inputs)

    def diff(self, declared: Mapping[str, Any]) -> pb.DiffResponse:
        """What an update to what is declared would do."""
        return self._plugin.call(
            "Diff",
            pb.DiffRequest(
                id=self.id,
                urn=self.urn,
                olds=marshal(self.state),
                news=marshal(self.check(declared)),
                old_inputs=marshal(self.inputs),
                name=self._name,
                type=self._type,
            ),
        )

    def step(self, declared: Mapping[str, Any]) -> str:
        """What the engine would do next: nothing, update, replace, or replace with delete first."""
        found = self.diff(declared)
        if found.replaces:
            paths = ", ".join(sorted({_first_key(path) for path in found.replaces}))
            first = "delete and create" if found.deleteBeforeReplace else "create and delete"
            return f"replace ({first}): {paths}"
        return "update" if found.changes == pb.DiffResponse.DIFF_SOME else "nothing"

    def create(self, declared: Mapping[str, Any], *, preview: bool = False) -> dict[str, Any]:
        """The state after a create; of a preview it is not kept."""
        inputs = self.check(declared)
        try:
            answer = self._plugin.call(
                "Create",
                pb.CreateRequest(
                    urn=self.urn,
                    properties=marshal(inputs),
                    preview=preview,
                    name=self._name,
                    type=self._type,
                ),
            )
        except RefusedError as error:
            if error.id:
                self.id, self.inputs, self.state = error.id, inputs, dict(error.state or {})
            raise
        state = unmarshal(answer.properties)
        if not preview:
            self.id, self.inputs, self.state = answer.id, inputs, state
        return state

    def update(self, declared: Mapping[str, Any], *, preview: bool = False) -> dict[str, Any]:
        """The state after an update; of a preview it is not kept."""
        inputs = self.check(declared)
        answer = self._plugin.call(
            "Update",
            pb.UpdateRequest(
                id=self.id,
                urn=self.urn,
                olds=marshal(self.state),
                news=marshal(inputs),
                old_inputs=marshal(self.inputs),
                preview=preview,
                name=self._name,
                type=self._type,
            ),
        )
        state = unmarshal(answer.properties)
        if not preview:
            self.inputs, self.state = inputs, state
        return state

    def refresh(self) -> bool:
        """Whether it is there; its state and inputs are then what the plugin read."""
        answer = self._plugin.call(
            "Read",
            pb.ReadRequest(
                id=self.id,
                urn=self.urn,
                properties=marshal(self.state),
                inputs=marshal(self.inputs),
                name=self._name,
                type=self._type,
            ),
        )
        if answer.id:
            self.inputs, self.state = unmarshal(answer.inputs), unmarshal(answer.properties)
        return bool(answer.id)

    def delete(self) -> None:
        """Take it down."""
        self._plugin.call(
            "Delete",
            pb.DeleteRequest(
                id=self.id,
                urn=self.urn,
                properties=marshal(self.state),
                old_inputs=marshal(self.inputs),
                name=self._name,
                type=self._type,
            ),
        )

    def output(self, *path: str) -> Any:
        """A value of the state, without its secret mark."""
        found: Any = reveal(self.state)
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        return found


@contextlib.contextmanager
def running_plugin(
    program: Path, variables: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> Iterator[Plugin]:
    """The plugin's process, configured, until the end of the block."""
    engine = _Engine()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    engine_pb2_grpc.add_EngineServicer_to_server(engine, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    name = program.name.removeprefix("pulumi-resource-")
    with subprocess.Popen(
        [program, address],
        env={**os.environ, **(environ or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        # A full pipe would stop the plugin in the middle of a line.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        try:
            port = int(process.stdout.readline())
            options = [
                ("grpc.max_receive_message_length", 400 << 20),
                ("grpc.max_send_message_length", 400 << 20),
            ]
            with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
                plugin = Plugin(provider_pb2_grpc.ResourceProviderStub(channel), engine, process)
                texts = {f"{name}:config:{key}": str(value) for key, value in variables.items()}
                plugin.call(
                    "Configure",
                    pb.ConfigureRequest(
                        variables=texts,
                        args=marshal(variables),
                        acceptSecrets=True,
                        acceptResources=True,
                        sends_old_inputs=True,
                        sends_old_inputs_to_delete=True,
                    ),
                )
                yield plugin
        finally:
            process.kill()
            server.stop(grace=None)


def secret_keys(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Paths of all that is marked secret, but for the copy of its inputs that a plugin may keep."""
    found = []
    for key, value in values.items():
        if key == "__inputs":
            continue
        if isinstance(value, Secret):
            found.append(f"{prefix}{key}")
        elif isinstance(value, Mapping):
            found += secret_keys(value, f"{prefix}{key}.")
    return sorted(found)


def unknown_keys(values: Mapping[str, Any]) -> list[str]:
    """Top-level keys whose value the engine learns only during the update."""
    return sorted(key for key, value in values.items() if reveal(value) is UNKNOWN)


def _first_key(path: str) -> str:
    """`spec` of `spec.template`: how deep a path goes is the plugin's own affair."""
    return path.removeprefix(".").partition(".")[0].partition("[")[0]


def _refusal(error: grpc.RpcError) -> RefusedError:
    detail = str(error.details())
    sent: Any = error.trailing_metadata() or ()
    trailing = dict(sent)
    packed = trailing.get("grpc-status-details-bin")
    if packed is not None:
        status = status_pb2.Status.FromString(packed)
        for each in status.details:
            partial = pb.ErrorResourceInitFailed()
            if each.Unpack(partial):
                reasons = "; ".join(partial.reasons)
                return RefusedError(
                    reasons or detail, id=partial.id, state=unmarshal(partial.properties)
                )
    return RefusedError(detail)
