"""OpenAI's answers: whole ones, chunks of a stream; put together while the engine writes.

https://platform.openai.com/docs/api-reference/chat/object (2026-11-21).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.responses import JSONResponse, Response

from workloads.serve.metrics import Watch
from workloads.serve.protocol import ApiError, ChatRequest
from workloads.serve.scheduler import Delta, Sink, TokenLogprob
from workloads.serve.text import CallPart, ToolStream

DONE = b"data: [DONE]\n\n"
_CHUNK = "chat.completion.chunk"


@dataclass(slots=True, kw_only=True)
class Choice:
    """One answer as it grows."""

    watch: Watch
    tools: ToolStream | None
    """None: no tool may be called."""
    text: str = ""
    calls: list[CallPart] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None

    def read(self, delta: Delta) -> tuple[str, list[CallPart], bool]:
        """Return a delta's text, its parts of calls, and whether the choice is whole."""
        if self.tools is None:
            return delta.text, [], delta.finish is not None
        text, parts = self.tools.push(delta.text)
        if delta.finish is None and not self.tools.is_over:
            return text, parts, False
        rest, more = self.tools.finish()
        return text + rest, parts + more, True

    def take(self, parts: Sequence[CallPart]) -> None:
        """Put parts to the calls that they belong to."""
        for part in parts:
            if part.name is not None:
                self.calls.append(part)
            else:
                call = self.calls[part.index]
                self.calls[part.index] = replace(call, arguments=call.arguments + part.arguments)


def event(value: dict[str, Any]) -> bytes:
    """Return a server-sent event."""
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def _call(part: CallPart) -> dict[str, Any]:
    """Return a call, or a part of it; the first part has id and name."""
    function = {"arguments": part.arguments}
    if part.name is None:
        return {"function": function}
    identity = {"id": f"call_{secrets.token_hex(12)}", "type": "function"}
    return {**identity, "function": {"name": part.name, **function}}


def _logprobs(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    def named(token: str, logprob: float) -> dict[str, Any]:
        return {"token": token, "logprob": logprob, "bytes": list(token.encode())}

    content = [
        {
            **named(entry.token, entry.logprob),
            "top_logprobs": [named(*each) for each in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


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


_STATUS = {"out_of_memory": 503, "server_stopping": 503, "engine_error": 500}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningChat:
    """A request that the engine has taken; it is read once, by `whole` or by `stream`."""

    request: ChatRequest
    num_prompt_tokens: int
    queue: asyncio.Queue[tuple[int, Delta]]
    choices: list[Choice]
    cancel: Callable[[], None]
    end: Callable[[int], None]
    """Ends the writing of one choice that is whole already."""
    timeout_s: float
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    async def _deltas(self) -> AsyncIterator[tuple[int, Delta, str, list[CallPart]]]:
        """Yield what comes until all choices have ended: text that is no call, parts of calls."""
        still_open = set(range(len(self.choices)))
        limit_s = self.timeout_s
        deadline_s = asyncio.get_running_loop().time() + limit_s
        while still_open:
            try:
                async with asyncio.timeout_at(deadline_s):
                    index, delta = await self.queue.get()
            except TimeoutError:
                for each in self.choices:
                    each.watch.end("failed")
                raise ApiError(
                    status=504,
                    message=f"the answer was not whole after {limit_s:g} s",
                    code="request_timeout",
                ) from None
            if index not in still_open:
                continue  # on its way when the choice was ended
            choice = self.choices[index]
            choice.watch.saw(delta.num_tokens)
            if delta.failure is not None:
                choice.watch.end("failed")
                failure = delta.failure
                raise ApiError(
                    status=_STATUS[failure.code], message=failure.message, code=failure.code
                )
            text, parts, is_over = choice.read(delta)
            choice.take(parts)
            if is_over and delta.finish is None:
                self.end(index)
            if is_over:
                still_open.remove(index)
                tools = choice.tools
                is_cut = delta.finish == "length" and tools is not None and tools.is_cut
                choice.finish_reason = "tool_calls" if choice.calls and not is_cut else delta.finish
                choice.watch.end("finished")
            yield index, delta, text, parts

    async def whole(self) -> Response:
        """Return the answer in one piece."""
        async for index, delta, text, _ in self._deltas():
            self.choices[index].text += text
            self.choices[index].logprobs += delta.logprobs
        has_logprobs = self.request.num_logprobs is not None
        choices = [
            {
                "index": index,
                "message": {
                    "role": "assistant",
                    "content": choice.text or (None if choice.calls else ""),
                    **({"tool_calls": [*map(_call, choice.calls)]} if choice.calls else {}),
                },
                "logprobs": _logprobs(choice.logprobs) if has_logprobs else None,
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(self.choices)
        ]
        usage = self._usage(self.choices)
        return JSONResponse(self._body("chat.completion", choices, usage=usage))

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the answer as server-sent events."""
        for index in range(len(self.choices)):
            yield self._chunk(index, {"role": "assistant", "content": ""})
        try:
            async for index, delta, text, parts in self._deltas():
                if text or delta.logprobs:
                    yield self._chunk(index, {"content": text}, logprobs=delta.logprobs)
                if parts:
                    calls = [{"index": part.index, **_call(part)} for part in parts]
                    yield self._chunk(index, {"tool_calls": calls})
                reason = self.choices[index].finish_reason
                if reason is not None:
                    yield self._chunk(index, {}, finish_reason=reason)
            if self.request.include_usage:
                yield event(self._body(_CHUNK, [], usage=self._usage(self.choices)))
        except ApiError as error:
            yield event(error.to_json())
        yield DONE

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        logprobs: Sequence[TokenLogprob] = (),
        finish_reason: str | None = None,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": _logprobs(logprobs) if logprobs else None,
            "finish_reason": finish_reason,
        }
        if not self.request.include_usage:
            return event(self._body(_CHUNK, [choice]))
        # Null unless continuous_usage_stats asks for it in every chunk.
        asked = self.request.continuous_usage
        usage = self._usage([self.choices[index]]) if asked else None
        return event(self._body(_CHUNK, [choice], usage=usage))

    def _body(self, kind: str, choices: Sequence[Any], **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.request.model,
            "choices": choices,
            **more,
        }

    def _usage(self, choices: Sequence[Choice]) -> dict[str, int]:
        """Return the tokens read and written."""
        written = sum(choice.watch.num_tokens for choice in choices)
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": written,
            "total_tokens": self.num_prompt_tokens + written,
        }
