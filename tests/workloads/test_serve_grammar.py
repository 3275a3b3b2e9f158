"""Answers with a form: OpenAI's client against the real engine over a random model.

A random model writes nothing that anybody asked for: what has the form has it by the grammar.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
import torch
from pydantic import BaseModel, ConfigDict, Field

from tests.workloads.conftest import CHAT_TEMPLATE, TEMPLATES, make_tokenizer, template
from tests.workloads.serve_stand import WAIT_S, real_engine, serving
from workloads.common.models import load_model
from workloads.common.tool_calls import CLOSE, OPEN
from workloads.serve.sampling import Form, Grammars

CITIES = ["Oslo", 'Rio "de" Janeiro', "Z\u00fcrich"]
GOOD_OURS = '<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_call>'
CHAT: Any = [{"role": "user", "content": "hello"}]


def tool(name: str, parameters: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, **({"parameters": parameters} if parameters else {}), **more},
    }


CITY = {"type": "object", "properties": {"city": {"enum": CITIES}}, "required": ["city"]}
STRICT = {**CITY, "additionalProperties": False}
WEATHER = tool('get_\u00e9"weather', STRICT)
CLOCK = tool("get_time", None)


class Place(BaseModel):
    """What an answer of these tests must be."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["city", "village"]
    people: int = Field(ge=0, le=99)


class Trip(BaseModel):
    """A schema with a definition in it."""

    model_config = ConfigDict(extra="forbid")
    stops: list[Place] = Field(min_length=1, max_length=2)
    price: float | None


