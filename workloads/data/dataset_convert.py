"""Raw rows to chats, one JSON object a line; rows that cannot be read go to a file of rejects.

Owns the stream: one row in memory.
Usage: python -m workloads.data.dataset_convert rows.parquet chats.jsonl [--format glaive]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, get_args

from workloads.common.atomic import new_file
from workloads.common.exit_codes import DataError
from workloads.common.log import log
from workloads.common.tool_calls import UNREADABLE
from workloads.data import bfcl
from workloads.data.chats import Chat
from workloads.data.config import Format, SourceConfig, from_options
from workloads.data.files import files_of
from workloads.data.formats import from_row
from workloads.data.manifest import Step, command
from workloads.data.raw_rows import ENDINGS, BadRow, kind_of, raw_rows
from workloads.data.rejects import Rejects, reason_of, rejects_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """How many rows became chats."""

    num_chats: int
    num_rejected: int

    def counts(self) -> dict[str, int]:
        """Return the numbers for a manifest and a run record."""
        return {"num_chats": self.num_chats, "num_rejected": self.num_rejected}


def convert(source: SourceConfig, path: Path, chats: BinaryIO, rejected: BinaryIO) -> Converted:
    """Write the chats of `path` and its rejects, in the rows' order; no usable row is an error."""
    num_chats, rejects = 0, Rejects(rejected)
    for at, row in islice(_rows(source, path), source.limit):
        try:
            if isinstance(row, BadRow):
                raise DataError(row.reason)
            chat = (
                row
                if isinstance(row, Chat)
                else from_row(row, source.format, at=at, keep=source.keep)
            )
            chats.write(chat.to_line())
            num_chats += 1
        except (DataError, *UNREADABLE) as error:
            rejects.add(at, reason_of(error), row.text if isinstance(row, BadRow) else row)
    if not num_chats:
        raise DataError(f"{path}: no usable row, {rejects.told()}")
    return Converted(num_chats=num_chats, num_rejected=rejects.num)


def _rows(source: SourceConfig, path: Path) -> Iterator[tuple[str, Any]]:
    if source.kind == "bfcl":
        return ((chat.id, chat) for chat in bfcl.read(path, source.categories))
    return raw_rows(source.kind, path)


def source_files(source: SourceConfig, path: Path) -> list[Path]:
    """Return the files that `convert` reads, for a manifest."""
    if source.kind == "bfcl":
        return bfcl.files(path, source.categories)
    return files_of(path, ENDINGS[source.kind])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m workloads.data.dataset_convert",
        description="Raw rows to chats as JSON lines; rejects go to <output>.rejects.jsonl",
    )
    parser.add_argument("source", type=Path, help="a file, or a folder of files of one kind")
    parser.add_argument("output", type=Path, help="JSON lines to write")
    parser.add_argument("--kind", choices=[*ENDINGS, "bfcl"], help="default: by the ending")
    parser.add_argument("--format", choices=get_args(Format), default="messages")
    parser.add_argument("--keep", nargs="*", action="extend", default=[], metavar="COLUMN")
    parser.add_argument("--limit", type=int, help="first rows only")
    options = parser.parse_args(arguments)
    return command(lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    source = from_options(
        SourceConfig,
        kind=options.kind or kind_of(options.source),
        path=str(options.source),
        format=options.format,
        keep=tuple(options.keep),
        limit=options.limit,
    )
    rejects = rejects_path(options.output)
    step = Step(
        name="convert",
        path=options.output.with_name(f"{options.output.name}.manifest.json"),
        config=source,
        inputs=source_files(source, options.source),
    )
    if step.is_current():
        return
    with new_file(options.output) as chats, new_file(rejects) as rejected:
        done = convert(source, options.source, chats, rejected)
    step.finish([options.output, rejects], done.counts())
    log(f"{options.output}: {done.num_chats} chats, {done.num_rejected} rows in {rejects.name}")


if __name__ == "__main__":
    sys.exit(main())
