"""A chat that the engine writes: its deltas, put together to OpenAI's answer, whole or as a stream.

Owns the time limit of a request, and that tool calls leave the text while it streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse, Response

from workloads.serve import answers
from workloads.serve.answers import Choice, Frame
from workloads.serve.errors import ApiError
from workloads.serve.generation import Delta, Failure
from workloads.serve.metrics import Watch
from workloads.serve.protocol import ChatRequest
from workloads.serve.tool_stream import CallPart, ToolStream

_STATUS = {"out_of_memory": 503, "server_stopping": 503, "engine_error": 500}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningChat:
    """A request that the engine has taken; it is read once, by `whole` or by `stream`."""

    frame: Frame
    request: ChatRequest
    queue: asyncio.Queue[tuple[int, Delta]]
    watches: list[Watch]
    choices: list[Choice]
    tools: list[ToolStream | None]
    cancel: Callable[[], None]
    end: Callable[[int], None]
    """Ends the writing of one choice that is whole already."""
    timeout_s: float

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
                for watch in self.watches:
                    watch.end("failed")
                raise ApiError(
                    status=504,
                    message=f"the answer was not whole after {limit_s:g} s",
                    code="request_timeout",
                ) from None
            if index not in still_open:
                continue  # on its way when the choice was ended
            watch, choice = self.watches[index], self.choices[index]
            watch.saw(delta.num_tokens)
            if delta.failure is not None:
                watch.end("failed")
                raise _failed(delta.failure)
            choice.num_tokens += delta.num_tokens
            text, parts, is_over = self._read(index, delta)
            if is_over and delta.finish is None:
                self.end(index)
            if is_over:
                still_open.remove(index)
                choice.finish_reason = "tool_calls" if choice.calls else delta.finish
                watch.end("finished")
            yield index, delta, text, parts

    def _read(self, index: int, delta: Delta) -> tuple[str, list[CallPart], bool]:
        """Return a delta's text, its parts of calls, and whether the choice is whole."""
        tools = self.tools[index]
        if tools is None:
            return delta.text, [], delta.finish is not None
        text, parts = tools.push(delta.text)
        if delta.finish is None and not tools.is_over:
            return text, parts, False
        rest, more, self.choices[index].calls = tools.finish()
        # Parts that a stream has sent cannot be taken back as text.
        is_sent = self.request.stream and tools.has_sent_parts
        return text + ("" if is_sent else rest), parts + more, True

    async def whole(self) -> Response:
        async for index, delta, text, _ in self._deltas():
            self.choices[index].text += text
            self.choices[index].logprobs += delta.logprobs
        body = self.frame.whole(self.choices, with_logprobs=self.request.num_logprobs is not None)
        return JSONResponse(body)

    async def stream(self) -> AsyncIterator[bytes]:
        frame = self.frame
        for index in range(len(self.choices)):
            yield frame.chunk(index, {"role": "assistant", "content": ""}, more=self._usage(index))
        try:
            async for index, delta, text, parts in self._deltas():
                if text or delta.logprobs:
                    yield frame.chunk(
                        index, {"content": text}, logprobs=delta.logprobs, more=self._usage(index)
                    )
                if parts:
                    calls = {"tool_calls": answers.call_deltas(parts)}
                    yield frame.chunk(index, calls, more=self._usage(index))
                reason = self.choices[index].finish_reason
                if reason is not None:
                    yield frame.chunk(index, {}, finish_reason=reason, more=self._usage(index))
            if self.request.include_usage:
                yield frame.usage_chunk(self.choices)
        except ApiError as error:
            yield answers.event(error.to_json())
        yield answers.DONE

    def _usage(self, index: int) -> dict[str, Any]:
        """What a chunk says of its choice's tokens: null unless every one is to tell them."""
        if not self.request.include_usage:
            return {}
        asked = self.request.continuous_usage
        return {"usage": self.frame.usage([self.choices[index]]) if asked else None}


def _failed(failure: Failure) -> ApiError:
    return ApiError(status=_STATUS[failure.code], message=failure.message, code=failure.code)
