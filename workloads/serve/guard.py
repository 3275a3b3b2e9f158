"""What stands before every route: the key, the size of a body and the time it may take to come."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from workloads.serve.config import Limits
from workloads.serve.errors import ApiError

OPEN_PATHS = frozenset({"/health"})


def error_response(error: ApiError) -> JSONResponse:
    """Return the answer of an error."""
    return JSONResponse(error.to_json(), status_code=error.status, headers=error.headers)


class KeyGuard:
    """Lets a request pass that brings the key; an open path needs none."""

    def __init__(self, app: ASGIApp, *, api_key: str | None) -> None:
        self._app = app
        self._expected = None if api_key is None else f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401, or go on."""
        if (
            scope["type"] != "http"
            or self._expected is None
            or scope["path"] in OPEN_PATHS
            or secrets.compare_digest(_authorization(scope), self._expected)
        ):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            status=401,
            message="no API key, or a wrong one; send 'Authorization: Bearer KEY'",
            code="invalid_api_key",
        )
        await error_response(error)(scope, receive, send)


def _authorization(scope: Scope) -> bytes:
    values: list[tuple[bytes, bytes]] = scope["headers"]
    return next((value for name, value in values if name == b"authorization"), b"")


async def read_body(request: Request, limits: Limits) -> bytes:
    """Return the whole body within its size and time."""
    too_large = ApiError(
        status=413,
        message=f"the body is over {limits.max_body_bytes} bytes; send a shorter chat",
        code="request_too_large",
    )
    declared: Any = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limits.max_body_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            async for part in request.stream():
                body += part
                if len(body) > limits.max_body_bytes:
                    raise too_large
    except TimeoutError:
        raise ApiError(
            status=408,
            message=f"the request was not whole after {limits.body_timeout_s:g} s",
            code="request_timeout",
        ) from None
    return bytes(body)
