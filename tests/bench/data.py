"""Measures the data pipeline: `make bench-data`, or python -m tests.bench.data [--rows N].

Tokenising against the `tokenizers` library's own batch call on all CPUs, on the same texts and in
one run; packing on BFCL and on a long-tailed mix; and with --rows the whole pipeline over that many
rows with the peak memory of all its processes. Model and BFCL are those of `make setup`. The ratio
of the rates is one of CPU seconds: both passes keep every CPU busy and wait for nothing, and other
work on the machine does not count. Writes tests/bench/data.json; a missed target ends with 1.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import Any

from tests.bench.chats import chats_of
from tests.bench.data_pipeline import pipeline
from tests.bench.machine import describe
from workloads.data import calls
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
_PR_SET_CHILD_SUBREAPER = 36
_BASE_CHATS = 512
_PACKAGES = ("tokenizers", "transformers", "pyarrow")


def main() -> int:
    """Measure, print, write; 0 when every target is met."""
    options = _parser().parse_args()
    if options.chats <= _BASE_CHATS:
        _parser().error(
            f"--chats {options.chats}: give more than {_BASE_CHATS}; what a pass of so many takes "
            "is taken off"
        )
    # Processes that lose their parent become ours, so that their CPU time can be read.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
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

    Each is a process of its own, and passes alternate. What a pass of 512 chats takes, starting
    interpreters and loading the tokenizer, is taken off ours: it does not grow with the data.
    """
    source, small = folder / "chats.jsonl", folder / "small.jsonl"
    chats = chats_of(num_chats)
    source.write_bytes(b"".join(chat.to_line() for chat in chats))
    small.write_bytes(b"".join(chat.to_line() for chat in chats[:_BASE_CHATS]))
    texts = folder / "texts.json"
    _write_texts(source, texts)
    num_cpus = len(os.sched_getaffinity(0))
    ours: list[tuple[float, float]] = []
    library: list[tuple[float, float]] = []
    num_tokens = 0
    for _ in range(num_runs):
        library.append(_library(texts))
        start_cpu_s, start_s, start_tokens = _ours(small, folder, num_cpus)
        cpu_s, wall_s, num_tokens = _ours(source, folder, num_cpus)
        work = num_tokens - start_tokens
        ours.append((work / (cpu_s - start_cpu_s), work / (wall_s - start_s)))
    ratios = [mine[0] / theirs[0] for mine, theirs in zip(ours, library, strict=True)]
    return {
        "tokenizing_ratio": round(statistics.median(ratios), 3),
        "tokenizing_ratios": [round(ratio, 3) for ratio in ratios],
        "tokens_per_cpu_s": round(statistics.median(pair[0] for pair in ours)),
        "library_tokens_per_cpu_s": round(statistics.median(pair[0] for pair in library)),
        "tokens_per_s": round(statistics.median(pair[1] for pair in ours)),
        "library_tokens_per_s": round(statistics.median(pair[1] for pair in library)),
        "num_workers": num_cpus,
        "num_chats": num_chats,
        "tokens_per_chat": round(num_tokens / num_chats, 1),
    }


def _ours(source: Path, folder: Path, num_workers: int) -> tuple[float, float, int]:
    """Return CPU seconds, seconds and tokens of one pass from chats to parquet."""
    output = folder / "tokens.parquet"
    command = [
        *(sys.executable, "-m", "workloads.data.dataset_tokenize", str(source), str(output)),
        *("--model", str(MODEL), "--max-tokens", str(1 << 20), "--num-workers", str(num_workers)),
    ]
    (folder / "tokens.parquet.manifest.json").unlink(missing_ok=True)
    before, started = _children_cpu_s(), time.perf_counter()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    seconds = time.perf_counter() - started
    # The server that workers are forked from outlives the command; its time counts once it ended.
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    return _children_cpu_s() - before, seconds, read_parquet(output).num_tokens


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


_LIBRARY = """
import json, resource, sys, time
from tokenizers import Tokenizer
def cpu_s():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
tokenizer = Tokenizer.from_file(sys.argv[1])
texts = json.load(open(sys.argv[2]))
before, started, total = cpu_s(), time.perf_counter(), 0
for first in range(0, len(texts), 1024):
    batch = tokenizer.encode_batch(texts[first:first + 1024], add_special_tokens=False)
    total += sum(len(each.ids) for each in batch)
print(total / (cpu_s() - before), total / (time.perf_counter() - started))
"""


def _library(texts: Path) -> tuple[float, float]:
    """Return tokens per CPU second and per second of encode_batch with its ids taken out."""
    command = [sys.executable, "-c", _LIBRARY, str(MODEL / "tokenizer.json"), str(texts)]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    per_cpu_s, per_s = done.stdout.split()
    return float(per_cpu_s), float(per_s)


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
    source.write_bytes(b"".join(chat.to_line() for chat in calls.read_bfcl(BFCL, BFCL_CATEGORIES)))
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
