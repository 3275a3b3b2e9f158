"""Measures serving: `make bench-serve`, or python -m tests.bench.serve [--rounds N].

SmolLM2-135M on one core, tokens per second of CPU time (other work on the machine does not count):
one stream; 16 streams of unlike lengths in continuous batching; `transformers`' own `generate` of
the same batch; both again for 16 equal prompts, where `generate` pads nothing; the first 16 streams
over HTTP to a client in a process of its own. Writes serve.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infra.state import Cache
from tests.bench import machine

RESULT = Path(__file__).with_name("serve.json")
MODEL = Cache.from_environ().models / "SmolLM2-135M-Instruct"
NUM_STREAMS = 16
NUM_TOKENS = 64
LIMITS = {
    "batching_gain": ("least", 4.0),
    "over_generate": ("least", 1.0),
    "over_generate_equal": ("least", 1.0),
    "http_overhead_percent": ("most", 5.0),
}
"""Targets of the product; a median beyond its limit ends with 1."""
# Reads 16 streams as they come and says how many tokens were written.
_CLIENT = """
import json, sys, threading, urllib.request
url, bodies, counts = sys.argv[1], json.loads(sys.argv[2]), []
def ask(body):
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        lines = [line for line in answer if line.startswith(b"data: {")]
    counts.append(json.loads(lines[-1][6:])["usage"]["completion_tokens"])
threads = [threading.Thread(target=ask, args=(body,)) for body in bodies]
[each.start() for each in threads]
[each.join() for each in threads]
print(sum(counts))
"""


def main() -> int:
    """Measures, prints, writes; 0 when every median keeps its limit."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.serve", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measurements a figure")
    parser.add_argument("--no-write", dest="write", action="store_false", help="keep serve.json")
    options = parser.parse_args()
    before = machine.describe()
    speeds = _measure(options.rounds)
    ratios = [
        {
            "batching_gain": many / one,
            "over_generate": many / generate,
            "over_generate_equal": equal / equal_generate,
            "http_overhead_percent": 100 * (many / http - 1),
        }
        for one, many, generate, equal, equal_generate, http in zip(*speeds.values(), strict=True)
    ]
    medians = {name: round(statistics.median(each[name] for each in ratios), 2) for name in LIMITS}
    for name, each in speeds.items():
        print(f"{name:<24}{statistics.median(each):>8.1f} tokens per CPU second")
    kept = {
        name: medians[name] >= limit if kind == "least" else medians[name] <= limit
        for name, (kind, limit) in LIMITS.items()
    }
    for name, (kind, limit) in LIMITS.items():
        verdict = "PASS" if kept[name] else "FAIL"
        print(f"{name:<24}{medians[name]:>8.2f}  at {kind} {limit:>4.1f}  {verdict}")
    if options.write:
        result = {
            "measured_at": datetime.now(UTC).date().isoformat(),
            "machine": before,
            "model": MODEL.name,
            "num_streams": NUM_STREAMS,
            "num_tokens": NUM_TOKENS,
            "medians": medians,
            "limits": {name: f"at {kind} {limit}" for name, (kind, limit) in LIMITS.items()},
            "tokens_per_cpu_s": {
                name: [round(one, 1) for one in each] for name, each in speeds.items()
            },
        }
        RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return int(not all(kept.values()))


