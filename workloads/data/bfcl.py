"""Berkeley Function Calling Leaderboard v4, its single-turn categories, as chats.

Reads `BFCL_v4_<category>.json` and `possible_answer/` of bfcl-eval (Apache-2.0). The reference
answer is built from the first allowed value of every argument that may not be left out; where no
function fits (`irrelevance`), it says so. BFCL is a test set: training on one part of it measures
learning of the format, not of function calling at large.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from workloads.common.exit_codes import DataError
from workloads.common.tool_calls import ToolCall, render
from workloads.data.chats import Chat
from workloads.data.config import BFCL_NO_CALL, BFCL_SIMPLE
from workloads.data.offer import CALLS, ONE_CALL, system_prompt
from workloads.data.offer import OPTIONAL as MAY_CALL

OPTIONAL = ""
"""In a list of allowed values: the argument may be left out."""
NO_CALL = "None of these functions fits the question."
"""Reference of a row that wants no call: BFCL has none, as it only asks whether there is a call."""


def reference_call(possible_answer: Mapping[str, Any], *, required: Collection[str]) -> ToolCall:
    """Return the call made of the first allowed values, optional arguments left out.

    Two rows mark an argument as optional that their function requires; it stays in.
    """
    ((name, arguments),) = possible_answer.items()
    allowed = {
        argument: [value for value in values if value != OPTIONAL]
        for argument, values in arguments.items()
        if OPTIONAL not in values or argument in required
    }
    return ToolCall(
        name=name,
        arguments={argument: _plain(values[0]) for argument, values in allowed.items() if values},
    )


def _plain(value: Any) -> Any:
    """Return `value` with the first allowed value inside dictionaries, which hold lists of them."""
    if isinstance(value, dict):
        return {key: _plain(allowed[0]) for key, allowed in _allowed(value) if allowed}
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [_plain(item) for item in value]
    return value


def read(folder: Path, categories: Sequence[str] = BFCL_SIMPLE) -> list[Chat]:
    """Return the chats of bfcl-eval's data folder, category by category in file order."""
    return [chat for category in categories for chat in _read_category(folder, category)]


def files(folder: Path, categories: Sequence[str] = BFCL_SIMPLE) -> list[Path]:
    """Return the files that `read` takes."""
    found: list[Path] = []
    for category in categories:
        name = f"BFCL_v4_{category}.json"
        found.append(folder / name)
        if category not in BFCL_NO_CALL:
            found.append(folder / "possible_answer" / name)
    return found


def _read_category(folder: Path, category: str) -> Iterator[Chat]:
    questions, *possible_answers = files(folder, (category,))
    if not possible_answers:
        yield from (_chat_without_call(row) for row in _lines(questions))
        return
    answers = {row["id"]: row for row in _lines(possible_answers[0])}
    for row in _lines(questions):
        answer = answers.get(row["id"])
        if answer is None:
            raise DataError(f"{questions}: {row['id']} has no possible answer")
        yield _chat(row, answer["ground_truth"], one_call="parallel" not in category)


def _allowed(value: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield the allowed values of each key; live rows also hold the value itself, not a list."""
    for key, allowed in value.items():
        values = allowed if isinstance(allowed, list) else [allowed]
        yield key, [] if OPTIONAL in values else values


def _chat(
    row: Mapping[str, Any], ground_truth: Sequence[Mapping[str, Any]], *, one_call: bool
) -> Chat:
    functions = row["function"]
    required = {each["name"]: each["parameters"].get("required", ()) for each in functions}
    calls = [
        reference_call(truth, required=required.get(next(iter(truth)), ()))
        for truth in ground_truth
    ]
    offer = system_prompt(functions, how=ONE_CALL if one_call else CALLS)
    return Chat(
        id=row["id"],
        messages=(
            *_question(row, offer),
            {"role": "assistant", "content": "\n".join(map(render, calls))},
        ),
        group=calls[0].name,
        functions=tuple(functions),
        possible_answers=tuple(ground_truth),
    )


def _chat_without_call(row: Mapping[str, Any]) -> Chat:
    offer = system_prompt(row["function"], how=MAY_CALL)
    return Chat(
        id=row["id"],
        messages=(*_question(row, offer), {"role": "assistant", "content": NO_CALL}),
        group=str(row["function"][0]["name"]) if row["function"] else row["id"],
        functions=tuple(row["function"]),
    )


def _question(row: Mapping[str, Any], offer: str) -> list[dict[str, str]]:
    """Return the turns that are asked, behind the functions that are offered."""
    asked = [{"role": m["role"], "content": m["content"]} for m in row["question"][0]]
    if asked[0]["role"] == "system":
        offer = f"{asked.pop(0)['content']}\n\n{offer}"
    return [{"role": "system", "content": offer}, *asked]


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise DataError(f"{path}: missing; take the data folder of bfcl-eval 2026.3.23")
    try:
        # Not splitlines(): JSON may hold U+2028 and U+0085 as they are, and they end no line of it.
        lines = path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines if line.strip()]
    except ValueError as error:
        raise DataError(f"{path}: is not JSON lines: {error}") from error
