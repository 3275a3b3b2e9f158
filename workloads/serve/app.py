"""The routes: from OpenAI's request to the engine and back, whole or as a stream.

Owns that a client who goes away frees its rows, and that every error has OpenAI's form. Does not
know where the engine's tokens come from.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from workloads.serve import answers
from workloads.serve.answers import Choice, Frame
from workloads.serve.config import ServeConfig
from workloads.serve.errors import ApiError, bad_request
from workloads.serve.generation import (
    Delta,
    Engine,
    Failure,
    Generation,
    QueueFullError,
    Sink,
    StoppingError,
)
from workloads.serve.guard import KeyGuard, error_response, read_body
from workloads.serve.metrics import ServeMetrics, Watch
from workloads.serve.prompts import PromptError, prompt_ids
from workloads.serve.protocol import ChatRequest, parse_chat
from workloads.serve.tool_stream import ToolStream

_LONG_BODY_BYTES = 2**16
"""Above it the prompt is made in a thread: the loop must go on sending tokens."""
_STATUS = {"out_of_memory": 503, "server_stopping": 503, "engine_error": 500}


class Mailbox:
    """Deltas from the engine's thread to the queues of this loop, many for one wake-up."""

    def __init__(self) -> None:
        self._items: deque[tuple[asyncio.Queue[tuple[int, Delta]], int, Delta]] = deque()
        self._is_scheduled = False

    def sink(self, queue: asyncio.Queue[tuple[int, Delta]], index: int) -> Sink:
        """Return what the engine calls for choice `index` of a request."""
        loop = asyncio.get_running_loop()

        def put(delta: Delta) -> None:
            self._items.append((queue, index, delta))
            if not self._is_scheduled:
                self._is_scheduled = True
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._deliver)

        return put

    def _deliver(self) -> None:
        self._is_scheduled = False
        while self._items:
            queue, index, delta = self._items.popleft()
            queue.put_nowait((index, delta))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """A request that the engine has taken."""

    frame: Frame
    request: ChatRequest
    queue: asyncio.Queue[tuple[int, Delta]]
    watches: list[Watch]
    choices: list[Choice]
    tools: list[ToolStream | None]
    cancel: Callable[[], None]