def _measure(rounds: int) -> dict[str, list[float]]:
    import torch

    from workloads.common.models import load_model, load_tokenizer
    from workloads.serve.engine import RowCache, Runner, TransformersEngine
    from workloads.serve.protocol import prompt_ids
    from workloads.serve.scheduler import Scheduler

    sys.setswitchinterval(0.0005)
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(MODEL)
    model = load_model(MODEL, dtype=torch.float32, device=torch.device("cpu"))
    cache = RowCache(
        model.config,
        num_rows=NUM_STREAMS,
        context_tokens=512,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    engine = TransformersEngine(
        Runner(model, cache, None),
        Scheduler(num_rows=NUM_STREAMS, max_queue=0, prefill_tokens=2048),
        tokenizer,
        stop_ids=frozenset({tokenizer.eos_token_id}),
        kv_total_tokens=NUM_STREAMS * 512,
    )
    prompts = [prompt_ids(tokenizer, _chat(index), (), {}) for index in range(NUM_STREAMS)]
    with _served(engine, tokenizer) as url:
        _engine_speed(engine, prompts[NUM_STREAMS // 2 :][:1])  # warm
        speeds: dict[str, list[float]] = {
            name: []
            for name in (
                "one_stream",
                "batched",
                "generate",
                "equal_prompts",
                "generate_equal_prompts",
                "batched_over_http",
            )
        }
        equal = [prompts[NUM_STREAMS // 2]] * NUM_STREAMS
        for _ in range(rounds):
            speeds["one_stream"].append(_engine_speed(engine, prompts[NUM_STREAMS // 2 :][:1]))
            speeds["batched"].append(_engine_speed(engine, prompts))
            speeds["generate"].append(_generate_speed(model, prompts))
            speeds["equal_prompts"].append(_engine_speed(engine, equal))
            speeds["generate_equal_prompts"].append(_generate_speed(model, equal))
            speeds["batched_over_http"].append(_http_speed(url))
    return speeds


def _chat(index: int) -> list[dict[str, Any]]:
    """A question of 40 to 140 tokens with its template: chats are not of one length."""
    towns = " and its towns" * (1 + 2 * (index % NUM_STREAMS))
    return [{"role": "user", "content": f"Tell me a long story about a river{towns}."}]


def _engine_speed(engine: Any, prompts: list[tuple[int, ...]]) -> float:
    from workloads.serve.scheduler import Delta, Generation, Sampling

    left = threading.Semaphore(0)

    def sink(delta: Delta) -> None:
        if delta.finish or delta.failure:
            left.release()

    began = time.process_time()
    engine.submit(
        [
            (
                Generation(
                    prompt_ids=ids,
                    max_tokens=NUM_TOKENS,
                    ignore_eos=True,
                    sampling=Sampling(temperature=0),
                ),
                sink,
            )
            for ids in prompts
        ]
    )
    for _ in prompts:
        left.acquire()
    return len(prompts) * NUM_TOKENS / (time.process_time() - began)


def _generate_speed(model: Any, prompts: list[tuple[int, ...]]) -> float:
    import torch

    length = max(map(len, prompts))
    ids = torch.zeros(len(prompts), length, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, length - len(prompt) :] = torch.tensor(prompt)
        mask[row, length - len(prompt) :] = 1
    began = time.process_time()
    made = model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=NUM_TOKENS,
        min_new_tokens=NUM_TOKENS,
        do_sample=False,
        pad_token_id=0,
    )
    assert made.shape[1] == length + NUM_TOKENS
    return len(prompts) * NUM_TOKENS / (time.process_time() - began)


def _http_speed(url: str) -> float:
    body = {
        "model": "model",
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    bodies = [{**body, "messages": _chat(index)} for index in range(NUM_STREAMS)]
    began = time.process_time()
    done = subprocess.run(
        [sys.executable, "-c", _CLIENT, url, json.dumps(bodies)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == NUM_STREAMS * NUM_TOKENS
    return NUM_STREAMS * NUM_TOKENS / (time.process_time() - began)


@contextlib.contextmanager
def _served(engine: Any, tokenizer: Any) -> Iterator[str]:
    import uvicorn

    from workloads.recipes.serve import Limits, ServeConfig
    from workloads.serve.app import ChatServer, make_app
    from workloads.serve.metrics import ServeMetrics
    from workloads.serve.sampling import Grammars

    config = ServeConfig(limits=Limits(context_tokens=512))
    metrics = ServeMetrics(engine.load, lambda: 0)
    grammars = Grammars(tokenizer, frozenset({tokenizer.eos_token_id}))
    chat = ChatServer(engine, tokenizer, config, {"model": False}, metrics, grammars)
    app = make_app(chat, api_key=None)
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_level="warning"))
    thread = threading.Thread(target=server.run)
    engine.start()
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/v1/chat/completions"
    finally:
        engine.stop(0)
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
