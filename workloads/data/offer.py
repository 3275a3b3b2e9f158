"""The system message that offers functions and asks for our call format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from workloads.common.tool_calls import CLOSE, OPEN

_FORM = f'{OPEN}\n{{"name": "function_name", "arguments": {{"argument": "value"}}}}\n{CLOSE}'


ONE_CALL = "Answer with one call and nothing else"
CALLS = "Answer with one or more calls and nothing else; a call"
OPTIONAL = "To call one, write"
"""The assistant may also answer in words."""


def system_prompt(functions: Sequence[Mapping[str, Any]], *, how: str) -> str:
    """Return the message: one line of JSON a function, then the form of a call."""
    lines = "\n".join(json.dumps(dict(function), ensure_ascii=False) for function in functions)
    return f"You call functions. The functions you may use:\n{lines}\n{how}:\n{_FORM}"
