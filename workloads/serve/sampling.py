"""A token for each row of logits: what its grammar allows, by its request's settings and seed.

A seed gives the same answer for the same logits; a pass over other rows may round them otherwise.
Tools and response formats become grammars, which llguidance reads:
https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md (2026-11-22).
Shapes: B rows, V vocabulary, K kept tokens.
"""

from __future__ import annotations

import json
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from workloads.common.tool_calls import MARKERS, OWN_FORM
from workloads.data.chat_template import as_answer, call_form
from workloads.serve.scheduler import Sampling

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_NO_ARGUMENTS: Mapping[str, Any] = {**_ANY_OBJECT, "additionalProperties": False}
# As json.dumps writes it: with free white space a model may write nothing else to its limit.
_WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class GrammarError(ValueError):
    """A schema that cannot be kept; `param` is where it stands in the request."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What is asked of an answer beyond free text."""

    functions: Mapping[str, Mapping[str, Any]]
    """Functions that may be called, by their place in the request."""
    must_call: bool = False
    is_parallel: bool = True
    """Whether more than one call may be made."""
    schema: Mapping[str, Any] | None = None
    """Of the text, where it must be JSON."""

    @property
    def is_free(self) -> bool:
        """Whether any text will do: no grammar is needed."""
        has_strict = any(function.get("strict") for function in self.functions.values())
        return not (self.must_call or self.schema is not None or has_strict)


class Constraint:
    """Which tokens may come next in one answer."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def copy(self) -> Constraint:
        """Return the same at the same place, for another answer."""
        return Constraint(self._matcher.deep_copy())

    def mask(self, logits_V: torch.Tensor) -> None:
        """Make every token impossible that must not come next, in place."""
        packed = bytearray(self._matcher.compute_bitmask())
        if self._matcher.is_error():
            raise RuntimeError(f"the answer's grammar: {self._matcher.get_error()}")
        bytes_N = torch.frombuffer(packed, dtype=torch.uint8).to(logits_V.device)
        bits_8 = torch.arange(8, device=logits_V.device, dtype=torch.uint8)
        allowed_V = ((bytes_N[:, None] >> bits_8) & 1).flatten().bool()[: len(logits_V)]
        # A model may have more logits than its tokenizer has tokens.
        logits_V[len(allowed_V) :] = -torch.inf
        logits_V[: len(allowed_V)].masked_fill_(~allowed_V, -torch.inf)

    def take(self, token: int) -> None:
        """Go on behind a token."""
        if not self._matcher.consume_token(token):
            raise RuntimeError(f"the answer's grammar: {self._matcher.get_error()}")


class Grammars:
    """Makes constraints for the tokens of one tokenizer."""

    def __init__(self, tokenizer: Any, stop_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._lock = threading.Lock()
        self._reader: Any = None
        self._form = form = call_form(tokenizer) or OWN_FORM
        self._marker = next((each for each in MARKERS if form.before.startswith(each)), form.before)
        self.has_text_marker = any(each in as_answer(tokenizer, form.before) for each in MARKERS)
        """Whether decoding leaves something in front of a call that tells it from JSON."""

    def constraint(self, form: Form) -> Constraint | None:
        """Return what keeps an answer in `form`, None for free text; GrammarError. Takes up to 1 s.

        The reader of the vocabulary is made by the first request that needs it.
        """
        if form.is_free:
            return None
        from llguidance import LLMatcher

        rules = "\n".join(["%llguidance {}", *self._rules(form)])
        matcher = LLMatcher(self._vocabulary(), rules, log_level=0)
        if matcher.is_error():
            raise _error_of(form, matcher.get_error())
        return Constraint(matcher)

    def _vocabulary(self) -> Any:
        from llguidance.hf import from_tokenizer

        with self._lock:
            if self._reader is None:
                self._reader = from_tokenizer(self._tokenizer, eos_token=sorted(self._stop_ids))
            return self._reader

    def _rules(self, form: Form) -> Iterator[str]:
        of, marker = self._form, _literal(self._tokenizer, self._marker)
        if form.functions:
            names = " | ".join(f"call_{index}" for index in range(len(form.functions)))
            yield f"call: {names}"
            texts = of.before.removeprefix(self._marker), of.between or "", of.after
            rest, more, after = (_literal(self._tokenizer, text) for text in texts)
            several = f"({more} call)*" if more and form.is_parallel else ""
            yield f"rest: {rest} call {several} {after}"
            yield f"calls: {marker} rest"
        for index, function in enumerate(form.functions.values()):
            name = json.dumps(function["name"], ensure_ascii=False)
            opening = f'{{"name": {name}, "{of.arguments}": '
            ending = r'/, "id": "[0-9a-zA-Z]{9}"\}/' if of.has_id else '"}"'
            yield f"call_{index}: {json.dumps(opening)} arguments_{index} {ending}"
            yield f"arguments_{index}: {_json(_parameters(function))}"
        if form.must_call:
            yield "start: calls"
        elif form.schema is not None:
            yield f"text: {_json(form.schema)}"
            yield "start: text | calls" if form.functions else "start: text"
        elif not of.before:  # nothing says that a call begins but its brace
            yield r"start: calls | /([^{](.|\n)*)?/"
        else:
            yield "start: (text_call)* TEXT"
            yield r"TEXT: /(.|\n)*/"
            if marker.startswith("<["):
                yield f"text_call: TEXT {marker} rest"
            else:
                yield f"opening[lazy]: TEXT {marker}"
                yield "text_call: opening rest"


def _literal(tokenizer: Any, text: str) -> str:
    """Return text as the grammar names it: as tokens where the tokenizer has some for it."""
    tokens = {token.content: number for number, token in tokenizer.added_tokens_decoder.items()}
    pieces = re.split(f"({'|'.join(map(re.escape, tokens))})", text) if tokens else [text]
    named = (f"<[{tokens[each]}]>" if each in tokens else json.dumps(each) for each in pieces)
    return " ".join(each for each in named if each != '""')


def _parameters(function: Mapping[str, Any]) -> Mapping[str, Any]:
    return function.get("parameters") or _NO_ARGUMENTS


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**(schema or _ANY_OBJECT), 'x-guidance': _WRITTEN})}"


def _error_of(form: Form, message: str) -> GrammarError:
    """Return the error with the place of the schema that makes it."""
    from llguidance import LLMatcher

    schemas = {f"{at}.parameters": _parameters(each) for at, each in form.functions.items()}
    if form.schema is not None:
        schemas["response_format.json_schema.schema"] = form.schema
    for param, schema in schemas.items():
        if problem := LLMatcher.validate_grammar(f"start: {_json(schema)}"):
            line = problem.splitlines()[0].partition("schema: ")[2] or problem
            return GrammarError(f"'{param}': {line}", param)
    return GrammarError(f"the schemas together: {message.splitlines()[0]}", "tools")


_KEPT = 256
"""Tokens looked at beyond a top_k before the whole vocabulary is sorted."""

_LEAST_LOGPROB = -9999.0
"""OpenAI's value for a token that is most unlikely; JSON has no minus infinity.
https://platform.openai.com/docs/api-reference/chat/object (2026-11-21)."""


