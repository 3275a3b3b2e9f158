"""Chats of random words, which the data pipeline is measured on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from workloads.data.chats import Chat

LONG = (("system", (10, 30)), ("user", (10, 80)), ("assistant", (20, 200)))
"""Words of a turn, as function calling and finance chats have them."""
SHORT = (("system", (3, 8)), ("user", (4, 16)), ("assistant", (5, 30)))


def chats_of(num_chats: int, turns: Sequence[tuple[str, tuple[int, int]]] = LONG) -> list[Chat]:
    """Return chats of random words, all different."""
    draw = random.Random(0)
    words = (Path(__file__).parents[2] / "docs/stack.md").read_text(encoding="utf-8").split()
    return [
        Chat(
            id=str(index),
            group=str(index),
            messages=tuple(
                {"role": role, "content": " ".join(draw.choices(words, k=draw.randint(*size)))}
                for role, size in turns
            ),
        )
        for index in range(num_chats)
    ]
