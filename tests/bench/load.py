"""Measures the load generator itself: `make bench-load`, or -m tests.bench.load [--rounds N].

64 streams of a server without a model, in a process of its own, that writes 30 tokens/s to each, as
a 14B model on one GPU does: CPU seconds of the generator over wall seconds, of one core. Writes
tests/bench/load.json. Sending, reading, parsing and keeping every token time are in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.bench import machine
from workloads.load.client import ChatClient
from workloads.load.run import Chat, closed_loop, point
from workloads.recipes.load import Slo

RESULT = Path(__file__).with_name("load.json")
NUM_STREAMS = 64
TOKENS_PER_S = 30.0
NUM_TOKENS = 150
LIMIT_PERCENT = 5.0
"""Target of the product; a median over it ends with 1."""


def main() -> int:
    """Measures, prints, writes; 0 when the median keeps its limit."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.load", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measurements")
    parser.add_argument("--no-write", dest="write", action="store_false", help="keep load.json")
    options = parser.parse_args()
    before = machine.describe()
    command = [sys.executable, "-m", "tests.bench.stand_in", "--tokens-per-s", str(TOKENS_PER_S)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        rounds = [asyncio.run(_round(url)) for _ in range(options.rounds + 1)][1:]
    finally:
        server.kill()
        server.wait()
    percent = statistics.median(each["cpu_percent"] for each in rounds)
    verdict = "PASS" if percent <= LIMIT_PERCENT else "FAIL"
    for each in rounds:
        print(", ".join(f"{name} {value:.2f}" for name, value in each.items()))
    print(f"{NUM_STREAMS} streams: {percent:.2f} % of a core, at most {LIMIT_PERCENT} %: {verdict}")
    if options.write:
        result = {
            "measured_at": datetime.now(UTC).date().isoformat(),
            "machine": before,
            "num_streams": NUM_STREAMS,
            "tokens_per_s_a_stream": TOKENS_PER_S,
            "median_cpu_percent": round(percent, 2),
            "limit_percent": LIMIT_PERCENT,
            "rounds": [{name: round(value, 2) for name, value in each.items()} for each in rounds],
        }
        RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return int(percent > LIMIT_PERCENT)


async def _round(url: str) -> dict[str, float]:
    """Two answers of each stream."""
    client = ChatClient(url, None, timeout_s=60, ignore_eos=True)
    client.model = "stand-in"
    chat: Chat = ([{"role": "user", "content": " word" * 100}], NUM_TOKENS)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    loop = await closed_loop(client, [chat] * (2 * NUM_STREAMS), NUM_STREAMS, 0)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    client.close()
    made = point(loop, Slo(), kind="closed", concurrency=NUM_STREAMS)
    assert made.num_ok == made.num_requests, made.errors
    num_events = sum(len(each.times_s) for each in loop.samples)
    return {
        "cpu_percent": 100 * cpu_s / wall_s,
        "cpu_us_a_token": 1e6 * cpu_s / num_events,
        "output_tokens_per_s": made.output_tokens_per_s,
    }


if __name__ == "__main__":
    sys.exit(main())
