"""Long-running operations: started with a due time, finished when the clock passes it."""

from __future__ import annotations

import uuid
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor

from infra.local.nebius_api.errors import ApiError, operation_conflict
from infra.local.nebius_api.states import set_state
from infra.local.nebius_api.store import Operation, Store
from infra.nebius.schema import OPERATION, Schema

_TICKS = 100


class Operations:
    """Operations over the resources of one store; times are seconds since the epoch."""

    def __init__(self, schema: Schema, store: Store, latency_s: float) -> None:
        self._schema = schema
        self._store = store
        self._latency_s = latency_s

    def timestamp(self, seconds: float) -> Any:
        """A google.protobuf.Timestamp."""
        stamp: Any = self._schema.message("google.protobuf.Timestamp")()
        stamp.FromNanoseconds(int(seconds * 1e9))
        return stamp

    def start(
        self,
        method: MethodDescriptor,
        request: Any,
        resource_id: str,
        *,
        metadata: dict[str, str],
        fault: ApiError | None,
        longer_s: float = 0.0,
        now: float,
    ) -> Any:
        """A new operation's message; it ends after the latency, with the fault if there is one."""
        package = method.containing_service.full_name.split(".")[1]
        message: Any = self._schema.message(OPERATION)(
            id=f"{package}operation-e00{uuid.uuid4().hex[:16]}",
            description=f"{method.name} {resource_id}",
            created_by=metadata.get("subject", ""),
            resource_id=resource_id,
        )
        message.created_at.CopyFrom(self.timestamp(now))
        message.request.Pack(request)
        if mask := metadata.get("x-resetmask"):
            message.request_headers["x-resetmask"].values.append(mask)
        tracker = message.progress_tracker
        tracker.description = message.description
        tracker.started_at.CopyFrom(message.created_at)
        tracker.work_done.total_tick_count = _TICKS
        failure = None if fault is None else rpc_status(self._schema, fault)
        due = now + self._latency_s + longer_s
        started = Operation(message, method.name, now, due, failure=failure)
        self._store.put_operation(started)
        self.tick(now)
        return message

    def tick(self, now: float) -> None:
        """Finishes every operation that is due, and moves its resource to its new state."""
        for operation in list(self._store.operations.values()):
            if not operation.done and now >= operation.due:
                self._finish(operation)

    def _finish(self, operation: Operation) -> None:
        message = operation.message
        operation.done = True
        message.finished_at.CopyFrom(self.timestamp(operation.due))
        message.status.SetInParent()  # an empty google.rpc.Status means success
        if operation.failure is not None:
            message.status.CopyFrom(operation.failure)
        tracker = message.progress_tracker
        tracker.finished_at.CopyFrom(message.finished_at)
        tracker.work_done.done_tick_count = _TICKS
        self._store.put_operation(operation)
        resource = self._store.resources.get(message.resource_id)
        if resource is None:
            return
        if operation.verb == "Delete" and operation.failure is None:
            self._store.drop(message.resource_id)
            return
        failed = operation.verb.startswith("Create") and operation.failure is not None
        set_state(self._schema, resource, "error" if failed else "ready")
        self._store.put(resource)

    def running_on(self, resource_id: str) -> Operation | None:
        """The operation that still changes this resource."""
        for operation in self._store.operations.values():
            if not operation.done and operation.message.resource_id == resource_id:
                return operation
        return None

    def check_idle(self, resource_id: str) -> None:
        """Refuses a change while another one still runs."""
        if running := self.running_on(resource_id):
            raise operation_conflict(running.message.id, resource_id)

    def view(self, operation: Operation, now: float) -> Any:
        """The operation's message with its progress at this moment."""
        if not operation.done:
            span = max(1e-6, operation.due - operation.started)
            done = min(1.0, (now - operation.started) / span)
            operation.message.progress_tracker.work_done.done_tick_count = int(_TICKS * done)
        return operation.message


def rpc_status(schema: Schema, error: ApiError) -> Any:
    """google.rpc.Status with a nebius.common.v1.ServiceError inside."""
    status: Any = schema.message("google.rpc.Status")(
        code=error.code.value[0], message=error.message
    )
    detail: Any = schema.message("nebius.common.v1.ServiceError")(
        service="emulator", code=error.name
    )
    kinds = detail.DESCRIPTOR.enum_types_by_name["RetryType"]
    detail.retry_type = kinds.values_by_name[error.retry].number
    json_format.ParseDict(error.details, detail)
    status.details.add().Pack(detail)
    return status
