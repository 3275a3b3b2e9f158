"""Which characters of a chat the assistant wrote, for any tokenizer's chat template.

Owns the prompts of training, evaluation and serving, and whether a template knows tools. Owns the
spans that carry the loss. Nothing about a template is assumed: the spans come from
rendering the chat turn by turn, and each assumption that fails is an error or leads to the safe
form (one example per assistant turn). A span covers an assistant turn from its first character to
its end-of-turn token. What a template puts around the contents is learned once for each sequence of
roles and checked against every rendered chat, which spares all renderings but one.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from workloads.common.exit_codes import DataError
from workloads.common.tool_calls import CallForm, ToolCall, parse_calls
from workloads.data.chats import (
    Functions,
    Message,
    calls_of,
    for_template,
    number_calls,
    with_calls,
)
from workloads.data.token_rows import TokenRows

Messages = Sequence[Message]
_MAX_SKELETONS = 4096
_MARK = re.compile(r"XQ\d+ZJ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A chat as text with the character spans that the assistant wrote."""

    text: str
    spans: tuple[tuple[int, int], ...]


def check_tokenizer(tokenizer: Any) -> None:
    """Refuse a tokenizer that cannot render chats or cannot tell where its tokens came from."""
    if not tokenizer.chat_template:
        raise DataError(
            "the model's tokenizer has no chat template; take an instruction-tuned model"
        )
    if not tokenizer.is_fast:
        raise DataError("the model's tokenizer is not a fast one: it gives no character offsets")


def prompt_text(
    tokenizer: Any, messages: Messages, functions: Functions = (), **template: Any
) -> str:
    """Return the text that asks for the next assistant turn."""
    messages, tools = for_template(messages, functions, knows_tools=bool(call_form(tokenizer)))
    return _apply(tokenizer, messages, add_generation_prompt=True, **template, **tools)


def _apply(tokenizer: Any, messages: Messages, **template: Any) -> str:
    from jinja2 import TemplateError

    try:
        return tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, **template
        )
    except (TemplateError, ValueError, TypeError) as error:
        roles = ", ".join(message["role"] for message in messages)
        raise DataError(f"the chat template refuses the roles {roles}: {error}") from error


_PROBE = re.compile(r'\{"name": "probe\d", "(\w+)": \{"mark": \d\}(, "id": "\d{9}")?\}')
_FORMS: WeakKeyDictionary[Any, tuple[Any, CallForm | None]] = WeakKeyDictionary()


def call_form(tokenizer: Any) -> CallForm | None:
    """Return how the chat template writes calls; None where it knows no tools.

    It knows them when it offers a function in the prompt and writes calls that come back as they
    were from what decoding leaves of them. What trains, evaluates and serves asks here.
    """
    template, form = _FORMS.get(tokenizer, (None, None))
    if template != tokenizer.chat_template:
        form = _learn_form(tokenizer, 2) or _learn_form(tokenizer, 1)
        _FORMS[tokenizer] = (tokenizer.chat_template, form)
    return form


def _learn_form(tokenizer: Any, num_calls: int) -> CallForm | None:
    calls = [ToolCall(name=f"probe{n}", arguments={"mark": n}) for n in range(num_calls)]
    asked = [{"role": "user", "content": "?"}]
    answers = number_calls([with_calls("", calls), {"role": "assistant", "content": "probe!"}])
    _, options = for_template(asked, [{"name": "probe0", "parameters": {}}], knows_tools=True)
    options["enable_thinking"] = False
    try:
        prompt = _apply(tokenizer, asked, add_generation_prompt=True, **options)
        turn, plain = (_apply(tokenizer, [*asked, each], **options) for each in answers)
    except DataError:
        return None
    turn = turn.removeprefix(prompt).removesuffix(plain.rpartition("probe!")[2])
    found, read = list(_PROBE.finditer(turn)), parse_calls(as_answer(tokenizer, turn))
    if "probe0" not in prompt or len(found) != num_calls or read != calls:
        return None
    return CallForm(
        before=turn[: found[0].start()],
        between=turn[found[0].end() : found[1].start()] if num_calls > 1 else None,
        after=turn[found[-1].end() :],
        arguments=found[0][1],
        has_id=found[0][2] is not None,
    )