class ChatServer:
    """Everything behind the routes of one server."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        config: ServeConfig,
        names: Mapping[str, bool],
        metrics: ServeMetrics,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._config = config
        self._names = names
        """Model name -> whether the adapter answers."""
        self._metrics = metrics
        self._mailbox = Mailbox()
        self._seeds = random.Random(config.seed)
        self._created = int(time.time())
        self.is_healthy = True

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/health", self.health),
            Route("/metrics", self.metrics_page),
        ]

    async def health(self, request: Request) -> Response:
        """Whether requests are taken."""
        status = "ok" if self.is_healthy else "stopping"
        return JSONResponse({"status": status}, status_code=200 if self.is_healthy else 503)

    async def metrics_page(self, request: Request) -> Response:
        """What Prometheus reads."""
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def models(self, request: Request) -> Response:
        """The model names."""
        return JSONResponse(self._models())

    async def model(self, request: Request) -> Response:
        """One model by its name."""
        name = request.path_params["name"]
        for each in self._models()["data"]:
            if each["id"] == name:
                return JSONResponse(each)
        raise self._unknown_model(name)

    async def chat(self, request: Request) -> Response | EventStream:
        """A chat, whole or as a stream."""
        body = await read_body(request, self._config.limits)
        asked = parse_chat(body, self._config.limits)
        if asked.model not in self._names:
            raise self._unknown_model(asked.model)
        make = self._generation
        if len(body) > _LONG_BODY_BYTES:
            generation = await asyncio.to_thread(make, asked)
        else:
            generation = make(asked)
        running = self._submit(asked, generation)
        if asked.stream:
            return EventStream(self._stream(running), running.cancel)
        try:
            return await _unless_gone(request, self._whole(running))
        finally:
            running.cancel()

    def _models(self) -> dict[str, Any]:
        return answers.models(
            list(self._names),
            created=self._created,
            context_tokens=self._config.limits.context_tokens,
        )

    def _unknown_model(self, name: str) -> ApiError:
        return ApiError(
            status=404,
            message=f"model '{name}' is not served here; served: {', '.join(self._names)}",
            code="model_not_found",
            param="model",
        )

    def _generation(self, asked: ChatRequest) -> Generation:
        template = {**({} if self._config.thinking else {"enable_thinking": False})}
        try:
            ids = prompt_ids(
                self._tokenizer, asked.messages, asked.tools, {**template, **asked.template}
            )
        except PromptError as error:
            raise bad_request(str(error), "messages") from error
        limits = self._config.limits
        room = limits.context_tokens - len(ids)
        if room < (asked.max_tokens or 1):
            wanted = f" and max_tokens is {asked.max_tokens}" if asked.max_tokens else ""
            raise bad_request(
                f"the prompt has {len(ids)} tokens{wanted}; the context is "
                f"{limits.context_tokens} tokens for both; shorten the chat or ask for less",
                "messages",
                "context_length_exceeded",
            )
        sampling = asked.sampling
        if not asked.has_seed:
            sampling = replace(sampling, seed=self._seeds.getrandbits(63))
        return Generation(
            prompt_ids=ids,
            max_tokens=asked.max_tokens or min(room, limits.max_output_tokens),
            sampling=sampling,
            stop=asked.stop,
            ignore_eos=asked.ignore_eos,
            num_logprobs=asked.num_logprobs,
            is_tuned=self._names[asked.model],
        )

    def _submit(self, asked: ChatRequest, first: Generation) -> _Running:
        """Hand all choices to the engine; each of them has a seed of its own."""
        seeds = [first.sampling.seed + index for index in range(asked.num_choices)]
        generations = [first] + [
            Generation(
                prompt_ids=first.prompt_ids,
                max_tokens=first.max_tokens,
                sampling=replace(first.sampling, seed=seed),
                stop=first.stop,
                ignore_eos=first.ignore_eos,
                num_logprobs=first.num_logprobs,
                is_tuned=first.is_tuned,
            )
            for seed in seeds[1:]
        ]
        queue: asyncio.Queue[tuple[int, Delta]] = asyncio.Queue()
        watches = [self._metrics.watch(asked.model, len(first.prompt_ids)) for _ in generations]
        try:
            self._engine.submit(
                [
                    (generation, self._mailbox.sink(queue, index))
                    for index, generation in enumerate(generations)
                ]
            )
        except QueueFullError as error:
            self._metrics.refused(asked.model)
            raise ApiError(
                status=429, message=f"{error}; try again later", code="queue_full"
            ) from error
        except StoppingError as error:
            self._metrics.refused(asked.model)
            raise ApiError(status=503, message=str(error), code="server_stopping") from error

        def cancel() -> None:
            for generation, watch in zip(generations, watches, strict=True):
                self._engine.cancel(generation.number)
                watch.end("cancelled")

        return _Running(
            frame=Frame(model=asked.model, num_prompt_tokens=len(first.prompt_ids)),
            request=asked,
            queue=queue,
            watches=watches,
            choices=[Choice() for _ in generations],
            tools=[ToolStream() if asked.tools else None for _ in generations],
            cancel=cancel,
        )

    async def _deltas(self, running: _Running) -> AsyncIterator[tuple[int, Delta, str]]:
        """Yield what comes until all choices have ended, with the text that is no tool call."""
        num_open = len(running.choices)
        limit_s = self._config.limits.request_timeout_s
        deadline_s = asyncio.get_running_loop().time() + limit_s
        while num_open:
            try:
                async with asyncio.timeout_at(deadline_s):
                    index, delta = await running.queue.get()
            except TimeoutError:
                for watch in running.watches:
                    watch.end("failed")
                raise ApiError(
                    status=504,
                    message=f"the answer was not whole after {limit_s:g} s",
                    code="request_timeout",
                ) from None
            watch, choice = running.watches[index], running.choices[index]
            watch.saw(delta.num_tokens)
            if delta.failure is not None:
                watch.end("failed")
                raise _failed(delta.failure)
            choice.num_tokens += delta.num_tokens
            text = self._text(running, index, delta)
            if delta.finish is not None:
                num_open -= 1
                choice.finish_reason = "tool_calls" if choice.calls else delta.finish
                watch.end("finished")
            yield index, delta, text

    def _text(self, running: _Running, index: int, delta: Delta) -> str:
        tools = running.tools[index]
        if tools is None:
            return delta.text
        text = tools.push(delta.text)
        if delta.finish is not None:
            rest, running.choices[index].calls = tools.finish()
            text += rest
        return text

    async def _whole(self, running: _Running) -> Response:
        async for index, delta, text in self._deltas(running):
            running.choices[index].text += text
            running.choices[index].logprobs += delta.logprobs
        body = running.frame.whole(
            running.choices, with_logprobs=running.request.num_logprobs is not None
        )
        return JSONResponse(body)

    async def _stream(self, running: _Running) -> AsyncIterator[bytes]:
        frame, usage = running.frame, running.request.include_usage
        for index in range(len(running.choices)):
            yield frame.chunk(index, {"role": "assistant", "content": ""}, with_usage=usage)
        try:
            async for index, delta, text in self._deltas(running):
                if text or delta.logprobs:
                    yield frame.chunk(
                        index, {"content": text}, logprobs=delta.logprobs, with_usage=usage
                    )
                if delta.finish is not None:
                    choice = running.choices[index]
                    if choice.calls:
                        calls = {"tool_calls": answers.call_deltas(choice.calls)}
                        yield frame.chunk(index, calls, with_usage=usage)
                    yield frame.chunk(
                        index, {}, finish_reason=choice.finish_reason, with_usage=usage
                    )
            if usage:
                yield frame.usage_chunk(running.choices)
        except ApiError as error:
            yield answers.event(error.to_json())
        yield answers.DONE


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


def make_app(server: ChatServer, *, api_key: str | None) -> Starlette:
    """Return the ASGI application."""
    return Starlette(
        routes=server.routes(),
        middleware=[Middleware(KeyGuard, api_key=api_key)],
        exception_handlers={
            ApiError: _api_error,
            HTTPException: _http_error,
            Exception: _unexpected,
        },
    )


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path}: {error.detail}"
    return error_response(ApiError(status=error.status_code, message=text, code="not_found"))


async def _unexpected(request: Request, error: Exception) -> Response:
    text = f"{type(error).__name__}; the server's log has more"
    return error_response(ApiError(status=500, message=text, code="internal_error"))


def _failed(failure: Failure) -> ApiError:
    return ApiError(status=_STATUS[failure.code], message=failure.message, code=failure.code)


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


async def _unless_gone(request: Request, work: Any) -> Response:
    """Return the work's response; one that nobody reads when the client has gone."""
    return await _first(work, _disconnected(request.receive)) or Response(status_code=499)
