"""Measures the data pipeline: `make bench-data`, or python -m tests.bench.data [--rows N].

Tokenising against the `tokenizers` library's own batch call on all CPUs, on the same texts and in
one run; packing on BFCL and on a long-tailed mix; and with --rows the whole pipeline over that many
rows with the peak memory of all its processes. Model and BFCL are those of `make setup`. The ratio
of the rates is one of CPU seconds: both passes keep every CPU busy and wait for nothing, and other
work on the machine does not count. Writes tests/bench/data.json; a missed target ends with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.chats import chats_of
from tests.bench.data_pipeline import pipeline
from tests.bench.machine import describe
from workloads.data.chats import read_bfcl
from workloads.data.dataset_tokenize import tokenize_file
from workloads.data.token_rows import TokenRows, pack, read_parquet
from workloads.data.token_worker import TokenizeConfig
from workloads.recipes.data import BFCL_CATEGORIES

RESULT = Path(__file__).with_name("data.json")
LIMITS = {
    "tokenizing_ratio": 0.9,
    "packing_percent_bfcl": 99.0,
    "packing_percent_long_tailed": 99.0,
}
"""At least this; MEMORY_GIB at most that."""
MEMORY_GIB = 2.0
_SEQUENCE_LENGTH = 4096
_CACHE = Path(os.environ.get("SOPERATOR_CACHE", Path.home() / ".cache/soperator-stack"))
MODEL = _CACHE / "models/SmolLM2-135M-Instruct"
BFCL = _CACHE / "data/bfcl"
_PACKAGES = ("tokenizers", "transformers", "pyarrow")


def main() -> int:
    """Measure, print, write; 0 when every target is met."""
    options = _parser().parse_args()
    result: dict[str, Any] = {
        "command": f"python -m tests.bench.data {' '.join(sys.argv[1:])}".strip(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe(),
        "versions": {name: metadata.version(name) for name in _PACKAGES},
        "model": MODEL.name,
    }
    with tempfile.TemporaryDirectory() as folder:
        result |= tokenizing(Path(folder), num_chats=options.chats, num_runs=options.runs)
        result |= packing(Path(folder))
        if options.rows:
            result["pipeline"] = pipeline(Path(folder), num_rows=options.rows, model=MODEL)
        elif RESULT.is_file():
            result["pipeline"] = _measured_before(json.loads(RESULT.read_text(encoding="utf-8")))
    passed = _print(result)
    if options.write:
        RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if passed else 1


def _measured_before(result: dict[str, Any]) -> dict[str, Any] | None:
    """Return the figures of the whole pipeline with the day and the load that they had."""
    found = result.get("pipeline")
    load = result["machine"]["load_before"]
    return {"date": result["date"], "load_before": load, **found} if found else None


def _print(result: dict[str, Any]) -> bool:
    passed = True
    for name, limit in LIMITS.items():
        good = result[name] >= limit
        passed &= good
        print(f"{name:<30}{result[name]:>10.3f}  at least {limit:<6} {'PASS' if good else 'FAIL'}")
    if result.get("pipeline"):
        peak = result["pipeline"]["peak_memory_gib"]
        good = peak <= MEMORY_GIB
        passed &= good
        verdict = "PASS" if good else "FAIL"
        print(f"{'peak_memory_gib':<30}{peak:>10.3f}  at most  {MEMORY_GIB:<6} {verdict}")
    else:
        print("peak_memory_gib               NOT RUN: give --rows 500000")
    return passed


def tokenizing(folder: Path, *, num_chats: int, num_runs: int) -> dict[str, Any]:
    """Return tokens per CPU second of our pass from chats to parquet and of the library's call.

    Each is a process of its own, and passes alternate. Ours is what its workers count themselves
    and what their parent spends on reading, gathering and writing; starting interpreters and
    loading the tokenizer, which does not grow with the data, is in neither.
    """
    source, texts = folder / "chats.jsonl", folder / "texts.json"
    source.write_bytes(b"".join(chat.to_line() for chat in chats_of(num_chats)))
    _write_texts(source, texts)
    num_cpus = len(os.sched_getaffinity(0))
    ours: list[Pass] = []
    library: list[Pass] = []
    for _ in range(num_runs):
        library.append(_pass(_LIBRARY, MODEL / "tokenizer.json", texts))
        ours.append(_pass(_OURS, MODEL, source, folder / "tokens.parquet", num_cpus))
    ratios = [mine.per_cpu_s / theirs.per_cpu_s for mine, theirs in zip(ours, library, strict=True)]
    return {
        "tokenizing_ratio": round(statistics.median(ratios), 3),
        "tokenizing_ratios": [round(ratio, 3) for ratio in ratios],
        "tokens_per_cpu_s": round(statistics.median(each.per_cpu_s for each in ours)),
        "library_tokens_per_cpu_s": round(statistics.median(each.per_cpu_s for each in library)),
        "tokens_per_s": round(statistics.median(each.per_s for each in ours)),
        "library_tokens_per_s": round(statistics.median(each.per_s for each in library)),
        "num_workers": num_cpus,
        "num_chats": num_chats,
        "tokens_per_chat": round(ours[0].num_tokens / num_chats, 1),
    }


class Pass(NamedTuple):
    """What one process did."""

    num_tokens: int
    cpu_s: float
    wall_s: float

    @property
    def per_cpu_s(self) -> float:
        """Tokens per CPU second."""
        return self.num_tokens / self.cpu_s

    @property
    def per_s(self) -> float:
        """Tokens per second; ours has the start of its workers in it."""
        return self.num_tokens / self.wall_s


_OURS = """
import io, sys, time
from pathlib import Path
import pyarrow.compute, pyarrow.dataset, pyarrow.parquet
from workloads.data.dataset_tokenize import tokenize_file
from workloads.data.token_worker import TokenizeConfig
model, source, output = map(Path, sys.argv[1:4])
num_workers, config = int(sys.argv[4]), TokenizeConfig(max_tokens=1 << 20)
before, started = time.process_time(), time.perf_counter()
done = tokenize_file(
    source, output, io.BytesIO(), model_dir=model, config=config, num_workers=num_workers
)
here = time.process_time() - before if num_workers > 1 else 0
print(done.num_tokens, done.workers_cpu_s + here, time.perf_counter() - started)
"""
_LIBRARY = """
import json, sys, time
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
texts = json.load(open(sys.argv[2]))
before, started, total = time.process_time(), time.perf_counter(), 0
for first in range(0, len(texts), 1024):
    batch = tokenizer.encode_batch(texts[first:first + 1024], add_special_tokens=False)
    total += sum(len(each.ids) for each in batch)
