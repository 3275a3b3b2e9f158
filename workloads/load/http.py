"""HTTP by aiohttp: one request, its answer piece by piece with the time each came. Knows no chats.

Not httpx: what stands between the socket and the clock is part of every latency, and it takes 18 %
of a core for 64 streams, aiohttp 5 % (docs/load-test.md).
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from workloads.common.exit_codes import ConfigError

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
            if parts.port == 0:
                raise ValueError("port 0; allowed: 1 to 65535")
        except ValueError as error:
            raise ConfigError(f"{refusal}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(refusal)
        if key is not None and not (key.isascii() and key.isprintable()):
            raise ConfigError("the API key has characters that no header can carry")
        self._base_url = base_url.rstrip("/")
        self._headers = {"Accept-Encoding": "identity"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._session: aiohttp.ClientSession | None = None

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
        exchange = SimpleNamespace(is_kept=False)
        answer = Answer()
        try:
            async with self._opened().request(
                method,
                f"{self._base_url}{path}",
                data=body or None,
                headers={"Content-Type": "application/json"} if body else None,
                allow_redirects=False,
                trace_request_ctx=exchange,
            ) as response:
                _end_with_connection(response)
                answer.status = response.status
                answer.headers = {name.lower(): text for name, text in response.headers.items()}
                while piece := await response.content.readany():
                    if on_body is not None and answer.status == 200:
                        on_body(piece, time.perf_counter())
                    else:
                        answer.body += piece
            return answer
        except aiohttp.ClientSSLError as error:
            reason = getattr(error.__cause__, "reason", None) or error
            raise HttpError("tls", f"TLS: {reason}") from error
        except aiohttp.ClientConnectorError as error:
            raise HttpError("connect", error.strerror or str(error)) from error
        except aiohttp.ClientResponseError as error:
            raise HttpError("malformed", _line(f"no HTTP answer: {error.message}")) from error
        except aiohttp.ClientError as error:
            if exchange.is_kept and not answer.status:
                return await self.request(method, path, body=body, on_body=on_body)
            raise HttpError("disconnected", "closed early") from error

    def _opened(self) -> aiohttp.ClientSession:
        """Return the session, which needs a running loop; no proxy, cookie or unpacking."""
        if self._session is None:
            tracing = aiohttp.TraceConfig()
            tracing.on_connection_reuseconn.append(_see_kept)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trace_configs=[tracing],
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _see_kept(_session: object, trace: SimpleNamespace, _parameters: object) -> None:
    trace.trace_request_ctx.is_kept = True


def _end_with_connection(response: aiohttp.ClientResponse) -> None:
    """Fail a body that waits for a connection that is gone.

    aiohttp 3.14 leaves it waiting for ever where a chunk after the first piece is malformed.
    """
    content = response.content

    def end(closed: asyncio.Future[None]) -> None:
        closed.exception()  # seen: asyncio says otherwise that nobody took it
        if not content.is_eof() and content.exception() is None:
            content.set_exception(HttpError("malformed", "no chunk where one was due"))

    protocol = None if response.connection is None else response.connection.protocol
    if protocol is not None and protocol.closed is not None:
        protocol.closed.add_done_callback(end)


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
            value = json.loads(data.decode())
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
    return _line(str(text))


def _line(text: str) -> str:
    return " ".join(text.split())[:200]
