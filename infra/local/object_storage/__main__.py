"""Runs the emulated object storage as a process of its own, until it is told to stop.

    python -m infra.local.object_storage --state DIR --cloud DIR --port P

Prints one line when it is ready. Writes into DIR of --state only; --cloud is the state folder of
the emulated Nebius API, which says which buckets, keys and rights there are. Listens on 127.0.0.1
only.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from infra.local.object_storage.access import Access
from infra.local.object_storage.calls import Answer, Objects, ObjectStorage, S3Error, refused
from infra.providers.nebius.schema import Schema

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


def main() -> int:
    """Serves until SIGTERM or SIGINT."""
    options = _parser().parse_args()
    schema = Schema(Path(os.environ.get("SOPERATOR_CACHE") or options.state))
    storage = ObjectStorage(Access(options.cloud, schema), Objects(options.state))
    try:
        server = make_server(storage, options.port)
    except OSError as error:
        print(f"object storage: {error}", file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        # From another thread: shutdown() waits for the loop that the handler interrupts.
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"object storage ready on http://127.0.0.1:{server.server_address[1]}", flush=True)
    with server:
        server.serve_forever(poll_interval=0.1)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra.local.object_storage")
    parser.add_argument("--state", type=Path, required=True, metavar="DIR")
    parser.add_argument("--cloud", type=Path, required=True, metavar="DIR")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    return parser


if __name__ == "__main__":
    sys.exit(main())
