"""vLLM's own server behind the same flags, where vLLM is installed.

Owns the translation of settings to its options and environment, its start and its end. vLLM is a
program of its own here: nothing of it is imported into this process.
Options: https://docs.vllm.ai/en/latest/cli/serve.html (2026-11-21).
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from workloads.common.exit_codes import ConfigError, PreemptedError, WorkloadError
from workloads.common.log import log
from workloads.common.publish import Publisher
from workloads.serve.config import ServeConfig
from workloads.serve.weights import Weights

_DTYPES: Mapping[str, str] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What --max-lora-rank of vLLM 0.32.0 takes, as its refusal of 4 prints."""
_POLL_S = 0.5


def is_installed() -> bool:
    """Whether vLLM can be imported here."""
    return importlib.util.find_spec("vllm") is not None


def choose(config: ServeConfig, *, num_gpus: int, has_dora: bool = False) -> str:
    """Return the engine's name: what is asked for, or what is there and serves the adapter."""
    if config.gpus > max(1, num_gpus):
        raise ConfigError(
            f"serve.gpus: {config.gpus}, this job has {num_gpus}; raise gpus_per_node of the job, "
            "or lower it"
        )
    if has_dora and (config.engine == "vllm" or config.gpus > 1):
        key = "serve.engine: vllm" if config.engine == "vllm" else f"serve.gpus: {config.gpus}"
        raise ConfigError(
            f"{key}, but the adapter is DoRA's (use_dora), which vLLM does not load; merge it "
            "(train.export_merged) and name that by serve.merged, or take transformers on one "
            "GPU"
        )
    if config.engine == "vllm" and not is_installed():
        raise ConfigError(
            "serve.engine: vllm, which is not installed in this Python environment; install it "
            "there, or take transformers"
        )
    if config.gpus > 1 and not is_installed():
        raise ConfigError(
            f"serve.gpus: {config.gpus}, but the transformers engine has its model on one GPU and "
            "vllm, which divides it, is not installed in this Python environment; install it "
            "there, or start a server for each GPU"
        )
    if num_gpus > config.gpus:
        log(f"{config.gpus} of {num_gpus} GPUs of this job are used (serve.gpus)")
    if config.engine == "auto":
        return "vllm" if num_gpus and is_installed() and not has_dora else "transformers"
    return config.engine


def command(config: ServeConfig, weights: Weights, model_dir: Path, port: int) -> list[str]:
    """Return vLLM's command line; the key is in its environment."""
    limits = config.limits
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    words += ["--model", str(model_dir), "--tokenizer", str(weights.tokenizer_dir)]
    words += ["--served-model-name", weights.served_name, "--host", config.host]
    words += ["--port", str(port), "--dtype", _DTYPES[config.dtype]]
    words += ["--max-model-len", str(limits.context_tokens), "--seed", str(config.seed)]
    words += ["--max-num-seqs", str(limits.max_concurrency)]
    words += ["--tensor-parallel-size", str(config.gpus)]
    words += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    if weights.adapter_dir is not None:
        words += ["--enable-lora", "--max-lora-rank", str(_lora_rank(weights.adapter_dir))]
        words += ["--lora-modules", f"{weights.tuned_name}={weights.adapter_dir}"]
    if not config.thinking:
        words += ["--default-chat-template-kwargs", json.dumps({"enable_thinking": False})]
    return words


def _lora_rank(adapter_dir: Path) -> int:
    """The smallest rank that vLLM makes room for and the adapter fits into."""
    rank = json.loads((adapter_dir / "adapter_config.json").read_text("utf-8"))["r"]
    for most in _LORA_RANKS:
        if rank <= most:
            return most
    raise ConfigError(
        f"{adapter_dir}: rank {rank}, vLLM takes at most {_LORA_RANKS[-1]}; merge it "
        "(train.export_merged) and name that by serve.merged"
    )


def run(
    words: list[str],
    port: int,
    key: str | None,
    ready: Callable[[], None],
    *,
    results_dir: Path,
) -> None:
    """Run vLLM until a signal ends it, its metrics published; an unasked end is an error."""
    environment = {**os.environ, **({"VLLM_API_KEY": key} if key else {})}
    process = subprocess.Popen(words, env=environment)
    asked: list[str] = []

    def stop(number: int, frame: object) -> None:
        asked.append(signal.Signals(number).name)
        process.send_signal(signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, stop)
    while process.poll() is None and not _answers(port):
        time.sleep(_POLL_S)
    if process.poll() is None:
        ready()
    with Publisher(lambda: metrics_page(port), results_dir=results_dir, kind="serve"):
        status = process.wait()
    if not asked:
        raise WorkloadError(f"vLLM ended with {status}; see its lines above")
    log(f"vLLM ended with {status} after {asked[0]}")
    if status not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
        raise PreemptedError(f"stopped by {asked[0]}; vLLM ended with {status}")


def metrics_page(port: int) -> bytes | None:
    """Return vLLM's own page of metrics; None where it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as answer:
            return answer.read()
    except (urllib.error.URLError, OSError):
        return None


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False
