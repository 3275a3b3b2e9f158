"""Two agent frameworks run their loops of tool calls over the server, with their own clients.

The model is scripted; templates, constrained decoding, streams and HTTP are the server's.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import agents
import openai
import pydantic_ai
import pytest
from pydantic import BaseModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.workloads.conftest import template
from tests.workloads.serve_stand import WAIT_S, scripted_engine, serving
from workloads.serve.scheduler import Generation

QUESTION = "(2 + 3) * (5 + 7)?"
CALLS = [("add", 2, 3), ("add", 5, 7), ("multiply", 5, 12)]
AS_JSON = "Answer as JSON."


class Total(BaseModel):
    """What an agent is asked to answer with."""

    total: int
    words: list[str]


TOTAL = Total(total=60, words=["twelve", "five"])


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def answer(prompt: str) -> str:
    """Add twice at once, multiply the sums that came back, and say the product as it is asked."""
    results = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", prompt, re.DOTALL)
    if not results:
        return f"{call('add', a=2, b=3)}\n{call('add', a=5, b=7)}"
    if len(results) == 2:
        return call("multiply", a=int(results[0]), b=int(results[1]))
    if '"final_result"' in prompt:  # as pydantic-ai asks for a structure: by a required call
        return call("final_result", **TOTAL.model_dump())
    return json.dumps(TOTAL.model_dump()) if AS_JSON in prompt else f"It is {results[2]}."


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a server whose model gives `answer`."""
    tokenizer = template("qwen3")
    said: dict[int, list[int]] = {}

    def script(asked: Generation) -> list[int]:
        if asked.number not in said:
            text = answer(tokenizer.decode(list(asked.prompt_ids)))
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            said[asked.number] = [*ids, tokenizer.eos_token_id]
        return said[asked.number]

    engine, _ = scripted_engine(tokenizer, script, prefill_tokens=16384)
    with serving(engine, tokenizer, context_tokens=8192) as address:
        yield f"{address}/v1"


class Tools:
    """What an agent may call, and what it called."""

    def __init__(self) -> None:
        self.called: list[tuple[str, int, int]] = []

    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        self.called.append(("add", a, b))
        return a + b

    def multiply(self, a: int, b: int) -> int:
        """Multiply two numbers."""
        self.called.append(("multiply", a, b))
        return a * b


async def by_openai_agents(url: str, tools: Tools, kind: Any, *, stream: bool) -> Any:
    """Run OpenAI's Agents SDK; a structure is asked for by `response_format` beside the tools."""
    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    agent: Any = agents.Agent(
        name="counts",
        instructions=AS_JSON if kind is Total else "Use tools.",
        tools=[agents.function_tool(each) for each in (tools.add, tools.multiply)],
        model=agents.OpenAIChatCompletionsModel("tiny", client),
        output_type=kind,
    )
    if not stream:
        return (await agents.Runner.run(agent, QUESTION)).final_output
    run = agents.Runner.run_streamed(agent, QUESTION)
    assert len([event async for event in run.stream_events()]) > 10
    return run.final_output


async def by_pydantic_ai(url: str, tools: Tools, kind: Any, *, stream: bool) -> Any:
    """Run Pydantic AI; a structure is a tool that must be called."""
    provider = OpenAIProvider(base_url=url, api_key="none")
    agent: Any = pydantic_ai.Agent(
        OpenAIChatModel("tiny", provider=provider),
        tools=[tools.add, tools.multiply],
        output_type=kind,
    )
    if not stream:
        return (await agent.run(QUESTION)).output
    async with agent.run_stream(QUESTION) as run:
        return await run.get_output()


@pytest.mark.feature("S002-86")
@pytest.mark.parametrize("kind", [str, Total])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("framework", [by_openai_agents, by_pydantic_ai])
def test_an_agents_loop_calls_its_tools_and_ends_with_its_answer(
    framework: Callable[..., Any], stream: bool, kind: type, url: str
) -> None:
    tools = Tools()
    run = framework(url, tools, kind, stream=stream)
    assert asyncio.run(asyncio.wait_for(run, WAIT_S)) == (TOTAL if kind is Total else "It is 60.")
    # Tools of one answer run side by side.
    assert (sorted(tools.called[:2]), tools.called[2:]) == (CALLS[:2], CALLS[2:])
