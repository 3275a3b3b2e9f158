"""A file of chats to token rows in parquet, on all CPUs, in the order of the file.

Owns the blocks that workers get and how many workers there are. The result is the same to the byte
at any number of workers. At most two blocks a worker are in memory.
Usage: python -m workloads.data.dataset_tokenize chats_train.jsonl tokens_train.parquet --model DIR
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import BinaryIO, get_args

from workloads.common.atomic import new_file
from workloads.common.exit_codes import DataError, WorkloadError
from workloads.common.log import log
from workloads.common.models import load_tokenizer
from workloads.data import token_worker
from workloads.data.dataset_convert import Rejects, rejects_path
from workloads.data.manifest import Step, command
from workloads.data.token_rows import TokenRows, tokenizer_files, write_parquet
from workloads.data.token_worker import Block, TokenizeConfig, Tokenized, TokenWorker
from workloads.recipes.data import Overlong, from_options

_BLOCK_LINES = 512
_BLOCKS_A_WORKER = 8
"""Fewer do not pay for starting a worker."""


def tokenize_file(
    source: Path,
    output: Path,
    rejected: BinaryIO,
    *,
    model_dir: Path,
    config: TokenizeConfig,
    num_workers: int | None = None,
) -> Tokenized:
    """Write `output`, in a folder that exists, and rejects; no row at all is an error.

    Without `num_workers` there is one for each CPU that this process may use, or none for a small
    file.
    """
    with source.open("rb") as lines:
        num_lines = sum(1 for _ in lines)
    if not num_lines:
        raise DataError(f"{source}: has no chat; the split is empty")
    if num_workers is None:
        cpus = len(os.sched_getaffinity(0))
        num_workers = min(cpus, -(-num_lines // _BLOCK_LINES) // _BLOCKS_A_WORKER)
    done, rejects, read = Tokenized(), Rejects(rejected), _line_blocks(source)
    blocks = (
        map(TokenWorker(load_tokenizer(model_dir), config).tokenize, read)
        if num_workers < 2
        else _blocks_of_workers(read, model_dir, config, num_workers)
    )

    def rows() -> Iterator[TokenRows]:
        nonlocal done
        for block in blocks:
            done += block.done
            for each in block.refused:
                rejects.add(*each)
            yield block.rows

    write_parquet(output, rows())
    if not done.num_chats:
        raise DataError(f"{source}: no usable chat, {rejects.told()}")
    if not done.num_examples:
        raise DataError(
            f"{source}: no conversation of {done.num_chats} fits "
            f"data.max_tokens {config.max_tokens}; raise it"
        )
    return done


def _line_blocks(source: Path) -> Iterator[dict[str, bytes]]:
    """Yield the lines by their file:line, in blocks that do not depend on the number of workers."""
    with source.open("rb") as file:
        numbered = enumerate(file, start=1)
        while block := list(islice(numbered, _BLOCK_LINES)):
            lines = ((number, line.rstrip(b"\r\n")) for number, line in block)
            yield {f"{source.name}:{number}": line for number, line in lines if line.strip()}


def _blocks_of_workers(
    read: Iterable[Mapping[str, bytes]], model_dir: Path, config: TokenizeConfig, num_workers: int
) -> Iterator[Block]:
    """Yield the token rows of the blocks of lines that are `read`, in their order."""
    context = get_context("forkserver")
    context.set_forkserver_preload([token_worker.__name__])
    # Read when the fork server starts. One process a CPU: the library's own threads would fight.
    settings = {token_worker.PRELOAD: str(model_dir), "TOKENIZERS_PARALLELISM": "false"}
    before = {name: os.environ.get(name) for name in settings}
    os.environ |= settings
    pool = ProcessPoolExecutor(
        num_workers,
        mp_context=context,
        initializer=token_worker.start,
        initargs=(model_dir, config),
    )
    waiting: deque[Future[Block]] = deque()
    try:
        for lines in read:
            waiting.append(pool.submit(token_worker.work, lines))
            if len(waiting) == 2 * num_workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise WorkloadError(
            "a tokenizing process was killed, most likely for memory: give the job more memory or "
            "fewer CPUs (--cpus-per-task)"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m workloads.data.dataset_tokenize",
        description="Chats to input_ids, labels and attention_mask in parquet",
    )
    parser.add_argument("source", type=Path, help="JSON lines with messages")
    parser.add_argument("output", type=Path, help="parquet file to write")
    parser.add_argument("--model", type=Path, required=True, help="folder of the base model")
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--overlong", choices=get_args(Overlong), default="drop")
    parser.add_argument("--num-workers", type=int, help="processes; default: all CPUs")
    parser.add_argument(
        "--chat-template-kwargs",
        type=json.loads,
        default={},
        metavar="JSON",
        help='switches of the template, such as {"enable_thinking": false}',
    )
    return command(lambda: _run(parser.parse_args(arguments)))


def _run(options: argparse.Namespace) -> None:
    config = from_options(
        TokenizeConfig,
        max_tokens=options.max_tokens,
        overlong=options.overlong,
        chat_template_kwargs=options.chat_template_kwargs,
    )
    output: Path = options.output
    if not options.source.is_file():
        raise DataError(f"{options.source}: no such file; split the chats first")
    step = Step(
        name="tokenize",
        path=output.with_name(f"{output.name}.manifest.json"),
        config=config,
        inputs=[options.source],
        tokenizer=tokenizer_files(options.model),
    )
    if step.is_current():
        return
    rejects = rejects_path(output)
    with new_file(output) as file, new_file(rejects) as rejected:
        done = tokenize_file(
            options.source,
            Path(file.name),
            rejected,
            model_dir=options.model,
            config=config,
            num_workers=options.num_workers,
        )
    step.finish([output, rejects], {"num_chats": done.num_chats, **done.counts()})
    log(f"{output}: {done} in {rejects.name}")


if __name__ == "__main__":
    sys.exit(main())
