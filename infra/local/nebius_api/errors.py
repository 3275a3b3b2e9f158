"""Refusals of the emulated API, as the codes and details that the real one documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc

Code = grpc.StatusCode


class ApiError(Exception):
    """One refusal: gRPC code, message, and nebius.common.v1.ServiceError details."""

    def __init__(
        self, code: Code, message: str, name: str, *, retry: str = "NOTHING", **details: Any
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.name = name
        """ServiceError.code, such as QuotaFailure."""
        self.retry = retry
        """ServiceError.RetryType: CALL, UNIT_OF_WORK, NOTHING or UNSPECIFIED."""
        self.details = details


def bad_request(violations: Iterable[tuple[str, str]]) -> ApiError:
    """A request that no state of the cloud could accept; violations are (path, reason)."""
    found = [{"field": path, "message": reason} for path, reason in violations]
    text = "; ".join(f"{one['field']}: {one['message']}" for one in found)
    return ApiError(Code.INVALID_ARGUMENT, text, "BadRequest", bad_request={"violations": found})


def not_found(what: str, resource_id: str) -> ApiError:
    """A resource that is not there."""
    return ApiError(
        Code.NOT_FOUND, what, "ResourceNotFound", resource_not_found={"resource_id": resource_id}
    )


def already_exists(what: str, resource_id: str) -> ApiError:
    """A second resource of the same name."""
    return ApiError(
        Code.ALREADY_EXISTS,
        f"{what} already exists",
        "ResourceAlreadyExists",
        resource_already_exists={"resource_id": resource_id},
    )


def bad_state(resource_id: str, message: str) -> ApiError:
    """A request that the resource's state forbids now."""
    return ApiError(
        Code.FAILED_PRECONDITION,
        message,
        "BadResourceState",
        bad_resource_state={"resource_id": resource_id, "message": message},
    )


def operation_conflict(operation_id: str, resource_id: str) -> ApiError:
    """A change while another one still runs."""
    return ApiError(
        Code.ABORTED,
        f"operation {operation_id} is running on {resource_id}",
        "OperationConflict",
        retry="UNIT_OF_WORK",
        operation_conflict={
            "conflicting_operation_id": operation_id,
            "resource_id": resource_id,
        },
    )


def version_conflict(resource_id: str, expected: int, got: int) -> ApiError:
    """An update of a version that is no longer the current one."""
    message = f"resource_version of {resource_id} is {expected}, got {got}"
    return ApiError(
        Code.ABORTED,
        message,
        "ResourceConflict",
        retry="UNIT_OF_WORK",
        resource_conflict={"resource_id": resource_id, "message": message},
    )


def quota_failure(violations: list[dict[str, str]]) -> ApiError:
    """A request above a quota; violations are {quota, limit, requested, message}."""
    return ApiError(
        Code.RESOURCE_EXHAUSTED,
        "Quota limit exceeded",
        "QuotaFailure",
        quota_failure={"violations": violations},
    )


def unauthenticated(message: str) -> ApiError:
    """A missing or wrong token."""
    return ApiError(Code.UNAUTHENTICATED, message, "Unauthenticated")


def unimplemented(what: str) -> ApiError:
    """A call that the emulator does not serve."""
    return ApiError(Code.UNIMPLEMENTED, f"emulator: no rule for {what}", "Unimplemented")
