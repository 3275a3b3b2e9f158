"""One model on the held-out rows: answers, losses and speeds, dealt over ranks, kept row by row.

Greedy, in batches with a KV cache; prefill and decode are timed apart. Each row is written as it
ends, so a lost rank loses none of them.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch.nn.utils.rnn import pad_sequence

from workloads.common import atomic
from workloads.common.dist import World
from workloads.common.exit_codes import DataError
from workloads.common.log import Counted, counted, log
from workloads.common.record import job_id
from workloads.data.token_rows import IGNORED, Example
from workloads.evaluate.held_out import Context
from workloads.evaluate.subject import Header

NUM_SPEED_RUNS = 3
PADDING_SHARE = 0.25
"""Most padding in a bucket, of all the tokens that its prompts take."""


MAX_BATCH = 16
"""Rows of a pass that measures losses."""
MAX_TOKENS = 2048
"""Padded tokens of a batch: with a vocabulary of 150,000 their logits in fp32 are 1.2 GB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """Tokens of a batch of streams and the time they took."""

    token_ids: tuple[tuple[int, ...], ...]
    """Per stream, without the end-of-turn token."""
    num_prompt_tokens: int
    """Of all streams, without padding."""
    prefill_s: float
    decode_s: float
    num_decoded: int
    """Tokens made by decode steps, over all streams; a stream that has ended adds none."""


def stop_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the ids that end an assistant turn: the model's and the tokenizer's."""
    declared = getattr(model.generation_config, "eos_token_id", None)
    ids = declared if isinstance(declared, list) else [declared]
    return frozenset(i for i in [*ids, tokenizer.eos_token_id] if i is not None)


@torch.inference_mode()
def generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    pad_id: int,
    stop_ids: frozenset[int],
    work: Counted | None = None,
) -> Generated:
    """Return the greedy continuation of each prompt; empty `stop_ids` decodes to the limit.

    `work` gets where this batch is.
    """
    from transformers import GenerationConfig, StoppingCriteriaList

    device = model.device
    input_ids_BT, mask_BT = (each.to(device) for each in _padded(prompts, pad_id, side="left"))
    length = input_ids_BT.shape[1]
    moments_s: list[float] = []

    def chosen(ids_BT: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Take note of a further token of each stream; stop none."""
        if not moments_s:
            moments_s.append(_clock(device))
        if work is not None:
            made = ids_BT.shape[1] - length
            work.detail = f"{len(prompts)} at once, token {made} of {max_new_tokens} at most"
        return torch.zeros(len(ids_BT), dtype=torch.bool, device=device)

    own = model.generation_config
    # What a call leaves open comes from the model's: penalties, which are not greedy.
    model.generation_config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        pad_token_id=pad_id,
        eos_token_id=sorted(stop_ids) or None,
    )
    started_s = _clock(device)
    try:
        ids_BT = model.generate(
            input_ids_BT, attention_mask=mask_BT, stopping_criteria=StoppingCriteriaList([chosen])
        )
    finally:
        model.generation_config = own
    ended_s = _clock(device)
    outputs: list[tuple[int, ...]] = []
    num_decoded = 0
    for ids in ids_BT[:, length:].tolist():
        end = next((place for place, token in enumerate(ids) if token in stop_ids), len(ids))
        outputs.append(tuple(ids[:end]))
        num_decoded += min(end + 1, len(ids)) - 1
    return Generated(
        token_ids=tuple(outputs),
        num_prompt_tokens=sum(map(len, prompts)),
        prefill_s=moments_s[0] - started_s,
        decode_s=ended_s - moments_s[0],
        num_decoded=num_decoded,
    )