def render(
    tokenizer: Any, messages: Messages, functions: Functions = (), **template: Any
) -> list[Rendered]:
    """Return one Rendered for the whole chat, or one per assistant turn.

    The second form is taken when the template rewrites earlier turns later, such as Qwen3's, which
    drops the thinking block of all but the last turn.
    """
    messages, tools = for_template(messages, functions, knows_tools=bool(call_form(tokenizer)))
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns:
        raise DataError("no assistant turn, so there is nothing to learn")
    pieces = [_turn(tokenizer, messages, index, {**template, **tools}) for index in turns]
    whole = pieces[-1][0]
    if all(whole.startswith(text) for text, _ in pieces):
        return [Rendered(text=whole, spans=tuple(span for _, span in pieces))]
    return [Rendered(text=text, spans=(span,)) for text, span in pieces]


def _turn(
    tokenizer: Any, messages: Messages, index: int, template: Mapping[str, Any]
) -> tuple[str, tuple[int, int]]:
    """Return the text up to assistant turn `index` and the span of that turn in it."""
    prompt = _apply(tokenizer, messages[:index], add_generation_prompt=True, **template)
    text = _apply(tokenizer, messages[: index + 1], **template)
    if not text.startswith(prompt) and messages[0]["role"] == "system" and index > 1:
        # Mistral writes the system text into the last turn, and only where that is the user's.
        asked = _apply(tokenizer, messages[1:index], add_generation_prompt=True, **template)
        answered = _apply(tokenizer, messages[1 : index + 1], **template)
        text = prompt + answered[len(asked) :] if answered.startswith(asked) else text
    if not text.startswith(prompt):
        raise DataError(
            f"messages[{index}]: the chat template's generation prompt is not how the turn starts, "
            "so training and generation would differ; set data.chat_template_kwargs "
            "(Qwen3: enable_thinking false)"
        )
    content = messages[index]["content"].strip()
    start = text.find(content, len(prompt))
    if start < 0:
        raise DataError(f"messages[{index}]: the chat template changes the text of the turn")
    end = start + len(content)
    eos = tokenizer.eos_token or ""
    if calls := calls_of(messages[index]):
        end = len(text.rstrip())
        if parse_calls(as_answer(tokenizer, text[len(prompt) : end])) != calls:
            raise DataError(f"messages[{index}]: the chat template changes the calls of the turn")
    elif eos and text.startswith(eos, end):
        end += len(eos)
    else:
        end = len(text.rstrip()) if text[end:].strip() else end
    return text, (len(prompt), end)


