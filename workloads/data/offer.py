"""The system message that offers functions and asks for our call format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from workloads.common.tool_calls import CLOSE, OPEN

_FORM = f'{OPEN}\n{{"name": "function_name", "arguments": {{"argument": "value"}}}}\n{CLOSE}'


def system_prompt(functions: Sequence[Mapping[str, Any]], *, must_call: bool) -> str:
    """Return the message: one line of JSON a function, then the form of a call.

    With `must_call` the answer is one call and nothing else, as BFCL's simple rows ask for.
    """
    lines = "\n".join(json.dumps(dict(function), ensure_ascii=False) for function in functions)
    how = "Answer with one call and nothing else" if must_call else "To call one, write"
    return f"You call functions. The functions you may use:\n{lines}\n{how}:\n{_FORM}"
