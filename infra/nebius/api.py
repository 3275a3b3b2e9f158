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
from infra.nebius.errors import ApiError, explain, service_errors
from infra.nebius.schema import OPERATION, Schema
from infra.nebius.wait import Watch

_BACK_OFF_S: Final = (0.2, 0.5, 1.0, 2.0)
_CALL_S: Final = 60.0
_AWAY_S: Final = 20.0
"""How long the API may be away while an operation runs, beside the retries of each call."""
_FIRST_POLL_S: Final = 0.05
_LAST_POLL_S: Final = 5.0
_POLL_GROWTH: Final = 1.4


class UnfinishedError(Exception):
    """A wait ended before its operation, which goes on in the cloud; the next run waits on."""


class CancelledError(UnfinishedError):
    """The user interrupted."""


class DeadlineError(UnfinishedError):
    """The operation took longer than its kind may."""


class AwayError(UnfinishedError):
    """The API gave no answer for too long."""


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

    def wait(self, service: ServiceDescriptor, operation: Any, watch: Watch | None = None) -> Any:
        """The finished operation; ApiError where it failed, UnfinishedError where it goes on."""
        operation = self._finish(service, operation, watch)
        if operation.status.code:
            raise self._operation_error(operation, watch.cause if watch is not None else None)
        return operation

    def _finish(self, service: ServiceDescriptor, operation: Any, watch: Watch | None) -> Any:
        """The operation once it has ended, well or badly."""
        watch = watch or Watch("operation", "", self.schema, _silent)
        poll_s, heard_at = _FIRST_POLL_S, time.monotonic()
        while not operation.HasField("status"):
            if self._cancelled.wait(poll_s):
                raise CancelledError(
                    f"interrupted, operation {operation.id} goes on; run the command again"
                )
            if watch.is_over:
                raise DeadlineError(_too_long(operation, watch))
            poll_s = min(poll_s * _POLL_GROWTH, _LAST_POLL_S)
            try:
                operation = self.operation(service, operation.id)
                watch.poll(operation)
                heard_at = time.monotonic()
            except ApiError as error:
                # What is made must not be lost, or made twice, because one question failed.
                if not error.retriable or time.monotonic() - heard_at > _AWAY_S:
                    reason = explain(error, f"operation {operation.id}", target=self.target)
                    raise AwayError(f"{reason}; it goes on: run the command again") from error
                watch.away(error.message)
        watch.finish(operation)
        return operation

    def pause(self, seconds: float) -> None:
        """Waits, and ends early when the user interrupts."""
        self._cancelled.wait(seconds)

    def operation(self, service: ServiceDescriptor, id_: str) -> Any:
        """An operation as it is now."""
        name = f"{OPERATION}Service"
        request: Any = self.schema.message("nebius.common.v1.GetOperationRequest")(id=id_)
        return self._send(service, name, "Get", request, self.schema.message(OPERATION), {})

    def when_idle(
        self, service: ServiceDescriptor, change: Callable[[], Any], watch: Watch | None = None
    ) -> Any:
        """The operation that `change` starts, after any other one on the same resource."""
        while True:
            try:
                return change()
            except ApiError as error:
                conflict = error.reason("operation_conflict")
                if conflict is None:
                    raise
                running = self.operation(service, conflict.conflicting_operation_id)
                self._finish(service, running, watch)

    def _operation_error(self, operation: Any, cause: str | None) -> ApiError:
        from grpc import StatusCode

        status = operation.status
        reasons = service_errors(self.schema, status)
        codes = {code.value[0]: code.name for code in StatusCode}
        message = status.message
        # The oldest event is nearest to the cause; later errors follow from it.
        if cause is not None and not reasons:
            message = f"{message}; first cause: {cause}"
        code = codes.get(status.code, "UNKNOWN")
        return ApiError(code, message, reasons, request_id=operation.id)


def _silent(line: str, *, passing: bool = False) -> None:
    """Shows nothing."""


def _too_long(operation: Any, watch: Watch) -> str:
    cause = f"; first cause: {watch.cause}" if watch.cause else ""
    minutes = watch.pace.deadline_s / 60
    return (
        f"operation {operation.id} runs since {minutes:g} min, the limit for its kind{cause}; it "
        "goes on, and the next `pulumi up` waits on instead of starting again"
    )


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
        # A call that was too slow may have changed the cloud; its key makes asking again safe.
        retriable=status.is_retriable(deadline_retriable=True) and not over_quota,
        made_token=sdk.TOKEN_VARIABLE not in os.environ,
    )