def as_answer(tokenizer: Any, text: str) -> str:
    """Return `text` as it is decoded when a model has written it: special tokens are left out."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return tokenizer.decode(ids, skip_special_tokens=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Skeleton:
    """What the template writes around the contents of one sequence of roles."""

    num_messages: int
    fixed: tuple[str, ...]
    """Before the first content, between contents, after the last."""
    spans: tuple[tuple[int, int, int], ...]
    """Message, characters of the span before its content, characters after it."""

    def fill(self, contents: Sequence[str]) -> Rendered:
        """Return the text with these contents, and its spans."""
        text = self.fixed[0]
        starts: list[int] = []
        for content, after in zip(contents[: self.num_messages], self.fixed[1:], strict=True):
            starts.append(len(text))
            text += content + after
        return Rendered(
            text=text,
            spans=tuple(
                (starts[turn] - before, starts[turn] + len(contents[turn]) + after)
                for turn, before, after in self.spans
            ),
        )


class ChatRenderer:
    """Renders chats of one tokenizer with one set of template switches."""

    def __init__(self, tokenizer: Any, template: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._template = dict(template)
        self._pieces = lru_cache(_MAX_SKELETONS)(self._learn)

    def render(
        self, chats: Sequence[Messages], functions: Sequence[Functions] = ()
    ) -> list[list[Rendered]]:
        """Return what `render` returns for every chat and the functions that it offers."""
        knows = bool(call_form(self._tokenizer))
        pairs = list(zip(chats, functions or [()] * len(chats), strict=True))
        offered = [for_template(*each, knows_tools=knows) for each in pairs]
        wanted: list[tuple[int, _Skeleton]] = []
        for index, (messages, tools) in enumerate(offered):
            # What was learned of a template is around contents alone.
            if not tools and not any(message.get("tool_calls") for message in messages):
                pieces = self._pieces(tuple(message["role"] for message in messages))
                wanted += ((index, piece) for piece in pieces or ())
        texts = self._texts([offered[i][0][: piece.num_messages] for i, piece in wanted])
        results: list[list[Rendered] | None] = [[] for _ in chats]
        for (index, piece), text in zip(wanted, texts, strict=True):
            found = results[index]
            if found is not None:
                rendered = _matching(piece, offered[index][0], text)
                results[index] = None if rendered is None else [*found, rendered]
        return [
            found or render(self._tokenizer, *pair, **self._template)
            for found, pair in zip(results, pairs, strict=True)
        ]

    def _texts(self, chats: Sequence[Messages]) -> Sequence[str]:
        from jinja2 import TemplateError

        try:
            texts: Sequence[str] = self._tokenizer.apply_chat_template(
                [[dict(message) for message in messages] for messages in chats],
                tokenize=False,
                **self._template,
            )
        except (TemplateError, ValueError):  # one of them; the slow way says which
            return [""] * len(chats)
        return texts

    def _learn(self, roles: tuple[str, ...]) -> list[_Skeleton] | None:
        """Return the skeletons of these roles; None when contents do not come back as they are."""
        marks = [f"XQ{index}ZJ" for index in range(len(roles))]
        messages = [
            {"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)
        ]
        try:
            pieces = render(self._tokenizer, messages, **self._template)
        except DataError:
            return None
        turns = [index for index, role in enumerate(roles) if role == "assistant"]
        whole = len(pieces) == 1
        skeletons: list[_Skeleton] = []
        for number, piece in enumerate(pieces):
            last = turns[-1] if whole else turns[number]
            skeleton = _cut(piece, marks[: last + 1], turns if whole else [last])
            if skeleton is None:
                return None
            skeletons.append(skeleton)
        return skeletons


def _cut(piece: Rendered, marks: Sequence[str], turns: Sequence[int]) -> _Skeleton | None:
    """Return what stands around `marks` in a rendered text; None unless each is there once."""
    if [found[0] for found in _MARK.finditer(piece.text)] != list(marks):
        return None
    starts = [piece.text.index(mark) for mark in marks]
    return _Skeleton(
        num_messages=len(marks),
        fixed=tuple(_MARK.split(piece.text)),
        spans=tuple(
            (turn, starts[turn] - first, last - starts[turn] - len(marks[turn]))
            for turn, (first, last) in zip(turns, piece.spans, strict=True)
        ),
    )


def _matching(piece: _Skeleton, messages: Messages, text: str) -> Rendered | None:
    """Return the piece filled with the chat's contents where that is the rendered text."""
    contents = [message["content"] for message in messages[: piece.num_messages]]
    filled = piece.fill(contents)
    if filled.text == text:
        return filled
    # Templates that trim contents, such as Llama's.
    filled = piece.fill([content.strip() for content in contents])
    return filled if filled.text == text else None


