"""Berkeley Function Calling Leaderboard v4, category simple_python, as chats.

Reads `BFCL_v4_simple_python.json` and `possible_answer/` of bfcl-eval (Apache-2.0). The reference
answer is built from the first allowed value of every argument that may not be left out. BFCL is a
test set: training on one part of it measures learning of the format, not of function calling at
large.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from workloads.common.exit_codes import DataError
from workloads.common.tool_calls import ToolCall, render
from workloads.data.chats import Chat
from workloads.data.offer import system_prompt

CATEGORY = "BFCL_v4_simple_python.json"
OPTIONAL = ""
"""In a list of allowed values: the argument may be left out."""


def reference_call(possible_answer: Mapping[str, Any], *, required: Collection[str]) -> ToolCall:
    """Return the call made of the first allowed values, optional arguments left out.

    Two rows mark an argument as optional that their function requires; it stays in.
    """
    ((name, arguments),) = possible_answer.items()
    return ToolCall(
        name=name,
        arguments={
            argument: _plain(next(value for value in values if value != OPTIONAL))
            for argument, values in arguments.items()
            if OPTIONAL not in values or argument in required
        },
    )


def _plain(value: Any) -> Any:
    """Return `value` with the first allowed value inside dictionaries, which hold lists of them."""
    if isinstance(value, dict):
        return {
            key: _plain(allowed[0]) for key, allowed in value.items() if OPTIONAL not in allowed
        }
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [_plain(item) for item in value]
    return value


def read(folder: Path) -> list[Chat]:
    """Return the chats of bfcl-eval's data folder, in file order."""
    questions, possible_answers = files(folder)
    answers = {row["id"]: row for row in _lines(possible_answers)}
    chats: list[Chat] = []
    for row in _lines(questions):
        answer = answers.get(row["id"])
        if answer is None:
            raise DataError(f"{questions}: {row['id']} has no possible answer")
        ((ground_truth),) = answer["ground_truth"]
        functions = row["function"]
        required = functions[0]["parameters"].get("required", ())
        reference = reference_call(ground_truth, required=required)
        messages = [
            {"role": "system", "content": system_prompt(functions, must_call=True)},
            *({"role": m["role"], "content": m["content"]} for m in row["question"][0]),
            {"role": "assistant", "content": render(reference)},
        ]
        chats.append(
            Chat(
                id=row["id"],
                messages=tuple(messages),
                group=functions[0]["name"],
                functions=tuple(functions),
                possible_answer=ground_truth,
            )
        )
    return chats


def files(folder: Path) -> list[Path]:
    """Return the files that `read` takes."""
    return [folder / CATEGORY, folder / "possible_answer" / CATEGORY]


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise DataError(f"{path}: missing; take the data folder of bfcl-eval 2026.3.23")
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    except ValueError as error:
        raise DataError(f"{path}: is not JSON lines: {error}") from error
