"""Asks servers: one streamed answer into a Reply, the models, whether it is there, its metrics.

The clock and the stream are those of the load test (workloads.load.http, sse), so that what the
page shows and what a test measures are the same. Never raises for what a server does.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from workloads.chat.models import Model, server_models
from workloads.chat.reply import Reply
from workloads.common.exit_codes import ConfigError, WorkloadError
from workloads.load.http import Answer, HttpClient, HttpError
from workloads.load.sse import ChatEvents

_CONTROL_TIMEOUT_S = 5.0
_WHOLE_ANSWER_S = 900.0
"""An answer that takes longer is given up; our server ends it after 600 s itself."""


class UnreachableError(Exception):
    """A server that does not answer as it should; the message says in one line why."""


class Client:
    """All servers of a page, and the key that they need."""

    def __init__(self, urls: Sequence[str], key: str | None) -> None:
        for url in urls:
            _check(url)
        if key is not None and not (key.isascii() and key.isprintable()):
            raise ConfigError("the API key has characters that no header can carry")
        self.urls = tuple(url.rstrip("/") for url in urls)
        self._headers: Mapping[str, str] = {"Authorization": f"Bearer {key}"} if key else {}

    async def models(self) -> list[Model]:
        """Return the models of all servers; the first that does not list any is refused."""
        found: list[Model] = []
        for url in self.urls:
            try:
                found += server_models(url, json.loads(await self._get(url, "/models")))
            except UnreachableError as error:
                raise WorkloadError(f"--url {url}: {error}") from error
            except ValueError:
                found += server_models(url, None)
        return found

    async def look(self, url: str) -> str:
        """Return the server's page of metrics, "" where it has none; UnreachableError if gone."""
        root = url.removesuffix("/v1")
        try:
            return await self._get(root, "/metrics")
        except UnreachableError:
            # Other servers have no such page; whether this one is there its models say.
            await self._get(url, "/models")
            return ""

    async def ask(
        self, model: Model, body: Mapping[str, Any], reply: Reply, changed: Callable[[], None]
    ) -> None:
        """Ask one question; `reply` fills up, and `changed` is called whenever it did."""

        def take(choice: dict[str, Any], now_s: float) -> None:
            reply.take(choice, now_s)
            changed()

        events = ChatEvents(take)
        request = {
            **body,
            "model": model.name,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        client = HttpClient(model.url)
        reply.began_s = time.perf_counter()
        try:
            async with asyncio.timeout(_WHOLE_ANSWER_S):
                answer = await client.request(
                    "POST",
                    "/chat/completions",
                    headers=self._headers,
                    body=json.dumps(request).encode(),
                    on_body=events.feed,
                )
            if answer.status == 200:
                events.finish()
                reply.usage = events.usage
                reply.finish = reply.finish or "stop"  # some servers do not say it
            else:
                reply.fail(_refusal(answer))
        except TimeoutError:
            reply.fail(f"no whole answer in {_WHOLE_ANSWER_S:.0f} s")
        except HttpError as error:
            reply.fail(_broken(error, has_begun=reply.first_s is not None))
        finally:
            client.close()
            changed()

    async def _get(self, base: str, path: str) -> str:
        client = HttpClient(base)
        try:
            async with asyncio.timeout(_CONTROL_TIMEOUT_S):
                answer = await client.request("GET", path, headers=self._headers)
        except TimeoutError as error:
            raise UnreachableError(f"no answer in {_CONTROL_TIMEOUT_S:g} s") from error
        except HttpError as error:
            raise UnreachableError(_broken(error, has_begun=False)) from error
        finally:
            client.close()
        if answer.status != 200:
            raise UnreachableError(_refusal(answer))
        return bytes(answer.body).decode("utf-8", "replace")


def _check(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ConfigError(f"--url {url}: expected http://HOST:PORT/v1, without a user in it")


def _broken(error: HttpError, *, has_begun: bool) -> str:
    if error.kind == "disconnected":
        return (
            "the connection broke in the middle of the answer"
            if has_begun
            else "the connection was closed before an answer"
        )
    return str(error)


def _refusal(answer: Answer) -> str:
    """One line for an answer that is none, in the server's own words where it has any."""
    text = bytes(answer.body).decode("utf-8", "replace")
    try:
        text = json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        text = f"answered {answer.status}: {text}"
    line = " ".join(str(text).split())[:300]
    wait = answer.headers.get("retry-after", "")
    return f"{line} (try again in {wait} s)" if wait.isdigit() else line
