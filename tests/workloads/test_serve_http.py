"""OpenAI's own client against the server: what it sends is understood, what it gets is its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.workloads.conftest import CHAT_TEMPLATE, make_tokenizer
from tests.workloads.serve_stand import WAIT_S, ScriptedPasses, scripted_engine, serving
from workloads.common.exit_codes import ConfigError
from workloads.recipes.serve import Limits, ServeConfig, is_loopback
from workloads.serve.engine import TransformersEngine
from workloads.serve.scheduler import Generation
from workloads.serve.server import listen

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
OTHER = {"type": "function", "function": {"name": "other"}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
# What the model of these tests answers, by the last word of the question.
ANSWERS = {
    "hello": "Hello there, friend.",
    "weather": f"Let me look.\n{CALL}",
    "two": f"{CALL}\n{CALL}",
    "broken": '<tool_call>\n{"name": "get_weather", "arguments": {"city"\n</tool_call>',
    "bad": '<tool_call>\n{"arguments": {"city"\n</tool_call>',
    "endless": "again and " * 10**4,
    "plain": '{"name": "get_weather", "arguments": {"city": "Oslo"}}',
}


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}


def tool(parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "it", "parameters": parameters}}


JSON = {"Content-Type": "application/json; charset=utf-8"}


class Stand:
    """A server with its engine, its model and its address."""

    def __init__(self, engine: TransformersEngine, passes: ScriptedPasses, url: str) -> None:
        self.engine, self.passes, self.url = engine, passes, url
        self.host, _, port = url.removeprefix("http://").partition(":")
        self.port = int(port)

    def client(self, key: str = "none") -> openai.OpenAI:
        """OpenAI's client, that does not try again."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=WAIT_S)

    def post(self, body: bytes, **headers: str) -> tuple[int, dict[str, Any], Any]:
        """Send raw bytes; return status, body and headers."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=WAIT_S)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/chat/completions", body, {**JSON, **headers})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read()), answer.headers

    def get(self, path: str) -> tuple[int, str]:
        """Ask for a page."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=WAIT_S)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def until_running(self, number: int) -> None:
        """Wait until that many answers are being written."""
        deadline = time.monotonic() + WAIT_S
        while self.engine.load().num_running != number:
            assert time.monotonic() < deadline, self.engine.load()


@contextlib.contextmanager
def stand(tokenizer: Any, **options: Any) -> Iterator[Stand]:
    """A server whose model gives ANSWERS."""
    limits = {name: options.pop(name) for name in ("num_rows", "max_queue") if name in options}

    def script(asked: Generation) -> list[int]:
        question = tokenizer.decode(list(asked.prompt_ids))
        word = question.split("<|im_end|>")[-2].split()[-1]
        text = ("tuned: " if asked.is_tuned else "") + ANSWERS[word]
        return [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]

    scripts: dict[int, list[int]] = {}

    def remembered(asked: Generation) -> list[int]:
        if asked.number not in scripts:
            scripts[asked.number] = script(asked)
        return scripts[asked.number]

    engine, passes = scripted_engine(tokenizer, remembered, prefill_tokens=4096, **limits)
    with serving(engine, tokenizer, **options) as url:
        yield Stand(engine, passes, url)


@pytest.fixture(scope="module")
def server(tokenizer: Any) -> Iterator[Stand]:
    """One server for the tests that leave nothing behind."""
    with stand(tokenizer, names={"tiny": False, "tiny-tuned": True}) as running:
        yield running


def say(word: str) -> list[Any]:
    return [{"role": "user", "content": word}]


@pytest.mark.feature("S002-86", "S002-80")
def test_a_chat_is_answered_with_its_usage(server: Stand) -> None:
    answer = server.client().chat.completions.create(
        model="tiny", messages=say("hello"), temperature=0
    )
    choice = answer.choices[0]
    assert choice.message.content == ANSWERS["hello"]
    assert (choice.finish_reason, choice.message.role) == ("stop", "assistant")
    assert answer.usage is not None
    prompt = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    # A token a byte, and one for each of the three special tokens; the end of turn is written too.
    read = len(prompt) - 2 * (len("<|im_start|>") - 1) - (len("<|im_end|>") - 1)
    assert answer.usage.prompt_tokens == read
    assert answer.usage.completion_tokens == len(ANSWERS["hello"]) + 1
    assert answer.usage.total_tokens == read + len(ANSWERS["hello"]) + 1


