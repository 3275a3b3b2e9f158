"""Which tokens of a chat the assistant wrote, for any tokenizer's chat template.

Owns the loss mask. Nothing about a template is assumed: the spans come from rendering the chat
turn by turn, and each assumption that fails is an error or leads to the safe form (one example per
assistant turn). Labels cover an assistant turn from its first character to its end-of-turn token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workloads.common.exit_codes import DataError

IGNORED = -100
"""Label of a token that is not learned, as torch's cross_entropy has it."""

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Token ids of one sequence and their labels."""

    input_ids: tuple[int, ...]
    labels: tuple[int, ...]


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


def prompt_text(tokenizer: Any, messages: Messages, **template: Any) -> str:
    """Return the text that asks for the next assistant turn; generation uses the same."""
    return tokenizer.apply_chat_template(
        [dict(m) for m in messages], tokenize=False, add_generation_prompt=True, **template
    )


def render(tokenizer: Any, messages: Messages, **template: Any) -> list[Rendered]:
    """Return one Rendered for the whole chat, or one per assistant turn.

    The second form is taken when the template rewrites earlier turns later, such as Qwen3's, which
    drops the thinking block of all but the last turn.
    """
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns:
        raise DataError("no assistant turn, so there is nothing to learn")
    pieces = [_turn(tokenizer, messages, index, template) for index in turns]
    whole = pieces[-1][0]
    if all(whole.startswith(text) for text, _ in pieces):
        return [Rendered(text=whole, spans=tuple(span for _, span in pieces))]
    return [Rendered(text=text, spans=(span,)) for text, span in pieces]


def _turn(
    tokenizer: Any, messages: Messages, index: int, template: Mapping[str, Any]
) -> tuple[str, tuple[int, int]]:
    """Return the text up to assistant turn `index` and the span of that turn in it."""
    prompt = prompt_text(tokenizer, messages[:index], **template)
    text = tokenizer.apply_chat_template(
        [dict(m) for m in messages[: index + 1]], tokenize=False, **template
    )
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
    if eos and text.startswith(eos, end):
        end += len(eos)
    else:
        end = len(text.rstrip()) if text[end:].strip() else end
    return text, (len(prompt), end)


def encode(tokenizer: Any, rendered: Sequence[Rendered]) -> list[Example]:
    """Return examples with labels on the assistant's tokens only; the tokenizer runs parallel."""
    if not rendered:
        return []
    batch = tokenizer(
        [item.text for item in rendered], add_special_tokens=False, return_offsets_mapping=True
    )
    return [
        Example(input_ids=tuple(ids), labels=_labels(ids, offsets, item))
        for ids, offsets, item in zip(
            batch["input_ids"], batch["offset_mapping"], rendered, strict=True
        )
    ]


def _labels(
    ids: Sequence[int], offsets: Sequence[tuple[int, int]], rendered: Rendered
) -> tuple[int, ...]:
    labels = [IGNORED] * len(ids)
    spans = list(rendered.spans)
    for position, (first, last) in enumerate(offsets):
        while spans and first >= spans[0][1]:
            spans.pop(0)
        if not spans or last <= spans[0][0]:
            continue
        start, end = spans[0]
        if first < start or last > end:
            raise DataError(
                f"token {rendered.text[first:last]!r} lies across the edge of an assistant turn, "
                "so training and generation would see different tokens; this tokenizer and chat "
                "template do not fit each other"
            )
        labels[position] = ids[position]
    return tuple(labels)
