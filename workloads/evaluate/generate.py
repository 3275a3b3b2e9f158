"""Greedy generation in batches with a KV cache, with prefill and decode timed apart.

Owns left padding, the decode loop and the clock. Reading the prompts (prefill, which also yields
the first token) and writing (decode) are two speeds, after one warm-up run.
Shapes: B streams, T tokens, V vocabulary.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from workloads.common.log import Counted

NUM_SPEED_RUNS = 3
PADDING_SHARE = 0.25
"""Most padding in a bucket, of all the tokens that its prompts take."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Tokens per second of all streams together: the median of the runs."""

    prefill_tokens_per_s: float
    """Prompt tokens read, without padding."""
    output_tokens_per_s: float
    """Tokens written by decode steps."""


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
    from transformers import DynamicCache

    device = model.device
    length = max(map(len, prompts))
    input_ids_BT = torch.full((len(prompts), length), pad_id, device=device)
    mask_BT = torch.zeros_like(input_ids_BT)
    for row, prompt in enumerate(prompts):
        input_ids_BT[row, length - len(prompt) :] = torch.tensor(prompt, device=device)
        mask_BT[row, length - len(prompt) :] = 1
    position_ids_BT = (mask_BT.cumsum(1) - 1).clamp(min=0)

    cache = DynamicCache(config=model.config)
    outputs: list[list[int]] = [[] for _ in prompts]
    running = [True] * len(prompts)
    rows = list(range(len(prompts)))  # the stream in each place of the batch
    num_decoded = 0
    started_s = _clock(device)
    next_B = _forward(model, input_ids_BT, mask_BT, position_ids_BT, cache)
    prefilled_s = _clock(device)
    for step in range(max_new_tokens):
        if work is not None:
            work.detail = f"{len(prompts)} at once, token {step + 1} of {max_new_tokens} at most"
        for row, token in zip(rows, next_B.tolist(), strict=True):
            if not running[row]:
                continue
            num_decoded += step > 0
            if token in stop_ids:
                running[row] = False
            else:
                outputs[row].append(token)
        if step + 1 == max_new_tokens or not any(running):
            break
        left = [place for place, row in enumerate(rows) if running[row]]
        if len(left) <= len(rows) // 2:  # fewer rows to compute; a copy of the cache pays from here
            keep = torch.tensor(left, device=device)
            cache.batch_select_indices(keep)
            next_B, mask_BT = next_B[keep], mask_BT[keep]
            position_ids_BT = position_ids_BT[keep]
            rows = [rows[place] for place in left]
        mask_BT = torch.nn.functional.pad(mask_BT, (0, 1), value=1)
        position_ids_BT = position_ids_BT[:, -1:] + 1
        next_B = _forward(model, next_B[:, None], mask_BT, position_ids_BT, cache)
    return Generated(
        token_ids=tuple(map(tuple, outputs)),
        num_prompt_tokens=sum(map(len, prompts)),
        prefill_s=prefilled_s - started_s,
        decode_s=_clock(device) - prefilled_s,
        num_decoded=num_decoded,
    )


def _forward(
    model: Any,
    input_ids_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    position_ids_BT: torch.Tensor,
    cache: Any,
) -> torch.Tensor:
    logits_B1V = model(
        input_ids=input_ids_BT,
        attention_mask=mask_BT,
        position_ids=position_ids_BT,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits
    return logits_B1V[:, -1].argmax(-1)


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
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    batch_size: int,
    max_new_tokens: int,
    pad_id: int,
    stop_ids: frozenset[int],
    work: Counted | None = None,
) -> Iterator[dict[int, tuple[int, ...]]]:
    """Yield the continuations of each bucket as it ends, by the number of their prompt."""
    for rows in batches([len(prompt) for prompt in prompts], batch_size=batch_size):
        made = generate(
            model,
            [prompts[row] for row in rows],
            max_new_tokens=max_new_tokens,
            pad_id=pad_id,
            stop_ids=stop_ids,
            work=work,
        )
        yield dict(zip(rows, made.token_ids, strict=True))


def measure_speed(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    num_tokens: int,
    pad_id: int,
    work: Counted | None = None,
) -> Speed:
    """Return how fast the model reads the prompts and writes `num_tokens` for each of them.

    Streams do not stop at an end of turn, so that both models decode the same number of tokens.
    """
    nothing: frozenset[int] = frozenset()
    runs: list[Generated] = []
    for limit in (3, *(num_tokens for _ in range(NUM_SPEED_RUNS))):
        runs.append(generate(model, prompts, max_new_tokens=limit, pad_id=pad_id, stop_ids=nothing))
        if work is not None:
            work.done += 1
    del runs[0]  # the warm-up
    return Speed(
        prefill_tokens_per_s=statistics.median(
            run.num_prompt_tokens / run.prefill_s for run in runs
        ),
        output_tokens_per_s=statistics.median(run.num_decoded / run.decode_s for run in runs),
    )
