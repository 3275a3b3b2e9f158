"""What tests of serving share: a model that says what it is told, and a server in this process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import uvicorn

from workloads.recipes.serve import Limits, ServeConfig
from workloads.serve.app import ChatServer, make_app
from workloads.serve.engine import AdapterRows, RowCache, Runner, TransformersEngine
from workloads.serve.metrics import ServeMetrics
from workloads.serve.sampling import Grammars
from workloads.serve.scheduler import Chunk, Delta, Generation, Sampling, Scheduler
from workloads.serve.scheduler import Sequence as Running
from workloads.serve.server import http_config

WAIT_S = 120.0
"""Of a busy machine: what hangs ends, and no answer is measured by it."""


class ScriptedPasses(Runner):
    """Stands in for a model: says `script(generation)`, and keeps what a KV cache would hold."""

    def __init__(self, script: Callable[[Generation], Sequence[int]], *, size: int) -> None:
        self._script = script
        self._size = size
        self.rows: dict[int, list[int]] = {}
        self.batches: list[int] = []
        self.read_tokens: list[int] = []
        self.gate: Callable[[], None] = lambda: None

    def read(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Keep the chunks' tokens; what was kept before must be what was said before."""
        self.gate()
        sizes = [each.end - each.start for each in chunks]
        # A pass that decodes reads one token of each row.
        if max(sizes) > 1:
            self.read_tokens.append(sum(sizes))
        else:
            self.batches.append(len(chunks))
        for each in chunks:
            row = self.rows.setdefault(each.sequence.row, [])
            said = [*each.sequence.asked.prompt_ids, *each.sequence.output_ids]
            assert row[: each.start] == said[: each.start], "another answer's keys"
            assert [*each.ids] == said[each.start : each.end]
            row[each.start :] = each.ids
        return self._logits([each.sequence for each in chunks])

    def move(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the kept tokens."""
        self.rows[target] = self.rows[source][:num_tokens]

    def _logits(self, sequences: Sequence[Running]) -> torch.Tensor:
        logits = torch.zeros(len(sequences), self._size)
        for index, each in enumerate(sequences):
            script = self._script(each.asked)
            logits[index, script[min(len(each.output_ids), len(script) - 1)]] = 50.0
        return logits


def scripted_engine(
    tokenizer: Any, script: Callable[[Generation], Sequence[int]], **limits: int
) -> tuple[TransformersEngine, ScriptedPasses]:
    """Return an engine that is not started, and what it believes to be a model."""
    passes = ScriptedPasses(script, size=len(tokenizer))
    chosen = {"num_rows": 4, "max_queue": 64, "prefill_tokens": 16, **limits}
    engine = TransformersEngine(
        passes,
        Scheduler(**chosen),
        tokenizer,
        stop_ids=frozenset({tokenizer.eos_token_id}),
        kv_total_tokens=chosen["num_rows"] * 4096,
    )
    return engine, passes


def real_engine(
    model: Any,
    tokenizer: Any,
    rows: AdapterRows | None = None,
    *,
    num_rows: int = 3,
    prefill_tokens: int = 16,
) -> TransformersEngine:
    """Return an engine over `model` that is not started."""
    cache = RowCache(
        model.config,
        num_rows=num_rows,
        context_tokens=1024,
        dtype=model.dtype,
        device=torch.device("cpu"),
    )
    return TransformersEngine(
        Runner(model, cache, rows),
        Scheduler(num_rows=num_rows, max_queue=64, prefill_tokens=prefill_tokens),
        tokenizer,
        stop_ids=frozenset({tokenizer.eos_token_id}),
        kv_total_tokens=num_rows * 1024,
    )


class Collected:
    """A sink that can be waited for."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.first = threading.Event()
        self.over = threading.Event()

    def __call__(self, delta: Delta) -> None:
        """Keep a delta."""
        self.deltas.append(delta)
        self.first.set()
        if delta.finish or delta.failure:
            self.over.set()

    @property
    def text(self) -> str:
        """The whole answer; waits for it."""
        assert self.over.wait(WAIT_S), "the answer did not end"
        return "".join(delta.text for delta in self.deltas)

    @property
    def last(self) -> Delta:
        """The delta that ended it; waits for it."""
        assert self.over.wait(WAIT_S), "the answer did not end"
        return self.deltas[-1]


def asking(prompt_ids: Sequence[int], max_tokens: int = 8, **more: Any) -> Generation:
    """Return a greedy generation, unless `more` says otherwise."""
    more.setdefault("sampling", Sampling(temperature=0))
    return Generation(prompt_ids=tuple(prompt_ids), max_tokens=max_tokens, **more)


@contextlib.contextmanager
def serving(
    engine: TransformersEngine,
    tokenizer: Any,
    *,
    names: dict[str, bool] | None = None,
    api_key: str | None = None,
    thinking: bool = True,
    **limits: Any,
) -> Iterator[str]:
    """Serve on a free port of the loopback; yields the address."""
    config = ServeConfig(limits=Limits(**{"context_tokens": 1024, **limits}), thinking=thinking)
    metrics = ServeMetrics(engine.load, lambda: 0)
    grammars = Grammars(tokenizer, frozenset({tokenizer.eos_token_id}))
    chat = ChatServer(engine, tokenizer, config, names or {"tiny": False}, metrics, grammars)
    server = uvicorn.Server(http_config(make_app(chat, api_key=api_key), config, port=0))
    thread = threading.Thread(target=server.run)
    engine.start()
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        engine.stop(0)
        server.should_exit = True
        thread.join()
