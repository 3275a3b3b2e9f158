"""A reference chat that could not take place is refused at its path, before any money is shown."""

from __future__ import annotations

from typing import Any

import pytest

from stacks.check import check
from stacks.errors import Level
from stacks.load import StackError
from tests.unit.stacks.conftest import changed

SPEED = {"scenario": "s", "output_tokens_per_s": 3.8, "source": "x"}


def refused(**chat: Any) -> list[tuple[str, str]]:
    """Path and message of every error after these changes of the chat."""
    return [
        (problem.path, problem.message)
        for problem in check(changed(lambda config: config["chat"].update(chat)))
        if problem.level is Level.ERROR
    ]


@pytest.mark.parametrize(
    ("chat", "path", "said"),
    [
        ({"cached_share": "1.01"}, "chat.cached_share", "use 0 to 1"),
        ({"cached_share": 25}, "chat.cached_share", "a quarter is 0.25"),
        ({"turns": 2001}, "chat.turns", "writes 2000 tokens"),
        ({"output_tokens": 16001, "turns": 2}, "chat.output_tokens", "raise context_tokens"),
        ({"api_models": ["m", "m"]}, "chat.api_models[1]", "first by chat.api_models[0];"),
        ({"serving_nodes": 2}, "chat.serving_nodes", "has: worker"),
        ({"serving_nodeset": "w"}, "chat.serving_nodeset", "has: worker"),
        (
            {"serving_nodeset": "worker", "serving_nodes": 3},
            "chat.serving_nodes",
            "at most 2 nodes",
        ),
        ({"speeds": [SPEED, SPEED]}, "chat.speeds[1].scenario", "used twice"),
        (
            {
                "speeds": [
                    {**SPEED, "engine": "vllm"},
                    {**SPEED, "engine": "vllm", "scenario": "t"},
                ]
            },
            "chat.speeds[1].batch_size",
            "already the row 's'",
        ),
    ],
)
def test_a_chat_that_could_not_take_place_is_refused(chat: dict[str, Any], path: str, said: str):
    (problem,) = refused(**chat)
    assert problem[0] == f"demo.{path}"
    assert said in problem[1]


@pytest.mark.parametrize(
    "chat",
    [
        {"cached_share": 1},
        {"cached_share": 0},
        {"turns": 2000},
        {"output_tokens": 16000, "turns": 2},
        {"serving_nodeset": "worker", "serving_nodes": 2},
        {"speeds": [{**SPEED, "engine": "vllm"}, {**SPEED, "engine": "sglang", "scenario": "t"}]},
    ],
)
def test_a_chat_at_its_limits_is_accepted(chat: dict[str, Any]):
    assert refused(**chat) == []


@pytest.mark.parametrize(
    ("chat", "line"),
    [
        ({"output_tokens": 0}, "demo.chat.output_tokens: expected a whole number of 1 or more"),
        ({"context_tokens": 0}, "demo.chat.context_tokens: expected a whole number of 1 or more"),
        ({"turns": 0}, "demo.chat.turns: expected a whole number of 1 or more"),
        ({"chats_per_day": 0}, "demo.chat.chats_per_day: expected a whole number of 1 or more"),
        ({"max_answer_s": 0}, "demo.chat.max_answer_s: expected a number over 0"),
        ({"cached_share": -1}, "demo.chat.cached_share: expected a number of 0 or more"),
        (
            {"speeds": [{"scenario": "s", "output_tokens_per_s": 3.8}]},
            "demo.chat.speeds[0].source: missing",
        ),
        (
            {"speeds": [{**SPEED, "source": " "}]},
            "demo.chat.speeds[0].source: expected text that is not blank",
        ),
        (
            {"speeds": [{**SPEED, "prefill_tokens_per_s": 0}]},
            "demo.chat.speeds[0].prefill_tokens_per_s: expected a number over 0",
        ),
        ({"speeds": [{**SPEED, "batch_size": 0}]}, "demo.chat.speeds[0].batch_size: expected"),
    ],
)
def test_a_chat_without_tokens_or_a_speed_without_source_does_not_load(
    chat: dict[str, Any], line: str
):
    with pytest.raises(StackError) as caught:
        changed(lambda config: config["chat"].update(chat))
    assert line in str(caught.value)
