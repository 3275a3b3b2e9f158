"""The gRPC contract of the engine over one Provider, or several by type: one thread a call.

Reads and writes the engine's wire values, so that a Provider sees plain ones.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf import any_pb2, empty_pb2, message
from google.rpc import status_pb2
from pulumi.runtime.proto import plugin_pb2, provider_pb2_grpc
from pulumi.runtime.proto import provider_pb2 as pb

from infra.providers.engine.provider import (
    Diff,
    EngineLog,
    PartialError,
    Provider,
    ProviderError,
    compare,
    conceal,
    first_keys,
    marshal,
    reveal,
    unmarshal,
)
from infra.state import ESTABLISHED, tcp_ends, tcp_sockets, told_owner
from stacks.errors import UserError, visible


def exit_with_parent() -> None:
    """Watches, in the background, for the death of this process's parent, even by SIGKILL.

    Call it first: a parent that died before cannot be told from any other.
    Not prctl(PR_SET_PDEATHSIG): that fires when the parent's *thread* ends, and the engine is a Go
    program whose threads come and go.
    """
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


class OwnerOnly(grpc.ServerInterceptor):
    """Refuses every call of another user of this machine.

    The engine gives its plugins no secret to ask for, and what they do they do with its rights: so
    the kernel is asked whose the caller's socket is.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.port = 0
        """Where the server listens, once it does."""

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """The method behind the check; None where there is no such method."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
        return handler._replace(
            **{kind: self._checked(call) for kind in kinds if (call := getattr(handler, kind))}
        )

    def _checked(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def checked(request: Any, context: grpc.ServicerContext) -> Any:
            owner = os.geteuid()
            if (uid := _uid_of(context.peer(), self.port)) not in (owner, 0):
                context.abort(
                    grpc.StatusCode.PERMISSION_DENIED,
                    f"{self._name}: asked by {'nobody known' if uid is None else f'uid {uid}'}; "
                    f"it answers uid {owner}, which started it; run pulumi as that user",
                )
            return call(request, context)

        return checked


def _uid_of(peer: str, port: int) -> int | None:
    """Who holds the other end of a connection to our port of 127.0.0.1, as gRPC names it."""
    try:
        host, peer_port = unquote(peer).replace("]", "").split(":")[-2:]
        theirs, ours = tcp_ends(host, int(peer_port)), tcp_ends(_HOST, port)
    except (OSError, ValueError):  # no address of IPv4: none that can reach us
        return None
    if (uid := told_owner(int(peer_port), port)) is not None:
        return uid
    for own, far, uid in tcp_sockets(ESTABLISHED):
        if own.endswith(theirs) and far.endswith(ours):
            return uid
    return None


_HOST: Final = "127.0.0.1"
_MAX_MESSAGE_BYTES: Final = 400 << 20
"""The engine's own limit: sdk/go/common/util/rpcutil."""
_MAX_CALLS: Final = 64
"""Calls served at once; the engine runs at most 4 per CPU by default."""
_log = logging.getLogger(__name__)


def serve(provider: Provider, name: str, version: str) -> None:
    """Serves the provider on a loopback port, prints the port, and ends with the engine."""
    exit_with_parent()
    verbose = any(argument.startswith(("-v=", "--v=")) for argument in sys.argv[1:])
    logging.basicConfig(level=logging.DEBUG if verbose else logging.WARNING, stream=sys.stderr)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    addresses = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    provider.engine = EngineLog(addresses[0] if addresses else "")
    server, port = start(provider, name, version)
    print(port, flush=True)
    server.wait_for_termination()


def start(provider: Provider, name: str, version: str) -> tuple[grpc.Server, int]:
    """A started server on 127.0.0.1 and its port; for `serve` and for tests."""
    servicer = _Servicer(provider, name, version)
    add = provider_pb2_grpc.add_ResourceProviderServicer_to_server
    return listen(f"plugin {name}", lambda server: add(servicer, server))


def listen(name: str, add: Callable[[grpc.Server], object]) -> tuple[grpc.Server, int]:
    """A started server of what `add` puts on it, for this user alone, and its loopback port."""
    guard = OwnerOnly(name)
    server = grpc.server(
        futures.ThreadPoolExecutor(max_workers=_MAX_CALLS, thread_name_prefix=name),
        interceptors=[guard],
        options=[
            ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
            ("grpc.so_reuseport", 0),
        ],
    )
    add(server)
    guard.port = server.add_insecure_port(f"{_HOST}:0")
    server.start()
    return server, guard.port


Response = TypeVar("Response", bound=message.Message)


