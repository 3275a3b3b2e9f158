"""The order of a load test: find the server, measure its template, sweep, then open loops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workloads.common.exit_codes import ConfigError, NotRunError, WorkloadError
from workloads.common.log import log
from workloads.load.client import ChatClient, ServerLoad
from workloads.load.measure import Chat, Loop, Point, closed_loop, open_loop, point
from workloads.load.prompts import Arrival, Rows, Words, draw_lengths, poisson, read_trace
from workloads.recipes.load import Lengths, LoadConfig

_LEAST_REQUESTS = 8
_ARRIVALS_A_WARM_UP = 16
_STAGE_TRIES = 2
"""Runs of a stage in which others used the server, before the test gives up."""
_SETTLED_S = 3.0
"""Within this a server has counted an answer that has ended, or a client that went away."""


@dataclass(slots=True)
class Found:
    """What the test has so far; whole also when it ends early."""

    model: str = ""
    engine: str | None = None
    points: list[Point] = field(default_factory=list)
    samples: int = 0
    errors: int = 0
    first_error: str = ""
    cpu_share: float = 0.0
    """CPU time of this process over wall time while it measured, of one core."""

    def see(self, loop: Loop) -> None:
        """Count what failed, the warm-up's too."""
        self.samples += len(loop.samples)
        for sample in loop.samples:
            if sample.is_error:
                self.errors += 1
                self.first_error = self.first_error or f"{sample.outcome}: {sample.detail}"


