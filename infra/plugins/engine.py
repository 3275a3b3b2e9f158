"""Lines that a plugin shows to the user while the engine waits for it."""

from __future__ import annotations

import contextlib
import threading

import grpc
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc


class EngineLog:
    """The engine's log; without an address (a test) lines are dropped."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._stub: engine_pb2_grpc.EngineStub | None = None

    def info(self, urn: str, line: str, *, passing: bool = False) -> None:
        """Shows one line at a resource; a passing one is progress and not kept."""
        self._log(engine_pb2.LogSeverity.INFO, urn, line, passing)

    def warning(self, urn: str, line: str) -> None:
        """Shows one line at a resource as a warning."""
        self._log(engine_pb2.LogSeverity.WARNING, urn, line, False)

    def _log(
        self, severity: engine_pb2.LogSeverity.ValueType, urn: str, line: str, passing: bool
    ) -> None:
        if not self._address:
            return
        with self._lock:
            if self._stub is None:
                self._stub = engine_pb2_grpc.EngineStub(grpc.insecure_channel(self._address))
        request = engine_pb2.LogRequest(severity=severity, message=line, urn=urn, ephemeral=passing)
        # An engine that is shutting down takes no more lines; that must not fail the resource.
        with contextlib.suppress(grpc.RpcError):
            self._stub.Log(request, timeout=5)
