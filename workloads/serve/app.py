"""The routes: from OpenAI's request to the engine, and what stands before and behind each of them.

Before: the key, the size of a body and the time it may take. Behind: an answer ends when its client
goes. Every error has OpenAI's form.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from workloads.common.exit_codes import DataError
from workloads.recipes.serve import Limits, ServeConfig, is_loopback
from workloads.serve import scheduler
from workloads.serve.metrics import ServeMetrics, Watch
from workloads.serve.protocol import (
    ApiError,
    ChatRequest,
    Choice,
    RunningChat,
    bad_request,
    parse_chat,
    prompt_ids,
    sink,
)
from workloads.serve.sampling import GrammarError, Grammars
from workloads.serve.text import ToolStream

if TYPE_CHECKING:
    from workloads.serve.engine import TransformersEngine

_LONG_BODY_BYTES = 2**16
"""Above it the prompt is made in a thread, as a grammar is: the loop must go on sending tokens."""


@dataclass(eq=False)
class ChatServer:
    """Everything behind the routes of one server."""

    _engine: TransformersEngine
    _tokenizer: Any
    config: ServeConfig
    _names: Mapping[str, bool]
    """Model name -> whether the adapter answers."""
    _metrics: ServeMetrics
    _grammars: Grammars
    is_healthy: bool = True

    def __post_init__(self) -> None:
        self._seeds = random.Random(self.config.seed)
        self._created = int(time.time())

    async def health(self, request: Request) -> Response:
        """Whether requests are taken."""
        status = "ok" if self.is_healthy else "stopping"
        return JSONResponse({"status": status}, status_code=200 if self.is_healthy else 503)

    async def metrics_page(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def models(self, request: Request) -> Response:
        return JSONResponse(self._models())

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        for each in self._models()["data"]:
            if each["id"] == name:
                return JSONResponse(each)
        raise self._unknown_model(name)

    async def chat(self, request: Request) -> Response:
        """A chat, whole or as a stream."""
        body = await read_body(request, self.config.limits)
        asked = parse_chat(body, self.config.limits, self.config.template_options)
        if asked.model not in self._names:
            raise self._unknown_model(asked.model)
        if len(body) > _LONG_BODY_BYTES or not asked.form.is_free:
            generation = await asyncio.to_thread(self._generation, asked)
        else:
            generation = self._generation(asked)
        running = self._submit(asked, generation)
        if asked.stream:
            return EventStream(running.stream(), running.cancel)
        try:
            return await unless_gone(request, running.whole())
        finally:
            running.cancel()

    def _models(self) -> dict[str, Any]:
        # `max_model_len`, and `parent` for the base of an adapter, are vLLM's names.
        base = next((name for name, is_tuned in self._names.items() if not is_tuned), None)
        return {
            "object": "list",
            "data": [
                {
                    "id": name,
                    "object": "model",
                    "created": self._created,
                    "owned_by": "soperator-stack",
                    "max_model_len": self.config.limits.context_tokens,
                    **({"parent": base} if is_tuned else {}),
                }
                for name, is_tuned in self._names.items()
            ],
        }

    def _unknown_model(self, name: str) -> ApiError:
        return ApiError(
            status=404,
            message=f"model '{name}' is not served here; served: {', '.join(self._names)}",
            code="model_not_found",
            param="model",
        )

    def _generation(self, asked: ChatRequest) -> scheduler.Generation:
        own = {} if self.config.thinking else {"enable_thinking": False}
        template = {**own, **asked.template}
        try:
            ids = prompt_ids(self._tokenizer, asked.messages, asked.tools, template)
        except DataError as error:
            raise bad_request(str(error), "messages") from error
        limits = self.config.limits
        room = limits.context_tokens - len(ids)
        if room < (asked.max_tokens or 1):
            wanted = f" and max_tokens is {asked.max_tokens}" if asked.max_tokens else ""
            raise bad_request(
                f"the prompt has {len(ids)} tokens{wanted}; the context is "
                f"{limits.context_tokens} tokens for both; shorten the chat or ask for less",
                "messages",
                "context_length_exceeded",
            )
        try:
            constraint = self._grammars.constraint(asked.form)
        except GrammarError as error:
            raise bad_request(f"{error}; this server cannot keep it", error.param) from error
        sampling = asked.sampling
        if not asked.has_seed:
            sampling = replace(sampling, seed=self._seeds.getrandbits(63))
        return scheduler.Generation(
            prompt_ids=ids,
            max_tokens=asked.max_tokens or min(room, limits.max_output_tokens),
            sampling=sampling,
            stop=asked.stop,
            ignore_eos=asked.ignore_eos,
            num_logprobs=asked.num_logprobs,
            constraint=constraint,
            is_tuned=self._names[asked.model],
        )

    def _submit(self, asked: ChatRequest, first: scheduler.Generation) -> RunningChat:
        """Hand all choices to the engine; each of them has a seed of its own."""
        constraint, sampling = first.constraint, first.sampling
        generations = [first] + [
            replace(
                first,
                sampling=replace(sampling, seed=sampling.seed + index),
                constraint=constraint and constraint.copy(),
            )
            for index in range(1, asked.num_choices)
        ]
        queue: asyncio.Queue[tuple[int, scheduler.Delta]] = asyncio.Queue()
        form = asked.form
        takes_objects = form.schema is None or not self._grammars.has_text_marker
        tools = partial(ToolStream, is_parallel=form.is_parallel, takes_objects=takes_objects)
        choices = [
            Choice(
                generation=each,
                watch=Watch(self._metrics, asked.model, len(first.prompt_ids)),
                tools=tools() if asked.tools else None,
            )
            for each in generations
        ]
        sinks = [sink(queue, index) for index in range(len(generations))]
        try:
            self._engine.submit([*zip(generations, sinks, strict=True)])
        except ApiError:
            self._metrics.refused(asked.model)
            raise
        return RunningChat(
            request=asked,
            engine=self._engine,
            queue=queue,
            choices=choices,
            timeout_s=self.config.limits.request_timeout_s,
        )


def make_app(server: ChatServer, *, api_key: str | None) -> Starlette:
    return Starlette(
        routes=[
            Route("/v1/chat/completions", server.chat, methods=["POST"]),
            Route("/v1/models", server.models),
            Route("/v1/models/{name:path}", server.model),
            Route("/health", server.health),
            Route("/metrics", server.metrics_page),
        ],
        middleware=[
            Middleware(KeyGuard, api_key=api_key, is_loopback=is_loopback(server.config.host))
        ],
        exception_handlers=dict.fromkeys((ApiError, HTTPException, Exception), _answer_error),
    )


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        text = f"{request.method} {request.url.path}: {error.detail}"
        error = ApiError(status=error.status_code, message=text, code="not_found")
    elif not isinstance(error, ApiError):
        text = f"{type(error).__name__}; the server's log has more"
        error = ApiError(status=500, message=text, code="internal_error")
    return error_response(error)


class EventStream(StreamingResponse):
    """A response of server-sent events that ends, and cancels, when its client goes."""

    def __init__(self, parts: AsyncIterator[bytes], cancel: Callable[[], None]) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(parts, headers=headers, media_type="text/event-stream")
        self._cancel = cancel

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Starlette looks for a client that goes while ASGI is below 2.4, as uvicorn's is (2.3).
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Return the work's response; one that nobody reads when the client has gone."""
    tasks = [asyncio.ensure_future(each) for each in (work, _disconnected(request.receive))]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in done).result() or Response(status_code=499)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