print(total, time.process_time() - before, time.perf_counter() - started)
"""


def _pass(script: str, *arguments: object) -> Pass:
    """Run one pass; the library's ids are taken out of what it returns, as ours are."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    num_tokens, cpu_s, wall_s = done.stdout.split()
    return Pass(int(num_tokens), float(cpu_s), float(wall_s))


def _write_texts(source: Path, texts: Path) -> None:
    """Write the rendered chats, which the library gets for nothing."""
    from workloads.common.models import load_tokenizer
    from workloads.data.chats import iter_jsonl

    chats = [[dict(m) for m in chat.messages] for chat in iter_jsonl(source)]
    rendered = load_tokenizer(MODEL).apply_chat_template(chats, tokenize=False)
    texts.write_text(json.dumps(rendered), encoding="utf-8")


def packing(folder: Path) -> dict[str, Any]:
    """Return the share of positions that hold a token in packed rows of 4,096."""
    source = folder / "bfcl.jsonl"
    source.write_bytes(b"".join(chat.to_line() for chat in read_bfcl(BFCL, BFCL_CATEGORIES)))
    config = TokenizeConfig(max_tokens=_SEQUENCE_LENGTH)
    tokenize_file(source, folder / "bfcl.parquet", BytesIO(), model_dir=MODEL, config=config)
    return {
        "packing_sequence_length": _SEQUENCE_LENGTH,
        "packing_percent_bfcl": _filled(read_parquet(folder / "bfcl.parquet")),
        "packing_percent_long_tailed": _filled(long_tailed(50_000)),
    }


def long_tailed(num_rows: int) -> TokenRows:
    """Return rows of log-normal length: half below 300 tokens, 1 in 100 above 2,400."""
    import numpy as np

    lengths = np.random.default_rng(0).lognormal(mean=np.log(300), sigma=0.9, size=num_rows)
    lengths = np.clip(lengths.astype(np.int64), 16, _SEQUENCE_LENGTH)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return TokenRows(
        input_ids=np.zeros(offsets[-1], np.int32),
        learned=np.ones(offsets[-1], np.bool_),
        offsets=offsets,
    )


def _filled(rows: TokenRows) -> float:
    packs = pack(rows, sequence_length=_SEQUENCE_LENGTH)
    return round(100 * rows.num_tokens / (len(packs) * _SEQUENCE_LENGTH), 3)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.data", description=__doc__)
    parser.add_argument("--chats", type=int, default=40_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=0, help="rows of the whole pipeline")
    parser.add_argument("--no-write", dest="write", action="store_false")
    return parser


if __name__ == "__main__":
    sys.exit(main())