def _in_one_line(method: Callable[..., Response]) -> Callable[..., Response]:
    """The gRPC method with every exception turned into a status of one line."""

    def call(self: _Servicer, request: message.Message, context: grpc.ServicerContext) -> Response:
        try:
            return method(self, request, context)
        except PartialError as error:
            _log.debug("%s", error, exc_info=True)
            detail = pb.ErrorResourceInitFailed(
                id=error.id, properties=marshal(error.state), reasons=[_line(error)]
            )
            if isinstance(request, pb.CreateRequest):
                detail.inputs.CopyFrom(request.properties)
            elif isinstance(request, pb.UpdateRequest):
                detail.inputs.CopyFrom(request.news)
            _abort_with(context, _line(error), detail)
        except UserError as error:
            _log.debug("%s", error, exc_info=True)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, _line(error))
        except NotImplementedError:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "not supported by this plugin")
        except Exception as error:
            _log.debug("%s", error, exc_info=True)
            context.abort(grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {_line(error)}")
        raise AssertionError("abort always raises")

    call.__name__ = method.__name__
    return call


def _line(error: Exception) -> str:
    return visible(" ".join(str(error).split())) or "no message"


def _abort_with(context: grpc.ServicerContext, text: str, detail: message.Message) -> None:
    """Ends the call with a rich status: the engine finds `detail` in this trailing header."""
    packed = any_pb2.Any()
    packed.Pack(detail)
    code = grpc.StatusCode.UNKNOWN
    status = status_pb2.Status(code=code.value[0], message=text, details=[packed])
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, text)


class _Servicer(provider_pb2_grpc.ResourceProviderServicer):
    """The engine's ResourceProvider service over one Provider."""

    def __init__(self, provider: Provider, name: str, version: str) -> None:
        self._provider = provider
        self._name = name
        self._version = version

    def _of(self, request: Any) -> Provider:
        # Engines before 3.131 sent the type token only inside the URN.
        return self._provider.of(request.type or request.urn.split("::")[2].split("$")[-1])

    def Handshake(self, request, context):
        return pb.ProviderHandshakeResponse(accept_secrets=True)

    def GetPluginInfo(self, request, context):
        return plugin_pb2.PluginInfo(version=self._version)

    def GetSchema(self, request, context):
        return pb.GetSchemaResponse(
            schema=json.dumps({"name": self._name, "version": self._version})
        )

    def CheckConfig(self, request, context):
        return pb.CheckResponse(inputs=request.news)

    @_in_one_line
    def DiffConfig(self, request, context):
        old, new = reveal(unmarshal(request.old_inputs)), reveal(unmarshal(request.news))
        return _diff_response(Diff(detailed=compare(old, new)))

    @_in_one_line
    def Configure(self, request, context):
        self._provider.configure(reveal(unmarshal(request.args)))
        return pb.ConfigureResponse(acceptSecrets=True, supportsPreview=True)

    @_in_one_line
    def Check(self, request, context):
        new = unmarshal(request.news)
        old = reveal(unmarshal(request.olds))
        inputs, failures = self._of(request).check(old, reveal(new))
        return pb.CheckResponse(
            inputs=marshal(conceal(inputs, new)),
            failures=[pb.CheckFailure(property=path, reason=why) for path, why in failures],
        )

    @_in_one_line
    def Diff(self, request, context):
        found = self._of(request).diff(
            request.id,
            reveal(unmarshal(request.old_inputs)),
            reveal(unmarshal(request.olds)),
            reveal(unmarshal(request.news)),
        )
        return _diff_response(found)

    @_in_one_line
    def Create(self, request, context):
        provider, inputs = self._of(request), unmarshal(request.properties)
        if request.preview:
            id_, state = "", provider.preview(request.urn, "", {}, reveal(inputs))
        else:
            id_, state = provider.create(request.urn, reveal(inputs))
        return pb.CreateResponse(id=id_, properties=marshal(conceal(state, inputs)))

    @_in_one_line
    def Update(self, request, context):
        provider = self._of(request)
        old_state, new = unmarshal(request.olds), unmarshal(request.news)
        act = provider.preview if request.preview else provider.update
        state = act(request.urn, request.id, reveal(old_state), reveal(new))
        return pb.UpdateResponse(properties=marshal(conceal(conceal(state, new), old_state)))

    @_in_one_line
    def Read(self, request, context):
        state, inputs = unmarshal(request.properties), unmarshal(request.inputs)
        found = self._of(request).read(request.id, reveal(state), reveal(inputs))
        if found is None:
            return pb.ReadResponse()
        id_, new_state, new_inputs = found
        return pb.ReadResponse(
            id=id_,
            properties=marshal(conceal(conceal(new_state, state), inputs)),
            inputs=marshal(conceal(new_inputs, inputs)),
        )

    @_in_one_line
    def Delete(self, request, context):
        self._of(request).delete(request.id, reveal(unmarshal(request.properties)))
        return empty_pb2.Empty()

    @_in_one_line
    def Invoke(self, request, context):
        raise ProviderError(f"{request.tok}: plugin {self._name} has no functions")

    def Cancel(self, request, context):
        self._provider.cancelled.set()
        return empty_pb2.Empty()


def _diff_response(found: Diff) -> pb.DiffResponse:
    detailed = {
        path: pb.PropertyDiff(
            kind=pb.PropertyDiff.Kind.Value(kind.upper() + "_REPLACE" * found.replaced_by(path)),
            inputDiff=True,
        )
        for path, kind in found.detailed.items()
    }
    changed = bool(detailed or found.replaces)
    return pb.DiffResponse(
        changes=pb.DiffResponse.DIFF_SOME if changed else pb.DiffResponse.DIFF_NONE,
        diffs=first_keys(found.detailed),
        replaces=first_keys(found.replaces),
        stables=list(found.stables),
        detailedDiff=detailed,
        hasDetailedDiff=True,
        deleteBeforeReplace=found.delete_before_replace,
    )
