"""A conversation as plain values: what the browser keeps over a reload and what is exported.

Owns its shape and what of it a model is sent. Knows neither Gradio nor the network.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

VERSION = 1
Mode = Literal["one", "pair", "blind", "split"]
Conversation = dict[str, Any]
Vote = Literal["left", "right", "tie", "good", "bad"]
_TURN_KEYS = frozenset({"role", "text", "asked_at", "answers", "vote"})
ANSWER_KEYS = (
    *("model", "is_tuned", "text", "thought", "calls", "ttft_s", "total_s", "tokens_per_s"),
    *("output_tokens", "finish", "error"),
)


def new() -> Conversation:
    """Return a conversation without turns; nobody has been chosen to answer it."""
    return {"version": VERSION, "id": secrets.token_hex(8), "columns": [], "turns": []}


def restored(value: Any) -> Conversation:
    """Return what the browser kept; a new conversation where it is not of our shape."""
    try:
        ours = (
            value["version"] == VERSION
            and isinstance(value["id"], str)
            and isinstance(value["columns"], list)
            and all(
                set(turn) >= _TURN_KEYS
                and bool(turn["answers"])
                and all(set(answer) >= {*ANSWER_KEYS} for answer in turn["answers"])
                and all(
                    {"id", "name", "arguments"} <= call.keys()
                    for answer in turn["answers"]
                    for call in answer["calls"]
                )
                for turn in value["turns"]
            )
        )
    except (TypeError, KeyError, AttributeError):
        return new()
    return value if ours else new()


def add_turn(
    conversation: Conversation, text: str, answers: Sequence[Mapping[str, Any]], *, role: str
) -> Conversation:
    """Return the conversation with one more question and its answers, one a column."""
    turn = {
        "role": role,
        "text": text,
        "asked_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "answers": [dict(answer) for answer in answers],
        "vote": None,
    }
    return {**conversation, "turns": [*conversation["turns"], turn]}


def with_vote(conversation: Conversation, vote: Vote) -> Conversation:
    """Return the conversation with a vote on its last turn."""
    *before, last = conversation["turns"]
    return {**conversation, "turns": [*before, {**last, "vote": vote}]}


def has_vote(conversation: Conversation) -> bool:
    """Whether any turn has a vote, after which nobody's name is hidden any more."""
    return any(turn["vote"] is not None for turn in conversation["turns"])


def can_vote(conversation: Conversation, *, hides_names: bool) -> bool:
    """Whether the last turn has no vote yet and every answer of it came.

    Where names are hidden a conversation has one vote: the next would be on known sides.
    """
    if not conversation["turns"] or (hides_names and has_vote(conversation)):
        return False
    last = conversation["turns"][-1]
    return last["vote"] is None and all(answer["error"] is None for answer in last["answers"])


def answer_of(turn: Mapping[str, Any], column: int) -> Mapping[str, Any]:
    """Return the answer that a column shows; turns with fewer columns count for all."""
    return turn["answers"][min(column, len(turn["answers"]) - 1)]


def messages(
    conversation: Conversation, column: int, *, system: str, role: str, text: str
) -> list[dict[str, Any]]:
    """Return what the model of a column is sent: its own answers so far, then the question.

    A turn whose answer failed is left out. `role` tool answers the calls of the last answer; where
    that made none it is sent as the user's.
    """
    sent: list[dict[str, Any]] = [{"role": "system", "content": system}] if system.strip() else []
    calls: Sequence[Mapping[str, str]] = ()
    for turn in conversation["turns"]:
        answer = answer_of(turn, column)
        if answer["error"] is not None:
            continue
        sent += _asked(turn["role"], turn["text"], calls)
        calls = answer["calls"]
        message: dict[str, Any] = {"role": "assistant", "content": answer["text"]}
        if calls:
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for call in calls
            ]
        sent.append(message)
    return sent + _asked(role, text, calls)


def chats(conversation: Conversation, *, system: str = "") -> list[list[dict[str, Any]]]:
    """Return the messages of each column so far."""
    num_columns = max((len(turn["answers"]) for turn in conversation["turns"]), default=0)
    return [
        messages(conversation, column, system=system, role="", text="")
        for column in range(num_columns)
    ]


def has_open_calls(conversation: Conversation) -> bool:
    """Whether the last answer of a column called a tool, so that its result may follow.

    A turn whose answer failed is left out, as in `messages`: its result can be sent again.
    """
    return any("tool_calls" in chat[-1] for chat in chats(conversation) if chat)


def export(
    conversation: Conversation,
    *,
    system: str,
    servers: Sequence[str],
    settings: Mapping[str, Any],
    hides_names: bool,
) -> dict[str, Any]:
    """Return the conversation for a file: every turn as measured, and the chats as OpenAI's.

    With `hides_names` no answer says whose it is until the conversation has its vote.
    """
    turns = conversation["turns"]
    if hides_names and not has_vote(conversation):
        unnamed = {"model": None, "is_tuned": None}
        turns = [
            {**turn, "answers": [{**answer, **unnamed} for answer in turn["answers"]]}
            for turn in turns
        ]
    return {
        "schema_version": VERSION,
        "kind": "chat",
        "exported_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "servers": list(servers),
        "system": system,
        "settings": dict(settings),
        "turns": turns,
        "messages": chats(conversation, system=system),
    }


def _asked(role: str, text: str, calls: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """The question as messages; none for no role."""
    if not role:
        return []
    if role == "tool" and calls:
        return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]
    return [{"role": "user", "content": text}]
