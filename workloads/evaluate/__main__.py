"""The evaluation job: base and tuned model on the same held-out rows.

Prints the result as JSON on stdout (usable with jq up to the record line) and writes
`<results>/<job id>/evaluation.json`.
Usage: python -m workloads.evaluate --recipe bfcl_smollm2 [--set evaluate.num_rows=6]
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.common import atomic, hardware
from workloads.common.dist import World, world
from workloads.common.exit_codes import DataError
from workloads.common.job import Job, end, run_job, section_of
from workloads.common.log import log
from workloads.data.chats import Chat, read_jsonl
from workloads.data.manifest import read_manifest
from workloads.data.token_rows import read_parquet
from workloads.evaluate.compare import ModelResult, evaluation
from workloads.evaluate.config import EvaluateConfig
from workloads.evaluate.score import score
from workloads.train.run_folder import resolve_adapter

if TYPE_CHECKING:
    from workloads.evaluate.generate import Speed


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The rows that both models get."""

    chats: Sequence[Chat]
    prompts: Sequence[Sequence[int]]
    examples: Sequence[Any]
    pad_id: int


def main(job: Job) -> None:
    """Evaluate both models and print the comparison."""
    config = job.recipe.evaluate
    if config is None:
        raise section_of(job.recipe, "evaluate")
    model_dir = job.places.model_dir(job.recipe.model)
    dataset = job.places.data_path(config.dataset)
    adapter = job.places.expand(config.adapter, at="evaluate.adapter")
    if not adapter.exists():
        raise DataError(f"evaluate.adapter {adapter}: missing; run the train job first")
    tuned_dir = resolve_adapter(adapter)
    with world(cpu_threads=config.cpu_threads) as here:
        job.record.hardware = hardware.detect(hardware.device_name())
        _evaluate(job, config, here, model_dir, dataset, tuned_dir)


def _evaluate(
    job: Job,
    config: EvaluateConfig,
    here: World,
    model_dir: Path,
    dataset: Path,
    tuned_dir: Path,
) -> None:
    from workloads.common.models import load_model, load_tokenizer, torch_dtype
    from workloads.evaluate.adapter import load_tuned

    dtype = torch_dtype(config.dtype)
    tokenizer = load_tokenizer(model_dir)
    held_out = load_held_out(config, dataset, tokenizer)

    def base() -> Any:
        return load_model(model_dir, dtype=dtype, device=here.device)

    def tuned() -> Any:
        return load_tuned(model_dir, tuned_dir, dtype=dtype, device=here.device)

    before = _evaluate_model("base", base, config, here, held_out, tokenizer)
    after = _evaluate_model("tuned", tuned, config, here, held_out, tokenizer)
    result = evaluation(before, after)
    record = job.record
    record.engine = "transformers"
    record.metrics |= {
        "batch_size": config.batch_size,
        "num_rows": len(held_out.chats),
        "num_perplexity_rows": len(held_out.examples),
    }
    for prefix, part in (("", after), ("base_", before)):
        record.metrics |= {
            f"{prefix}{name}": value
            for name, value in part.to_json().items()
            if isinstance(value, float)
        }
    if here.is_main:
        text = json.dumps(result, indent=2, ensure_ascii=False)
        path = job.results_dir / "evaluation.json"
        atomic.write_text(path, text + "\n")
        record.artifacts |= {"evaluation": str(path), "adapter_dir": str(tuned_dir)}
        sys.stdout.write(text + "\n")  # one write: other ranks share this log
        sys.stdout.flush()
    here.barrier()


def load_held_out(config: EvaluateConfig, dataset: Path, tokenizer: Any) -> HeldOut:
    """Return the held-out rows: prompts up to the last assistant turn, and tokenised examples."""
    from workloads.data.chat_template import prompt_text

    chats_file, manifest_file = dataset / "chats_test.jsonl", dataset / "manifest.json"
    if not chats_file.is_file():
        raise DataError(f"{chats_file}: missing; run prepare-data first")
    template = read_manifest(manifest_file)["config"]["chat_template_kwargs"]
    chats = read_jsonl(chats_file)[: config.num_rows]
    texts = [
        prompt_text(tokenizer, chat.messages[: _last_turn(chat)], **template) for chat in chats
    ]
    examples = read_parquet(dataset / "tokens_test.parquet")[: config.num_perplexity_rows]
    if not chats or not examples:
        raise DataError(f"{dataset}: the test split is empty; raise data.test_ratio")
    return HeldOut(
        chats=chats,
        prompts=tokenizer(texts, add_special_tokens=False)["input_ids"],
        examples=examples,
        pad_id=tokenizer.pad_token_id,
    )


