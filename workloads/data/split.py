"""Split chats into train and test without leakage.

Owns the rule: chats of one group stay together, equal conversations count once. Deterministic in
the chats and the seed.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from workloads.common.exit_codes import DataError
from workloads.data.chats import Chat


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Two lists of chats that share no group."""

    train: tuple[Chat, ...]
    test: tuple[Chat, ...]
    num_duplicates: int


def split(chats: Sequence[Chat], *, test_ratio: float, rand_sort: bool, seed: int) -> Split:
    """Return at least `test_ratio` of the chats as test, the rest as train, whole groups at a time.

    With `rand_sort` groups are drawn by `seed` and both sides are shuffled; without it the last
    groups are the test, and order is kept.
    """
    unique = list({_digest(chat): chat for chat in reversed(chats)}.values())[::-1]
    groups: dict[str, list[Chat]] = {}
    for chat in unique:
        groups.setdefault(chat.group, []).append(chat)
    names = list(groups)
    if rand_sort:
        random.Random(seed).shuffle(names)
    wanted = test_ratio * len(unique)
    test: list[Chat] = []
    while names and len(test) < wanted:
        name = names.pop()
        test = groups[name] + test
    train = [chat for name in names for chat in groups[name]]
    if not train or not test:
        raise DataError(
            f"test_ratio {test_ratio} of {len(unique)} chats in {len(groups)} groups leaves "
            f"{len(train)} to train and {len(test)} to test; both need at least 1"
        )
    if rand_sort:
        random.Random(seed + 1).shuffle(train)
        random.Random(seed + 2).shuffle(test)
    return Split(train=tuple(train), test=tuple(test), num_duplicates=len(chats) - len(unique))


def _digest(chat: Chat) -> str:
    text = json.dumps([dict(message) for message in chat.messages], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
