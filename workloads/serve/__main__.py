"""The serving job: OpenAI's chat API for a model, an adapter beside it, or a checkpoint.

Usage: python -m workloads.serve --base MODEL | --adapter DIR | --merged DIR | --checkpoint DIR
Prints where it listens on stderr; ends on SIGTERM. docs/serving.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workloads.common import hardware
from workloads.common.exit_codes import ExitCode
from workloads.common.launch import EXIT_FILE, NODES_FILE
from workloads.common.log import log
from workloads.common.places import WEIGHTS, stage
from workloads.job import Job, argument_parser, end, recipe_words, run_job, section
from workloads.recipes.serve import ServeConfig
from workloads.serve.weights import (
    ENDPOINT_FILE,
    OWN_KEY_FILE,
    Weights,
    api_key,
    find_weights,
    write_endpoint,
)

DEFAULT_RECIPE = "smollm2_135m_serve_cpu"
_FLAGS = ("adapter", "merged", "checkpoint", "host", "port", "engine")
"""Each is short for the key of its name in the section serve."""


def recipe_arguments(arguments: Sequence[str] | None = None) -> list[str]:
    """Return the command line in recipe form: `--recipe NAME --set key=value ...`."""
    parser = argument_parser("serve", required=False)
    parser.add_argument("--base", help="model of the place model, or its folder")
    text = "LoRA adapter: base and tuned are served"
    parser.add_argument("--adapter", "--finetune", type=_folder, help=text)
    parser.add_argument("--merged", type=_folder, help="folder of a whole model")
    parser.add_argument("--checkpoint", type=_folder, help="final/, or checkpoint-N of a run")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--engine", choices=("auto", "transformers", "vllm"))
    parser.add_argument("--no-thinking", action="store_true")
    options = parser.parse_args(arguments)
    sets: list[tuple[str, Any]] = []
    if options.base:
        is_folder = options.base.startswith((".", "/"))
        model = _folder(options.base) if is_folder else options.base
        sets += [("model", model), ("serve.adapter", None)]
    elif options.adapter and not options.recipe and (base := _declared_base(options.adapter)):
        sets.append(("model", base))
    values = ((f"serve.{flag}", getattr(options, flag)) for flag in _FLAGS)
    sets += [(key, value) for key, value in values if value is not None]
    if options.no_thinking:
        sets.append(("serve.thinking", False))
    return recipe_words(options, DEFAULT_RECIPE, sets)


def main(job: Job) -> None:
    """Load, serve, and stop when told to."""
    config = section(job.recipe, ServeConfig)
    # Of this job's life before a requeue: nobody may be sent there any more, and with what key who
    # has that port by now was asked, he could ask this life.
    for name in (ENDPOINT_FILE, OWN_KEY_FILE):
        (job.results_dir / name).unlink(missing_ok=True)
    weights = find_weights(config, job.recipe.model, job.places)
    try:
        _serve(job, config, weights)
    finally:
        # Gigabytes that are the checkpoint's already do not stay among results, which are pulled.
        if weights.own_dir is not None:
            shutil.rmtree(weights.own_dir, ignore_errors=True)
        (job.results_dir / OWN_KEY_FILE).unlink(missing_ok=True)


def _serve(job: Job, config: ServeConfig, weights: Weights) -> None:
    began = job.record.began_s
    import torch

    from workloads.serve import server

    key_file = job.results_dir / OWN_KEY_FILE
    if config.api_key_file is not None:
        key_file = job.places.expand(config.api_key_file, at="serve.api_key_file")
    key = api_key(key_file)
    job.record.hardware = hardware.detect_for(config.dtype, remedy="serve.dtype: fp32")
    job.record.engine = server.choose_engine(config, num_gpus=torch.cuda.device_count())
    job.record.model = weights.served_name
    settings = json.dumps(dataclasses.asdict(job.recipe), indent=2, default=dict)
    job.keep("config", "config.json", settings + "\n")
    if weights.adapter_dir is not None:
        job.record.artifacts["adapter_dir"] = str(weights.adapter_dir)
    listener = server.listen(config)
    port = listener.getsockname()[1]

    def ready() -> None:
        job.record.metrics["cold_start_s"] = time.time() - began
        path = write_endpoint(job.results_dir, config, port, weights, key_file)
        job.record.artifacts["endpoint"] = str(path)
        if nodes := os.environ.get(NODES_FILE):  # from now on srun may be kept asleep
            Path(nodes).write_text("1\n", encoding="utf-8")
        log(
            f"serving {' and '.join(weights.names)} with {job.record.engine} on "
            f"http://{config.host}:{port}/v1 after {job.record.metrics['cold_start_s']:.1f} s"
        )

    if job.record.engine == "vllm":
        listener.close()  # vLLM binds the port itself
        folder = weights.model_dir
        if config.stage == "auto":
            staged = stage(folder, job.places, WEIGHTS)
            log(staged.text)
            folder = staged.path
        words = server.vllm_command(config, weights, folder, port)
        server.run_vllm(words, config, port, key, ready, results_dir=job.results_dir)
        return
    server.serve(job, config, weights, key, listener, ready)


def _folder(text: str) -> str | None:
    return str(Path(text).resolve()) if text and not text.startswith("{place:") else text or None


def _declared_base(adapter: str) -> str | None:
    """Return the base model that an adapter names; None where the job will say what is wrong."""
    try:
        text = (Path(adapter) / "adapter_config.json").read_text(encoding="utf-8")
        return Path(json.loads(text)["base_model_name_or_path"]).name
    except (OSError, ValueError, KeyError, TypeError):
        return None


if __name__ == "__main__":
    # Threads of the engine and of torch take the interpreter often; a token must not wait 5 ms.
    sys.setswitchinterval(0.0005)
    arguments = recipe_arguments()
    code: ExitCode = run_job("serve", main, arguments)
    if exit_file := os.environ.get(EXIT_FILE):
        with contextlib.suppress(OSError):  # a full disk does not change how the server ended
            Path(exit_file).write_text(f"{int(code)}\n", encoding="utf-8")
    end(code)