def test_a_stream_tells_the_same_in_parts_and_its_usage_last(server: Stand) -> None:
    parts = list(
        server.client().chat.completions.create(
            model="tiny",
            messages=say("hello"),
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert parts[0].choices[0].delta.role == "assistant"
    texts = [part.choices[0].delta.content or "" for part in parts if part.choices]
    assert "".join(texts) == ANSWERS["hello"]
    assert len([text for text in texts if text]) > 3
    assert [part.choices[0].finish_reason for part in parts if part.choices][-1] == "stop"
    assert parts[-1].choices == []
    assert parts[-1].usage is not None
    assert parts[-1].usage.completion_tokens == len(ANSWERS["hello"]) + 1
    assert len({part.id for part in parts}) == 1


def test_a_tool_call_is_parsed_out_of_the_text(server: Stand) -> None:
    choice = (
        server.client()
        .chat.completions.create(model="tiny", messages=say("weather"), tools=[WEATHER])
        .choices[0]
    )
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look."
    calls = choice.message.tool_calls
    assert calls is not None
    assert calls[0].type == "function"
    assert calls[0].function.name == "get_weather"
    assert json.loads(calls[0].function.arguments) == {"city": "Oslo"}
    assert calls[0].id.startswith("call_")


def test_a_streamed_tool_call_is_never_told_as_text(server: Stand) -> None:
    parts = list(
        server.client().chat.completions.create(
            model="tiny", messages=say("two"), tools=[WEATHER], stream=True
        )
    )
    deltas = [part.choices[0].delta for part in parts]
    assert "".join(delta.content or "" for delta in deltas) == ""
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    told = [
        [call.function for call in calls if call.index == index and call.function]
        for index in (0, 1)
    ]
    for pieces in told:
        assert (pieces[0].name, pieces[0].arguments) == ("get_weather", "")
        assert {piece.name for piece in pieces[1:]} == {None}
        assert len(pieces) > 5, "arguments are told while they are written"
        assert json.loads("".join(piece.arguments or "" for piece in pieces)) == {"city": "Oslo"}
    assert len([call.id for call in calls if call.id]) == 2, "only a call's first part has its id"
    assert parts[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [True, False])
def test_without_parallel_calls_the_first_one_ends_the_answer(server: Stand, stream: bool) -> None:
    ask: Any = server.client().chat.completions
    asked = {"model": "tiny", "messages": say("two"), "tools": [WEATHER], "n": 2}
    if stream:
        with ask.stream(**asked, parallel_tool_calls=False) as events:
            choices = events.get_final_completion().choices
    else:
        choices = ask.create(**asked, parallel_tool_calls=False).choices
    for choice in choices:
        assert [call.function.name for call in choice.message.tool_calls] == ["get_weather"]
        assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Oslo"}
        assert choice.finish_reason == "tool_calls"
    server.until_running(0)


def test_a_call_without_its_marker_counts_where_tools_are_offered(server: Stand) -> None:
    ask = server.client().chat.completions.create
    offered = ask(model="tiny", messages=say("plain"), tools=[WEATHER]).choices[0]
    assert offered.message.tool_calls is not None
    plain = ask(model="tiny", messages=say("plain")).choices[0]
    assert (plain.message.content, plain.finish_reason) == (ANSWERS["plain"], "stop")


def test_a_call_that_cannot_be_read_stays_text(server: Stand) -> None:
    ask = server.client().chat.completions.create
    choice = ask(model="tiny", messages=say("bad"), tools=[WEATHER]).choices[0]
    assert choice.message.tool_calls is None
    assert choice.message.content == ANSWERS["bad"]
    assert choice.finish_reason == "stop"


@pytest.mark.parametrize("word", ["weather", "two", "plain", "broken"])
def test_a_stream_and_a_whole_answer_tell_the_same_calls_wherever_they_are_cut(
    server: Stand, word: str
) -> None:
    """The whole answer gave a cut call as raw text, the stream as the beginning of a call."""
    ask: Any = server.client().chat.completions
    text = ANSWERS[word]
    told = []
    for limit in [*range(1, len(text), 5), len(text) - 1, len(text) + 1]:
        asked = {"model": "tiny", "messages": say(word), "tools": [WEATHER], "max_tokens": limit}
        whole = ask.create(**asked).choices[0]
        with ask.stream(**asked) as events:
            streamed = [event.chunk.choices[0] for event in events if event.type == "chunk"]
        parts = [call for each in streamed for call in each.delta.tool_calls or ()]
        calls = [
            (
                call.function.name,
                "".join(part.function.arguments for part in parts if part.index == call.index),
            )
            for call in parts
            if call.id
        ]
        told.append((whole.finish_reason, calls))
        assert (whole.message.content or "", whole.finish_reason) == (
            "".join(each.delta.content or "" for each in streamed),
            streamed[-1].finish_reason,
        )
        assert calls == [
            (call.function.name, call.function.arguments) for call in whole.message.tool_calls or ()
        ]
    cut = [calls[-1][1] for reason, calls in told if calls and reason == "length"]
    assert any(each not in ("", '{"city": "Oslo"}') for each in cut), (
        "arguments as far as they came"
    )
    assert told[-1][0] == "tool_calls"


def test_the_results_of_calls_can_be_sent_back(server: Stand) -> None:
    first = server.client().chat.completions.create(
        model="tiny", messages=say("weather"), tools=[WEATHER]
    )
    message: Any = first.choices[0].message
    answer = server.client().chat.completions.create(
        model="tiny",
        messages=[
            *say("weather"),
            message,
            {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "say hello"},
        ],
        tools=[WEATHER],
    )
    assert answer.choices[0].message.content == ANSWERS["hello"]


def test_stop_strings_log_probabilities_and_choices_are_as_asked(server: Stand) -> None:
    answer = server.client().chat.completions.create(
        model="tiny", messages=say("hello"), stop=[", friend"], logprobs=True, top_logprobs=2, n=2
    )
    assert [choice.message.content for choice in answer.choices] == ["Hello there"] * 2
    assert [choice.index for choice in answer.choices] == [0, 1]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(entry.token for entry in logprobs.content) == "Hello there, friend"
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs.content)
    assert logprobs.content[0].bytes == [72]


def test_an_answer_at_its_limit_says_length(server: Stand) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        limit: dict[str, Any] = {name: 5}
        answer = server.client().chat.completions.create(
            model="tiny", messages=say("hello"), **limit
        )
        assert answer.choices[0].message.content == "Hello"
        assert answer.choices[0].finish_reason == "length"


@pytest.mark.feature("S000-06", "S000-17", "S000-55", "S002-86")
def test_base_and_tuned_are_two_models_of_one_server(server: Stand) -> None:
    client = server.client()
    assert [model.id for model in client.models.list()] == ["tiny", "tiny-tuned"]
    tuned = client.models.retrieve("tiny-tuned")
    assert (tuned.id, tuned.model_dump()["parent"]) == ("tiny-tuned", "tiny")
    assert "parent" not in client.models.retrieve("tiny").model_dump()
    answer = client.chat.completions.create(model="tiny-tuned", messages=say("hello"))
    assert answer.choices[0].message.content == "tuned: Hello there, friend."


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"temperature": 3}, "temperature", "expected a number from 0.0 to 2.0"),
        ({"max_tokens": 0}, "max_tokens", "a whole number from 1 to 4096"),
        ({"n": 99}, "n", "a whole number from 1 to 8"),
        ({"messages": []}, "messages", "a list of messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "assistant"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "a string"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "text"),
        ({"top_logprobs": 3}, "top_logprobs", "needs 'logprobs'"),
        ({"stop": ["a"] * 5}, "stop", "1 to 4 strings"),
        ({"stop": False}, "stop", "got false, expected a string or a list"),
        ({"tools": [{"type": "search"}]}, "tools[0]", "function"),
        ({"tool_choice": "required"}, "tool_choice", "a call needs 'tools'"),
        ({"tool_choice": NAMED, "tools": [OTHER]}, "tool_choice", "one of other"),
        ({"tool_choice": 1, "tools": [OTHER]}, "tool_choice", '"required"'),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "true or false"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "NAME"),
        (
            {"response_format": json_schema({"not": {"type": "string"}})},
            "response_format.json_schema.schema",
            "Unimplemented keys",
        ),
        (
            {"tools": [OTHER, tool({"type": "robot"})], "tool_choice": "required"},
            "tools[1].function.parameters",
            "Invalid type: robot",
        ),
        ({"tools": [tool(3)]}, "tools[0].function.parameters", "schema"),
        (
            {"response_format": {"type": "json_object"}, "ignore_eos": True},
            "ignore_eos",
            "leave it out",
        ),
        ({"best_of": 2}, "best_of", "not a parameter"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs 'stream'"),
        (
            {"chat_template_kwargs": {"chat_template": "{{ 'x' * 9 }}"}},
            "chat_template_kwargs",
            "'chat_template_kwargs.chat_template' is not taken",
        ),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs", "enable_thinking"),
        ({"chat_template_kwargs": {"conversation": []}}, "chat_template_kwargs", "is not taken"),
        (
            {"chat_template_kwargs": {"enable_thinking": ["x"]}},
            "chat_template_kwargs.enable_thinking",
            "up to 100 characters",
        ),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(
    server: Stand, change: dict[str, Any], param: str, message: str
) -> None:
    body = {"model": "tiny", "messages": say("hello"), **change}
    status, answer, _ = server.post(json.dumps(body).encode())
    assert status == 400
    assert answer["error"]["param"] == param
    assert message in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"


@pytest.mark.feature("S000-16")
def test_a_declared_option_reaches_the_template() -> None:
    switch = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    with stand(make_tokenizer(CHAT_TEMPLATE + switch)) as running:
        body = {"model": "tiny", "messages": say("hello")}
        lengths: list[int] = []
        for thinks in (True, False):
            told = {**body, "chat_template_kwargs": {"enable_thinking": thinks}}
            status, answer, _ = running.post(json.dumps(told).encode())
            assert status == 200
            lengths.append(answer["usage"]["prompt_tokens"])
    assert lengths[0] < lengths[1]


@pytest.mark.feature("S000-16")
def test_thinking_of_the_settings_reaches_the_template_of_every_chat() -> None:
    switch = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    lengths: list[list[int]] = []
    for thinking in (True, False):
        with stand(make_tokenizer(CHAT_TEMPLATE + switch), thinking=thinking) as running:
            body = {"model": "tiny", "messages": say("hello")}
            asked = (body, {**body, "tools": [WEATHER]}, {**body, "stream": False, "n": 2})
            answers = [running.post(json.dumps(each).encode())[1] for each in asked]
            lengths.append([each["usage"]["prompt_tokens"] for each in answers])
    added = [without - thought for thought, without in zip(*lengths, strict=True)]
    assert added == 3 * [len("<think></think>")]


def test_words_of_the_library_itself_cannot_be_declared() -> None:
    with pytest.raises(ValueError, match="template_options: got chat_template, tools"):
        ServeConfig(template_options=("enable_thinking", "tools", "chat_template"))


def test_half_a_surrogate_pair_is_refused(server: Stand) -> None:
    """It is JSON by the grammar, and was an error of the tokenizer: 500."""
    body = rb'{"model": "\ud800", "messages": [{"role": "user", "content": "\ud83d\ude00 \ud800"}]}'
    status, answer, _ = server.post(body)
    assert (status, answer["error"]["code"]) == (400, "invalid_json")
    assert "surrogates not allowed" in answer["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "tiny", "messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',
        r'{"model": "tiny", "messages": [{"role": "user", "content": "\ud800"}]}'.encode("utf-16"),
    ],
)
def test_a_body_that_is_not_utf_8_is_refused(server: Stand, body: bytes) -> None:
    """RFC 8259, 8.1. Half a surrogate pair came in as bytes, or past the look for its escape."""
    status, answer, _ = server.post(body)
    assert (status, answer["error"]["code"]) == (400, "invalid_json")
    assert "'utf-8' codec can't decode" in answer["error"]["message"]


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"[" * 100_000, b""])
def test_a_body_that_is_no_object_is_refused(server: Stand, body: bytes) -> None:
    status, answer, _ = server.post(body)
    assert (status, answer["error"]["code"]) == (400, "invalid_json")


