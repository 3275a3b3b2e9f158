"""The prepare-data job: raw rows to chats, a split, and token rows in the place `data`.

Usage: python -m workloads.data --recipe bfcl_smollm2 [--set data.test_ratio=0.1]
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from workloads.common import atomic
from workloads.common.atomic import new_file
from workloads.common.dist import environment_rank
from workloads.common.exit_codes import DataError
from workloads.common.log import log
from workloads.common.models import load_tokenizer
from workloads.data.chat_template import check_tokenizer
from workloads.data.dataset_convert import convert, kind_of, rejects_path, source_files
from workloads.data.dataset_split import split_file, split_names
from workloads.data.dataset_tokenize import tokenize_file
from workloads.data.manifest import Step, read_manifest
from workloads.data.token_rows import tokenizer_files
from workloads.data.token_worker import TokenizeConfig
from workloads.job import Job, end, run_job, section
from workloads.recipes.data import DataConfig

MANIFEST = "manifest.json"
TRAIN_ROWS = "tokens_train.parquet"
_LEFT_S = 24 * 3600


def main(job: Job) -> None:
    """Write `<data>/<output>/` whole, or nothing; nothing to do when it is there and current."""
    config = section(job.recipe, DataConfig)
    if environment_rank()[0] != 0:
        return
    source = job.places.data_path(config.source.path)
    if config.source.kind != "bfcl" and source.is_dir():
        kind_of_source = kind_of(source)
        if kind_of_source != config.source.kind:
            raise DataError(
                f"{source}: holds {kind_of_source} files, but data.source.kind is "
                f"{config.source.kind}; set it to {kind_of_source}"
            )
    model_dir = job.places.model_dir(job.recipe.model)
    output = job.places.path("data") / config.output
    step = Step(
        name="prepare-data",
        path=output / MANIFEST,
        config=config,
        inputs=source_files(config.source, source),
        tokenizer=tokenizer_files(model_dir),
    )
    if not step.is_current():
        check_tokenizer(load_tokenizer(model_dir))
        _remove_leftovers(output)
        with atomic.new_directory(output, replace=True) as folder:
            _prepare(config, step, source, model_dir, folder)
    manifest = read_manifest(output / MANIFEST)
    job.record.metrics |= manifest["counts"]
    job.record.artifacts |= {"dataset_dir": str(output), "data_file": str(output / TRAIN_ROWS)}
    job.record.data_hash = manifest["outputs"][TRAIN_ROWS]["sha256"]


def _remove_leftovers(output: Path) -> None:
    """Remove what killed jobs left; a day old, as a job on another node may be writing."""
    for left in output.parent.glob(f".{output.name}.*.partial"):
        if time.time() - left.stat().st_mtime > _LEFT_S:
            log(f"removing {left}, which a job left that was killed")
            shutil.rmtree(left)


def _prepare(config: DataConfig, step: Step, source: Path, model_dir: Path, folder: Path) -> None:
    log(f"reading {config.source.kind} rows from {source}")
    chats, rejects = folder / "chats.jsonl", folder / "rejects.jsonl"
    with new_file(chats) as sink, new_file(rejects) as rejected:
        converted = convert(config.source, source, sink, rejected)
    sides = split_names(chats)
    with new_file(sides[0]) as train, new_file(sides[1]) as test:
        choice = split_file(
            chats,
            train,
            test,
            test_ratio=config.test_ratio,
            rand_sort=config.rand_sort,
            seed=config.seed,
            stratify_by=config.stratify_by,
        )
    counts = converted | choice.counts()
    log(
        f"{counts['num_chats']} chats, {counts['num_rejected']} rows rejected: "
        f"{len(choice.train)} train, {len(choice.test)} test, {choice.num_duplicates} duplicates"
    )
    outputs = [chats, rejects, *sides]
    for name, part in zip(("train", "test"), sides, strict=True):
        tokens = folder / f"tokens_{name}.parquet"
        outputs += [tokens, rejects_path(tokens)]
        with new_file(outputs[-1]) as rejected:
            done = tokenize_file(
                part,
                tokens,
                rejected,
                model_dir=model_dir,
                config=TokenizeConfig(
                    max_tokens=config.max_tokens,
                    overlong=config.overlong,
                    chat_template_kwargs=dict(config.chat_template_kwargs),
                ),
            )
        counts |= done.counts(name)
        log(f"{name}: {done}")
    step.finish(outputs, counts)


if __name__ == "__main__":
    end(run_job("prepare-data", main))
