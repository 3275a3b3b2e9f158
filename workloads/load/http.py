"""HTTP/1.1 over asyncio's streams of bytes: one request, its answer piece by piece; a chat so.

Not httpx: what stands between the socket and the clock is part of every latency, and 64 streams
must cost under 5 % of a core: httpx 0.28.1 takes 18 %, this 4 % (docs/load-test.md).
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import sys
import time
from array import array
from collections.abc import Callable, Generator
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

    def problem(self, most: int, otherwise: str = "{}") -> str:
        """Return OpenAI's error message in one line, else the body, as `otherwise` says."""
        text = self.body.decode("utf-8", "replace")
        try:
            text = json.loads(text)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            text = otherwise.format(text)
        return " ".join(str(text).split())[:most]


def _read(answer: Answer, on_body: Body | None) -> Generator[None, tuple[bytes, float], None]:
    """Read one answer out of the bytes that are sent in with their times; return when it is whole.

    EOFError is thrown in where the connection ends.
    """
    data, now_s = yield
    while answer.status < 200:  # what comes before an answer: 100 Continue, 103 Early Hints
        while (end := data.find(b"\r\n\r\n")) < 0:
            if len(data) > _HEAD_LIMIT:
                raise HttpError("malformed", "the answer's headers do not end")
            more, now_s = yield
            data += more
        _read_head(answer, data[:end])
        data = data[end + 4 :]

    def give(piece: bytes) -> None:
        if on_body is not None and answer.status == 200:
            on_body(piece, now_s)
        else:
            answer.body += piece

    if "chunked" not in answer.headers.get("transfer-encoding", "").lower():
        length = answer.headers.get("content-length")
        if length is not None and not (length.isdecimal() and len(length) < 19):
            raise HttpError("malformed", f"content-length {length[:40]!r}")
        left = sys.maxsize if length is None else int(length)
        while left and answer.status not in (204, 304):
            if piece := data[:left]:
                give(piece)
                left -= len(piece)
            if left:
                try:
                    data, now_s = yield
                except EOFError:
                    if length is None:  # the end of the connection is that of the body
                        return
                    raise
        return
    at, is_last = 0, False
    while True:
        end, length = data.find(b"\r\n", at), None
        if is_last and end == at:
            return
        if is_last and end > at:  # a trailer; an empty line follows
            at = end + 2
            continue
        if end >= 0:
            try:
                length = int(data[at:end].split(b";", 1)[0], 16)
                if length < 0:
                    raise ValueError
            except ValueError:
                raise HttpError("malformed", f"chunk length {data[at:end][:20]!r}") from None
        if length == 0:
            at, is_last = end + 2, True
        elif length is not None and end + 4 + length <= len(data):
            give(data[end + 2 : end + 2 + length])
            at = end + 4 + length
        else:
            more, now_s = yield
            data, at = data[at:] + more, 0


def _read_head(answer: Answer, head: bytes) -> None:
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ", 2)
    if (
        len(parts) < 2
        or not parts[0].startswith("HTTP/1.")
        or not re.fullmatch("[0-9]{3}", parts[1])
    ):
        raise HttpError("malformed", f"no HTTP answer but {lines[0][:40]!r}")
    answer.status = int(parts[1])
    members = (line.partition(":") for line in lines[1:])
    answer.headers = {name.strip().lower(): value.strip() for name, _, value in members}