def test_the_client_raises_its_own_errors(server: Stand) -> None:
    client = server.client()
    with pytest.raises(openai.NotFoundError, match="served: tiny, tiny-tuned") as unknown:
        client.chat.completions.create(model="gpt-4o", messages=say("hello"))
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="the context is 1024 tokens") as long:
        client.chat.completions.create(model="tiny", messages=say("hello " * 400))
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="max_tokens is 1020") as both:
        client.chat.completions.create(model="tiny", messages=say("hello"), max_tokens=1020)
    assert both.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="tiny", input="x")


def test_a_body_over_the_limit_is_refused(server: Stand) -> None:
    status, answer, _ = server.post(b'"' + b"x" * 2**20 + b'"')
    assert (status, answer["error"]["code"]) == (413, "request_too_large")


def test_a_client_that_does_not_send_its_body_is_told_so(tokenizer: Any) -> None:
    with (
        stand(tokenizer, body_timeout_s=1) as server,
        socket.create_connection((server.host, server.port), timeout=WAIT_S) as slow,
    ):
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
        slow.sendall(f"{head}Content-Type: application/json\r\n\r\n{{".encode())
        assert b"408" in slow.recv(4096).split(b"\r\n")[0]


def test_a_key_is_needed_where_there_is_one(tokenizer: Any) -> None:
    key = "a-key-of-some-length"
    with stand(tokenizer, api_key=key) as server:
        ask = server.client(key).chat.completions.create
        assert ask(model="tiny", messages=say("hello")).choices
        for wrong in ("", "none", key[:-1], f"{key}x"):
            with pytest.raises(openai.AuthenticationError, match="no API key, or a wrong one"):
                server.client(wrong or "x").models.list()
        assert server.get("/health")[0] == 200
        assert server.get("/metrics")[0] == 401


