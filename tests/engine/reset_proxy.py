"""A proxy in front of an API server that resets connections: before a request, or after it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

from infra.clients.kube import Access

When = Literal["before", "after"]
_HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length")


class ResetProxy:
    """Plain HTTP on loopback to the API server's TLS; `plant` says which requests are reset."""

    def __init__(self, access: Access) -> None:
        self.num_requests = 0
        self.token = access.static_token
        self._resets: dict[int, When] = {}
        self._lock = threading.Lock()
        self._upstream = access.pool(maxsize=8)
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                proxy._forward(self)

            def log_message(self, format: str, *args: object) -> None:
                """Says nothing."""

        for verb in ("GET", "PATCH", "PUT", "POST", "DELETE"):
            setattr(Handler, f"do_{verb}", Handler.forward)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def plant(self, first: int, times: int, when: When) -> None:
        """Resets `times` requests from the one with this number on, counted from now."""
        with self._lock:
            self.num_requests = 0
            self._resets = dict.fromkeys(range(first, first + times), when)

    @property
    def pending(self) -> int:
        """Planted resets that have not come."""
        return len(self._resets)

    def _forward(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        with self._lock:
            when = self._resets.pop(self.num_requests, None)
            self.num_requests += 1
        if when == "before":
            return _reset(handler)
        headers = {k: v for k, v in handler.headers.items() if k.lower() != "host"}
        answer = self._upstream.request(
            handler.command, handler.path, body=body or None, headers=headers, retries=False
        )
        if when == "after":
            return _reset(handler)
        handler.send_response(answer.status)
        for key, value in answer.headers.items():
            if key.lower() not in _HOP_BY_HOP:
                handler.send_header(key, value)
        handler.send_header("Content-Length", str(len(answer.data)))
        handler.end_headers()
        handler.wfile.write(answer.data)
        return None

    @contextlib.contextmanager
    def running(self) -> Iterator[ResetProxy]:
        """Serves for the length of a block."""
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            self._upstream.close()
            thread.join(10)


def _reset(handler: BaseHTTPRequestHandler) -> None:
    """Ends the connection with RST, as a load balancer that lost its backend does."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # The last reference closes: the handler's own files hold two of them.
    handler.rfile.close()
    handler.wfile.close()
    handler.connection.close()
    handler.close_connection = True
