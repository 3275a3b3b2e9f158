"""Time and peak memory of the data pipeline's commands over many rows: `make bench-data ROWS=N`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench.chats import SHORT, chats_of
from tests.bench.machine import describe

_SAMPLE_S = 0.2


def pipeline(folder: Path, *, num_rows: int, model: Path) -> dict[str, Any]:
    """Return seconds and peak memory of convert, split and tokenise, each as its command."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = folder / "rows.parquet"
    schema = pa.schema([(name, pa.string()) for name in ("system", "user", "assistant")])
    some = [{m["role"]: m["content"] for m in chat.messages} for chat in chats_of(2000, SHORT)]
    with pq.ParquetWriter(source, schema) as writer:
        for first in range(0, num_rows, len(some)):
            rows = [{**row, "user": f"{first + i} {row['user']}"} for i, row in enumerate(some)]
            writer.write_table(pa.Table.from_pylist(rows[: num_rows - first], schema=schema))
    all_rows, train = folder / "all.jsonl", folder / "all_train.jsonl"
    tokens = folder / "train.parquet"
    steps: dict[str, list[str | Path]] = {
        "convert": ["dataset_convert", source, all_rows, "--format", "system_user_assistant"],
        "split": ["dataset_split", all_rows, "--rand-sort", "--test-ratio", "0.01"],
        "tokenize": ["dataset_tokenize", train, tokens, "--model", model],
    }
    figures: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "load_before": describe()["load_before"],
        "num_rows": num_rows,
    }
    for name, (module, *arguments) in steps.items():
        command = [sys.executable, "-m", f"workloads.data.{module}", *map(str, arguments)]
        seconds, peak_gib = _watched(command)
        figures |= {f"{name}_s": round(seconds, 1), f"{name}_peak_memory_gib": round(peak_gib, 3)}
    figures["peak_memory_gib"] = max(figures[f"{name}_peak_memory_gib"] for name in steps)
    manifest = json.loads(tokens.with_name(f"{tokens.name}.manifest.json").read_text())
    figures["num_tokens"] = manifest["counts"]["num_tokens"]
    return figures


def _watched(command: list[str]) -> tuple[float, float]:
    """Return seconds and the highest sum of proportional memory of the command's processes."""
    started = time.perf_counter()
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    peak_kib = 0
    while process.poll() is None:
        peak_kib = max(peak_kib, _memory_kib(process.pid))
        threading.Event().wait(_SAMPLE_S)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {process.returncode}")
    return time.perf_counter() - started, peak_kib / 2**20


def _memory_kib(session: int) -> int:
    """Return the PSS of every process of a session: shared pages count once in the sum."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) != session:
                continue
            lines = (folder / "smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except (OSError, ProcessLookupError):
            continue
    return total