@pytest.mark.parametrize(
    ("headers", "status", "text"),
    [
        ({"Host": "evil.example:7860"}, 403, "evil.example:7860: this server is on loopback"),
        ({"Origin": "http://evil.example"}, 403, "http://evil.example: a page of another address"),
        ({"Origin": "null"}, 403, "null: a page of another address"),
        ({"Content-Type": "text/plain"}, 415, "text/plain: send application/json"),
        ({"Content-Type": ""}, 415, "send application/json"),
    ],
)
def test_what_a_page_elsewhere_can_send_is_refused(
    tokenizer: Any, headers: dict[str, str], status: int, text: str
) -> None:
    """A browser sends these without asking; by a name of its own a page would read the answer."""
    with stand(tokenizer) as server:
        body = json.dumps({"model": "tiny", "messages": say("hello")}).encode()
        answer = server.post(body, **headers)
        assert (answer[0], answer[1]["error"]["code"]) == (status, "forbidden")
        assert answer[1]["error"]["type"] == "invalid_request_error"
        assert text in answer[1]["error"]["message"]
        assert server.engine.load().num_running == 0
        for host in ("localhost", f"127.0.0.1:{server.port}", "[::1]:1"):
            assert server.post(body, Host=host)[0] == 200
        assert server.post(body, Origin=f"http://{server.host}:{server.port}")[0] == 200


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("no-such-host.invalid", ".+"),
        ("192.0.2.1", "Cannot assign requested address"),
        ("fe80::1", "Invalid argument"),
        ("127.0.0.1\0", "host name must not contain null character"),
        ("\u00fc" * 80, "encoding of hostname failed"),
    ],
)
def test_a_host_that_is_not_here_is_refused_by_its_name(host: str, reason: str) -> None:
    """No other port helps, which was the advice."""
    refusal = f"^serve.host: {re.escape(host)}: {reason}; name an address of this machine"
    with pytest.raises(ConfigError, match=refusal):
        listen(ServeConfig(host=host, port=0))


