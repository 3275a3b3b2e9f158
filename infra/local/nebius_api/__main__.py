"""Runs the emulated Nebius API as a process of its own, until it is told to stop.

    python -m infra.local.nebius_api --state DIR --port P [--latency S]
        [--kube-endpoint URL --kube-ca FILE] [--object-storage HOST:PORT] [--anywhere]

Prints one line when it is ready. Writes into DIR only, apart from the descriptor cache in
$SOPERATOR_CACHE (DIR where that is not set). Listens on 127.0.0.1 only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import uuid
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from infra.local.nebius_api.changes import rpc_status
from infra.local.nebius_api.emulator import Emulator, KubeAccess
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


def main() -> int:
    """Serves until SIGTERM or SIGINT."""
    options = _parser().parse_args()
    ca_file = options.kube_ca
    emulator = Emulator(
        folder=options.state,
        cache_dir=Path(os.environ.get("SOPERATOR_CACHE") or options.state),
        latency_s=options.latency,
        kube=KubeAccess(options.kube_endpoint, None if ca_file is None else Path(ca_file)),
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra.local.nebius_api")
    parser.add_argument("--state", type=Path, required=True, metavar="DIR")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--latency", type=float, default=0.3, help="seconds of each operation")
    endpoint = os.environ.get("SOPERATOR_LOCAL_KUBE_ENDPOINT", KubeAccess.endpoint)
    parser.add_argument("--kube-endpoint", default=endpoint, metavar="URL")
    ca_file = os.environ.get("SOPERATOR_LOCAL_KUBE_CA_FILE")
    parser.add_argument("--kube-ca", default=ca_file, metavar="FILE")
    storage = os.environ.get("SOPERATOR_LOCAL_OBJECT_STORAGE")
    parser.add_argument("--object-storage", default=storage, metavar="HOST:PORT")
    parser.add_argument("--anywhere", action="store_true", help="every project, no limits")
    return parser


if __name__ == "__main__":
    sys.exit(main())
