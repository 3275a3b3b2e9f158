"""The job lm_eval: EleutherAI's lm-eval harness on both models, where it is installed.

Owns what is passed to it and what comes back; tasks are the harness's own or YAML files of its
form, with rows out of the caches of `datasets`. Without the package: NOT_RUN, exit 69.
Usage: python -m workloads.evaluate.lm_eval_job --recipe NAME --set 'evaluate.lm_eval_tasks=["arc"]'
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workloads.common import hardware
from workloads.common.dist import World, world
from workloads.common.exit_codes import ConfigError, DataError, NotRunError
from workloads.common.log import at
from workloads.evaluate.subject import check_base, tuned_dir
from workloads.job import Job, end, run_job, section
from workloads.recipes.evaluate import EvaluateConfig

PACKAGE = "lm_eval"
_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}


def main(job: Job) -> None:
    """Run the tasks of evaluate.lm_eval_tasks on the base and on the tuned model."""
    config = section(job.recipe, EvaluateConfig)
    if not config.lm_eval_tasks:
        raise ConfigError("evaluate.lm_eval_tasks: got none, expected names of lm-eval's tasks")
    model_dir = job.places.model_dir(job.recipe.model)
    tuned = tuned_dir(job, config)
    if importlib.util.find_spec(PACKAGE) is None:
        raise NotRunError(
            "the package lm-eval is not installed in the jobs' environment; install it there"
        )
    with world(cpu_threads=config.cpu_threads) as here:
        apart = here.apart()  # the harness takes longer than ranks wait for each other elsewhere
        job.record.hardware = hardware.detect_for(config.dtype, remedy="evaluate.dtype: fp32")
        if here.is_main:  # the harness deals its own rows; one rank is one model
            _run(job, config, here, model_dir, tuned)
        apart.barrier()


def _run(job: Job, config: EvaluateConfig, here: World, model_dir: Path, tuned: Path) -> None:
    arguments = {"base_model": {"pretrained": str(model_dir)}}
    if (tuned / "adapter_config.json").is_file():
        check_base(model_dir, tuned)
        arguments["finetuned_model"] = {"pretrained": str(model_dir), "peft": str(tuned)}
    else:
        arguments["finetuned_model"] = {"pretrained": str(tuned), "tokenizer": str(model_dir)}
    harness: Any = importlib.import_module(PACKAGE)
    tasks = ", ".join(config.lm_eval_tasks)
    _check_tasks(config)
    results: dict[str, Any] = {}
    for name, values in arguments.items():
        at(f"lm-eval asks the {name.replace('_', ' ')}: {tasks}")
        made = harness.simple_evaluate(
            model="hf",
            model_args={**values, "dtype": _DTYPES[config.dtype]},
            tasks=list(config.lm_eval_tasks),
            batch_size=config.batch_size,
            device=str(here.device),
            limit=config.lm_eval_limit,
            random_seed=config.seed,
        )
        if not isinstance(made, Mapping) or not made.get("results"):
            raise DataError(f"lm-eval gave no results for {tasks}")
        results[name] = made["results"]
    job.keep("lm_eval", "lm_eval.json", json.dumps(results, indent=2, default=str) + "\n")
    for prefix, name in (("", "finetuned_model"), ("base_", "base_model")):
        for task, metrics in results[name].items():
            for metric, value in metrics.items():
                if isinstance(value, float):
                    label = metric.removesuffix(",none").replace(",", "_")
                    job.record.metrics[f"{prefix}{task}_{label}"] = value


def _check_tasks(config: EvaluateConfig) -> None:
    """Refuse tasks that cannot be read; the harness itself would find out after it has a model."""
    at("lm-eval reads its tasks")
    manager: Any = importlib.import_module(f"{PACKAGE}.tasks").TaskManager()
    load = getattr(manager, "load", None) or manager.load_task_or_group  # before 0.4.13
    try:
        load(list(config.lm_eval_tasks))
    except (KeyError, ValueError) as error:  # no such task; two of one name
        said = error.args[0] if isinstance(error, KeyError) else error
        raise ConfigError(
            f"evaluate.lm_eval_tasks: {said}; `lm-eval ls tasks` lists what there is"
        ) from error
    except OSError as error:  # those of `datasets` for what is not there and cannot be reached too
        raise DataError(
            f"evaluate.lm_eval_tasks: {error}; load the task once where the hub can be reached, "
            f"with HF_HOME={os.environ.get('HF_HOME', '~/.cache/huggingface')}, as this job has it"
        ) from error


if __name__ == "__main__":
    end(run_job("lm_eval", main))