class RowSampler:
    """The random numbers, the penalties and the form of one answer."""

    def __init__(
        self,
        sampling: Sampling,
        constraint: Constraint | None = None,
        prompt_ids: Sequence[int] = (),
        stop_ids: Sequence[int] = (),
    ) -> None:
        self.sampling = sampling
        self._constraint = constraint
        self._prompt_ids = frozenset(prompt_ids if sampling.repetition_penalty != 1 else ())
        self._stop_ids = stop_ids
        self._num_before_stop = sampling.min_tokens
        self._random = random.Random(sampling.seed)
        self.number = self._random.random()
        """0 to 1; the same one until a token is written."""
        self._counts: Counter[int] = Counter()

    @property
    def changes_logits(self) -> bool:
        """Whether a token is not chosen from the model's logits as they are."""
        return self.has_penalty or self._constraint is not None or self._num_before_stop > 0

    @property
    def has_penalty(self) -> bool:
        """Whether tokens that were written already count less."""
        of = self.sampling
        return bool(of.presence_penalty or of.frequency_penalty or of.repetition_penalty != 1)

    @property
    def is_ranked(self) -> bool:
        """Whether a token is drawn from the most likely ones, in their order."""
        return self.sampling.top_p < 1 or self.sampling.top_k > 0

    def wrote(self, token: int) -> None:
        """Count a token that was written."""
        self.number = self._random.random()
        self._num_before_stop -= 1
        if self.has_penalty:
            self._counts[token] += 1
        if self._constraint is not None:
            self._constraint.take(token)

    def adjust(self, logits_V: torch.Tensor) -> None:
        """Apply penalties, least length and form to the next token's logits, in place.

        The order and the meaning of each are vLLM's (vllm/v1/sample/sampler.py, 2026-11-22).
        """
        if self._num_before_stop > 0:
            ends = [each for each in self._stop_ids if each < len(logits_V)]
            logits_V[ends] = -torch.inf
        if seen := self._prompt_ids | self._counts.keys():
            ids = torch.tensor(list(seen), device=logits_V.device)
            penalty, values = self.sampling.repetition_penalty, logits_V[ids]
            logits_V[ids] = torch.where(values > 0, values / penalty, values * penalty)
        if self._counts:
            of, ids = self.sampling, torch.tensor(list(self._counts), device=logits_V.device)
            counts = torch.tensor(list(self._counts.values()), device=logits_V.device)
            penalties = of.frequency_penalty * counts.to(logits_V.dtype)
            logits_V[ids] -= of.presence_penalty + penalties
        if self._constraint is not None:
            self._constraint.mask(logits_V)