@pytest.fixture(scope="module")
def client(model_dir: Path, tokenizer: Any) -> Iterator[openai.OpenAI]:
    """OpenAI's client of a server with the tiny random model."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    model = load_model(model_dir, dtype=torch.float32, device=torch.device("cpu"))
    engine = real_engine(model, tokenizer, num_rows=8)
    with serving(engine, tokenizer) as url:
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=WAIT_S)
    torch.set_num_threads(before)


def ask(client: openai.OpenAI, **more: Any) -> Any:
    given = {"model": "tiny", "messages": CHAT, "max_tokens": 300, "seed": 1, "n": 4, **more}
    return client.chat.completions.create(**given)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_required_calls_are_made_and_keep_their_schema(
    client: openai.OpenAI, temperature: float
) -> None:
    answer = ask(
        client,
        tools=[WEATHER, CLOCK],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=temperature,
    )
    names = set()
    for choice in answer.choices:
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        (call,) = choice.message.tool_calls
        names.add(call.function.name)
        arguments = json.loads(call.function.arguments)
        assert arguments == {} if call.function.name == "get_time" else arguments["city"] in CITIES
    assert names <= {"get_time", 'get_\u00e9"weather'}


def test_a_named_function_is_called_and_no_other(client: openai.OpenAI) -> None:
    choice = {"type": "function", "function": {"name": "get_time"}}
    answer = ask(client, tools=[WEATHER, CLOCK], tool_choice=choice, temperature=1.5)
    called = [call.function for each in answer.choices for call in each.message.tool_calls]
    assert {(call.name, call.arguments) for call in called} == {("get_time", "{}")}


def test_a_required_call_streams_its_name_and_then_its_arguments(client: openai.OpenAI) -> None:
    given: Any = {"model": "tiny", "messages": CHAT, "max_tokens": 300, "seed": 3}
    with client.chat.completions.stream(
        **given,
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
    ) as events:
        kinds = [event.type for event in events]
        message = events.get_final_completion().choices[0].message
    assert kinds.count("tool_calls.function.arguments.delta") > 5
    assert message.tool_calls is not None
    assert json.loads(message.tool_calls[0].function.arguments)["city"] in CITIES
    assert not message.content


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_several_required_calls_are_all_whole(client: openai.OpenAI, temperature: float) -> None:
    """Where nobody forbids a second call, an answer at its limit tells the whole ones."""
    answer = ask(client, tools=[WEATHER, CLOCK], tool_choice="required", temperature=temperature)
    for choice in answer.choices:
        assert choice.message.tool_calls, choice
        for call in choice.message.tool_calls:
            arguments = json.loads(call.function.arguments)
            wanted = {"city"} if call.function.name != "get_time" else set()
            assert arguments.keys() == wanted
        assert len({call.id for call in choice.message.tool_calls}) == len(
            choice.message.tool_calls
        )


def test_a_named_call_is_streamed_in_parts_for_every_choice(client: openai.OpenAI) -> None:
    named = {"type": "function", "function": {"name": WEATHER["function"]["name"]}}
    parts = ask(
        client,
        tools=[CLOCK, WEATHER],
        tool_choice=named,
        parallel_tool_calls=False,
        stream=True,
        n=2,
    )
    told: dict[int, list[Any]] = {0: [], 1: []}
    ends: dict[int, str] = {}
    for part in parts:
        for choice in part.choices:
            assert not choice.delta.content
            told[choice.index] += choice.delta.tool_calls or ()
            ends |= {choice.index: choice.finish_reason} if choice.finish_reason else {}
    assert ends == {0: "tool_calls", 1: "tool_calls"}
    for pieces in told.values():
        assert (pieces[0].index, pieces[0].function.name) == (0, WEATHER["function"]["name"])
        assert pieces[0].id
        assert len(pieces) > 3
        assert {(each.index, each.id, each.function.name) for each in pieces[1:]} == {
            (0, None, None)
        }
        assert json.loads("".join(each.function.arguments for each in pieces))["city"] in CITIES


def test_an_answer_of_a_json_schema_streams_and_is_parsed_by_the_client(
    client: openai.OpenAI,
) -> None:
    with client.chat.completions.stream(
        model="tiny", messages=CHAT, response_format=Trip, max_tokens=400, seed=7
    ) as events:
        kinds = [event.type for event in events]
        choice = events.get_final_completion().choices[0]
    assert kinds.count("content.delta") > 10
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Trip)


def test_a_json_object_streams_as_what_it_is(client: openai.OpenAI) -> None:
    form = {"type": "json_object"}
    whole = 0
    for seed in range(4):
        parts = list(ask(client, response_format=form, max_tokens=900, seed=seed, n=1, stream=True))
        text = "".join(part.choices[0].delta.content or "" for part in parts)
        assert text.startswith("{")
        if parts[-1].choices[0].finish_reason == "stop":
            whole += 1
            assert isinstance(json.loads(text), dict)
    assert whole, "none of the answers came to its end"


def test_the_asynchronous_client_gets_the_same(client: openai.OpenAI) -> None:
    """Agent frameworks ask through it, several at once."""

    async def several() -> list[Any]:
        async with openai.AsyncOpenAI(
            base_url=client.base_url, api_key="none", max_retries=0, timeout=WAIT_S
        ) as asking:
            given: Any = {"model": "tiny", "messages": CHAT, "max_tokens": 300, "seed": 1}
            tools = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
            return await asyncio.gather(
                asking.chat.completions.create(**given, **tools),
                asking.chat.completions.parse(**given, response_format=Place),
            )

    called, parsed = asyncio.run(several())
    (call,) = called.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in CITIES
    assert isinstance(parsed.choices[0].message.parsed, Place)


def test_an_answer_of_a_json_schema_is_parsed_by_the_client(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="tiny", messages=CHAT, response_format=Trip, max_tokens=400, seed=5, n=4
    )
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        trip = choice.message.parsed
        assert isinstance(trip, Trip)
        assert 1 <= len(trip.stops) <= 2


def test_a_json_object_is_one(client: openai.OpenAI) -> None:
    answer = ask(client, response_format={"type": "json_object"}, temperature=1.0, max_tokens=900)
    whole = [each for each in answer.choices if each.finish_reason == "stop"]
    assert whole, "none of the answers came to its end"
    for choice in answer.choices:
        assert choice.message.content.startswith("{")
    for choice in whole:
        assert isinstance(json.loads(choice.message.content), dict)


def test_a_pydantic_tool_is_parsed_by_the_client(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="tiny",
        messages=CHAT,
        tools=[openai.pydantic_function_tool(Place)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=300,
        seed=2,
    )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert isinstance(calls[0].function.parsed_arguments, Place)


def test_answers_beside_one_with_a_form_are_as_they_are_alone(client: openai.OpenAI) -> None:
    plain = ask(client, n=1, temperature=0, max_tokens=20).choices[0].message.content
    both = ask(client, temperature=0, max_tokens=20, response_format={"type": "json_object"}, n=3)
    again = ask(client, n=1, temperature=0, max_tokens=20, logprobs=True, top_logprobs=2).choices[0]
    assert again.message.content == plain
    assert all(each.message.content.startswith("{") for each in both.choices)


def test_log_probabilities_of_an_answer_with_a_form_are_numbers(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes", "no"]}}}
    choice = ask(client, n=1, response_format=form, logprobs=True, top_logprobs=2).choices[0]
    assert json.loads(choice.message.content) in ("yes", "no")
    assert all(-100 < each.logprob <= 0 for each in choice.logprobs.content)


def accepts(tokenizer: Any, form: Form, text: str) -> bool:
    """Whether an answer in `form` may be `text` and then end."""
    constraint = Grammars(tokenizer, frozenset({tokenizer.eos_token_id})).constraint(form)
    assert constraint is not None
    for token in [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]:
        logits = torch.zeros(len(tokenizer) + 5)
        constraint.mask(logits)
        if not logits[token].isfinite():
            return False
        constraint.take(token)
    return True


def with_marker_tokens() -> Any:
    """A tokenizer that has the markers of a call as tokens, as Qwen's has."""
    from tokenizers import AddedToken

    tokenizer = make_tokenizer(CHAT_TEMPLATE)
    tokenizer.add_tokens([AddedToken(OPEN, special=False), AddedToken(CLOSE, special=False)])
    return tokenizer


