"""Messages of a plugin to the engine, which shows them beside the resource."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import grpc
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc

_TIMEOUT_S: Final = 5


class EngineLog:
    """The engine's log; silent where the plugin was started without an engine."""

    def __init__(self, arguments: Sequence[str]) -> None:
        address = next((a for a in arguments if not a.startswith("-")), None)
        self._engine = (
            None if address is None else engine_pb2_grpc.EngineStub(grpc.insecure_channel(address))
        )
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def info(self, urn: str, message: str) -> None:
        """Show a message beside the resource."""
        self._send(urn, message, engine_pb2.INFO)

    def warn(self, urn: str, message: str) -> None:
        """Show a warning beside the resource."""
        self._send(urn, message, engine_pb2.WARNING)

    def once(self, urn: str, message: str) -> None:
        """Show a message, the first time it comes."""
        with self._lock:
            if message in self._said:
                return
            self._said.add(message)
        self.info(urn, message)

    def _send(self, urn: str, message: str, severity: engine_pb2.LogSeverity.ValueType) -> None:
        if self._engine is None:
            return
        request = engine_pb2.LogRequest(severity=severity, message=message, urn=urn)
        try:
            self._engine.Log(request, timeout=_TIMEOUT_S)
        except grpc.RpcError:
            return  # a lost message must not fail the resource
