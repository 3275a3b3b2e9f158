"""The prepare-data job: raw rows to chats, a split, and token rows in the place `data`.

Usage: python -m workloads.data --recipe bfcl_smollm2 [--set data.test_ratio=0.1]
"""

from __future__ import annotations

import json

from workloads.common import atomic
from workloads.common.dist import environment_rank
from workloads.common.exit_codes import DataError
from workloads.common.job import Job, end, run_job, section_of
from workloads.common.log import log
from workloads.common.models import load_tokenizer
from workloads.data.chat_template import check_tokenizer
from workloads.data.chats import read_source, write_jsonl
from workloads.data.split import split
from workloads.data.tokenize import tokenize, write_parquet


def main(job: Job) -> None:
    """Write `<data>/<output>/` whole, or nothing."""
    config = job.recipe.data
    if config is None:
        raise section_of(job.recipe, "data")
    if environment_rank()[0] != 0:
        return
    source = job.places.data_path(config.source.path)
    model_dir = job.places.model_dir(job.recipe.model)
    output = job.places.path("data") / config.output

    log(f"reading {config.source.kind} rows from {source}")
    chats, rejects = read_source(config.source, source)
    for reject in rejects[:5]:
        log(f"rejected {reject['at']}: {reject['reason']}")
    if not chats:
        first = f"; the first: {rejects[0]['at']}: {rejects[0]['reason']}" if rejects else ""
        raise DataError(f"{source}: no usable row, {len(rejects)} rejected{first}")
    sides = split(chats, test_ratio=config.test_ratio, rand_sort=config.rand_sort, seed=config.seed)
    log(f"{len(chats)} chats: {len(sides.train)} train, {len(sides.test)} test")

    tokenizer = load_tokenizer(model_dir)
    check_tokenizer(tokenizer)
    summary: dict[str, object] = {
        "source": str(source),
        "model": model_dir.name,
        "num_chats": len(chats),
        "num_rejected": len(rejects),
        "num_duplicates": sides.num_duplicates,
    }
    with atomic.new_directory(output, replace=True) as folder:
        write_jsonl(folder / "chats.jsonl", chats)
        atomic.write_text(
            folder / "rejects.jsonl", "".join(f"{json.dumps(reject)}\n" for reject in rejects)
        )
        for name, part in (("train", sides.train), ("test", sides.test)):
            write_jsonl(folder / f"chats_{name}.jsonl", part)
            tokens = tokenize(
                tokenizer,
                part,
                max_tokens=config.max_tokens,
                overlong=config.overlong,
                **config.chat_template_kwargs,
            )
            if not tokens.examples:
                raise DataError(
                    f"no {name} conversation fits data.max_tokens {config.max_tokens}; raise it"
                )
            write_parquet(folder / f"tokens_{name}.parquet", tokens.examples)
            job.record.metrics |= {
                f"num_{name}_chats": len(part),
                f"num_{name}_tokens": tokens.num_tokens,
                f"num_{name}_assistant_tokens": tokens.num_assistant_tokens,
                f"num_{name}_dropped": tokens.num_dropped,
            }
            log(
                f"{name}: {len(tokens.examples)} examples, {tokens.num_tokens} tokens, "
                f"{tokens.num_assistant_tokens} of the assistant, {tokens.num_dropped} dropped"
            )
        job.record.metrics |= {"num_rejected": len(rejects)}
        summary |= {
            "chat_template_kwargs": dict(config.chat_template_kwargs),
            "max_tokens": config.max_tokens,
            "seed": config.seed,
            **job.record.metrics,
        }
        atomic.write_text(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    job.record.artifacts["dataset_dir"] = str(output)


if __name__ == "__main__":
    end(run_job("prepare-data", main))
