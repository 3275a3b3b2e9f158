"""What keeps the page to itself: nothing is loaded from elsewhere, no other site reaches it.

A model may write an image with a foreign address; the browser must not fetch it, because the
address can carry what was said. A page elsewhere must not reach this one by a name that it points
at the loopback (DNS rebinding), nor send it anything under its own name: a form needs no leave of
the browser's. Files are taken from nobody, as the page asks for none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
# Gradio 6 makes code of strings (its templates) and sets styles of elements.
_POLICY: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "media-src 'self' blob:; worker-src 'self' blob:; connect-src 'self'; object-src 'none'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
_UPLOAD: Final = "/gradio_api/upload"
_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PageGuard:
    """Adds the policy to every answer; refuses other host names where only this machine may ask."""

    def __init__(self, app: ASGIApp, *, is_shared: bool) -> None:
        self._app = app
        self._is_shared = is_shared

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse with 421 or 403."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        host = Headers(scope=scope).get("host", "")
        if not self._is_shared and host_name(host) not in LOOPBACK:
            refusal = PlainTextResponse("open this page as http://127.0.0.1:PORT\n", 421)
            await refusal(scope, receive, send)
            return
        origin = Headers(scope=scope).get("origin")
        is_foreign = origin is not None and host_name(urlsplit(origin).netloc) not in LOOPBACK
        if scope["path"].startswith(_UPLOAD) or (is_foreign and not self._is_shared):
            await PlainTextResponse("this page takes no files and no other page\n", 403)(
                scope, receive, send
            )
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, guarded)


def host_name(host: str) -> str:
    """Return a Host header without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.rpartition(":")[0] or host
