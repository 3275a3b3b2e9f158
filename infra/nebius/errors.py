"""What the API refused, as one line that a person can act on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from infra.nebius.schema import Schema

_LIMITS: Final = (
    "raise it in the console under Administration, Limits (docs.nebius.com/overview/limits)"
)
_EMULATOR: Final = "start it with `soperator local up` or `soperator env --offline`"
GONE: Final = "check the id, or run `pulumi refresh` if it was deleted outside Pulumi"
"""Advice where the state of a stack names the id."""
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
        return f"{what}: the token is not accepted ({failure.message}); {advice}"
    told = "; ".join(tell(kind, value) for kind, value in failure.reasons) or failure.message
    return f"{what}: {_finish(failure, told, absent)}"


def _finish(failure: ApiError, told: str, absent: str) -> str:
    match failure.code:
        case "NOT_FOUND":
            advice = absent
        case "ALREADY_EXISTS":
            advice = "rename this one, delete the other, or take it over with `pulumi import`"
        case "PERMISSION_DENIED":
            advice = "ask an administrator of the project for the role `editor`"
        case "ABORTED":
            advice = "another change is running; run the same command again when it has finished"
        case "INTERNAL" | "UNKNOWN":
            advice = "run the same command again; if it stays, give support the request id"
        case _:
            advice = ""
    request = f" (request {failure.request_id})" if failure.request_id else ""
    return f"{told}; {advice}{request}" if advice else told


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
            return _join(_quota(one) for one in value.violations)
        case "not_enough_resources":
            wanted = _join(f"{v.resource_type}: {v.message}" for v in value.violations)
            return f"Nebius has no capacity now ({wanted}); try another region or fabric, or later"
        case "bad_request":
            return _join(f"{v.field}: {v.message}" for v in value.violations)
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


def _join(parts: Iterable[str]) -> str:
    return "; ".join(parts)


def _quota(violation: Any) -> str:
    name = violation.quota
    limit, wanted = _amount(name, violation.limit), _amount(name, violation.requested)
    return (
        f"quota {name}: {wanted} wanted in all, limit {limit}; lower what is declared or {_LIMITS}"
    )


def _amount(quota: str, text: str) -> str:
    """`5120 GiB` for a size in bytes, the number as it is otherwise."""
    if ".size." in quota and text.isdigit():
        return f"{int(text) / _GIB:g} GiB"
    return text