@pytest.mark.parametrize(
    ("host", "is_here_alone"),
    [
        *((each, True) for each in ("127.0.0.1", "127.8.0.1", "::1", "localhost")),
        *((each, False) for each in ("127.example.com", "127.0.0.1.example.com", "0.0.0.0", "::")),
    ],
)
def test_a_name_that_begins_like_loopback_is_not_loopback(host: str, is_here_alone: bool) -> None:
    assert is_loopback(host) is is_here_alone


ASK = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_a_connection_that_brings_no_whole_head_is_closed(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 of 300 with half a header were held for ever."""
    monkeypatch.setattr("workloads.serve.server.HEAD_S", 1.0)
    with stand(tokenizer) as server, contextlib.ExitStack() as closing:
        kept = closing.enter_context(connected(server, ASK))
        assert b"200 OK" in kept.recv(4096)
        kept.sendall(ASK[:20])  # half a second one, on a connection that brought one before
        halves = [closing.enter_context(connected(server, ASK[:size])) for size in (0, 1, 20)]
        # One that came while the first was answered: nothing more comes that it could be seen by.
        early = closing.enter_context(connected(server, ASK + ASK[:20]))
        early.settimeout(20)  # uvicorn itself closes it after 30
        for half in (kept, early, *halves):
            assert ended(half)
        assert server.get("/health")[0] == 200


def test_the_number_of_connections_is_bounded(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workloads.serve.server.HEAD_S", 10 * WAIT_S)
    monkeypatch.setattr("workloads.serve.server.MOST_CONNECTIONS", 5)
    limits = Limits()
    most = 2 * (limits.max_concurrency + limits.max_queue)
    with stand(tokenizer, api_key="the-key") as server, contextlib.ExitStack() as closing:
        held = [closing.enter_context(connected(server, b"")) for _ in range(most)]
        for _ in range(2):
            with server.client("the-key") as client:
                assert client.models.list().data, "who holds them leaves room for who has the key"
            held.append(closing.enter_context(connected(server, b"")))
        assert ended(held[0])
        assert ended(held[1])
        time.sleep(0.1)
        held[2].sendall(ASK)
        assert b"200 OK" in held[2].recv(4096), "no more are closed than one for each that comes"


def test_who_reads_no_answer_leaves_room_for_who_does(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """560 of another user's, each asking for ever and reading nothing, kept all others out."""
    monkeypatch.setattr("workloads.serve.server.MOST_CONNECTIONS", 5)
    limits = Limits()
    most = 2 * (limits.max_concurrency + limits.max_queue)
    with stand(tokenizer, api_key="the-key") as server, contextlib.ExitStack() as closing:
        held = [closing.enter_context(socket.socket()) for _ in range(most)]
        for each in held:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            each.connect((server.host, server.port))
            each.setblocking(False)
        last = time.monotonic()
        while time.monotonic() < last + 0.5:  # until all are full, both ways
            for each in held:
                with contextlib.suppress(BlockingIOError):
                    each.send(ASK * 1000)
                    last = time.monotonic()
        with server.client("the-key") as client:
            assert client.models.list().data


def connected(server: Stand, first: bytes) -> socket.socket:
    """A connection that has sent these bytes."""
    made = socket.create_connection((server.host, server.port), timeout=WAIT_S)
    made.sendall(first)
    return made


def ended(connection: socket.socket) -> bool:
    """Whether the server closes it before it would time out here, whatever it sent before."""
    try:
        while connection.recv(4096):
            pass  # the body of an answer whose head came alone
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def test_a_full_queue_is_answered_429_with_a_time(tokenizer: Any) -> None:
    with stand(tokenizer, num_rows=1, max_queue=0) as server:
        client = server.client()
        with client.chat.completions.create(
            model="tiny", messages=say("endless"), stream=True
        ) as running:
            server.until_running(1)
            with pytest.raises(openai.RateLimitError, match="1 requests run") as full:
                client.chat.completions.create(model="tiny", messages=say("hello"))
            assert full.value.response.headers["retry-after"] == "2"
            assert next(iter(running)).choices
        server.until_running(0)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_row(tokenizer: Any, stream: bool) -> None:
    with stand(tokenizer, num_rows=1, context_tokens=10**6, max_output_tokens=10**5) as server:
        body = {"model": "tiny", "messages": say("endless"), "stream": stream}
        connection = http.client.HTTPConnection(server.host, server.port, timeout=WAIT_S)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), JSON)
        server.until_running(1)
        if stream:
            assert connection.getresponse().read(40).startswith(b"data: ")
        assert connection.sock is not None
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        server.until_running(0)
        answer = server.client().chat.completions.create(model="tiny", messages=say("hello"))
        assert answer.choices[0].message.content == ANSWERS["hello"]
        assert 'outcome="cancelled"} 1.0' in server.get("/metrics")[1]


