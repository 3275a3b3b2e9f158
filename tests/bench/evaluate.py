"""Measures batched evaluation against one by one: `make bench-evaluate`.

SmolLM2-135M-Instruct in fp32 answers the same BFCL questions with `generate_in_batches`, once in
length buckets of 16 and once alone, on one thread, without a stop so that both do equal work.
Counted are tokens read and written per second of CPU time, so that other work on the machine does
not count. Both must give equal answers. Writes tests/bench/evaluate.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from infra.state import Cache
from tests.bench.machine import describe

RESULT = Path(__file__).with_name("evaluate.json")
MODEL = "SmolLM2-135M-Instruct"
BATCH_SIZE = 16
LEAST_RATIO = 3.0
LEAST_EQUAL = 0.99
"""Share of tokens: one that is nearly as likely may win in another order of sums."""


def main() -> int:
    """Measures, prints, writes; 0 when the ratio and the answers keep their bounds."""
    options = _parser().parse_args()
    import torch

    from workloads.common.models import load_model, load_tokenizer

    torch.set_num_threads(1)
    cache = Cache.from_environ()
    folder = cache.models / MODEL
    tokenizer = load_tokenizer(folder)
    model = load_model(folder, dtype=torch.float32, device=torch.device("cpu"))
    prompts = _prompts(cache, tokenizer, options.rows)
    machine = describe()
    samples: dict[str, list[float]] = {"batched": [], "one_by_one": []}
    answers: dict[str, dict[int, tuple[int, ...]]] = {}
    for _ in range(options.runs):
        for name, size in (("batched", BATCH_SIZE), ("one_by_one", 1)):
            rate, answers[name] = _measure(model, tokenizer, prompts, size, options.tokens)
            samples[name].append(rate)
            print(f"{name:<12}{rate:>10.1f} tokens per CPU second", flush=True)
    ratio = statistics.median(samples["batched"]) / statistics.median(samples["one_by_one"])
    equal = _equal_share(answers["batched"], answers["one_by_one"])
    verdicts = {
        "batched_vs_one_by_one": _verdict(ratio, LEAST_RATIO),
        "equal_tokens": _verdict(equal, LEAST_EQUAL),
    }
    for name, verdict in verdicts.items():
        print(f"{name:<24}{verdict['value']:>8}  least {verdict['least']:g}  {verdict['verdict']}")
    if options.write:
        result = {
            "measured_at": datetime.now(UTC).date().isoformat(),
            "command": f"python -m tests.bench.evaluate --rows {options.rows} "
            f"--tokens {options.tokens} --runs {options.runs}",
            "machine": machine,
            "versions": {name: metadata.version(name) for name in ("torch", "transformers")},
            "batch_size": BATCH_SIZE,
            "prompt_tokens": sum(map(len, prompts)),
            "output_tokens_a_row": options.tokens,
            "tokens_per_cpu_s": samples,
            "verdicts": verdicts,
        }
        RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return int(any(each["verdict"] == "FAIL" for each in verdicts.values()))


def _prompts(cache: Cache, tokenizer: Any, rows: int) -> list[list[int]]:
    """The questions without the offer of functions: short prompts, as chats mostly are."""
    from workloads.data.chat_template import prompt_text
    from workloads.data.chats import read_bfcl

    chats = read_bfcl(cache.data / "bfcl")[:rows]
    texts = [
        prompt_text(tokenizer, [turn for turn in chat.messages if turn["role"] == "user"])
        for chat in chats
    ]
    return tokenizer(texts, add_special_tokens=False)["input_ids"]


def _measure(
    model: Any, tokenizer: Any, prompts: list[list[int]], batch_size: int, tokens: int
) -> tuple[float, dict[int, tuple[int, ...]]]:
    from workloads.evaluate.generate import generate_in_batches

    answers: dict[int, tuple[int, ...]] = {}
    began = time.process_time()
    for made in generate_in_batches(
        model,
        prompts,
        batch_size=batch_size,
        max_new_tokens=tokens,
        pad_id=tokenizer.pad_token_id,
        stop_ids=frozenset(),
    ):
        answers |= made
    spent = time.process_time() - began
    done = sum(map(len, prompts)) + sum(map(len, answers.values()))
    return done / spent, answers


def _equal_share(first: dict[int, tuple[int, ...]], second: dict[int, tuple[int, ...]]) -> float:
    pairs = [
        (a, b) for row, tokens in first.items() for a, b in zip(tokens, second[row], strict=True)
    ]
    return sum(a == b for a, b in pairs) / len(pairs)


def _verdict(value: float, least: float) -> dict[str, Any]:
    verdict = "PASS" if value >= least else "FAIL"
    return {"value": round(value, 3), "least": least, "verdict": verdict}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.evaluate", description=__doc__)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=16, help="written for each row")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--no-write", dest="write", action="store_false")
    return parser


if __name__ == "__main__":
    sys.exit(main())
