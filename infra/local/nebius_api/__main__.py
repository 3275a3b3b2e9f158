"""The emulated Nebius API, a process of its own: one rule for each shape of method.

    python -m infra.local.nebius_api --state DIR --port P [--latency S]
        [--kube-endpoint URL --kube-ca FILE] [--object-storage HOST:PORT] [--anywhere]

Prints one line when it is ready. Writes into DIR only, apart from the descriptors in the cache.
Listens on 127.0.0.1 only.

What would be written for each service of the SDK is read from the descriptors
(infra/providers/nebius/schema.py); what they do not state is in changes.py, states.py and hooks.py.
Real servers may differ: see docs/unverified.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import methodcaller
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, MethodDescriptor

from infra.local.nebius_api import changes, errors
from infra.local.nebius_api.changes import rpc_status
from infra.local.nebius_api.errors import ApiError
from infra.local.nebius_api.hooks import HOOKS, UNAUTHENTICATED_METHODS, Call
from infra.local.nebius_api.states import Store, plant_project, seed, used_in
from infra.providers.nebius.schema import OPERATIONS, Schema, is_resource
from infra.providers.nebius.sdk import TOKEN_VARIABLE

_OPERATION_SERVICES = tuple(f"{name}Service" for name in OPERATIONS)


_KUBE_ENDPOINT = "https://127.0.0.1:6443"


@dataclass
class Emulator:
    """One Nebius API over one state folder."""

    folder: Path
    latency_s: float = 0.3
    kube_endpoint: str = _KUBE_ENDPOINT
    """Where the Kubernetes API server of every cluster answers."""
    kube_ca: Path | None = None
    """PEM file of it, read at each Get: it may appear after the emulator started."""
    object_storage: str | None = None
    """Host and port where every bucket answers; None names the cloud's own."""
    token: str = field(
        default_factory=lambda: os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe()
    )
    """Lets the owner in; without one in the environment nobody."""
    anywhere: bool = False
    """For previews: every project is there, in any region, without limits."""
    clock: Callable[[], float] = time.time
    calls: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=10_000))
    """The last calls, for tests: method, key, mask and code."""

    def __post_init__(self) -> None:
        self.schema = Schema.shared()
        self.store = Store(self.folder, self.schema)
        self.faults = errors.Faults(self.folder)
        self._operations = changes.Operations(self.store, self.latency_s)
        self._changes = changes.Changes(self.store, self._operations, self.clock)
        seed(self.store, self.token, anywhere=self.anywhere)

    def call(self, method: MethodDescriptor, request: Any, metadata: dict[str, str]) -> Any:
        """The answer to one call; everything it changed is on disk when it returns."""
        name = f"{method.containing_service.full_name}/{method.name}"
        record = {"method": name, "key": metadata.get("x-idempotency-key"), "code": "OK"}
        record["mask"] = metadata.get("x-resetmask")
        self.calls.append(record)
        try:
            if fault := self.faults.take(method.full_name, "before"):
                raise fault
            if name not in UNAUTHENTICATED_METHODS:
                metadata["subject"] = self._subject(metadata)
            if self.anywhere:
                self._plant(request)
            self._operations.tick(self.clock())
            answer = self._dispatch(name, method, request, metadata)
            if fault := self.faults.take(method.full_name, "after", self.store.commit):
                raise fault
        except errors.ApiError as error:
            record["code"] = error.code.name
            raise
        finally:
            self.store.commit()
        return answer

    def _subject(self, metadata: dict[str, str]) -> str:
        token = metadata.get("authorization", "").removeprefix("Bearer ")
        if token not in self.store.tokens:
            raise errors.unauthenticated("invalid or missing token")
        return self.store.tokens[token]

    def _plant(self, request: Any) -> None:
        """Makes the project that a request asks for."""
        for name in ("id", "parent_id"):
            id_ = str(getattr(request, name, ""))
            if id_.startswith("project-") and id_ not in self.store.resources:
                tenant = f"tenant-{id_.removeprefix('project-')}"
                plant_project(self.store, tenant, id_, anywhere=True)

    def _dispatch(
        self, name: str, method: MethodDescriptor, request: Any, metadata: dict[str, str]
    ) -> Any:
        if hook := HOOKS.get(name):
            if hasattr(request, "id"):
                self._changes.get(request.id)
            subject = metadata.get("subject", "")
            call = Call(self.schema, self.store, method, request, subject, self.clock())
            return hook(call)
        if method.containing_service.full_name in _OPERATION_SERVICES:
            return self._operation_service(method, request)
        if method.output_type.full_name in OPERATIONS:
            return self._mutate(name, method, request, metadata)
        if is_resource(method.output_type):
            return self._read(method, request)
        if method.name.startswith("List"):
            return self._list(method, request)
        raise errors.unimplemented(name)

    # Reads

    def _read(self, method: MethodDescriptor, request: Any) -> Any:
        kind = self.schema.kind(method.output_type)
        if hasattr(request, "id"):
            resource = self._changes.get(request.id)
            if self.schema.kind(resource.DESCRIPTOR) != kind:
                raise errors.not_found(f"{request.id} is no {kind}", request.id)
        else:
            found = changes.select(self.store, request, method.output_type)
            if not found:
                raise errors.not_found(f"{kind} not found", getattr(request, "name", ""))
            resource = found[0]
        return self._view(resource, method.output_type)

    def _list(self, method: MethodDescriptor, request: Any) -> Any:
        listed = next((f for f in method.output_type.fields if f.is_repeated), None)
        if listed is None or listed.message_type is None:
            raise errors.unimplemented(method.full_name)
        if listed.message_type.full_name in OPERATIONS:
            items = self._list_operations(request)
        elif is_resource(listed.message_type):
            found = changes.select(self.store, request, listed.message_type)
            if self.anywhere and not found and listed.message_type.name == "CapacityBlockGroup":
                # None would say that a declared one does not exist.
                raise errors.unimplemented("a preview without an account: capacity blocks")
            items = [self._view(resource, listed.message_type) for resource in found]
        else:
            raise errors.unimplemented(method.full_name)
        response = self.schema.message(method.output_type.full_name)()
        return changes.fill_page(request, response, listed.name, items)

    def _view(self, resource: Any, wanted: Descriptor) -> Any:
        """The resource as this moment and this API version show it (iam has two)."""
        kind = self.schema.kind(resource.DESCRIPTOR)
        if kind == "quotaallowance":
            used = used_in(self.store, resource.metadata.parent_id)
            resource.status.usage = used[resource.metadata.name]
            share = resource.status.usage / max(1, resource.spec.limit)
            resource.status.usage_percentage = f"{share:.2f}"
        if kind == "mk8scluster" and not resource.status.reconciling:
            plane = resource.status.control_plane
            if resource.spec.control_plane.endpoints.HasField("public_endpoint"):
                plane.endpoints.public_endpoint = self.kube_endpoint
            if self.kube_ca is not None and self.kube_ca.exists():
                plane.auth.cluster_ca_certificate = self.kube_ca.read_text()
        if kind == "storagebucket" and self.object_storage is not None:
            resource.status.domain_name = self.object_storage
        if kind in ("mk8scluster", "mk8snodegroup"):
            self._fill_events(resource)
        return changes.as_type(self.schema, resource, wanted)

    def _fill_events(self, resource: Any) -> None:
        """What is planted, while the resource is being changed."""
        resource.status.ClearField("events")
        if not resource.status.reconciling:
            return
        for planted in self.faults.events(resource.metadata.id):
            event = resource.status.events.add(occurrence_count=1)
            event.first_occurred_at.CopyFrom(resource.metadata.updated_at)
            last = event.last_occurrence
            last.occurred_at.CopyFrom(resource.metadata.updated_at)
            known = {"level": "ERROR", "code": planted.name, "message": planted.message}
            json_format.ParseDict(known, last)
            last.error.CopyFrom(changes.rpc_status(self.schema, planted))

    def _operation_service(self, method: MethodDescriptor, request: Any) -> Any:
        if method.name == "List":
            return self._list(method, request)
        operation = self.store.operations.get(request.id)
        if operation is None:
            raise errors.not_found(f"operation {request.id!r} not found", request.id)
        return self._as_operation(method, self._operations.view(operation, self.clock()))

    def _list_operations(self, request: Any) -> list[Any]:
        wanted = getattr(request, "resource_id", "") or getattr(request, "parent_id", "")
        found = []
        for operation in self.store.operations.values():
            target = operation.message.resource_id
            resource = self.store.resources.get(target)
            parent = resource.metadata.parent_id if resource is not None else ""
            if wanted in ("", target, parent):
                found.append(self._operations.view(operation, self.clock()))
        return found

    # Changes

    def _mutate(
        self, name: str, method: MethodDescriptor, request: Any, metadata: dict[str, str]
    ) -> Any:
        key = metadata.get("x-idempotency-key")
        if key and (known := self.store.remembered(name, key, self.clock())):
            message = self._operations.view(known, self.clock())
            return self._as_operation(method, message)
        resource = self.schema.resource_of(method.containing_service)
        if resource is not None and method.name.startswith("Create"):
            resource_id = self._changes.create(request, resource)
        elif resource is not None and method.name == "Update":
            resource_id = self._changes.update(request, resource, metadata)
        elif method.name == "Delete" and hasattr(request, "id"):
            resource_id = self._changes.delete(request.id)
        elif hasattr(request, "id"):
            # Start, Activate and the like: an operation that changes nothing.
            resource_id = self._changes.get(request.id).metadata.id
        else:
            raise errors.unimplemented(name)
        message = self._operations.start(
            method,
            request,
            resource_id,
            metadata=metadata,
            fault=self.faults.take(method.full_name, "operation"),
            lasts_s=self.faults.delay_s(method.full_name, "operation"),
            now=self.clock(),
        )
        if key:
            self.store.remember(name, key, message.id, self.clock())
        return self._as_operation(method, message)

    def _as_operation(self, method: MethodDescriptor, message: Any) -> Any:
        """The operation as this API version answers it; both versions have one wire form."""
        other = self.schema.message(method.output_type.full_name)
        return other.FromString(message.SerializeToString())


