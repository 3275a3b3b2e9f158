"""Which chats are train and which are test, without leakage.

Owns the rule: equal conversations count once, chats of one group stay together, each stratum is
split by the ratio on its own. Deterministic in the chats and the seed. Works on a few bytes a chat.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from workloads.common.exit_codes import DataError
from workloads.data.chats import Chat


@dataclass(frozen=True, slots=True)
class Key:
    """What the rule needs to know of one chat."""

    digest: bytes
    """Of the messages: equal conversations have equal digests."""
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
    messages = json.dumps([dict(message) for message in chat.messages], sort_keys=True)
    stratum = ""
    if stratify_by is not None:
        if stratify_by not in chat.columns:
            have = ", ".join(chat.columns) or "none"
            raise DataError(
                f"chat {chat.id}: has no column {stratify_by!r} (has: {have}); "
                "keep it when converting: data.source.keep"
            )
        stratum = str(chat.columns[stratify_by])
    return Key(_digest(messages), _digest(chat.group), stratum)


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
