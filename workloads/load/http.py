"""HTTP/1.1 over asyncio's streams of bytes: one request, its answer piece by piece.

Not httpx: what stands between the socket and the clock is part of every latency, and 64 streams
must cost under 5 % of a core: httpx 0.28.1 takes 18 %, this 4 % (docs/load-test.md). Knows no
chats.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from workloads.common.exit_codes import ConfigError

_BUFFER = bytearray(2**16)
_VIEW = memoryview(_BUFFER)
"""One for all: asyncio fills it and calls buffer_updated before it does anything else."""
_HEAD_LIMIT = 2**16
Body = Callable[[bytes, float], None]


class HttpError(Exception):
    """An exchange that did not come to its end; `kind` is the class that is counted."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(slots=True)
class Answer:
    """Status, headers in lower case, and the body where nobody took it piece by piece."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)


class _Exchange:
    """Reads one answer out of bytes as they come."""

    def __init__(self, on_body: Body | None, done: asyncio.Future[Answer]) -> None:
        self.answer = Answer()
        self.done = done
        self.has_begun = False
        self._on_body = on_body
        self._pending = b""
        self._in_head = True
        self._is_chunked = False
        self._left: int | None = 0
        """Bytes of the body, or of this chunk with its line end; None: until the close."""
        self._is_last = False

    def feed(self, data: bytes, now_s: float) -> None:
        """Take what came at `now_s`."""
        self.has_begun = True
        if self._pending:
            data = self._pending + data
            self._pending = b""
        if self._in_head:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > _HEAD_LIMIT:
                    raise HttpError("malformed", "the answer's headers do not end")
                self._pending = data
                return
            self._read_head(data[:end])
            data = data[end + 4 :]
            if self._in_head:  # 100 Continue
                self._pending = b""
                if data:
                    self.feed(data, now_s)
                return
        if self._is_chunked:
            self._read_chunks(data, now_s)
        else:
            self._read_plain(data, now_s)

    def closed(self) -> None:
        """The connection ended: the end of the body where no length was given."""
        if not self._in_head and not self._is_chunked and self._left is None:
            self._finish()

    def _read_head(self, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        parts = lines[0].split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdigit():
            raise HttpError("malformed", f"no HTTP answer but {lines[0][:40]!r}")
        status = int(parts[1])
        if status == 100:
            return
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        self.answer.status, self.answer.headers = status, headers
        self._in_head = False
        self._is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        if not self._is_chunked:
            length = headers.get("content-length")
            if length is not None and not length.isdigit():
                raise HttpError("malformed", f"content-length {length!r}")
            self._left = int(length) if length is not None else None
            if status in (204, 304):
                self._left = 0

    def _read_plain(self, data: bytes, now_s: float) -> None:
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
        if data:
            self._give(data, now_s)
        if self._left == 0:
            self._finish()

    def _read_chunks(self, data: bytes, now_s: float) -> None:
        at, size = 0, len(data)
        while at < size:
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            if self._is_last:  # trailers, then an empty line
                if end == at:
                    self._finish()
                    return
                at = end + 2
                continue
            try:
                length = int(data[at:end].split(b";", 1)[0], 16)
            except ValueError:
                raise HttpError("malformed", f"chunk length {data[at:end][:20]!r}") from None
            if length == 0:
                self._is_last = True
                at = end + 2
                continue
            if end + 4 + length > size:
                break
            self._give(data[end + 2 : end + 2 + length], now_s)
            at = end + 4 + length
        self._pending = data[at:]

    def _give(self, piece: bytes, now_s: float) -> None:
        if self._on_body is not None and self.answer.status == 200:
            self._on_body(piece, now_s)
        else:
            self.answer.body += piece

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(self.answer)


class _Connection(asyncio.BufferedProtocol):
    """One connection; at most one exchange at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.exchange: _Exchange | None = None
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return _VIEW

    def buffer_updated(self, nbytes: int) -> None:
        now_s = time.perf_counter()
        exchange = self.exchange
        if exchange is None or exchange.done.done():
            self.drop()  # bytes that nobody asked for: never give them to the next request
            return
        try:
            exchange.feed(bytes(_VIEW[:nbytes]), now_s)
        except Exception as error:
            self.drop()
            exchange.done.set_exception(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        exchange = self.exchange
        if exchange is not None and not exchange.done.done():
            exchange.closed()
            if not exchange.done.done():
                exchange.done.set_exception(HttpError("disconnected", str(exc or "closed early")))

    def drop(self) -> None:
        """Close at once; what is underway is lost."""
        self.is_open = False
        if self.transport is not None:
            self.transport.abort()


class HttpClient:
    """Connections to one server, kept and used again."""

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        try:
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"load.target.url: {base_url}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ConfigError(f"load.target.url: got {base_url}, expected http://HOST:PORT/v1")
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._path = parts.path.rstrip("/")
        self._authority = parts.netloc
        self._idle: list[_Connection] = []

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        on_body: Body | None = None,
    ) -> Answer:
        """Return the answer when it is whole; `on_body` gets the pieces of a 200 as they come.

        A kept connection that the server has closed meanwhile is replaced once, by a new one.
        """
        head = f"{method} {self._path}{path} HTTP/1.1\r\nHost: {self._authority}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        message = f"{head}\r\n".encode("latin-1") + body
        while True:
            connection, is_new = await self._connection()
            exchange = _Exchange(on_body, asyncio.get_running_loop().create_future())
            connection.exchange = exchange
            try:
                assert connection.transport is not None
                connection.transport.write(message)
                answer = await exchange.done
            except HttpError as error:
                if is_new or exchange.has_begun or error.kind != "disconnected":
                    raise
                continue
            except BaseException:  # a timeout too: the rest of that answer must not come later
                connection.drop()
                raise
            connection.exchange = None
            if answer.headers.get("connection", "").lower() == "close" or not connection.is_open:
                connection.drop()
            else:
                self._idle.append(connection)
            return answer

    def close(self) -> None:
        """Close every kept connection."""
        for connection in self._idle:
            connection.drop()
        self._idle.clear()

    async def _connection(self) -> tuple[_Connection, bool]:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection, False
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                _Connection, self._host, self._port, ssl=self._tls
            )
        except ssl.SSLError as error:
            raise HttpError("tls", f"TLS: {error.reason or error}") from error
        except OSError as error:
            raise HttpError("connect", error.strerror or str(error)) from error
        return connection, True


