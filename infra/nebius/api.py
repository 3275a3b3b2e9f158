"""Calls of the API by name: messages of our schema over the SDK's transport.

Owns retries with back-off, idempotency keys on the wire and the waiting for operations. The SDK
does routing, TLS and tokens; its own message classes are slow and are not used. The SDK is imported
at the first call.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

from google.protobuf.descriptor import ServiceDescriptor

from infra.nebius import sdk
from infra.nebius.errors import ApiError
from infra.nebius.schema import OPERATION, Schema

_BACK_OFF_S: Final = (0.2, 0.5, 1.0, 2.0)
_CALL_S: Final = 60.0
_OPERATION_S: Final = 2 * 3600.0
"""Longest wait for one operation; a node group of GPUs takes tens of minutes."""
_FIRST_POLL_S: Final = 0.05
_LAST_POLL_S: Final = 5.0
_POLL_GROWTH: Final = 1.4


class CancelledError(Exception):
    """The user interrupted while an operation ran; it goes on in the cloud."""


class Api:
    """The API that the environment names."""

    def __init__(
        self,
        schema: Schema,
        cancelled: threading.Event,
        *,
        call_s: float = _CALL_S,
        back_off_s: tuple[float, ...] = _BACK_OFF_S,
    ) -> None:
        self.schema = schema
        self._cancelled = cancelled
        self._call_s = call_s
        self._back_off_s = back_off_s

    @cached_property
    def _sdk(self) -> Any:
        return sdk.shared_sdk()

    @cached_property
    def target(self) -> str | None:
        """The emulator's address, or None for the real cloud."""
        return sdk.loopback_target()

    def call(
        self,
        service: ServiceDescriptor,
        method: str,
        fields: Any,
        *,
        key: str | None = None,
        mask: str | None = None,
    ) -> Any:
        """The answer of one unary call; `fields` is the request message."""
        answer = service.methods_by_name[method].output_type.full_name
        metadata = {"x-idempotency-key": key, "x-resetmask": mask}
        return self._send(
            service, service.full_name, method, fields, self.schema.message(answer), metadata
        )

    def request(self, service: ServiceDescriptor, method: str, **fields: Any) -> Any:
        """A new request message of a method."""
        name = service.methods_by_name[method].input_type.full_name
        return self.schema.message(name)(**fields)

    def _send(
        self,
        service: ServiceDescriptor,
        name: str,
        method: str,
        request: Any,
        answer: type,
        metadata: dict[str, str | None],
    ) -> Any:
        """Sends, and sends again with the same idempotency key while that can help."""
        from nebius.aio.constant_channel import Constant
        from nebius.aio.idempotency import new_key
        from nebius.aio.request import Request
        from nebius.aio.route import Route
        from nebius.aio.service_error import RequestError
        from nebius.base.protos.dynamic import REGISTRY

        host = self.schema.api_service_name(service)
        route = Route(service.full_name, method, host, REGISTRY)
        # Operations are asked for at the host of the service that made them.
        channel = self._sdk if name == service.full_name else Constant(route, self._sdk)
        metadata["x-idempotency-key"] = metadata.get("x-idempotency-key") or new_key()
        headers = [(header, value) for header, value in metadata.items() if value is not None]
        for pause in (*self._back_off_s, None):
            sent: Any = Request(
                channel, name, method, request, answer,
                metadata=headers, timeout=self._call_s, retries=1, route=route,
                auth_options=_report_auth_errors(), auth_timeout=self._call_s,
            )  # fmt: skip
            # Without this a call to a dead address waits out its whole timeout.
            sent.wait_for_ready = False
            try:
                return sent.wait()
            except RequestError as error:
                failure = _failure(error)
                if pause is None or not failure.retriable or self._cancelled.wait(pause):
                    raise failure from error
        raise AssertionError("the last attempt returns or raises")

    def wait(self, service: ServiceDescriptor, operation: Any) -> Any:
        """The finished operation; ApiError where it failed, CancelledError on interruption."""
        operation = self._finish(service, operation)
        if operation.status.code:
            raise self._operation_error(operation)
        return operation

    def _finish(self, service: ServiceDescriptor, operation: Any) -> Any:
        """The operation once it has ended, well or badly."""
        poll_s, until = _FIRST_POLL_S, time.monotonic() + _OPERATION_S
        while not operation.HasField("status"):
            if self._cancelled.wait(poll_s):
                raise CancelledError(f"operation {operation.id} goes on; run the command again")
            if time.monotonic() > until:
                hours = _OPERATION_S / 3600
                raise ApiError("ABORTED", f"operation {operation.id} runs since {hours:g} h")
            poll_s = min(poll_s * _POLL_GROWTH, _LAST_POLL_S)
            operation = self.operation(service, operation.id)
        return operation

    def operation(self, service: ServiceDescriptor, id_: str) -> Any:
        """An operation as it is now."""
        name = f"{OPERATION}Service"
        request: Any = self.schema.message("nebius.common.v1.GetOperationRequest")(id=id_)
        return self._send(service, name, "Get", request, self.schema.message(OPERATION), {})

    def when_idle(self, service: ServiceDescriptor, change: Callable[[], Any]) -> Any:
        """The operation that `change` starts, after any other one on the same resource."""
        while True:
            try:
                return change()
            except ApiError as error:
                conflict = error.reason("operation_conflict")
                if conflict is None:
                    raise
                running = self.operation(service, conflict.conflicting_operation_id)
                self._finish(service, running)

    def _operation_error(self, operation: Any) -> ApiError:
        from grpc import StatusCode

        reasons = []
        for packed in operation.status.details:
            detail: Any = self.schema.message("nebius.common.v1.ServiceError")()
            if packed.Unpack(detail) and (kind := detail.WhichOneof("details")):
                reasons.append((kind, getattr(detail, kind)))
        codes = {code.value[0]: code.name for code in StatusCode}
        code = codes.get(operation.status.code, "UNKNOWN")
        return ApiError(code, operation.status.message, tuple(reasons), request_id=operation.id)


def _report_auth_errors() -> dict[str, str]:
    """Makes a rejected service account key fail at once, not after the whole timeout."""
    from nebius.aio.token.options import OPTION_REPORT_ERROR

    return {OPTION_REPORT_ERROR: "true"}


def _failure(error: Any) -> ApiError:
    """The SDK's error as ours."""
    status = error.status
    reasons = tuple(
        (found.details.field, found.details.value)
        for found in status.service_errors
        if found.details is not None
    )
    # The SDK retries RESOURCE_EXHAUSTED; a quota does not grow by asking again.
    over_quota = any(kind == "quota_failure" for kind, _ in reasons)
    return ApiError(
        code=status.code.name,
        message=" ".join((status.message or "no message").split()),
        reasons=reasons,
        request_id=status.request_id or "",
        retriable=status.is_retriable() and not over_quota,
        made_token=sdk.TOKEN_VARIABLE not in os.environ,
    )
