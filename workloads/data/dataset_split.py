"""One file of chats to `_train` and `_test` beside it.

Owns the two passes over the file: keys of all chats first, then lines copied in the chosen order.
Holds about 300 bytes a chat.
Usage: python -m workloads.data.dataset_split chats.jsonl --test-ratio 0.1 [--rand-sort] [--seed 0]
"""

from __future__ import annotations

import argparse
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from workloads.common.atomic import new_file
from workloads.common.exit_codes import DataError
from workloads.common.log import log
from workloads.data.chats import parse_line
from workloads.data.manifest import Step, command
from workloads.data.split import Choice, Key, choose, key_of


def split_names(path: Path) -> tuple[Path, Path]:
    """Return the paths of the train and the test part of `path`."""
    train, test = (path.with_stem(f"{path.stem}_{side}") for side in ("train", "test"))
    return train, test


def split_file(
    path: Path,
    train: BinaryIO,
    test: BinaryIO,
    *,
    test_ratio: float,
    rand_sort: bool,
    seed: int,
    stratify_by: str | None = None,
) -> Choice:
    """Write each chat's line to its side, byte by byte as it stands in `path`."""
    keys, offsets = _keys(path, stratify_by)
    choice = choose(keys, test_ratio=test_ratio, rand_sort=rand_sort, seed=seed)
    with path.open("rb") as source:
        for numbers, sink in ((choice.train, train), (choice.test, test)):
            for number in numbers:
                source.seek(offsets[number])
                sink.write(source.readline().rstrip(b"\r\n") + b"\n")
    return choice


def _keys(path: Path, stratify_by: str | None) -> tuple[list[Key], array[int]]:
    if not path.is_file():
        raise DataError(f"{path}: no such file; convert the raw rows first")
    keys: list[Key] = []
    offsets = array("q")
    with path.open("rb") as lines:
        offset = 0
        for number, line in enumerate(lines, start=1):
            if line.strip():
                keys.append(key_of(parse_line(line, at=f"{path.name}:{number}"), stratify_by))
                offsets.append(offset)
            offset += len(line)
    return keys, offsets


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m workloads.data.dataset_split",
        description="Chats to <name>_train.jsonl and <name>_test.jsonl in the same folder",
    )
    parser.add_argument("source", type=Path, help="JSON lines with messages")
    parser.add_argument("--test-ratio", type=_ratio, default=0.2)
    parser.add_argument("--rand-sort", action="store_true", help="shuffle before the split")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stratify-by", metavar="COLUMN", help="a column kept when converting")
    options = parser.parse_args(arguments)
    return command(lambda: _run(options))


def _ratio(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"got {text}, expected between 0 and 1")
    return value


def _run(options: argparse.Namespace) -> None:
    path: Path = options.source
    settings = {
        name: getattr(options, name) for name in ("test_ratio", "rand_sort", "seed", "stratify_by")
    }
    if not path.is_file():
        raise DataError(f"{path}: no such file; convert the raw rows first")
    step = Step(
        name="split",
        path=path.with_name(f"{path.stem}_split.manifest.json"),
        config=settings,
        inputs=[path],
    )
    if step.is_current():
        return
    train_path, test_path = split_names(path)
    with new_file(train_path) as train, new_file(test_path) as test:
        choice = split_file(path, train, test, **settings)
    step.finish([train_path, test_path], choice.counts())
    log(
        f"{len(choice.train)} chats in {train_path}, {len(choice.test)} in {test_path}, "
        f"{choice.num_duplicates} were duplicates"
    )


if __name__ == "__main__":
    sys.exit(main())