class _Connection(asyncio.BufferedProtocol):
    """One connection; at most one exchange at a time."""

    transport: asyncio.Transport | None = None
    is_open = False
    has_begun = False
    """Whether anything of the answer came."""
    _done: asyncio.Future[Answer] | None = None
    _answer: Answer
    _reading: Generator[None, tuple[bytes, float], None]

    def ask(self, message: bytes, on_body: Body | None) -> asyncio.Future[Answer]:
        """Send a request; the future gets its answer."""
        assert self.transport is not None
        self.has_begun, self._answer = False, Answer()
        self._reading = _read(self._answer, on_body)
        next(self._reading)
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(message)
        return self._done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return _VIEW

    def buffer_updated(self, nbytes: int) -> None:
        now_s = time.perf_counter()
        if self._done is None or self._done.done():
            self.drop()  # bytes that nobody asked for: never give them to the next request
            return
        self.has_begun = True
        try:
            self._reading.send((bytes(_VIEW[:nbytes]), now_s))
        except StopIteration:
            self._done.set_result(self._answer)
        except Exception as error:
            self.drop()
            self._done.set_exception(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._done is not None and not self._done.done():
            try:
                self._reading.throw(EOFError())
            except StopIteration:
                self._done.set_result(self._answer)
            except EOFError:
                self._done.set_exception(HttpError("disconnected", str(exc or "closed early")))

    def drop(self) -> None:
        """Close at once; what is underway is lost."""
        self.is_open = False
        if self.transport is not None:
            self.transport.abort()


class HttpClient:
    """Connections to one server, kept and used again."""

    def __init__(self, base_url: str, key: str | None = None, *, at: str) -> None:
        """`at` names what gives the address; ConfigError for a bad address or key."""
        shown = re.sub("(?s)^.*@", "...@", base_url)  # no password in a log, nor any part of one
        refusal = f"{at} {shown}: expected http://HOST:PORT/v1, without a user or any other @ in it"
        if "@" in base_url:
            raise ConfigError(refusal)
        try:
            parts = urlsplit(base_url)
            port = parts.port
            if port == 0:
                raise ValueError("port 0; allowed: 1 to 65535")
            (parts.hostname or "").encode("idna")  # as the look-up of the name will do
        except ValueError as error:
            raise ConfigError(f"{refusal}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(refusal)
        if key is not None and not (key.isascii() and key.isprintable()):
            raise ConfigError("the API key has characters that no header can carry")
        self._host = parts.hostname or ""
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._path = parts.path.rstrip("/")
        self._headers = f"Host: {parts.netloc}\r\n"
        if key:
            self._headers += f"Authorization: Bearer {key}\r\n"
        self._idle: list[_Connection] = []

    async def get(self, path: str, timeout_s: float) -> Answer:
        """Return the answer to a GET; HttpError also for none in that time."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self.request("GET", path)
        except TimeoutError as error:
            raise HttpError("timeout", f"no answer in {timeout_s:g} s") from error

    async def request(
        self, method: str, path: str, *, body: bytes = b"", on_body: Body | None = None
    ) -> Answer:
        """Return the answer when it is whole; `on_body` gets the pieces of a 200 as they come.

        A kept connection that the server has closed meanwhile is replaced once, by a new one.
        """
        head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._headers}"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        message = f"{head}\r\n".encode("latin-1") + body
        while True:
            connection, is_new = await self._connection()
            try:
                answer = await connection.ask(message, on_body)
            except HttpError as error:
                if is_new or connection.has_begun or error.kind != "disconnected":
                    raise
                continue
            except BaseException:  # a timeout too: the rest of that answer must not come later
                connection.drop()
                raise
            if answer.headers.get("connection", "").lower() == "close" or not connection.is_open:
                connection.drop()
            else:
                self._idle.append(connection)
            return answer

    async def chat(
        self, body: bytes, events: ChatEvents, *, timeout_s: float, spent_s: float = 0.0
    ) -> Answer:
        """Return the answer to a `streamed` chat; HttpError also where it is not whole in time."""
        try:
            async with asyncio.timeout(max(0.0, timeout_s - spent_s)):
                path = "/chat/completions"
                answer = await self.request("POST", path, body=body, on_body=events.feed)
        except TimeoutError as error:
            raise HttpError("timeout", f"no whole answer in {timeout_s:g} s") from error
        if answer.status == 200:
            events.finish()
        return answer

    def close(self) -> None:
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


def streamed(**request: Any) -> bytes:
    """Return the body that asks for a chat as a stream, with its usage at the end."""
    return json.dumps(
        {**request, "stream": True, "stream_options": {"include_usage": True}}
    ).encode()


_DONE = b"[DONE]"
_OTHER_FIELDS = (b":", b"event:", b"id:", b"retry:")
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
            lines = event.split(b"\n")
            data = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
            if data:
                self._take(b"\n".join(data), now_s)
            elif event.strip() and not event.lstrip().startswith(_OTHER_FIELDS):
                raise HttpError("malformed", f"no server-sent event: {event[:40]!r}")

    def finish(self) -> None:
        """The body ended: it must have been whole."""
        if self._pending.strip():
            self.feed(b"\n\n", self.times_s[-1] if self.times_s else 0.0)
        if not self.is_done:
            raise HttpError("malformed", "the stream ended without data: [DONE]")

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
