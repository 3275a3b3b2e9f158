"""The load test: what a server does under load, as a curve, latencies and an operating point.

Usage: python -m workloads.load --url http://HOST:PORT/v1 | --serve-job ID [--recipe NAME]
Prints the curve on stderr and the run record as the last line of stdout. docs/load-test.md.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from workloads.common.exit_codes import ConfigError, NotRunError, WorkloadError
from workloads.common.hardware import Hardware
from workloads.common.log import log
from workloads.job import Job, argument_parser, end, recipe_words, run_job, section
from workloads.load import run
from workloads.load.client import ChatClient, find_server
from workloads.load.prompts import Rows, Words, load_tokenizer, read_profile, with_profile
from workloads.recipes.load import LoadConfig

DEFAULT_RECIPE = "smollm2_135m_load_cpu"
RESULT_FILE = "load.json"


def recipe_arguments(arguments: Sequence[str] | None = None) -> list[str]:
    """Return the command line in recipe form: `--recipe NAME --set key=value ...`."""
    parser = argument_parser("load", required=False)
    parser.add_argument("--url", help="address of the server up to /v1")
    parser.add_argument("--serve-job", help="id of a running serve job, instead of --url")
    parser.add_argument("--model", help="model that is served, as the stack's chat names it")
    parser.add_argument("--rows", type=Path, help=".jsonl file of chats to send")
    parser.add_argument("--tokenizer", help="model folder whose tokenizer makes the prompts")
    options = parser.parse_args(arguments)
    tokenizer = options.tokenizer
    if tokenizer and tokenizer.startswith((".", "/")):
        tokenizer = str(Path(tokenizer).resolve())
    given = {
        "model": options.model,
        "load.target.url": options.url,
        "load.target.serve_job": options.serve_job,
        "load.prompts.rows": options.rows and str(options.rows.resolve()),
        "load.prompts.tokenizer": tokenizer,
    }
    return recipe_words(options, DEFAULT_RECIPE, [each for each in given.items() if each[1]])


def main(job: Job) -> None:
    """Measure, write load.json, fill the record; a verdict that fails is an error."""
    config = with_profile(section(job.recipe, LoadConfig), read_profile())
    # Of the client's own node nothing is said: a speed is the server's.
    job.record.hardware = Hardware(
        platform=config.target.platform,
        preset=config.target.preset,
        device=config.target.preset or "not known",
        num_nodes=1,
        num_gpus_declared=0,
    )
    recipe = dataclasses.asdict(dataclasses.replace(job.recipe, load=config))
    job.keep("config", "config.json", json.dumps(recipe, indent=2, default=dict) + "\n")
    server = find_server(config.target, job.places)
    client = ChatClient(
        server.url, server.key, timeout_s=config.timeout_s, ignore_eos=config.ignore_eos
    )
    trace = config.open_loop.trace
    trace_path = None if trace is None else job.places.expand(trace, at="load.open_loop.trace")
    test = run.LoadTest(config, client, _prompts(job, config), trace_path)
    found = test.found
    try:
        asyncio.run(test.run())
    finally:
        text = json.dumps(run.to_json(found, config, server.url), indent=2)
        job.keep("load", RESULT_FILE, text + "\n")
        if server.adapter_dir is not None:
            job.record.artifacts["adapter_dir"] = server.adapter_dir
        job.record.engine = found.engine
        job.record.metrics |= run.record_metrics(found.points)
        job.record.metrics["client_cpu_percent"] = 100 * found.cpu_share
        if found.points:
            for line in [*run.table(found).splitlines(), run.summary(found, config)]:
                log(line)
    verdict = run.errors_verdict(found, config)
    if verdict == run.FAIL:
        raise WorkloadError(
            f"{found.errors} of {found.samples} requests failed, load.max_error_share is "
            f"{config.max_error_share:g}; the first: {found.first_error}"
        )
    if config.require_slo and run.slo_verdict(found, config) == run.FAIL:
        raise WorkloadError("no point keeps load.slo; lower the load or choose a faster preset")
    if verdict == run.NOT_RUN:
        raise NotRunError(
            f"none of {sum(each.num_requests for each in found.points)} measured requests was "
            "answered in time (load.timeout_s, or 429), so no speed is measured; lower load.sweep "
            "or the lengths, or choose a faster preset"
            + (f"; the first error: {found.first_error}" if found.errors else "")
        )


def _prompts(job: Job, config: LoadConfig) -> Rows | Words:
    prompts = config.prompts
    if prompts.rows is not None:
        if prompts.tokenizer is not None:
            raise ConfigError("load.prompts: rows and tokenizer exclude each other; keep one")
        return Rows(job.places.expand(prompts.rows, at="load.prompts.rows"), config.seed)
    name = prompts.tokenizer or job.recipe.model
    is_folder, at = name.startswith(("/", "{")), "load.prompts.tokenizer"
    folder = job.places.expand(name, at=at) if is_folder else job.places.model_dir(name)
    cached_tokens = int((config.prompt_tokens.mean or 0) * (prompts.cached_share or 0))
    return Words(load_tokenizer(folder), config.seed, cached_tokens)


if __name__ == "__main__":
    end(run_job("load", main, recipe_arguments()))