def sample(logits_BV: torch.Tensor, rows: Sequence[RowSampler]) -> list[int | Exception]:
    """Return for each row its next token, or why it has none."""
    faults: dict[int, Exception] = {}
    numbers: dict[int, float] = {}
    if any(sampler.changes_logits for sampler in rows):
        # What a pass returns was made in inference mode and may not be changed in place.
        logits_BV = logits_BV.clone()
    for row, sampler in enumerate(rows):
        try:
            if sampler.changes_logits:
                sampler.adjust(logits_BV[row])
            if sampler.sampling.temperature:  # at 0 the most likely token is taken
                numbers[row] = sampler.number
        except Exception as error:
            faults[row] = error
    tokens: list[int | Exception] = logits_BV.argmax(-1).tolist()
    # Apart: in another order of the tokens a number means another one, and what a neighbour asks
    # for must not change what a seed gives.
    for is_ranked in (False, True):
        drawn = [row for row in numbers if rows[row].is_ranked == is_ranked]
        if drawn:
            samplers = [rows[row] for row in drawn]
            chosen = _draw(logits_BV[drawn], samplers, [numbers[row] for row in drawn])
            for row, token in zip(drawn, chosen, strict=True):
                tokens[row] = token
    for row, error in faults.items():
        tokens[row] = error
    return tokens


def _draw(
    logits_BV: torch.Tensor, rows: Sequence[RowSampler], numbers: Sequence[float]
) -> list[int]:
    temperatures_B = _column([row.sampling.temperature for row in rows], logits_BV)
    probabilities_BV = torch.softmax(logits_BV / temperatures_B, dim=-1)
    if any(row.sampling.min_p for row in rows):
        least_B = _column([row.sampling.min_p for row in rows], logits_BV)
        most_B = probabilities_BV.amax(-1, keepdim=True)
        likely_BV = probabilities_BV.where(probabilities_BV >= least_B * most_B, 0)
        likely_BV /= likely_BV.sum(-1, keepdim=True)
        probabilities_BV = likely_BV.where(least_B > 0, probabilities_BV)
    numbers_B = _column(numbers, logits_BV)
    if not rows[0].is_ranked:
        return _invert(probabilities_BV, numbers_B)[:, 0].tolist()
    size = logits_BV.shape[-1]
    top_p_B = _column([row.sampling.top_p for row in rows], logits_BV)
    top_k_B = _column([row.sampling.top_k or size for row in rows], logits_BV)
    for kept in (min(size, _KEPT + max(row.sampling.top_k for row in rows)), size):
        sorted_BK, ids_BK = _ranked(probabilities_BV, kept)
        allowed_BK = torch.arange(kept, device=logits_BV.device) < top_k_B
        # top_p is a share of what top_k leaves, as transformers and vLLM have it.
        left_BK = sorted_BK * allowed_BK
        sums_B = left_BK.sum(-1, keepdim=True).where(top_k_B < size, 1)
        allowed_BK &= left_BK.cumsum(-1) - left_BK < top_p_B * sums_B
        allowed_BK[:, 0] = True
        # What is kept must hold every token that may be drawn, and all that are as likely.
        last_B = sorted_BK[:, -1:]
        if kept == size or not bool((allowed_BK & (sorted_BK == last_B) & (last_B > 0)).any()):
            break
    places_B1 = _invert(sorted_BK * allowed_BK, numbers_B)
    return ids_BK.gather(-1, places_B1)[:, 0].tolist()


def _ranked(probabilities_BV: torch.Tensor, kept: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the most likely tokens and their ids; of equal ones (in bf16 many) the lower first."""
    order = {"dim": -1, "descending": True, "stable": True}
    if kept == probabilities_BV.shape[-1]:
        return probabilities_BV.sort(**order)
    ids_BK = probabilities_BV.topk(kept, dim=-1, sorted=False).indices.sort(dim=-1).values
    sorted_BK, places_BK = probabilities_BV.gather(-1, ids_BK).sort(**order)
    return sorted_BK, ids_BK.gather(-1, places_BK)


def _invert(weights_BK: torch.Tensor, numbers_B: torch.Tensor) -> torch.Tensor:
    """Return for each row the place where the running sum of weights passes its number."""
    sums_BK = weights_BK.double().cumsum(-1)
    places_B1 = torch.searchsorted(sums_BK, numbers_B.double() * sums_BK[:, -1:], right=True)
    return places_B1.clamp(max=weights_BK.shape[-1] - 1)


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, device=like.device, dtype=like.dtype)[:, None]


def logprobs(
    logits_V: torch.Tensor, token: int, num_top: int
) -> tuple[float, list[tuple[int, float]]]:
    """Return the natural logarithm of the token's probability, and the most likely tokens."""
    values_V = torch.log_softmax(logits_V, dim=-1).clamp(min=_LEAST_LOGPROB)
    top = values_V.topk(num_top) if num_top else None
    pairs = [] if top is None else zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return float(values_V[token]), [(index, value) for index, value in pairs]
