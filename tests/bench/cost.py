"""Measures the cost engine: `make bench-cost`, or python -m tests.bench.cost [--runs N].

All cost work of one preview of l40s-dev that was deployed before (imports, prices, bill, text,
difference, outputs) in a process of its own, as the engine starts one; and a bill of 10,000 lines
from declaration to text and snapshot. Seconds of CPU: the work waits for nothing, and other work on
the machine does not count. Writes tests/bench/cost.json with medians and the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stacks.check import check
from stacks.files import parse_yaml
from stacks.load import STACKS_DIR, load_config
from stacks.spec import StackSpec

RESULT = Path(__file__).with_name("cost.json")
LIMITS = {"preview_s": 0.1, "ten_thousand_lines_s": 0.5}
"""Targets of the product; a median over its limit ends with 1."""
NUM_LINES = 10_000
_PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJGVJRcWE02OPAsk5Nx3B3O4RMs6uxZK6tZKMTZEYFN b"


def main() -> int:
    """Measures, prints, writes; 0 when every median keeps its limit."""
    options = _parser().parse_args()
    if options.sample:
        print({"preview_s": preview_s, "ten_thousand_lines_s": lines_s}[options.sample]())
        return 0
    samples = {name: [_sample(name) for _ in range(options.runs)] for name in LIMITS}
    result = _result(samples)
    for name, limit in LIMITS.items():
        median = result["medians"][name]
        verdict = "PASS" if median <= limit else "FAIL"
        print(f"{name:<22}{median:>8.3f} s  limit {limit:>4.1f} s  {verdict}")
    if options.write:
        RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return int(any(result["medians"][name] > limit for name, limit in LIMITS.items()))


def preview_s() -> float:
    """Seconds of cost work in one preview, imports included."""
    spec = _spec()
    check(spec)
    started = time.process_time()
    from cost.bill.bill import bill, render
    from cost.diff.diff import cost_outputs
    from cost.diff.table import change
    from cost.prices.book import layered

    found = bill(spec, layered(spec))
    outputs = cost_outputs(found)
    text = render(found) + change(found, {"cost": outputs}).render()
    elapsed = time.process_time() - started
    assert "No change in cost." in text
    return elapsed


def lines_s() -> float:
    """Seconds from a declaration of 10,000 lines to their totals, their text and their snapshot."""
    from cost.bill.bill import Bill, render
    from cost.diff.diff import take
    from cost.prices.book import layered
    from cost.resources.estimate import estimate

    spec = _spec()
    worker, *_ = spec.nodes.workers
    workers = tuple(replace(worker, name=f"worker-{number}") for number in range(NUM_LINES // 2))
    spec = replace(spec, nodes=replace(spec.nodes, workers=workers))
    book = layered(spec)
    started = time.process_time()
    total = estimate(spec, book)
    bill = Bill(estimate=total, problems=())
    text = render(bill)
    snapshot = take(bill)
    elapsed = time.process_time() - started
    assert len(snapshot.lines) >= NUM_LINES
    assert text.count("worker-") >= NUM_LINES
    return elapsed


def _spec() -> StackSpec:
    text = (STACKS_DIR / "Pulumi.l40s-dev.yaml").read_text(encoding="utf-8")
    document: Any = parse_yaml(text.replace("file:$SOPERATOR_SSH_PUBLIC_KEY_FILE", _PUBLIC_KEY))
    return load_config(document["config"], "l40s-dev", environ={})


def _sample(name: str) -> float:
    """One measurement in a process of its own: nothing is imported or cached yet."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.cost", "--sample", name],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def _result(samples: dict[str, list[float]]) -> dict[str, Any]:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "measured_at": datetime.now(UTC).date().isoformat(),
        "machine": {
            "cpu": model,
            "num_cpus": os.cpu_count(),
            "load_average": round(os.getloadavg()[0], 1),
            "python": platform.python_version(),
        },
        "medians": {name: round(statistics.median(each), 3) for name, each in samples.items()},
        "limits": LIMITS,
        "samples": {name: [round(one, 3) for one in each] for name, each in samples.items()},
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cost", description=__doc__)
    parser.add_argument("--runs", type=int, default=9, help="processes a figure")
    parser.add_argument("--no-write", dest="write", action="store_false", help="keep cost.json")
    parser.add_argument("--sample", choices=tuple(LIMITS), help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
