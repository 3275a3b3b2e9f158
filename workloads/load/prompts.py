"""Chats to send: words of the model's own tokenizer, so many tokens long, or given rows.

Words are drawn by seed, so no two prompts share more than what `cached_share` says and a prefix
cache gains exactly that. What the chat template adds is measured by one request, not guessed.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any, Protocol

from workloads.common.exit_codes import DataError

_WORD = re.compile(r" [a-z]{2,}")
_LETTER = re.compile(r"[a-z ]+")
_LEAST_WORDS = 100
Message = dict[str, Any]


class PromptSource(Protocol):
    """Where chats come from."""

    def chat(self, number: int, tokens: int | None) -> list[Message]:
        """Return chat `number`, of so many tokens where the source can choose."""
        ...


class Rows:
    """Given chats in an order drawn by seed."""

    def __init__(self, path: Path, seed: int) -> None:
        self._chats = _read_rows(path)
        random.Random(f"rows {seed}").shuffle(self._chats)

    def chat(self, number: int, tokens: int | None) -> list[Message]:
        """Return chat `number`; the length is the row's own."""
        return self._chats[number % len(self._chats)]


class Words:
    """Chats of one message made of words that are one token each."""

    def __init__(self, tokenizer: Any, seed: int, cached_tokens: int = 0) -> None:
        self._tokenizer = tokenizer
        self._seed = seed
        self._words = _one_token_words(tokenizer)
        self._shared = self._draw(random.Random(f"shared {seed}"), cached_tokens)
        self.template_tokens = 0
        """Tokens that the server's chat template adds; set by the test once it has measured it."""

    def chat(self, number: int, tokens: int | None) -> list[Message]:
        """Return chat `number`; with the template it has `tokens` tokens."""
        wanted = max(1, (tokens or 1) - self.template_tokens)
        draw = random.Random(f"prompt {self._seed} {number}")
        shared = self._shared[:wanted]
        words = shared + self._draw(draw, wanted - len(shared))
        return [{"role": "user", "content": "".join(words)}]

    def count(self, text: str) -> int:
        """Return the tokens of a text without any template."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _draw(self, draw: random.Random, count: int) -> list[str]:
        return draw.choices(self._words, k=count)


def load_tokenizer(folder: Path) -> Any:
    """Return the fast tokenizer of a model folder, without transformers."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise DataError(
            "prompts of a tokenizer need the package tokenizers; install it, or give chats: "
            "load.prompts.rows"
        ) from error
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise DataError(f"{path} is missing; name a model with one, or set load.prompts.rows")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise DataError(f"{path}: no tokenizer: {error}") from error


def _one_token_words(tokenizer: Any) -> list[str]:
    """Words, else letters, that are one token alone and beside their like."""
    ids = range(tokenizer.get_vocab_size())
    texts = sorted({tokenizer.decode([number]) for number in ids})
    words = [text for text in texts if _WORD.fullmatch(text)]
    if len(words) < _LEAST_WORDS:
        words = [text for text in texts if _LETTER.fullmatch(text)]
    found = [
        word
        for word in words
        if len(tokenizer.encode(word + word, add_special_tokens=False).ids) == 2
    ]
    if not found:
        raise DataError("the tokenizer has no words of one token; set load.prompts.rows")
    return found


def _read_rows(path: Path) -> list[list[Message]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"load.prompts.rows: {path} cannot be read: {error}") from error
    chats: list[list[Message]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            messages = json.loads(line)["messages"]
            assert isinstance(messages, list)
            assert all(isinstance(each["role"], str) for each in messages)
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise DataError(
                f'{path}:{number}: expected {{"messages": [{{"role": ..., "content": ...}}]}}'
            ) from error
        while messages and messages[-1]["role"] == "assistant":
            messages = messages[:-1]  # the answer is what is asked for
        if not messages:
            raise DataError(f"{path}:{number}: no message but answers; a chat asks something")
        chats.append(messages)
    if not chats:
        raise DataError(f"{path}: no chats; write one object with messages a line")
    return chats