_SIZES: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def encode(tokenizer: Any, rendered: Sequence[Rendered]) -> TokenRows:
    """Return one row a rendered chat; the tokenizer library runs on all CPUs unless told not to."""
    backend = tokenizer.backend_tokenizer
    texts = [item.text for item in rendered]
    sizes = _token_bytes(backend)
    # Without the places of tokens, which take the library a tenth of its time.
    encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
    flat = array("i")
    offsets = np.zeros(len(rendered) + 1, dtype=np.int64)
    for number, encoding in enumerate(encodings, start=1):
        flat.extend(encoding.ids)
        offsets[number] = len(flat)
    ids = np.frombuffer(flat, dtype=np.int32) if flat else np.zeros(0, np.int32)
    learned = np.zeros(len(ids), dtype=np.bool_)
    ends = None if sizes is None else np.concatenate([[0], np.cumsum(sizes[ids])])
    for number, item in enumerate(rendered):
        first, last = int(offsets[number]), int(offsets[number + 1])
        spans = None if ends is None else _by_bytes(ends[first : last + 1] - ends[first], item)
        if spans is None:
            spans = _token_spans(backend.encode(item.text, add_special_tokens=False), item)
        for start, end in spans:
            learned[first + start : first + end] = True
    return TokenRows(input_ids=ids, learned=learned, offsets=offsets)


def _by_bytes(ends: Any, item: Rendered) -> list[tuple[int, int]] | None:
    """Return the spans in tokens by the bytes before each token; None where that does not do.

    Tokens of a byte-level tokenizer are the text's bytes one after another. Where their sum is not
    the text's size, or no token starts at an edge, the places of the tokens must be asked for.
    """
    edges = [position for span in item.spans for position in span]
    if item.text.isascii():
        size_bytes = len(item.text)
    else:
        size_bytes = len(item.text.encode())
        edges = [len(item.text[:position].encode()) for position in edges]
    if ends[-1] != size_bytes:
        return None
    tokens = ends.searchsorted(edges).tolist()
    if any(ends[token] != edge for token, edge in zip(tokens, edges, strict=True)):
        return None
    return list(zip(tokens[::2], tokens[1::2], strict=True))


def _token_bytes(backend: Any) -> Any:
    """Return the bytes of every token of a byte-level tokenizer as an array; None for others."""
    found = _SIZES.get(backend)
    if found is None:
        from tokenizers import decoders

        if backend.normalizer is None and isinstance(backend.decoder, decoders.ByteLevel):
            added = backend.get_added_tokens_decoder()
            sizes = np.zeros(max([*backend.get_vocab().values(), *added]) + 1, dtype=np.int64)
            # One character of a byte-level token stands for one byte; added tokens are text.
            for text, token in backend.get_vocab().items():
                sizes[token] = len(text)
            for token, text in added.items():
                sizes[token] = len(text.content.encode())
        else:
            sizes = np.zeros(0, dtype=np.int64)
        _SIZES[backend] = found = sizes
    return found if len(found) else None


def _token_spans(encoding: Any, item: Rendered) -> list[tuple[int, int]]:
    """Return the spans in tokens; a white space that the tokenizer gives no width ends one too."""
    found: list[tuple[int, int]] = []
    for start, end in item.spans:
        first = encoding.char_to_token(start)
        after = len(encoding) if end == len(item.text) else encoding.char_to_token(end)
        if (
            first is None
            or after is None
            or encoding.token_to_chars(first)[0] != start
            or encoding.token_to_chars(after - 1)[1] != end
        ):
            return _by_offsets(encoding.offsets, item)
        found.append((first, after))
    return found


def _by_offsets(offsets: Sequence[tuple[int, int]], item: Rendered) -> list[tuple[int, int]]:
    """Return the spans in tokens by the place of every token: some tokenizers trim white space."""
    firsts, lasts = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
    found: list[tuple[int, int]] = []
    for start, end in item.spans:
        inside = ((firsts < lasts) & (firsts < end) & (lasts > start)).nonzero()[0]
        for first, last in zip(firsts[inside], lasts[inside], strict=True):
            if first < start or last > end:
                raise DataError(
                    f"token {item.text[first:last]!r} lies across the edge of an assistant turn, "
                    "so training and generation would see different tokens; this tokenizer and "
                    "chat template do not fit each other"
                )
        if len(inside):
            found.append((int(inside[0]), int(inside[-1]) + 1))
    return found
