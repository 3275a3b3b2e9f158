"""Responses that end when their client goes: as a stream, and whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class EventStream(Response):
    """A response of server-sent events that ends, and cancels, when its client goes."""

    def __init__(self, parts: AsyncIterator[bytes], cancel: Callable[[], None]) -> None:
        self._parts = parts
        self._cancel = cancel
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts as they come."""

        async def write() -> None:
            headers = [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-cache"),
                (b"x-accel-buffering", b"no"),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async for part in self._parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        try:
            await _first(write(), _disconnected(receive))
        finally:
            self._cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _first(*works: Any) -> Any:
    """Return the result of the one that ends first; the others are cancelled and waited for."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in done).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def unless_gone(request: Request, work: Any) -> Response:
    """Return the work's response; one that nobody reads when the client has gone."""
    return await _first(work, _disconnected(request.receive)) or Response(status_code=499)