OPEN_PATHS = frozenset({"/health"})
ON_LOOPBACK = "SOPERATOR_SERVE_ON_LOOPBACK"
HAS_KEY = "has_key"
"""In the scope of a request that brought the key: its connection makes room for no other."""


def error_response(error: ApiError) -> JSONResponse:
    return JSONResponse(error.to_json(), status_code=error.status, headers=error.headers)


class KeyGuard:
    """Lets a request pass that brings the key and no page elsewhere sent; an open path needs none.

    A browser sends text to any address without asking, and a page whose name leads to loopback
    reads what a server there answers.
    """

    def __init__(self, app: ASGIApp, *, api_key: str | None, is_loopback: bool) -> None:
        self._app = app
        self._expected = None if api_key is None else f"Bearer {api_key}".encode()
        self._is_loopback = is_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401, 403 or 415, or go on."""
        error = None if scope["type"] == "lifespan" else self._refusal(scope)
        answer = self._app if error is None else error_response(error)
        await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers = {name: value.decode("latin-1") for name, value in reversed(scope["headers"])}
        host, origin = headers.get(b"host"), headers.get(b"origin")
        kind = headers.get(b"content-type", "")
        said, status = "", 403
        if self._is_loopback and host and not _is_loopback(host):
            said = f"Host {host}: this server is on loopback; ask for localhost or 127.0.0.1"
        elif origin is not None and origin.partition("://")[2] != host:
            said = f"Origin {origin}: a page of another address may not ask this server"
        elif scope.get("method") == "POST" and kind.partition(";")[0].strip() != "application/json":
            said, status = f"Content-Type {kind}: send application/json", 415
        if said:
            return ApiError(status=status, message=said, code="forbidden")
        key = headers.get(b"authorization", "").encode("latin-1")
        if self._expected is None or secrets.compare_digest(key, self._expected):
            scope[HAS_KEY] = True
            return None
        if scope["path"] in OPEN_PATHS:
            return None
        return ApiError(
            status=401,
            message="no API key, or a wrong one; send 'Authorization: Bearer KEY'",
            code="invalid_api_key",
        )


class VllmGuard(KeyGuard):
    """The same before vLLM, by its --middleware: its own key leaves /invocations to everybody.

    That route answers chats as /v1 does (docs/serving.md).
    """

    def __init__(self, app: ASGIApp) -> None:
        key, is_loopback = os.environ["VLLM_API_KEY"], ON_LOOPBACK in os.environ
        super().__init__(app, api_key=key, is_loopback=is_loopback)


def _is_loopback(host: str) -> bool:
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


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
