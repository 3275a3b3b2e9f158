"""The S3 calls over HTTP on the loopback interface."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from infra.local.object_storage.calls import Answer, ObjectStorage, S3Error, refused

_LARGEST: Final = 512 << 20


def make_server(storage: ObjectStorage, port: int) -> ThreadingHTTPServer:
    """A server on 127.0.0.1 that is bound and not yet serving; port 0 takes a free one."""

    class Handler(_Handler):
        calls = storage

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body go out in two writes: without this the second waits for the client's answer.
    disable_nagle_algorithm = True
    calls: ObjectStorage

    def _serve(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        size = int(headers.get("content-length") or 0)
        if size > _LARGEST or "transfer-encoding" in headers:
            self.close_connection = True
            self._send(refused(S3Error(501, "NotImplemented", "no body of this size or coding")))
            return
        body = self.rfile.read(size)
        self._send(self.calls.answer(self.command, self.path, headers, body))

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = _serve  # noqa: N815  # http.server's names

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        headers = {"Content-Length": str(len(answer.body)), **(answer.headers or {})}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs no call: a copy of the jail makes thousands."""
