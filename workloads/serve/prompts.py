"""A chat to the tokens that ask for its next turn, by the model's own template.

Tools go through the template where it knows them, else into the system message in the form that
training writes (workloads/data/offer.py): a template that ignores tools would drop them silently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from workloads.common.exit_codes import DataError
from workloads.data import openai_calls
from workloads.data.chat_template import prompt_text

# The Jinja variable `tools`, not the word in the template's prose.
_KNOWS_TOOLS = re.compile(r"\{%-?\s*(?:if|for|set)\b[^%]*\btools\b")


class PromptError(ValueError):
    """Messages that cannot be made a prompt."""


def prompt_ids(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    template: Mapping[str, Any],
) -> tuple[int, ...]:
    """Return the tokens of the chat up to where the answer starts."""
    knows_tools = bool(_KNOWS_TOOLS.search(tokenizer.chat_template))
    offered = [] if knows_tools else list(tools)
    options = dict(template)
    if tools and knows_tools:
        options["tools"] = [dict(tool) for tool in tools]
    try:
        plain, _ = openai_calls.read(
            {"messages": list(messages), "tools": offered or None}, at="request"
        )
        text = prompt_text(
            tokenizer, [{**each, "content": each["content"] or ""} for each in plain], **options
        )
    except DataError as error:
        raise PromptError(str(error)) from error
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
