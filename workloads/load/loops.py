"""Closed and open loops: who sends when. Owns the clock of the requests, not what they mean."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from workloads.common.exit_codes import WorkloadError
from workloads.load.arrivals import Arrival
from workloads.load.prompts import Message
from workloads.load.sample import Sample

_GONE_AFTER = 5
"""Requests in a row that could not even connect: the server is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """What one request asks."""

    messages: list[Message]
    output_tokens: int


class Asker(Protocol):
    """The part of ChatClient that a loop needs."""

    url: str

    async def ask(
        self,
        messages: list[Message],
        output_tokens: int,
        *,
        intended_s: float | None = None,
        is_measured: bool = True,
    ) -> Sample: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What one loop showed."""

    samples: list[Sample]
    """All, those of the warm-up too."""
    window_s: tuple[float, float]
    """From when to when the load was steady: rates are counted in it."""


class _Watch:
    """Ends a run whose server is gone."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._in_a_row = 0
        self._answered = 0

    def see(self, sample: Sample) -> None:
        if sample.outcome != "connect":
            self._in_a_row = 0
            self._answered += sample.is_ok
            return
        self._in_a_row += 1
        if self._in_a_row >= _GONE_AFTER:
            raise WorkloadError(
                f"{self._url}: {_GONE_AFTER} requests in a row could not connect after "
                f"{self._answered} answers of this run ({sample.detail}); the server is gone: see "
                "its log"
            )


async def closed_loop(client: Asker, chats: Sequence[Chat], streams: int, num_warm_up: int) -> Loop:
    """Keep `streams` requests underway until the chats are used up.

    The window is that in which all streams worked: from the first measured request until one of
    them finds no more. A refused stream waits as long as the server asked for.
    """
    watch = _Watch(client.url)
    samples: list[Sample] = []
    began_s: list[float] = []
    ended_s: list[float] = []
    left = iter(enumerate(chats))

    async def stream() -> None:
        for number, chat in left:
            is_measured = number >= num_warm_up
            if is_measured and not began_s:
                began_s.append(time.perf_counter())
            sample = await client.ask(chat.messages, chat.output_tokens, is_measured=is_measured)
            samples.append(sample)
            watch.see(sample)
            if sample.retry_after_s:
                await asyncio.sleep(sample.retry_after_s)
        if not ended_s:
            ended_s.append(time.perf_counter())

    async with _task_group() as group:
        for _ in range(streams):
            group.create_task(stream())
    return Loop(samples=samples, window_s=(began_s[0], ended_s[0]))


async def open_loop(
    client: Asker,
    chats: Sequence[Chat],
    arrivals: Sequence[Arrival],
    num_warm_up: int,
    max_in_flight: int,
) -> Loop:
    """Send each chat at its time, however many are underway.

    A request that this side sends late (its loop was busy, or `max_in_flight` was reached) keeps
    its intended time: the wait is in its latencies, so no omission is coordinated with the server.
    """
    watch = _Watch(client.url)
    samples: list[Sample] = []
    room = asyncio.Semaphore(max_in_flight)
    started_s = time.perf_counter()

    async def one(number: int, chat: Chat, intended_s: float) -> None:
        async with room:
            sample = await client.ask(
                chat.messages,
                chat.output_tokens,
                intended_s=intended_s,
                is_measured=number >= num_warm_up,
            )
        samples.append(sample)
        watch.see(sample)

    async with _task_group() as group:
        for number, (chat, arrival) in enumerate(zip(chats, arrivals, strict=True)):
            intended_s = started_s + arrival.at_s
            wait_s = intended_s - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            group.create_task(one(number, chat, intended_s))
    first, last = arrivals[num_warm_up].at_s, arrivals[-1].at_s
    return Loop(samples=samples, window_s=(started_s + first, started_s + last))


@contextlib.asynccontextmanager
async def _task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Yield a task group whose first error comes out as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
