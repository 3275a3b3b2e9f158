"""One model on the held-out rows: answers and losses row by row, dealt over ranks, and speeds.

Owns who does which row and what is kept of it. Rows that an earlier run or a lost rank finished
are taken from the store.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workloads.common.dist import World
from workloads.common.exit_codes import DataError
from workloads.common.log import Counted, counted, log
from workloads.evaluate.config import EvaluateConfig
from workloads.evaluate.held_out import HeldOut
from workloads.evaluate.row_store import Part, RowStore

if TYPE_CHECKING:
    from workloads.evaluate.generate import Speed


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRows:
    """What one model made of every held-out row, in their order."""

    generated: tuple[str, ...]
    num_tokens: tuple[int, ...]
    """Tokens of each answer, without the end of its turn."""
    losses: tuple[tuple[float, int], ...]
    """Nats and label tokens of each tokenised row."""


def run_rows(
    name: str,
    model: Any,
    tokenizer: Any,
    config: EvaluateConfig,
    held_out: HeldOut,
    store: RowStore,
    here: World,
) -> ModelRows:
    """Return all rows of one model; each rank does its share of what is missing."""
    answers = _share(name, "answer", len(held_out.chats), store, here, lambda rows, work: _answers(
        model, tokenizer, config, held_out, rows, work
    ))  # fmt: skip
    log(f"{name}: {len(answers)} answers")
    losses = _share(name, "loss", len(held_out.examples), store, here, lambda rows, _: _losses(
        model, held_out, rows
    ))  # fmt: skip
    if not any(row["num_tokens"] for row in losses):
        raise DataError("no assistant token in the held-out rows; nothing to measure")
    return ModelRows(
        generated=tuple(row["text"] for row in answers),
        num_tokens=tuple(row["num_tokens"] for row in answers),
        losses=tuple((row["nats"], row["num_tokens"]) for row in losses),
    )


def _share(
    name: str, part: Part, num_rows: int, store: RowStore, here: World, do: Any
) -> list[Mapping[str, Any]]:
    # One look at the disk for all: ranks that see different files would deal rows differently.
    rows = here.broadcast(store.finished(part) if here.is_main else None)
    todo = [row for row in range(num_rows) if row not in rows]
    if rows and todo:
        log(f"{part} rows: {num_rows - len(todo)} are finished, {len(todo)} to do")
    made: dict[int, Mapping[str, Any]] = {}
    mine = todo[here.rank :: here.world_size]
    everything: dict[int, Mapping[str, Any]] = dict(rows)
    whose = " of rank 0" if here.world_size > 1 else ""
    with counted(f"{name}: {part}{whose}", len(mine)) as work:
        for finished in do(mine, work) if mine else ():
            store.add(part, finished)
            made |= finished
            work.done, work.detail = len(made), ""
        for theirs in here.gather(made):
            everything |= theirs
    return [everything[row] for row in range(num_rows)]


def _answers(
    model: Any,
    tokenizer: Any,
    config: EvaluateConfig,
    held_out: HeldOut,
    rows: list[int],
    work: Counted,
) -> Iterator[dict[int, dict[str, Any]]]:
    from workloads.evaluate.generate import generate_in_batches, stop_token_ids

    for made in generate_in_batches(
        model,
        [held_out.prompts[row] for row in rows],
        batch_size=config.batch_size,
        max_new_tokens=config.max_new_tokens,
        pad_id=held_out.pad_id,
        stop_ids=stop_token_ids(model, tokenizer),
        work=work,
    ):
        texts = tokenizer.batch_decode(list(made.values()), skip_special_tokens=True)
        yield {
            rows[index]: {"text": text, "num_tokens": len(tokens)}
            for (index, tokens), text in zip(made.items(), texts, strict=True)
        }


def _losses(model: Any, held_out: HeldOut, rows: list[int]) -> Iterator[dict[int, dict[str, Any]]]:
    from workloads.evaluate.perplexity import row_losses

    examples = [held_out.examples[row] for row in rows]
    for made in row_losses(model, examples, pad_id=held_out.pad_id):
        yield {
            rows[index]: {"nats": nats, "num_tokens": count}
            for index, (nats, count) in made.items()
        }


def speeds(
    name: str, model: Any, config: EvaluateConfig, held_out: HeldOut, here: World
) -> tuple[Speed, Speed]:
    """Return rank 0's speeds with one stream and with a full batch, on every rank."""
    from workloads.evaluate.generate import NUM_SPEED_RUNS, measure_speed

    found: tuple[Speed, ...] = ()
    if here.is_main:
        began = time.monotonic()
        prompts = held_out.prompts
        batch = [prompts[i % len(prompts)] for i in range(config.batch_size)]
        both = (batch[:1], batch)
        with counted(f"{name}: speed", len(both) * (1 + NUM_SPEED_RUNS), "runs") as work:
            found = tuple(
                measure_speed(
                    model,
                    streams,
                    num_tokens=config.num_speed_tokens,
                    pad_id=held_out.pad_id,
                    work=work,
                )
                for streams in both
            )
        for speed, streams in zip(found, ("one stream", f"a batch of {len(batch)}"), strict=True):
            log(
                f"{name}: {streams} reads {speed.prefill_tokens_per_s:.1f} and writes "
                f"{speed.output_tokens_per_s:.1f} tokens/s"
            )
        log(f"{name}: speeds took {time.monotonic() - began:.1f} s")
    alone, batched = here.broadcast(found)
    return alone, batched
