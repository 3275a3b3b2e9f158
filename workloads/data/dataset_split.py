"""One file of chats to `_train` and `_test` beside it, without leakage.

Equal conversations count once, chats of one group stay together, each stratum is split by the ratio
on its own. Two passes over the file: keys of all chats, then lines copied in the chosen order; it
holds about 300 bytes a chat.
Usage: python -m workloads.data.dataset_split chats.jsonl --test-ratio 0.1 [--rand-sort] [--seed 0]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from workloads.common.atomic import new_file
from workloads.common.exit_codes import DataError
from workloads.common.log import log
from workloads.data.chats import Chat, parse_line
from workloads.data.manifest import Step, command


@dataclass(frozen=True, slots=True)
class Key:
    """What the rule needs to know of one chat."""

    digest: bytes
    """Of messages and functions: equal conversations have equal digests."""
    group: bytes
    stratum: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Numbers of the chats of both sides, in the order in which they are written."""

    train: tuple[int, ...]
    test: tuple[int, ...]
    num_duplicates: int
    num_strata: int
    num_strata_without_test: int
    """Strata of one group, which trains."""

    def counts(self) -> dict[str, int]:
        """Return the numbers for a manifest and a run record."""
        return {
            "num_train_chats": len(self.train),
            "num_test_chats": len(self.test),
            "num_duplicates": self.num_duplicates,
            "num_strata": self.num_strata,
            "num_strata_without_test": self.num_strata_without_test,
        }


def key_of(chat: Chat, stratify_by: str | None = None) -> Key:
    """Return the key of a chat; its stratum is the value of column `stratify_by`."""
    said = json.dumps([chat.messages, chat.functions], sort_keys=True, default=dict)
    stratum = ""
    if stratify_by is not None:
        if stratify_by not in chat.columns:
            have = ", ".join(chat.columns) or "none"
            raise DataError(
                f"chat {chat.id}: has no column {stratify_by!r} (has: {have}); "
                "keep it when converting: data.source.keep"
            )
        stratum = str(chat.columns[stratify_by])
    return Key(_digest(said), _digest(chat.group), stratum)


def _digest(text: str) -> bytes:
    # 16 bytes: two of 10^9 different texts are equal with a chance of 10^-21.
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def choose(keys: Sequence[Key], *, test_ratio: float, rand_sort: bool, seed: int) -> Choice:
    """Return at least `test_ratio` of each stratum as test, the rest as train, in whole groups.

    With `rand_sort` groups are drawn by `seed` and both sides are shuffled; without it the last
    groups are the test, and order is kept. The first of equal conversations stays. A group lies in
    the stratum of its first chat, and one group of a stratum always trains.
    """
    first: dict[bytes, int] = {}
    for index, key in enumerate(keys):
        first.setdefault(key.digest, index)
    strata: dict[str, dict[bytes, list[int]]] = {}
    home: dict[bytes, str] = {}
    for index in first.values():
        group = keys[index].group
        stratum = home.setdefault(group, keys[index].stratum)
        strata.setdefault(stratum, {}).setdefault(group, []).append(index)

    draw = random.Random(seed)
    train: list[int] = []
    test: list[int] = []
    num_without = 0
    for groups in strata.values():
        names = list(groups)
        if rand_sort:
            draw.shuffle(names)
        wanted = test_ratio * sum(map(len, groups.values()))
        held: list[int] = []
        while len(names) > 1 and len(held) < wanted:
            held += groups[names.pop()]
        num_without += not held
        test += held
        train += (index for name in names for index in groups[name])
    if not train or not test:
        raise DataError(
            f"test_ratio {test_ratio} of {len(first)} chats in {len(home)} groups leaves "
            f"{len(train)} to train and {len(test)} to test; both need at least 1"
        )
    train.sort()
    test.sort()
    if rand_sort:
        random.Random(seed + 1).shuffle(train)
        random.Random(seed + 2).shuffle(test)
    return Choice(
        train=tuple(train),
        test=tuple(test),
        num_duplicates=len(keys) - len(first),
        num_strata=len(strata),
        num_strata_without_test=num_without,
    )


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
    return command(lambda: _run(parser.parse_args(arguments)))


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
