"""Refusals of the emulated API, as the codes and details that the real one documents.

Planted faults: `faults.json` in the state folder, read before each call; `soperator local fault`
writes it, anyone may. A list of objects: `method` (regular expression on the full method name),
`code` (gRPC code, KILL, which ends the process as kill -9 does, or SLOW, which holds the call back
for `seconds` or until all faults are removed), and optionally `skip` (matching calls that pass
first, default 0), `times` (default 1; both are counted down in the file), `when` (`before` the
call, `after` it committed, so that the answer is lost, or inside the `operation`), `message`,
`error` (ServiceError code), `retry` (CALL, UNIT_OF_WORK, NOTHING, UNSPECIFIED), `details`.
`when: event` shows the error as an event of clusters and node groups while they are being changed,
every time; `method` is searched in their ids then, such as mk8snodegroup-e00abc.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Literal

import grpc

from infra import files

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


_REFUSALS: Final = {
    "bad_request": (Code.INVALID_ARGUMENT, "BadRequest", "NOTHING"),
    "resource_not_found": (Code.NOT_FOUND, "ResourceNotFound", "NOTHING"),
    "resource_already_exists": (Code.ALREADY_EXISTS, "ResourceAlreadyExists", "NOTHING"),
    "bad_resource_state": (Code.FAILED_PRECONDITION, "BadResourceState", "NOTHING"),
    "operation_conflict": (Code.ABORTED, "OperationConflict", "UNIT_OF_WORK"),
    "resource_conflict": (Code.ABORTED, "ResourceConflict", "UNIT_OF_WORK"),
    "quota_failure": (Code.RESOURCE_EXHAUSTED, "QuotaFailure", "NOTHING"),
}
"""ServiceError.details -> gRPC code, ServiceError.code and ServiceError.RetryType."""


def refusal(kind: str, message: str, /, **detail: Any) -> ApiError:
    """A refusal with the details of its kind."""
    code, name, retry = _REFUSALS[kind]
    return ApiError(code, message, name, retry=retry, **{kind: detail})


def bad_request(violations: Iterable[tuple[str, str]]) -> ApiError:
    """A request that no state of the cloud could accept; violations are (path, reason)."""
    found = [{"field": path, "message": reason} for path, reason in violations]
    text = "; ".join(f"{one['field']}: {one['message']}" for one in found)
    return refusal("bad_request", text, violations=found)


def not_found(message: str, resource_id: str) -> ApiError:
    """A resource that is not there."""
    return refusal("resource_not_found", message, resource_id=resource_id)


def bad_state(message: str, resource_id: str) -> ApiError:
    """A request that the resource's state forbids now."""
    return refusal("bad_resource_state", message, resource_id=resource_id, message=message)


def unauthenticated(message: str) -> ApiError:
    """A missing or wrong token."""
    return ApiError(Code.UNAUTHENTICATED, message, "Unauthenticated")


def unimplemented(what: str) -> ApiError:
    """A call that the emulator does not serve."""
    return ApiError(Code.UNIMPLEMENTED, f"emulator: no rule for {what}", "Unimplemented")


When = Literal["before", "after", "operation", "event"]
_KILL: Final = "KILL"
_SLOW: Final = "SLOW"
_NONE: Final = "[]"
_POLL_S: Final = 0.02


def _error(fault: Mapping[str, Any]) -> ApiError:
    return ApiError(
        Code[fault["code"]],
        fault.get("message", f"injected {fault['code']}"),
        fault.get("error", "Injected"),
        retry=fault.get("retry", "UNSPECIFIED"),
        **fault.get("details", {}),
    )


class Faults:
    """The faults that are still to come."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "faults.json"

    def alone(self) -> AbstractContextManager[None]:
        """No other process changes them in the block: it would write over what it did not read."""
        lock = self._file.with_suffix(".lock")
        return files.alone(lock, AssertionError("waits"), lambda _holder: None)

    def plant(self, faults: list[dict[str, Any]]) -> None:
        """Replaces all planted faults."""
        files.write(self._file, json.dumps(faults, indent=1))

    def pending(self) -> list[dict[str, Any]]:
        """Every planted fault with times left."""
        try:
            faults = json.loads(self._file.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return []
        return [fault for fault in faults if fault.get("times", 1) > 0]

    def take(
        self, method: str, when: When, commit: Callable[[], None] = lambda: None
    ) -> ApiError | None:
        """The fault planted for this moment of the call, counted down; None mostly.

        `commit` makes permanent what the call changed so far, before a KILL.
        """
        fault = self._next(method, when, slow=False)
        if fault is None:
            return None
        if fault["code"] == _KILL:
            commit()
            os.kill(os.getpid(), signal.SIGKILL)
        return _error(fault)

    def events(self, resource_id: str) -> list[ApiError]:
        """Errors planted as events of a resource, in their order."""
        found = (one for one in self.pending() if one.get("when") == "event")
        return [_error(one) for one in found if re.search(one["method"], resource_id)]

    def delay_s(self, method: str, when: When) -> float | None:
        """How long a fault, counted down, has this moment of the call last; None mostly."""
        fault = self._next(method, when, slow=True)
        return None if fault is None else float(fault["seconds"])

    async def hold(self, method: str, when: When) -> None:
        """Holds this moment of the call back, where a fault says so and until it is removed."""
        until = time.monotonic() + (self.delay_s(method, when) or 0)
        while time.monotonic() < until and self._file.read_text() != _NONE:
            await asyncio.sleep(_POLL_S)

    def _next(self, method: str, when: When, *, slow: bool) -> dict[str, Any] | None:
        def fits(fault: Mapping[str, Any]) -> bool:
            is_due = (fault["code"] == _SLOW) is slow and fault.get("when", "before") == when
            return is_due and re.search(fault["method"], method) is not None

        # The lock takes longer than the call; the file is replaced whole, so anyone may read it.
        if not any(map(fits, self.pending())):
            return None
        with self.alone():
            faults = self.pending()
            for fault in filter(fits, faults):
                passes = fault.get("skip", 0) > 0
                counter = "skip" if passes else "times"
                fault[counter] = fault.get(counter, 1) - 1
                self.plant(faults)
                if not passes:
                    return fault
        return None