_DONE = b"[DONE]"
_WRITTEN = ("content", "tool_calls", "reasoning", "reasoning_content")
"""What an event says of an answer; a thought is the last of them in vLLM before 0.12."""


class ChatEvents:
    """Reads one stream; times are those at which the bytes came."""

    def __init__(self, on_choice: Callable[[dict[str, Any], float], None] | None = None) -> None:
        """`on_choice` gets the first choice of each event, and the time it came."""
        self._on_choice = on_choice
        self.times_s = array("d")
        """One for each event that carried text, thought or a call."""
        self.usage: dict[str, Any] | None = None
        self.is_done = False
        self._pending = b""

    def feed(self, piece: bytes, now_s: float) -> None:
        """Take a piece of the body; HttpError for what is no chat stream."""
        data = self._pending + piece if self._pending else piece
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *events, self._pending = data.split(b"\n\n")
        for event in events:
            if event.startswith(b"data: ") and b"\n" not in event:
                self._take(event[6:], now_s)
            else:
                self._take_lines(event, now_s)

    def finish(self) -> None:
        """The body ended: it must have been whole."""
        if self._pending.strip():
            self.feed(b"\n\n", self.times_s[-1] if self.times_s else 0.0)
        if not self.is_done:
            raise HttpError("malformed", "the stream ended without data: [DONE]")

    def _take_lines(self, event: bytes, now_s: float) -> None:
        data = [
            line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")
        ]
        if data:
            self._take(b"\n".join(data), now_s)
        elif event.strip() and not event.lstrip().startswith((b":", b"event:", b"id:", b"retry:")):
            raise HttpError("malformed", f"no server-sent event: {event[:40]!r}")

    def _take(self, data: bytes, now_s: float) -> None:
        if data == _DONE:
            self.is_done = True
            return
        try:
            value = json.loads(data)
            if "error" in value:
                raise HttpError("stream_error", _message(value["error"]))
            choices = value["choices"]
            if choices:
                if any(map(choices[0]["delta"].get, _WRITTEN)):
                    self.times_s.append(now_s)
                if self._on_choice is not None:
                    self._on_choice(choices[0], now_s)
            usage = value.get("usage")
            if usage:
                self.usage = usage
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise HttpError("malformed", f"no chat chunk: {data[:60]!r}") from error


def _message(error: Any) -> str:
    text = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(text).split())[:200]