def test_an_answer_over_its_time_is_ended(tokenizer: Any) -> None:
    options = {"context_tokens": 10**6, "max_output_tokens": 10**5, "request_timeout_s": 1}
    with stand(tokenizer, **options) as server:
        with pytest.raises(openai.InternalServerError, match="not whole after 1 s") as late:
            server.client().chat.completions.create(model="tiny", messages=say("endless"))
        assert late.value.status_code == 504
        with pytest.raises(openai.APIError, match="not whole after 1 s"):
            list(
                server.client().chat.completions.create(
                    model="tiny", messages=say("endless"), stream=True
                )
            )
        server.until_running(0)


def test_out_of_memory_is_told_and_the_server_goes_on(tokenizer: Any) -> None:
    with stand(tokenizer) as server:
        failing = [True]

        def gate() -> None:
            if failing and failing.pop():
                raise MemoryError

        server.passes.gate = gate
        with pytest.raises(openai.InternalServerError, match="ran out of memory") as full:
            server.client().chat.completions.create(model="tiny", messages=say("hello"))
        assert full.value.code == "out_of_memory"
        answer = server.client().chat.completions.create(model="tiny", messages=say("hello"))
        assert answer.choices[0].message.content == ANSWERS["hello"]


def test_a_failure_in_a_stream_is_an_error_event(tokenizer: Any) -> None:
    with stand(tokenizer) as server:
        seen = threading.Event()

        def gate() -> None:
            if seen.is_set():
                raise ValueError("broken in the middle")

        server.passes.gate = gate
        running = server.client().chat.completions.create(
            model="tiny", messages=say("endless"), stream=True
        )
        assert next(iter(running)).choices
        seen.set()
        with pytest.raises(openai.APIError, match="broken in the middle"):
            list(running)


def test_metrics_count_what_was_served(tokenizer: Any) -> None:
    with stand(tokenizer) as server:
        server.client().chat.completions.create(model="tiny", messages=say("hello"))
        page = server.get("/metrics")[1]
    assert 'serve_requests_total{model="tiny",outcome="finished"} 1.0' in page
    written = float(len(ANSWERS["hello"]) + 1)
    assert f'serve_output_tokens_total{{model="tiny"}} {written}' in page
    assert 'serve_time_to_first_token_seconds_count{model="tiny"} 1.0' in page
    assert 'serve_time_per_output_token_seconds_count{model="tiny"} 1.0' in page
    for gauge in ("running_requests", "waiting_requests", "kv_cache_used_tokens", "memory_bytes"):
        assert f"serve_{gauge} 0.0" in page


def test_unknown_paths_and_methods_have_the_same_form_of_error(server: Stand) -> None:
    for path, status in (("/v1/nothing", 404), ("/v1/chat/completions", 405)):
        got, text = server.get(path)
        assert got == status
        assert set(json.loads(text)["error"]) == {"message", "type", "param", "code"}
