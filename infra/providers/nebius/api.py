"""Calls of the API by name: messages of our schema over the SDK's transport.

Owns retries with back-off, idempotency keys on the wire and the waiting for operations. The SDK
does routing, TLS and tokens; its own message classes are slow and are not used. The SDK is imported
at the first call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import cached_property
from typing import Any, Final

from google.protobuf.descriptor import ServiceDescriptor

from infra.providers.engine.provider import ProviderError
from infra.providers.nebius import sdk
from infra.providers.nebius.schema import OPERATION, Schema, enum_word

_LIMITS: Final = (
    "raise it in the console under Administration, Limits (docs.nebius.com/overview/limits)"
)
_EMULATOR: Final = "start it with `soperator local up` or `soperator env --offline`"
GONE: Final = "check the id, or run `pulumi refresh` if it was deleted outside Pulumi"
"""Advice where the state of a stack names the id."""
_ADVICE: Final = {
    "ALREADY_EXISTS": "rename this one, delete the other, or take it over with `pulumi import`",
    "PERMISSION_DENIED": "ask an administrator of the project for the role `editor`",
    "ABORTED": "another change is running; run the same command again when it has finished",
    **dict.fromkeys(
        ("INTERNAL", "UNKNOWN"),
        "run the same command again; if it stays, give support the request id",
    ),
}
"""gRPC code -> what to do."""
_GIB: Final = 1 << 30
_SILENT: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})


@dataclass
class ApiError(Exception):
    """A refused call or a failed operation."""

    code: str
    """gRPC code, such as NOT_FOUND."""
    message: str
    reasons: tuple[tuple[str, Any], ...] = ()
    """(kind, message) of each nebius.common.v1.ServiceError: ("quota_failure", QuotaFailure)."""
    request_id: str = ""
    retriable: bool = False
    made_token: bool = False
    """Whether the token was made from a key or profile, so that a fresh one was tried already."""

    def __str__(self) -> str:
        return self.message

    @property
    def is_not_found(self) -> bool:
        """Whether the resource itself is not there."""
        return self.code == "NOT_FOUND"

    @property
    def is_unseen(self) -> bool:
        """Whether it is not there or hidden: of an id that others have the API may say neither."""
        return self.code in ("NOT_FOUND", "PERMISSION_DENIED")

    def reason(self, kind: str) -> Any | None:
        """The details of one kind, such as `operation_conflict`, or None."""
        return next((value for found, value in self.reasons if found == kind), None)


def explain(
    failure: ApiError, what: str, *, target: str | None = None, absent: str = "check the id"
) -> str:
    """One line: what was refused, why, and what to do.

    `target` is the emulator's address, `absent` what to do where the API finds nothing.
    """
    if failure.code in _SILENT and not failure.reasons:
        if target is not None:
            return f"{what}: no answer from the emulated Nebius API on {target}; {_EMULATOR}"
        return f"{what}: no answer from the Nebius API ({failure.message}); try again later"
    if failure.code == "UNAUTHENTICATED":
        advice = (
            "check that the key of the service account still exists and that this machine's clock "
            "is right"
            if failure.made_token
            else "set NEBIUS_IAM_TOKEN to a fresh one: nebius iam get-access-token"
        )
        if target is not None:
            advice += ', or, of the embedded cloud, eval "$(soperator env)"'
        return f"{what}: the token is not accepted ({failure.message}); {advice}"
    told = "; ".join(tell(kind, value) for kind, value in failure.reasons) or failure.message
    advice = {"NOT_FOUND": absent, **_ADVICE}.get(failure.code)
    request = f" (request {failure.request_id})" if failure.request_id else ""
    return f"{what}: {told}; {advice}{request}" if advice else f"{what}: {told}"


def service_errors(schema: Schema, status: Any) -> tuple[tuple[str, Any], ...]:
    """(kind, message) of each ServiceError in a google.rpc.Status."""
    reasons = []
    for packed in status.details:
        detail: Any = schema.message("nebius.common.v1.ServiceError")()
        if packed.Unpack(detail) and (kind := detail.WhichOneof("details")):
            reasons.append((kind, getattr(detail, kind)))
    return tuple(reasons)


def tell(kind: str, value: Any) -> str:
    """One reason with its fix, such as the kind `quota_failure`."""
    match kind:
        case "quota_failure":
            return "; ".join(
                f"quota {v.quota}: {_amount(v.quota, v.requested)} wanted in all, limit "
                f"{_amount(v.quota, v.limit)}; lower what is declared or {_LIMITS}"
                for v in value.violations
            )
        case "not_enough_resources":
            wanted = "; ".join(f"{v.resource_type}: {v.message}" for v in value.violations)
            return f"Nebius has no capacity now ({wanted}); try another region or fabric, or later"
        case "bad_request":
            return "; ".join(f"{v.field}: {v.message}" for v in value.violations)
        case "bad_resource_state" | "resource_conflict":
            return value.message
        case "resource_not_found":
            return f"{value.resource_id or 'the resource'} does not exist"
        case "resource_already_exists":
            return f"this name is taken by {value.resource_id}"
        case "permission_denied":
            return f"no permission for {value.resource_id}"
        case "operation_conflict":
            return f"operation {value.conflicting_operation_id} still runs on {value.resource_id}"
        case _:
            return " ".join(f"{kind} {value}".split())


def _amount(quota: str, text: str) -> str:
    """`5120 GiB` for a size in bytes, the number as it is otherwise."""
    if ".size." in quota and text.isdigit():
        return f"{int(text) / _GIB:g} GiB"
    return text


LISTS: Final = {"List": "items", "ListMembers": "memberships"}
"""Methods that list what is under a parent, and the field of their answer."""
_PAGE: Final = 500
_QUIET_S: Final = 5.0
"""A wait that ends sooner is no news."""
_LOUD: Final = ("WARN", "ERROR")


_MINUTE: Final = 60.0
# A whole cluster took 30 to 45 minutes in seeds 001 and 002; about 40 for 2 nodes of 8 GPUs in
# nebius-solutions-library soperator/README.md, commit 7b687e5 of 2026-04-21. Of that the nodes are
# the longest part and the control plane the second. The recipe (2026-04) waits 60 minutes for one
# stage; half an hour is our own limit, 2026-11.
EXPECTED_S: Final = {"mk8snodegroup": 45 * _MINUTE}
"""Id prefix of a kind of resource -> what is usual; of others nobody has measured it."""
DEADLINES_S: Final = {"mk8snodegroup": 120 * _MINUTE, "mk8scluster": 60 * _MINUTE}
"""After this the wait ends; the operation goes on, and the next `up` waits on."""
_DEADLINE_S: Final = 30 * _MINUTE
"""Of the other kinds."""


@dataclass(eq=False)
class Watch:
    """What one wait has told so far."""

    _what: str
    """Such as `create NodeGroup 'worker'`."""
    kind: InitVar[str]
    _schema: Schema
    _say: Callable[..., None]
    """Shows one line; with `passing=True` it is progress and not kept."""
    _look: Callable[[str], Any | None] = lambda _id: None
    """Fetches the resource of an id."""
    _clock: Callable[[], float] = time.monotonic
    _told: str = ""
    _is_late: bool = False
    cause: str | None = None
    """The first thing that the API blamed."""

    def __post_init__(self, kind: str) -> None:
        self.deadline_s = DEADLINES_S.get(kind, _DEADLINE_S)
        self._expected_s = EXPECTED_S.get(kind)
        self._began = self._clock()

    @property
    def passed_s(self) -> float:
        """Seconds since this wait began."""
        return self._clock() - self._began

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.passed_s > self.deadline_s

    def poll(self, operation: Any) -> None:
        """Tells what changed since the last look at the operation."""
        if self.passed_s < _QUIET_S:
            return
        resource = self._resource(operation)
        now = "; ".join((_stage(resource), *self._causes(resource)))
        line = f"{self._what}: {now}; {self._times()}"
        is_late = self._expected_s is not None and self.passed_s > self._expected_s
        changed = now != self._told or is_late is not self._is_late
        self._told, self._is_late = now, is_late
        self._say(line, passing=not changed)

    def away(self, reason: str) -> None:
        """Tells once that the API does not answer."""
        now = f"no answer from the API ({reason}), still waiting"
        self._say(f"{self._what}: {now}; {self._times()}", passing=now == self._told)
        self._told = now

    def finish(self, operation: Any) -> None:
        """Keeps the first cause of an operation that failed, where the failure names none."""
        if operation.status.code and self.cause is None:
            self._causes(self._resource(operation))

    def _resource(self, operation: Any) -> Any | None:
        # What it looks like is only told: how the operation ends is what the operation says.
        with suppress(ApiError):
            return self._look(operation.resource_id)

    def _times(self) -> str:
        passed = _minutes(self.passed_s)
        if self._expected_s is None:
            return f"{passed} passed, given up after {_minutes(self.deadline_s)}"
        late = " (late)" if self.passed_s > self._expected_s else ""
        return f"{passed} of at most {_minutes(self._expected_s)} passed{late}"

    def _causes(self, resource: Any | None) -> list[str]:
        """What the resource's events blame, the first one first."""
        found = causes(self._schema, resource)
        if found and self.cause is None:
            self.cause = found[0]
        return [f"blocked: {cause}" for cause in found]