def _last_turn(chat: Chat) -> int:
    return max(i for i, message in enumerate(chat.messages) if message["role"] == "assistant")


def _evaluate_model(
    name: str,
    load: Callable[[], Any],
    config: EvaluateConfig,
    here: World,
    held_out: HeldOut,
    tokenizer: Any,
) -> ModelResult:
    """Return the result of one model; rows are dealt over ranks, speed is rank 0's."""
    from workloads.evaluate.generate import generate_all, measure_speed, stop_token_ids
    from workloads.evaluate.perplexity import loss_sum

    log(f"{name}: loading")
    model = load()
    examples = held_out.examples[here.rank :: here.world_size]
    losses = loss_sum(model, examples, pad_id=held_out.pad_id) if examples else (0.0, 0)
    total, num_tokens = here.sum([float(value) for value in losses])
    if not num_tokens:
        raise DataError("no assistant token in the held-out rows; nothing to measure")
    log(f"{name}: perplexity {math.exp(total / num_tokens):.4f} on {int(num_tokens)} tokens")

    mine = range(here.rank, len(held_out.chats), here.world_size)
    made = generate_all(
        model,
        [held_out.prompts[i] for i in mine],
        batch_size=config.batch_size,
        max_new_tokens=config.max_new_tokens,
        pad_id=held_out.pad_id,
        stop_ids=stop_token_ids(model, tokenizer),
    )
    texts = tokenizer.batch_decode(made, skip_special_tokens=True) if made else []
    parts = here.gather(dict(zip(mine, texts, strict=True)))
    by_row = {row: text for part in parts for row, text in part.items()}
    generated = [by_row[row] for row in range(len(held_out.chats))]
    log(f"{name}: {len(generated)} answers")

    speeds: tuple[Speed, ...] = ()
    if here.is_main:
        prompts = held_out.prompts
        batch = [prompts[i % len(prompts)] for i in range(config.batch_size)]
        speeds = tuple(
            measure_speed(
                model, streams, num_tokens=config.num_speed_tokens, pad_id=held_out.pad_id
            )
            for streams in (batch[:1], batch)
        )
        for speed, streams in zip(speeds, ("one stream", f"a batch of {len(batch)}"), strict=True):
            log(
                f"{name}: {streams} reads {speed.prefill_tokens_per_s:.1f} and writes "
                f"{speed.output_tokens_per_s:.1f} tokens/s"
            )
    alone, batched = here.broadcast(speeds)
    return _result(config, held_out, generated, math.exp(total / num_tokens), alone, batched)


def _result(
    config: EvaluateConfig,
    held_out: HeldOut,
    generated: Sequence[str],
    perplexity: float,
    alone: Speed,
    batched: Speed,
) -> ModelResult:
    scores = [
        score(text, functions=chat.functions, possible_answer=chat.possible_answer)
        for text, chat in zip(generated, held_out.chats, strict=True)
        if chat.possible_answer
    ]
    rows = range(len(generated))
    sampled = random.Random(config.seed).sample(rows, min(config.num_samples, len(rows)))
    return ModelResult(
        perplexity=perplexity,
        generated=generated,
        output_tokens_per_s=alone.output_tokens_per_s,
        batch_output_tokens_per_s=batched.output_tokens_per_s,
        prefill_tokens_per_s=alone.prefill_tokens_per_s,
        batch_prefill_tokens_per_s=batched.prefill_tokens_per_s,
        function_name_accuracy=_share([s.name_correct for s in scores]),
        argument_accuracy=_share([s.arguments_correct for s in scores]),
        samples=[
            {
                "input": held_out.chats[i].messages[_last_turn(held_out.chats[i]) - 1]["content"],
                "reference": held_out.chats[i].messages[_last_turn(held_out.chats[i])]["content"],
                "generated": generated[i],
            }
            for i in sorted(sampled)
        ],
    )


def _share(flags: Sequence[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None


if __name__ == "__main__":
    end(run_job("evaluate", main))
