"""A chat server without a model: it answers as it is told, after delays that are known.

The load generator's benchmark measures against it, and its tests check percentiles with it.
    python -m tests.bench.stand_in --tokens-per-s 30
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What one chat gets."""

    first_s: float = 0.0
    """From the whole request to the first token."""
    gap_s: float = 0.0
    """Between tokens."""
    tokens: int | None = None
    """Tokens of the answer; None: as many as max_tokens says."""
    status: int = 200
    retry_after: str | None = None
    cut_after: int | None = None
    """Tokens after which the connection is closed without an end."""
    garbage_after: int | None = None
    """Tokens after which something comes that is no JSON."""


Behave = Callable[[int, dict[str, Any]], Behaviour]


class StandIn:
    """The server; `requests` are the bodies of the chats that it was asked, in order."""

    def __init__(self, behave: Behave, *, template_tokens: int = 7) -> None:
        self._behave = behave
        self._template_tokens = template_tokens
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.num_ended = 0
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> int:
        """Listen on loopback; return the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, backlog=1024)
        return self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Take no more connections."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in head[1:])
                }
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.keys.append(headers.get("authorization"))
                path = head[0].split(" ")[1]
                if path == "/v1/models":
                    _json(writer, 200, {"object": "list", "data": [{"id": "stand-in"}]})
                elif path == "/metrics":
                    underway = len(self.requests) - self.num_ended
                    page = f"serve_requests_total {self.num_ended}\n"
                    _text(writer, 200, f"{page}serve_running_requests {underway}\n")
                elif path != "/v1/chat/completions":
                    _json(writer, 404, {"detail": "Not Found"})
                else:
                    try:
                        if not await self._chat(json.loads(body), writer):
                            break
                    finally:
                        self.num_ended += 1
                await writer.drain()
        writer.close()

    async def _chat(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        number = len(self.requests)
        self.requests.append(request)
        how = self._behave(number, request)
        if how.status != 200:
            await asyncio.sleep(how.first_s)
            _json(writer, how.status, {"error": {"message": "as told"}}, how.retry_after)
            return True
        count = request["max_tokens"] if how.tokens is None else how.tokens
        clock = asyncio.get_running_loop().time
        began = clock()
        writer.write(_ANSWER + _chunk({"choices": [{"delta": {"role": "assistant"}}]}))
        token = _chunk({"choices": [{"index": 0, "delta": {"content": " word"}}]})
        for place in range(count):
            # Of a schedule, so that sleeps that take longer do not add up.
            wait_s = began + how.first_s + place * how.gap_s - clock()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            if place == how.cut_after:
                writer.transport.abort()
                return False
            if place == how.garbage_after:
                writer.write(_sized(b"data: {not json\n\n"))
            writer.write(token)
        words = sum(len(each["content"].split()) for each in request["messages"])
        usage = {"prompt_tokens": words + self._template_tokens, "completion_tokens": count}
        writer.write(_chunk({"choices": [], "usage": usage}) + _sized(b"data: [DONE]\n\n"))
        writer.write(b"0\r\n\r\n")
        return True


def _chunk(value: dict[str, Any]) -> bytes:
    common = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "stand-in"}
    return _sized(b"data: " + json.dumps(common | value).encode() + b"\n\n")


def _sized(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _json(
    writer: asyncio.StreamWriter, status: int, value: Any, retry_after: str | None = None
) -> None:
    _text(writer, status, json.dumps(value), retry_after)


def _text(
    writer: asyncio.StreamWriter, status: int, text: str, retry_after: str | None = None
) -> None:
    body = text.encode()
    more = f"Retry-After: {retry_after}\r\n" if retry_after is not None else ""
    writer.write(
        f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body
    )


@contextlib.contextmanager
def running(behave: Behave) -> Iterator[tuple[StandIn, str]]:
    """Yield a server in a thread of its own, and its address up to /v1."""
    server = StandIn(behave)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        port = asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
        yield server, f"http://127.0.0.1:{port}/v1"
    finally:

        async def end() -> None:
            server.stop()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def main() -> None:
    """Serve until killed; the first line of stdout is the address."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.stand_in")
    parser.add_argument("--tokens-per-s", type=float, default=30.0, help="of each stream")
    options = parser.parse_args()
    gap_s = 1 / options.tokens_per_s

    async def serve() -> None:
        port = await StandIn(lambda *_: Behaviour(first_s=gap_s, gap_s=gap_s)).start()
        print(f"http://127.0.0.1:{port}/v1", flush=True)
        await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
