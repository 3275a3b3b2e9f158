"""A file of chats to token rows in parquet, in the order of the file, some lines at a time.

Owns what happens to a conversation longer than the limit. The tokenizers library runs on all CPUs.
Usage: python -m workloads.data.dataset_tokenize chats_train.jsonl tokens_train.parquet --model DIR
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, get_args

import numpy as np

from workloads.common.atomic import new_file
from workloads.common.exit_codes import DataError
from workloads.common.log import log
from workloads.common.models import load_tokenizer
from workloads.data.chat_template import check_tokenizer, encode, render
from workloads.data.chats import parse_line
from workloads.data.dataset_convert import Rejects, rejects_path
from workloads.data.manifest import Step, command
from workloads.data.token_rows import TokenRows, tokenizer_files, write_parquet
from workloads.recipes.data import Overlong, from_options
from workloads.recipes.reader import Settings, over

_BLOCK_LINES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeConfig(Settings):
    """How chats become token rows."""

    max_tokens: Annotated[int, over(1)]
    overlong: Overlong = "drop"
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenized:
    """What was made of chats and what was left out."""

    num_chats: int = 0
    num_examples: int = 0
    num_tokens: int = 0
    num_assistant_tokens: int = 0
    num_dropped: int = 0
    """Longer than the limit."""
    num_cut: int = 0
    """Cut to the limit."""
    num_refused: int = 0
    """Lines of which no chat was made."""

    def __add__(self, other: Tokenized) -> Tokenized:
        names = [each.name for each in fields(self)]
        return Tokenized(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def counts(self, side: str = "") -> dict[str, int]:
        """Return the numbers for a manifest and a run record."""
        name = f"num_{side}_" if side else "num_"
        found = asdict(self)
        return {
            f"{name}{each}": found[f"num_{each}"]
            for each in ("examples", "tokens", "assistant_tokens", "dropped", "cut", "refused")
        }

    def __str__(self) -> str:
        return (
            f"{self.num_examples} examples of {self.num_chats} chats, {self.num_tokens} tokens, "
            f"{self.num_assistant_tokens} of the assistant, {self.num_dropped} dropped, "
            f"{self.num_cut} cut, {self.num_refused} refused"
        )


def tokenize_file(
    source: Path, output: Path, rejected: BinaryIO, *, model_dir: Path, config: TokenizeConfig
) -> Tokenized:
    """Write `output`, in a folder that exists, and rejects; no row at all is an error."""
    if not source.stat().st_size:
        raise DataError(f"{source}: has no chat; the split is empty")
    rejects = Rejects(rejected)
    blocks = _Blocks(load_tokenizer(model_dir), config, rejects)
    write_parquet(output, map(blocks.tokenize, _numbered(source)))
    done = blocks.done
    if not done.num_chats:
        raise DataError(f"{source}: no usable chat, {rejects.told()}")
    if not done.num_examples:
        raise DataError(
            f"{source}: no conversation of {done.num_chats} fits "
            f"data.max_tokens {config.max_tokens}; raise it"
        )
    return done


def _numbered(source: Path) -> Iterator[dict[str, bytes]]:
    """Yield some lines at a time, by file and number, without those that are empty."""
    with source.open("rb") as file:  # a bare CR ends no line
        lines = enumerate(file, start=1)
        while block := list(islice(lines, _BLOCK_LINES)):
            yield {
                f"{source.name}:{number}": line.rstrip(b"\r\n")
                for number, line in block
                if line.strip()
            }


class _Blocks:
    """Makes token rows of blocks of chats, one after another, and counts them."""

    def __init__(self, tokenizer: Any, config: TokenizeConfig, rejects: Rejects) -> None:
        check_tokenizer(tokenizer)
        self._tokenizer = tokenizer
        self._config = config
        self._rejects = rejects
        self.done = Tokenized()

    def tokenize(self, numbered: dict[str, bytes]) -> TokenRows:
        """Return the token rows of the lines, in order; a line that has none is a reject."""
        num_lines = len(numbered)
        try:
            rows, owners = self._encode(numbered)
        except DataError:
            for at, reason in [*self._refused(numbered)]:
                self._rejects.add(at, reason, numbered.pop(at).decode(errors="replace"))
            rows, owners = self._encode(numbered)
        rows, num_dropped, num_cut = self._limit(rows, owners)
        self.done += Tokenized(
            num_chats=len(numbered),
            num_examples=len(rows),
            num_tokens=rows.num_tokens,
            num_assistant_tokens=int(rows.learned.sum()),
            num_dropped=num_dropped,
            num_cut=num_cut,
            num_refused=num_lines - len(numbered),
        )
        return rows

    def _refused(self, numbered: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
        """Yield the lines that have no rows, and why, each tried alone.

        They cannot be read, or the template refuses their chats.
        """
        for at, line in numbered.items():
            try:
                self._encode({at: line})
            except DataError as error:
                yield at, str(error)

    def _encode(self, numbered: Mapping[str, bytes]) -> tuple[TokenRows, list[str]]:
        """Return the token rows of the lines' chats, and the id of each row's chat."""
        chats = [parse_line(line, at=at) for at, line in numbered.items()]
        template = self._config.chat_template_kwargs
        rendered = [render(self._tokenizer, c.messages, c.functions, **template) for c in chats]
        owners = [chat.id for chat, pieces in zip(chats, rendered, strict=True) for _ in pieces]
        return encode(self._tokenizer, [piece for pieces in rendered for piece in pieces]), owners

    def _limit(self, rows: TokenRows, owners: list[str]) -> tuple[TokenRows, int, int]:
        limit = self._config.max_tokens
        long = rows.lengths > limit
        num_long = int(long.sum())
        if not num_long:
            return rows, 0, 0
        if self._config.overlong == "refuse":
            first = int(long.argmax())
            raise DataError(
                f"chat {owners[first]}: {rows.lengths[first]} tokens, at most {limit} allowed; "
                "raise data.max_tokens or set data.overlong to drop or cut"
            )
        keep = ~long
        if self._config.overlong == "cut":
            rows = rows.cut(limit)
            # The first token of a row is never predicted; a row without a label left is dropped.
            labels = np.concatenate([[0], np.cumsum(rows.learned)])
            second = np.minimum(rows.offsets[:-1] + 1, rows.offsets[1:])
            keep |= labels[rows.offsets[1:]] > labels[second]
        num_dropped = int((~keep).sum())
        return rows.select(keep), num_dropped, num_long - num_dropped


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
        )
    step.finish([output, rejects], {"num_chats": done.num_chats, **done.counts()})
    log(f"{output}: {done} in {rejects.name}")


if __name__ == "__main__":
    sys.exit(main())
