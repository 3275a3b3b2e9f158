"""Chats to prompts: the model's own template decides, and nothing that was sent is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.workloads.conftest import CHAT_TEMPLATE, make_tokenizer, template
from workloads.common.exit_codes import DataError
from workloads.common.places import Places
from workloads.data.chats import system_prompt
from workloads.recipes.serve import Limits, ServeConfig
from workloads.serve import engine
from workloads.serve.protocol import prompt_ids
from workloads.serve.weights import find_weights

FUNCTION = {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
CHAT = [{"role": "user", "content": "hi"}]


def prompt(tokenizer: Any, *args: Any) -> str:
    return tokenizer.decode(list(prompt_ids(tokenizer, *args)))


def test_tools_go_into_the_system_message_where_the_template_would_drop_them(
    tokenizer: Any,
) -> None:
    offer = system_prompt([FUNCTION])
    assert f"<|im_start|>system\n{offer}<|im_end|>" in prompt(tokenizer, CHAT, TOOLS, {})
    chat = [{"role": "system", "content": "Be kind."}, *CHAT]
    assert f"system\nBe kind.\n\n{offer}<|im_end|>" in prompt(tokenizer, chat, TOOLS, {})


def test_tools_go_through_a_template_that_knows_them() -> None:
    text = prompt(template("qwen2_5"), CHAT, TOOLS, {})
    assert "# Tools" in text
    assert "You call functions" not in text
    assert "get_weather" in text
    assert "# Tools" not in prompt(template("qwen2_5"), CHAT, (), {})


@pytest.mark.parametrize(
    "speaks",
    ["You have no tools.\n", "{% if tools %}TOOLS {{ tools | tojson }}\n{% endif %}"],
    ids=["only speaks of tools", "drops the calls"],
)
def test_a_template_that_cannot_write_a_call_does_not_know_tools(speaks: str) -> None:
    assert "You call functions" in prompt(make_tokenizer(speaks + CHAT_TEMPLATE), CHAT, TOOLS, {})


@pytest.mark.feature("S000-16")
def test_thinking_is_turned_off_by_the_template_s_own_switch() -> None:
    end = "<think>\n\n</think>\n\n"
    assert prompt(template("qwen3"), CHAT, TOOLS, {"enable_thinking": False}).endswith(end)
    assert "<think>" not in prompt(template("qwen3"), CHAT, TOOLS, {})


def test_earlier_calls_and_parts_are_text_in_the_form_of_training(tokenizer: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    chat = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "done", "tool_call_id": "c"},
    ]
    text = prompt(tokenizer, chat, (), {})
    assert "user\nonetwo<|im_end|>" in text
    assert (
        'assistant\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
        in text
    )
    assert text.endswith("tool\ndone<|im_end|>\n<|im_start|>assistant\n")


def test_what_the_template_refuses_is_told() -> None:
    tokenizer = make_tokenizer("{{ raise_exception('roles must alternate') }}" + CHAT_TEMPLATE)
    with pytest.raises(DataError, match="refuses the roles user: roles must alternate"):
        prompt_ids(tokenizer, CHAT, (), {})


@pytest.mark.feature("S000-72")
def test_a_cold_start_is_measured_with_and_without_the_ram_disk(
    places: Path, ram_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOPERATOR_PLACE_SCRATCH", str(ram_disk))
    limits = Limits(context_tokens=64, max_concurrency=1)
    config = ServeConfig(dtype="fp32", compare_cold_start=True, cpu_threads=1, limits=limits)
    own = Places()
    weights = find_weights(config, "tiny", own)
    read = Mock(wraps=engine._model)
    monkeypatch.setattr(engine, "_model", read)
    loaded = engine.load(config, weights, own)
    unstaged, staged = (call.args[1] for call in read.call_args_list)
    assert unstaged == weights.model_dir
    assert staged.is_relative_to(ram_disk)
    assert set(loaded.metrics) == {
        "load_unstaged_s",
        "is_staged",
        "stage_copy_s",
        "staged_bytes",
        "load_s",
    }
    assert loaded.metrics["is_staged"] == 1
    assert json.dumps(loaded.metrics)