def _padded(
    rows: Sequence[Sequence[int]], pad_id: int, *, side: str = "right"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows side by side, and 1 where they have a token of their own."""
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    masks = [torch.ones_like(row) for row in ids]
    padded = partial(pad_sequence, batch_first=True, padding_side=side)
    return padded(ids, padding_value=pad_id), padded(masks)


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def batches(lengths: Sequence[int], *, batch_size: int) -> list[list[int]]:
    """Return row numbers in buckets of similar length, the longest first.

    A bucket ends where padding would be more than PADDING_SHARE of what it reads. The longest go
    first, so that memory that is too small shows at once.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    made: list[list[int]] = []
    real = 0
    for index in order:
        length = lengths[index]
        longest = lengths[made[-1][0]] if made else 0
        size = len(made[-1]) + 1 if made else 0
        if made and size <= batch_size and real + length >= (1 - PADDING_SHARE) * size * longest:
            made[-1].append(index)
            real += length
        else:
            made.append([index])
            real = length
    return made


def generate_in_batches(
    model: Any, prompts: Sequence[Sequence[int]], *, batch_size: int, **options: Any
) -> Iterator[dict[int, tuple[int, ...]]]:
    """Yield the continuations of each bucket as it ends, by the number of their prompt.

    `options` are those of `generate`.
    """
    for rows in batches([len(prompt) for prompt in prompts], batch_size=batch_size):
        made = generate(model, [prompts[row] for row in rows], **options)
        yield dict(zip(rows, made.token_ids, strict=True))


def measure_speed(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    num_tokens: int,
    pad_id: int,
    work: Counted | None = None,
) -> dict[str, float]:
    """Return how fast the model reads the prompts and writes `num_tokens` for each of them.

    Tokens per second of all streams together, without padding: the median of the runs. Streams do
    not stop at an end of turn, so that both models decode the same number of tokens.
    """
    nothing: frozenset[int] = frozenset()
    runs: list[Generated] = []
    for limit in (3, *(num_tokens for _ in range(NUM_SPEED_RUNS))):
        runs.append(generate(model, prompts, max_new_tokens=limit, pad_id=pad_id, stop_ids=nothing))
        if work is not None:
            work.done += 1
    del runs[0]  # the warm-up
    reads = (run.num_prompt_tokens / run.prefill_s for run in runs)
    writes = (run.num_decoded / run.decode_s for run in runs)
    return {
        "output_tokens_per_s": statistics.median(writes),
        "prefill_tokens_per_s": statistics.median(reads),
    }


Part = Literal["answer", "loss"]
_Made = Iterator[dict[int, dict[str, Any]]]
"""Some rows as they end, by their place among those that were asked for."""


class RowStore:
    """Rows of one header; every rank appends to a file of its own."""

    def __init__(self, results: Path, header: Header, *, rank: int) -> None:
        self.folder = results / "rows" / header.key
        self.folder.mkdir(parents=True, exist_ok=True)
        if rank == 0:
            text = json.dumps(asdict(header), indent=2) + "\n"
            atomic.write_text(self.folder / "header.json", text)
        self._path = self.folder / f"{job_id()}.{rank}.jsonl"

    def finished(self, part: Part) -> dict[int, dict[str, Any]]:
        """Return the rows that any run has finished; a line that a kill cut is not one."""
        rows: dict[int, dict[str, Any]] = {}
        for path in sorted(self.folder.glob("*.jsonl")):
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    value = json.loads(line)
                    if value["part"] == part:
                        rows[int(value["row"])] = value
                except (ValueError, KeyError, TypeError):
                    continue
        return rows

    def add(self, part: Part, rows: Mapping[int, Mapping[str, Any]]) -> None:
        """Append rows and flush them to the disk."""
        lines = [json.dumps({"part": part, "row": row, **values}) for row, values in rows.items()]
        with atomic.writing(self._path), self._path.open("a+b") as file:
            # The end of a line that a kill cut, so that it takes no new row with it.
            end = file.tell()
            lead = b"\n" if end and os.pread(file.fileno(), 1, end - 1) != b"\n" else b""
            file.write(lead + "".join(f"{line}\n" for line in lines).encode())
            file.flush()
            os.fsync(file.fileno())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRows:
    """What one model made of every held-out row, in their order."""

    generated: tuple[str, ...]
    num_tokens: tuple[int, ...]
    """Tokens of each answer, without the end of its turn."""
    losses: tuple[tuple[float, int], ...]
    """Nats and label tokens of each tokenised row."""


def run_rows(name: str, model: Any, shared: Context, header: Header) -> ModelRows:
    """Return all rows of one model; each rank does its share of what is missing."""
    config, held_out, here = shared.config, shared.held_out, shared.here
    store = RowStore(shared.results, header, rank=here.rank)

    def answer(rows: list[int], work: Counted) -> _Made:
        for made in generate_in_batches(
            model,
            [held_out.prompts[row] for row in rows],
            batch_size=config.batch_size,
            max_new_tokens=config.max_new_tokens,
            pad_id=held_out.pad_id,
            stop_ids=stop_token_ids(model, shared.tokenizer),
            work=work,
        ):
            texts = shared.tokenizer.batch_decode(list(made.values()), skip_special_tokens=True)
            yield {
                index: {"text": text, "num_tokens": len(tokens)}
                for (index, tokens), text in zip(made.items(), texts, strict=True)
            }

    def loss(rows: list[int], work: Counted) -> _Made:
        examples = [held_out.examples[row] for row in rows]
        for made in row_losses(model, examples, pad_id=held_out.pad_id):
            yield {i: {"nats": nats, "num_tokens": count} for i, (nats, count) in made.items()}

    answers = _share(name, "answer", len(held_out.chats), store, here, answer)
    log(f"{name}: {len(answers)} answers")
    losses = _share(name, "loss", len(held_out.examples), store, here, loss)
    if not any(row["num_tokens"] for row in losses):
        raise DataError("no assistant token in the held-out rows; nothing to measure")
    return ModelRows(
        generated=tuple(row["text"] for row in answers),
        num_tokens=tuple(row["num_tokens"] for row in answers),
        losses=tuple((row["nats"], row["num_tokens"]) for row in losses),
    )


def _share(
    name: str,
    part: Part,
    num_rows: int,
    store: RowStore,
    here: World,
    do: Callable[[list[int], Counted], _Made],
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
        for values in do(mine, work) if mine else ():
            finished = {mine[index]: value for index, value in values.items()}
            store.add(part, finished)
            made |= finished
            work.done, work.detail = len(made), ""
        for theirs in here.gather(made):
            everything |= theirs
    return [everything[row] for row in range(num_rows)]


def speeds(name: str, model: Any, shared: Context) -> dict[str, float]:
    """Return rank 0's speeds with one stream and, as `batch_`, a full batch; on every rank."""
    config, held_out, here = shared.config, shared.held_out, shared.here
    found: dict[str, float] = {}
    if here.is_main:
        began = time.monotonic()
        prompts = held_out.prompts
        batch = [prompts[i % len(prompts)] for i in range(config.batch_size)]
        sides = {"": (batch[:1], "one stream"), "batch_": (batch, f"a batch of {len(batch)}")}
        with counted(f"{name}: speed", len(sides) * (1 + NUM_SPEED_RUNS), "runs") as work:
            for prefix, (streams, what) in sides.items():
                speed = measure_speed(
                    model,
                    streams,
                    num_tokens=config.num_speed_tokens,
                    pad_id=held_out.pad_id,
                    work=work,
                )
                found |= {f"{prefix}{key}": value for key, value in speed.items()}
                log(
                    f"{name}: {what} reads {speed['prefill_tokens_per_s']:.1f} and writes "
                    f"{speed['output_tokens_per_s']:.1f} tokens/s"
                )
        log(f"{name}: speeds took {time.monotonic() - began:.1f} s")
    return here.broadcast(found)


@torch.inference_mode()
def row_losses(
    model: Any, examples: Sequence[Example], *, pad_id: int
) -> Iterator[dict[int, tuple[float, int]]]:
    """Yield, batch by batch, each row's negative log-likelihood in nats and its label tokens."""
    lengths = [len(example.input_ids) for example in examples]
    for bucket in batches(lengths, batch_size=MAX_BATCH):
        rows_a_pass = max(1, MAX_TOKENS // lengths[bucket[0]])
        for first in range(0, len(bucket), rows_a_pass):
            rows = bucket[first : first + rows_a_pass]
            yield dict(
                zip(rows, _losses_of(model, [examples[i] for i in rows], pad_id), strict=True)
            )


def _losses_of(model: Any, examples: Sequence[Example], pad_id: int) -> list[tuple[float, int]]:
    input_ids_BT, mask_BT = _padded([each.input_ids for each in examples], pad_id)
    # Position t predicts token t + 1.
    labels_BT, _ = _padded([[*each.labels[1:], IGNORED] for each in examples], IGNORED)
    counts = (labels_BT != IGNORED).sum(1).tolist()
    positions = (labels_BT != IGNORED).any(0).nonzero().squeeze(1)
    if not len(positions):
        return [(0.0, 0)] * len(examples)
    device = model.device
    # Padding is on the right, where causal attention never looks, so positions count from 0.
    logits_BKV = model(
        input_ids=input_ids_BT.to(device),
        attention_mask=mask_BT.to(device),
        logits_to_keep=positions.to(device),
        use_cache=False,
    ).logits
    losses_BK = torch.nn.functional.cross_entropy(
        logits_BKV.float().transpose(1, 2),
        labels_BT[:, positions].to(device),
        ignore_index=IGNORED,
        reduction="none",
    )
    return list(zip(losses_BK.double().sum(1).tolist(), counts, strict=True))