class Server(grpc.GenericRpcHandler):
    """Serves an emulator on a loopback port; unary calls only."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._schema = emulator.schema

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The handler of one call; None answers UNIMPLEMENTED."""
        method = self._schema.methods.get(handler_call_details.method)
        if method is None or method.client_streaming or method.server_streaming:
            return None

        # grpc.aio looks at the function itself: it must be a coroutine function, no lambda.
        async def serve(request: Any, context: grpc.aio.ServicerContext) -> Any:
            return await self._serve(method, request, context)

        return grpc.unary_unary_rpc_method_handler(
            serve,
            request_deserializer=self._schema.message(method.input_type.full_name).FromString,
            response_serializer=methodcaller("SerializeToString"),
        )

    async def _serve(self, method: Any, request: Any, context: Any) -> Any:
        metadata = {key.lower(): value for key, value in context.invocation_metadata()}
        ids = (("x-request-id", str(uuid.uuid4())), ("x-trace-id", uuid.uuid4().hex))
        await context.send_initial_metadata(ids)
        faults = self._emulator.faults
        await faults.hold(method.full_name, "before")
        try:
            answer = self._emulator.call(method, request, metadata)
            await faults.hold(method.full_name, "after")
            return answer
        except ApiError as error:
            status = rpc_status(self._schema, error).SerializeToString()
            context.set_trailing_metadata((("grpc-status-details-bin", status),))
            await context.abort(error.code, error.message)

    async def start(self, port: int) -> tuple[grpc.aio.Server, int]:
        """A started server on 127.0.0.1 and its port; 0 takes a free one."""
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((self,))
        try:
            bound = server.add_insecure_port(f"127.0.0.1:{port}")
        except RuntimeError as error:
            raise OSError(f"port {port} of 127.0.0.1 is in use; choose another") from error
        await server.start()
        return server, bound