def causes(schema: Schema, resource: Any | None) -> list[str]:
    """What the events of a resource blame, oldest first, each in one line with its fix."""
    if resource is None or "events" not in resource.status.DESCRIPTOR.fields_by_name:
        return []
    lines = []
    events = resource.status.events
    for event in sorted(events, key=lambda event: event.first_occurred_at.ToNanoseconds()):
        last = event.last_occurrence
        if enum_word(last, "level") not in _LOUD:
            continue
        reasons = service_errors(schema, last.error)
        told = "; ".join(tell(kind, value) for kind, value in reasons)
        lines.append(" ".join((told or last.message or last.code).split()))
    return list(dict.fromkeys(lines))


def _stage(resource: Any | None) -> str:
    """State of the resource, and of its nodes where it has some."""
    if resource is None:
        return "running"
    status = resource.status
    stage = enum_word(status, "state").lower() or "running"
    if "target_node_count" in status.DESCRIPTOR.fields_by_name:
        stage += f", {status.ready_node_count} of {status.target_node_count} nodes ready"
    return stage


def _minutes(seconds: float) -> str:
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min"


_BACK_OFF_S: Final = (0.2, 0.5, 1.0, 2.0)
_CALL_S: Final = 60.0
_AWAY_S: Final = 20.0
"""How long the API may be away while an operation runs, beside the retries of each call."""
_FIRST_POLL_S: Final = 0.05
_LAST_POLL_S: Final = 5.0
_POLL_GROWTH: Final = 1.4
_AGAIN_S: Final = 0.2


