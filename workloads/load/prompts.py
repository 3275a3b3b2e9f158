"""Chats to send, how long they are, and when they come: by seed, or from a trace."""

from __future__ import annotations

import json
import math
import os
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from workloads.common.exit_codes import ConfigError, DataError
from workloads.data.chats import for_template
from workloads.data.manifest import json_lines
from workloads.recipes.load import Lengths, LoadConfig, Tokens
from workloads.recipes.reader import AtLeastOne, Bound, NotNegative, Positive, Settings, parse

PROFILE_VARIABLE = "SOPERATOR_CHAT_PROFILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatProfile(Settings):
    """What the stack declares of its reference chat; the job's script brings it as JSON."""

    context_tokens: Tokens[int]
    """Tokens that the model reads before each answer."""
    output_tokens: AtLeastOne[int]
    """Tokens that it writes in the whole chat."""
    turns: AtLeastOne[int] = 1
    cached_share: NotNegative[float] = 0.0
    max_answer_s: Positive[float | None] = None


def read_profile(environment: Mapping[str, str] | None = None) -> ChatProfile | None:
    """Return the chat profile that the stack gave this job; None by hand."""
    text = (os.environ if environment is None else environment).get(PROFILE_VARIABLE)
    if not text:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{PROFILE_VARIABLE}: not JSON: {error}") from error
    return parse(ChatProfile, value, at=PROFILE_VARIABLE)


def with_profile(config: LoadConfig, profile: ChatProfile | None) -> LoadConfig:
    """Return the settings with every gap filled by the profile; a gap without one is refused."""
    prompt, output = config.prompt_tokens, config.output_tokens
    slo, prompts = config.slo, config.prompts
    if profile is not None:
        if prompt.mean is None:
            prompt = replace(prompt, mean=profile.context_tokens)
        if output.mean is None:
            output = replace(output, mean=max(1, round(profile.output_tokens / profile.turns)))
        if slo.e2e_s is None and profile.max_answer_s is not None:
            slo = replace(slo, e2e_s=profile.max_answer_s)
        if prompts.cached_share is None and profile.cached_share < 1:
            prompts = replace(prompts, cached_share=profile.cached_share)
    missing = [
        name
        for name, lengths in (("prompt_tokens", prompt), ("output_tokens", output))
        if lengths.mean is None and not (name == "prompt_tokens" and prompts.rows)
    ]
    if missing:
        raise ConfigError(
            f"load.{' and load.'.join(missing)}: no mean, and no chat profile of a stack "
            f"({PROFILE_VARIABLE}); set load.{missing[0]}.mean"
        )
    return replace(config, prompt_tokens=prompt, output_tokens=output, slo=slo, prompts=prompts)


def draw_lengths(lengths: Lengths, count: int, seed: str) -> Sequence[int | None]:
    """Return `count` lengths in tokens, the same for the same seed; None where rows have theirs."""
    if lengths.mean is None:
        return [None] * count
    draw = random.Random(f"lengths {seed}")
    mean, most = lengths.mean, lengths.most or 4 * lengths.mean
    if lengths.distribution == "fixed":
        return [min(mean, most)] * count
    if lengths.distribution == "uniform":
        half = mean * lengths.spread * math.sqrt(3)
        drawn = (draw.uniform(mean - half, mean + half) for _ in range(count))
    else:
        variance = math.log1p(lengths.spread**2)
        middle = math.log(mean) - variance / 2
        drawn = (draw.lognormvariate(middle, math.sqrt(variance)) for _ in range(count))
    return [min(most, max(1, round(value))) for value in drawn]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival(Settings):
    """One request of an open loop."""

    at_s: Annotated[float, Bound("seconds of 0 or more", lambda value: value >= 0)]
    """Seconds after the start."""
    prompt_tokens: Tokens[int | None] = None
    """None: drawn."""
    output_tokens: Tokens[int | None] = None


def poisson(rate_per_s: float, count: int, seed: int) -> tuple[Arrival, ...]:
    """Return `count` arrivals whose gaps are independent and exponential, mean 1 / rate."""
    draw = random.Random(f"arrivals {seed} {rate_per_s!r}")
    at_s, found = 0.0, []
    for _ in range(count):
        at_s += draw.expovariate(rate_per_s)
        found.append(Arrival(at_s=at_s))
    return tuple(found)


def read_trace(path: Path) -> tuple[Arrival, ...]:
    """Return the arrivals of a .jsonl file in the order of time; every bad row is named.

    A line that is not JSON ends the reading.
    """
    if path.suffix != ".jsonl":
        form = 'a trace is a .jsonl file, one {"at_s": ...} a line'
        raise DataError(f"load.open_loop.trace: {path}: {form}")
    problems: list[str] = []
    found: list[Arrival] = []
    try:
        for number, row in json_lines(path):
            try:
                found.append(parse(Arrival, row, at=f"{path}:{number}"))
            except ConfigError as error:
                problems.append(str(error))
    except DataError as error:
        problems.append(str(error))
    if not problems and len(found) < 2:
        problems.append(f"{path}: {len(found)} arrivals; a trace needs 2 or more")
    if problems:
        more = " ..." if len(problems) > 5 else ""
        raise DataError(f"load.open_loop.trace: {'; '.join(problems[:5])}{more}")
    return tuple(sorted(found, key=lambda each: each.at_s))


_WORD = re.compile(r" [a-z]{2,}")
_LETTER = re.compile(r"[a-z ]+")
_LEAST_WORDS = 100
Message = dict[str, Any]


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
        self._shared = random.Random(f"shared {seed}").choices(self._words, k=cached_tokens)
        self.template_tokens = 0
        """Tokens that the server's chat template adds; set by the test once it has measured it."""

    def chat(self, number: int, tokens: int | None) -> list[Message]:
        """Return chat `number`; with the template it has `tokens` tokens."""
        wanted = max(1, (tokens or 1) - self.template_tokens)
        draw = random.Random(f"prompt {self._seed} {number}")
        shared = self._shared[:wanted]
        words = shared + draw.choices(self._words, k=wanted - len(shared))
        return [{"role": "user", "content": "".join(words)}]

    def count(self, text: str) -> int:
        """Return the tokens of a text without any template."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)


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
    chats: list[list[Message]] = []
    for number, row in json_lines(path):
        try:
            messages = row["messages"]
            assert isinstance(messages, list)
            assert all(isinstance(each["role"], str) for each in messages)
            while messages and messages[-1]["role"] == "assistant":
                messages = messages[:-1]  # the answer is what is asked for
            if not messages:
                raise DataError(f"{path}:{number}: no message but answers; a chat asks something")
            # As text: what answers may take no tools.
            plain, _ = for_template(messages, row.get("functions") or (), knows_tools=False)
        except (KeyError, TypeError, ValueError, AssertionError) as error:
            raise DataError(
                f'{path}:{number}: expected {{"messages": [{{"role": ..., "content": ...}}]}}'
            ) from error
        chats.append(list(map(dict, plain)))
    if not chats:
        raise DataError(f"{path}: no chats; write one object with messages a line")
    return chats