@pytest.mark.parametrize("make", [make_tokenizer, with_marker_tokens])
def test_a_strict_function_keeps_its_schema_also_where_no_call_is_required(make: Any) -> None:
    tokenizer = make()
    form = Form(functions={"f": {"name": "f", "strict": True, "parameters": STRICT}})
    good = '<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_call>'
    assert accepts(tokenizer, form, "free <b>text</b>, { and\nlines")
    assert accepts(tokenizer, form, f"Let me see.\n{good}\n{good}")
    assert not accepts(tokenizer, form, good.replace("Oslo", "Rome"))
    assert not accepts(tokenizer, form, good.replace('"f"', '"g"'))
    assert Form(functions={"f": {"name": "f", "parameters": STRICT}}).is_free


@pytest.mark.parametrize("make", [make_tokenizer, with_marker_tokens])
def test_json_or_a_call_where_both_are_asked_for(make: Any) -> None:
    tokenizer = make()
    form = Form(functions={"f": {"name": "f", "parameters": STRICT}}, schema={"type": "integer"})
    good = '<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_call>'
    assert accepts(tokenizer, form, "12")
    assert accepts(tokenizer, form, good)
    assert accepts(tokenizer, form, f"{good}\n{good}")
    assert not accepts(tokenizer, form, "twelve")


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("qwen2_5", '<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_call>'),
        ("llama3_1", '{"name": "f", "parameters": {"city": "Oslo"}}'),
        (
            "mistral_nemo",
            '[TOOL_CALLS][{"name": "f", "arguments": {"city": "Oslo"}, "id": "abcDEF123"}]',
        ),
    ],
)
def test_a_call_has_the_form_that_the_model_s_template_writes(name: str, good: str) -> None:
    tokenizer = template(name)
    functions = {"f": {"name": "f", "strict": True, "parameters": STRICT}}
    for form in (Form(functions=functions, must_call=True), Form(functions=functions)):
        assert accepts(tokenizer, form, good)
        assert not accepts(tokenizer, form, good.replace("Oslo", "Rome"))
    required = Form(functions=functions, must_call=True)
    for other in (GOOD_OURS, '{"name": "f", "parameters": {"city": "Oslo"}}', "Oslo."):
        assert accepts(tokenizer, required, other) == (other == good)
    assert accepts(tokenizer, Form(functions=functions), "free text, { and\nlines")
    two = good.replace("}]", "}, " + good[13:]) if good.startswith("[") else f"{good}\n{good}"
    assert accepts(tokenizer, required, two) == (name != "llama3_1")
    alone = Form(functions=functions, must_call=True, is_parallel=False)
    assert accepts(tokenizer, alone, good)
    assert not accepts(tokenizer, alone, two)


@pytest.mark.parametrize("name", ["llama3_1", "mistral_nemo", "qwen3"])
def test_a_required_call_in_the_model_s_own_form_comes_as_openai_has_it(
    name: str, model_dir: Path
) -> None:
    tokenizer = make_tokenizer((TEMPLATES / f"{name}.jinja").read_text())
    model = load_model(model_dir, dtype=torch.float32, device=torch.device("cpu"))
    with serving(real_engine(model, tokenizer, num_rows=4), tokenizer) as url:
        own = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=WAIT_S)
        form = {"type": "json_object"}
        asked = {"tool_choice": "required", "parallel_tool_calls": False, "response_format": form}
        answer = ask(own, tools=[CLOCK], max_tokens=200, **asked)
    for choice in answer.choices:
        assert choice.finish_reason == "tool_calls", choice
        (made,) = choice.message.tool_calls
        assert (made.function.name, made.function.arguments) == ("get_time", "{}")