class UnfinishedError(Exception):
    """A wait ended before its operation, which goes on in the cloud; the next run waits on."""


@dataclass(eq=False)
class Api:
    """The API that the environment names."""

    schema: Schema = field(default_factory=Schema.shared)
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _: KW_ONLY
    call_s: float = _CALL_S
    back_off_s: tuple[float, ...] = _BACK_OFF_S

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
        at: ServiceDescriptor | None = None,
    ) -> Any:
        """The answer of one unary call; `fields` is the request message.

        Sends again with the same idempotency key while that can help. `at` is the service whose
        host is asked, where that is another.
        """
        from nebius.aio.constant_channel import Constant
        from nebius.aio.idempotency import new_key
        from nebius.aio.request import Request
        from nebius.aio.route import Route
        from nebius.aio.service_error import RequestError
        from nebius.aio.token.options import OPTION_REPORT_ERROR
        from nebius.base.protos.dynamic import REGISTRY

        answer = self.schema.message(service.methods_by_name[method].output_type.full_name)
        there = at or service
        host = self.schema.api_service_name(there)
        route = Route(there.full_name, method, host, REGISTRY)
        channel = self._sdk if at is None else Constant(route, self._sdk)
        metadata = {"x-idempotency-key": key or new_key(), "x-resetmask": mask}
        headers = [(header, value) for header, value in metadata.items() if value is not None]
        for pause in (*self.back_off_s, None):
            sent: Any = Request(
                channel, service.full_name, method, fields, answer,
                metadata=headers, timeout=self.call_s, retries=1, route=route,
                # A rejected service account key fails at once, not after the whole timeout.
                auth_options={OPTION_REPORT_ERROR: "true"}, auth_timeout=self.call_s,
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

    def ask(self, service: ServiceDescriptor, method: str = "Get", **fields: Any) -> Any:
        """The answer of a call with these fields."""
        return self.call(service, method, self.request(service, method, **fields))

    def find(self, service: ServiceDescriptor, method: str = "Get", **fields: Any) -> Any | None:
        """The resource that a call asks for, or None where it is not there."""
        try:
            return self.ask(service, method, **fields)
        except ApiError as error:
            if error.is_not_found:
                return None
            raise

    @contextmanager
    def explained(self, what: str, absent: str = "check the id") -> Iterator[None]:
        """Refuses what the API refuses in the block; `absent`: what to do if nothing is there."""
        try:
            yield
        except UnfinishedError as error:
            raise ProviderError(f"{what}: {error}") from error
        except ApiError as error:
            told = explain(error, what, target=self.target, absent=absent)
            raise ProviderError(told) from error

    def request(self, service: ServiceDescriptor, method: str, **fields: Any) -> Any:
        """A new request message of a method."""
        name = service.methods_by_name[method].input_type.full_name
        return self.schema.message(name)(**fields)

    def pages(
        self, service: ServiceDescriptor, method: str = "List", **fields: Any
    ) -> Iterator[Any]:
        """Everything that a method lists, page by page."""
        page = ""
        while True:
            answer = self.ask(service, method, page_size=_PAGE, page_token=page, **fields)
            yield from getattr(answer, LISTS[method])
            page = answer.next_page_token
            if not page:
                return

    def wait(self, service: ServiceDescriptor, operation: Any, watch: Watch | None = None) -> Any:
        """The finished operation; ApiError where it failed, UnfinishedError where it goes on."""
        operation = self._finish(service, operation, watch)
        if operation.status.code:
            raise self._operation_error(operation, watch.cause if watch is not None else None)
        return operation

    def _finish(self, service: ServiceDescriptor, operation: Any, watch: Watch | None) -> Any:
        """The operation once it has ended, well or badly."""
        watch = watch or Watch("operation", "", self.schema, lambda line, passing=False: None)
        poll_s, heard_at = _FIRST_POLL_S, time.monotonic()
        while not operation.HasField("status"):
            if self._cancelled.wait(poll_s):
                raise UnfinishedError(
                    f"interrupted, operation {operation.id} goes on; run the command again"
                )
            if watch.is_over:
                cause = f"; first cause: {watch.cause}" if watch.cause else ""
                raise UnfinishedError(
                    f"operation {operation.id} runs since {watch.deadline_s / 60:g} min, the "
                    f"limit for its kind{cause}; it goes on, and the next `pulumi up` waits on "
                    "instead of starting again"
                )
            poll_s = min(poll_s * _POLL_GROWTH, _LAST_POLL_S)
            try:
                operation = self.operation(service, operation.id)
                watch.poll(operation)
                heard_at = time.monotonic()
            except ApiError as error:
                # What is made must not be lost, or made twice, because one question failed.
                if not error.retriable or time.monotonic() - heard_at > _AWAY_S:
                    reason = explain(error, f"operation {operation.id}", target=self.target)
                    raise UnfinishedError(f"{reason}; it goes on: run the command again") from error
                watch.away(error.message)
        watch.finish(operation)
        return operation

    def pause(self, seconds: float) -> None:
        """Waits, and ends early when the user interrupts."""
        self._cancelled.wait(seconds)

    def operation(self, service: ServiceDescriptor, id_: str) -> Any:
        """An operation as it is now."""
        operations = self.schema.services[f"{OPERATION}Service"]
        # It is asked for at the host of the service that made it.
        request = self.request(operations, "Get", id=id_)
        return self.call(operations, "Get", request, at=service)

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
                # The API may go on naming one that has ended.
                if (watch and watch.is_over) or self._cancelled.wait(_AGAIN_S):
                    raise

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
        made_token=sdk.given_token() is None,
    )
