"""Which characters of a chat the assistant wrote, for any tokenizer's chat template.

Owns the prompts of training, evaluation and serving, and whether a template knows tools. Owns the
spans that carry the loss. Nothing about a template is assumed: the spans come from
rendering the chat turn by turn, and each assumption that fails is an error or leads to the safe
form (one example per assistant turn). A span covers an assistant turn from its first character to
its end-of-turn token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


def encode(tokenizer: Any, rendered: Sequence[Rendered]) -> TokenRows:
    """Return one row a rendered chat; the tokenizer library runs on all CPUs unless told not to."""
    texts = [item.text for item in rendered]
    encodings = tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
    ids, learned = [np.zeros(0, np.int32)], [np.zeros(0, np.bool_)]
    for encoding, item in zip(encodings, rendered, strict=True):
        ids.append(np.array(encoding.ids, np.int32))
        learned.append(np.zeros(len(encoding), np.bool_))
        for start, end in _token_spans(encoding, item):
            learned[-1][start:end] = True
    lengths = [len(encoding) for encoding in encodings]
    return TokenRows.cut_at(np.concatenate(ids), np.concatenate(learned), lengths)


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