class LoadTest:
    """One test against one server."""

    def __init__(
        self, config: LoadConfig, client: ChatClient, prompts: Rows | Words, trace: Path | None
    ) -> None:
        self._config = config
        self._client = client
        self._prompts = prompts
        self._trace = None if trace is None else read_trace(trace)
        self._next_chat = 0
        self._seen: ServerLoad | None = None
        """What the server had counted when the last stage had ended."""
        self.found = Found()

    async def run(self) -> None:
        """Fill `found`; WorkloadError when the server cannot be asked or is gone."""
        models = {each.name: each for each in await self._client.models()}
        wanted = self._config.target.model or list(models)[-1]
        if wanted not in models:
            raise ConfigError(
                f"{self._client.url}: no model '{wanted}' (has: {', '.join(models)}); set "
                "load.target.model to one of these"
            )
        self._check_context(models[wanted].context_tokens)
        self.found.engine = self._config.target.engine or models[wanted].engine
        self.found.model = self._client.model = wanted
        log(f"load test of {self.found.model} at {self._client.url}")
        self._seen = await self._client.traffic()
        if self._seen is None:
            log("the server counts no requests in /metrics: whether others use it is not known")
        await self._measure_template()
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        try:
            for streams in self._config.sweep:
                await self._closed(streams)
            await self._open()
        finally:
            wall_s = time.perf_counter() - wall_s
            self.found.cpu_share = (time.process_time() - cpu_s) / max(wall_s, 1e-9)
            self._client.close()

    def _check_context(self, context_tokens: int | None) -> None:
        """Refuse lengths that the server would: an error is no measurement."""
        config = self._config
        prompt, output = (longest(each) for each in (config.prompt_tokens, config.output_tokens))
        if context_tokens is not None and prompt + output > context_tokens:
            raise ConfigError(
                f"load.prompt_tokens and load.output_tokens: up to {prompt} + {output} tokens, "
                f"the server takes {context_tokens} in all; lower their mean or most"
            )

    async def _measure_template(self) -> None:
        """Ask one short chat: is the request understood, and what does the template add?"""
        chat = self._prompts.chat(-1, 16)
        sample = await self._client.ask(chat, 1, is_measured=False)
        if not sample.is_ok:
            hint = "; it may not know ignore_eos: set load.ignore_eos=false"
            raise WorkloadError(
                f"{self._client.url}: the first chat failed: {sample.outcome}: {sample.detail}"
                f"{hint if sample.outcome == 'http_400' and self._config.ignore_eos else ''}"
            )
        if isinstance(self._prompts, Words) and sample.prompt_tokens is not None:
            text = chat[0]["content"]
            added = sample.prompt_tokens - self._prompts.count(text)
            self._prompts.template_tokens = max(0, added)
        await self._num_others(1)

    async def _closed(self, streams: int) -> None:
        config = self._config
        num_warm_up = streams * config.warm_up_requests
        count = max(_LEAST_REQUESTS, streams * config.requests_per_stream)

        async def once() -> Loop:
            chats = self._chats(num_warm_up + count)
            return await closed_loop(self._client, chats, streams, num_warm_up)

        await self._stage(f"{streams} streams", once, kind="closed", concurrency=streams)

    async def _open(self) -> None:
        config = self._config.open_loop
        if self._trace is not None:
            num_warm_up = min(self._num_warm_up(len(self._trace)), len(self._trace) - 2)
            length_s = self._trace[-1].at_s - self._trace[0].at_s
            rate = (len(self._trace) - 1) / length_s if length_s > 0 else float(len(self._trace))
            await self._arrivals(self._trace, num_warm_up, "trace", rate)
        most = max((each.requests_per_s for each in self.found.points), default=0.0)
        rates = config.rates_per_s or tuple(share * most for share in config.shares)
        for number, rate in enumerate(rates):
            if rate > 0:
                num_warm_up = self._num_warm_up(config.requests)
                total = config.requests + num_warm_up
                arrivals = poisson(rate, total, self._config.seed + number)
                await self._arrivals(arrivals, num_warm_up, "poisson", rate)

    async def _arrivals(
        self, arrivals: Sequence[Arrival], num_warm_up: int, kind: str, rate_per_s: float
    ) -> None:

        async def once() -> Loop:
            chats = self._chats(len(arrivals), arrivals)
            return await open_loop(
                self._client, chats, arrivals, num_warm_up, self._config.max_in_flight
            )

        await self._stage(f"{rate_per_s:.3g} req/s", once, kind=kind, rate_per_s=rate_per_s)

    async def _stage(self, load: str, once: Callable[[], Awaitable[Loop]], **of: Any) -> None:
        """Keep the point of a loop during which the server answered nobody else."""
        num_others = 0
        for _ in range(_STAGE_TRIES):
            loop = await once()
            num_others = await self._num_others(len(loop.samples))
            if not num_others:
                break
            log(f"{load}: {num_others} requests of others meanwhile: it does not count")
        else:
            raise NotRunError(
                f"{self._client.url}: others use this server: {num_others} requests of theirs "
                f"beside {load}, in each of {_STAGE_TRIES} runs, so no speed is measured; stop "
                "them, or start a server for the test alone (soperator serve -s STACK), and run it "
                "again"
            )
        made = point(loop, self._config.slo, **of)
        self.found.see(loop)
        self.found.points.append(made)
        ttft = f", TTFT p99 {made.ttft.p99_ms:,.0f} ms" if made.ttft else ""
        log(
            f"{made.loop} loop at {load}: {made.output_tokens_per_s:,.1f} tokens/s, "
            f"{made.requests_per_s:.3g} req/s{ttft}, {made.num_ok} of {made.num_requests} answered"
        )

    async def _num_others(self, num_own: int) -> int:
        """Return how many requests of others ended since the last look, or are underway."""
        before, until_s = self._seen, time.monotonic() + _SETTLED_S
        while before is not None and (now := await self._client.traffic()) is not None:
            ended = (now.num_ended or 0) - (before.num_ended or 0)
            if (ended >= num_own and not now.num_underway) or time.monotonic() > until_s:
                self._seen = now
                return max(0, round(ended + now.num_underway - num_own))
            await asyncio.sleep(0.05)
        return 0

    def _num_warm_up(self, count: int) -> int:
        return self._config.warm_up_requests * -(-count // _ARRIVALS_A_WARM_UP)

    def _chats(self, count: int, arrivals: Sequence[Arrival] | None = None) -> list[Chat]:
        """Return the next chats; a length that the trace names wins over a drawn one."""
        first, self._next_chat = self._next_chat, self._next_chat + count
        seed = f"{self._config.seed} {first}"
        prompts = draw_lengths(self._config.prompt_tokens, count, f"prompt {seed}")
        outputs = draw_lengths(self._config.output_tokens, count, f"output {seed}")
        chats: list[Chat] = []
        for number in range(count):
            arrival = None if arrivals is None else arrivals[number]
            prompt = (arrival and arrival.prompt_tokens) or prompts[number]
            output = (arrival and arrival.output_tokens) or outputs[number] or 1
            messages = self._prompts.chat(first + number, prompt)
            chats.append(Chat(messages=messages, output_tokens=output))
        return chats


def longest(lengths: Lengths) -> int:
    """Return the most tokens that can be drawn; 0 where rows have their own lengths."""
    if lengths.mean is None:
        return 0
    most = lengths.most or 4 * lengths.mean
    return min(lengths.mean, most) if lengths.distribution == "fixed" else most