def main() -> int:
    """Serves until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m infra.local.nebius_api")
    parser.add_argument("--state", type=Path, required=True, metavar="DIR")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--latency", type=float, default=0.3, help="seconds of each operation")
    endpoint = os.environ.get("SOPERATOR_LOCAL_KUBE_ENDPOINT", _KUBE_ENDPOINT)
    parser.add_argument("--kube-endpoint", default=endpoint, metavar="URL")
    ca_file = os.environ.get("SOPERATOR_LOCAL_KUBE_CA_FILE")
    parser.add_argument("--kube-ca", default=ca_file, metavar="FILE")
    storage = os.environ.get("SOPERATOR_LOCAL_OBJECT_STORAGE")
    parser.add_argument("--object-storage", default=storage, metavar="HOST:PORT")
    parser.add_argument("--anywhere", action="store_true", help="every project, no limits")
    options = parser.parse_args()
    emulator = Emulator(
        folder=options.state,
        latency_s=options.latency,
        kube_endpoint=options.kube_endpoint,
        kube_ca=None if options.kube_ca is None else Path(options.kube_ca),
        object_storage=options.object_storage,
        anywhere=options.anywhere,
    )
    try:
        asyncio.run(_serve(emulator, options.port))
    except OSError as error:
        print(f"nebius api: {error}", file=sys.stderr)
        return 1
    finally:
        emulator.store.close()
    return 0


async def _serve(emulator: Emulator, port: int) -> None:
    server, bound = await Server(emulator).start(port)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    services = len(emulator.schema.services)
    print(f"nebius api ready on http://127.0.0.1:{bound}, {services} services", flush=True)
    await stopped.wait()
    await server.stop(grace=1)


if __name__ == "__main__":
    sys.exit(main())
