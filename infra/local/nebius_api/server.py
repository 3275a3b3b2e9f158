"""gRPC front of the emulator: one handler looks every call up by its path."""

from __future__ import annotations

import uuid
from typing import Any

import grpc
import grpc.aio

from infra.local.nebius_api.changes import rpc_status
from infra.local.nebius_api.emulator import Emulator
from infra.local.nebius_api.errors import ApiError


def _serialize(answer: Any) -> bytes:
    return answer.SerializeToString()


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
            response_serializer=_serialize,
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
