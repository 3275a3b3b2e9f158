"""What an answer may look like: tool calls and JSON as a grammar, and the tokens that it allows.

Owns the rules that a request's tools and response format make, in the form that training writes
(workloads/common/tool_calls.py), and which tokens may follow. llguidance reads schemas and rules:
https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md (2026-11-22).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from workloads.common.tool_calls import CLOSE, OPEN

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
        return not (self.must_call or self.schema is not None or self._has_strict)

    @property
    def _has_strict(self) -> bool:
        return any(function.get("strict") for function in self.functions.values())


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
        self._markers = {text: _marker(tokenizer, text) for text in (OPEN, CLOSE)}

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
        start, close = self._markers[OPEN], self._markers[CLOSE]
        if form.functions:
            names = " | ".join(f"call_{index}" for index in range(len(form.functions)))
            yield f"call: {start} rest"
            yield f'rest: "\\n" ({names}) "\\n" {close}'
            yield 'calls: call ("\\n" call)*' if form.is_parallel else "calls: call"
        for index, function in enumerate(form.functions.values()):
            opening = f'{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "arguments": '
            yield f'call_{index}: {json.dumps(opening)} arguments_{index} "}}"'
            yield f"arguments_{index}: {_json(_parameters(function))}"
        if form.must_call:
            yield "start: calls"
        elif form.schema is not None:
            yield f"text: {_json(form.schema)}"
            yield "start: text | calls" if form.functions else "start: text"
        else:
            yield "start: (text_call)* TEXT"
            yield r"TEXT: /(.|\n)*/"
            if start.startswith("<["):
                yield f"text_call: TEXT {start} rest"
            else:
                yield f"opening[lazy]: TEXT {start}"
                yield "text_call: opening rest"


def _marker(tokenizer: Any, text: str) -> str:
    """Return a marker as the grammar names it: as a token where the tokenizer has one for it."""
    for number, token in tokenizer.added_tokens_decoder.items():
        if token.content == text and not token.special:
            return f"<[{number}]>"
    return json.dumps(text)


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
