"""Our launcher and our clients against vLLM: its recorded answers always, vLLM itself where it is.

SOPERATOR_VLLM names a virtual environment with vLLM and what workloads.serve imports
(docs/unverified.md, Serving); the server then runs there as a job would start it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from infra.state import CHECKOUT
from tests.unit.monitoring.exported import EXPORTED
from tests.workloads.test_serve_http import NAMED, OTHER, WEATHER, json_schema, say
from workloads.chat.client import Client, Reply, _refusal, server_models
from workloads.common.exit_codes import ExitCode
from workloads.load.client import ChatClient, ServedModel, read_metrics
from workloads.load.http import Answer, ChatEvents
from workloads.serve import server
from workloads.serve.app import ON_LOOPBACK, VllmGuard

ANSWERS: dict[str, Any] = json.loads(
    (Path(__file__).parent / "vllm_answers.json").read_text(encoding="utf-8")
)
"""What vLLM sent, byte by byte, with its version, date and options."""
MODEL = "SmolLM2-135M-Instruct"
VARIABLE = "SOPERATOR_VLLM"
WAIT_S = 900.0
"""A start beside other work took minutes."""
pytestmark = pytest.mark.timeout(2 * WAIT_S)


# Its recorded answers


def test_an_adapter_of_vllm_takes_what_its_base_takes() -> None:
    """Its card says no length; else a load test that asks for more fails in the middle."""
    body = ANSWERS["models"].encode()

    async def ask() -> list[ServedModel]:
        client = ChatClient("http://127.0.0.1:1/v1", None, timeout_s=1, ignore_eos=True)
        client._http = SimpleNamespace(get=_answers(body))  # type: ignore[assignment]
        return await client.models()

    assert asyncio.run(ask()) == [
        ServedModel(name=name, engine="vllm", context_tokens=4096)
        for name in (MODEL, f"{MODEL}-tuned")
    ]
    base, tuned = server_models("http://s/v1", json.loads(body))
    assert (base.base, tuned.base) == (None, MODEL)


def _answers(body: bytes) -> Any:
    async def get(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(status=200, headers={}, body=body)

    return get


def test_a_thought_that_vllm_streams_is_a_piece_of_the_answer() -> None:
    """It calls it `reasoning`; without it the first token would come when the thought ends."""
    reply = Reply(model="m", is_tuned=None, began_s=0.0)
    events = ChatEvents(reply.take)
    sent = [each + "\n\n" for each in ANSWERS["reasoning_stream"].split("\n\n") if each]
    for second, each in enumerate(sent):
        events.feed(each.encode(), float(second))
    events.finish()
    told = "".join(
        choice["delta"].get("reasoning") or ""
        for each in sent[:-1]
        for choice in json.loads(each.removeprefix("data: "))["choices"]
    )
    assert reply.thought == told != ""
    assert len(events.times_s) == len(reply.times_s) > 1


def test_a_stream_of_vllm_is_read_to_its_usage() -> None:
    events = ChatEvents()
    events.feed(ANSWERS["stream"].encode(), 1.0)
    events.finish()
    assert (len(events.times_s), (events.usage or {})["completion_tokens"]) == (8, 8)


@pytest.mark.parametrize("name", ANSWERS["errors"])
def test_what_vllm_says_of_an_error_is_one_line(name: str) -> None:
    error = ANSWERS["errors"][name]
    line = _refusal(Answer(status=error["status"], body=bytearray(error["body"], "utf-8")))
    assert "\n" not in line
    has_message = isinstance(json.loads(error["body"]).get("error"), dict)
    assert line.startswith(f"answered {error['status']}: ") != has_message


@pytest.mark.parametrize("is_loopback", [True, False])
@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "/invocations", {}, 401),
        ("POST", "/invocations", {"authorization": "Bearer another"}, 401),
        ("POST", "/invocations", {"authorization": "Bearer a-key"}, 200),
        ("POST", "/tokenize", {}, 401),
        ("GET", "/metrics", {}, 401),
        ("GET", "/health", {}, 200),
        ("POST", "/v1/chat/completions", {"authorization": "Bearer a-key"}, 200),
        ("GET", "/health", {"origin": "http://evil.example"}, 403),
        ("websocket", "/realtime", {}, 401),
        ("websocket", "/realtime", {"authorization": "Bearer a-key"}, 200),
    ],
)
def test_every_door_of_vllm_has_the_key(
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    headers: dict[str, str],
    status: int,
    is_loopback: bool,
) -> None:
    """By itself it asks for the key under /v1 alone: /invocations answered chats to anybody."""
    monkeypatch.setenv("VLLM_API_KEY", "a-key")
    monkeypatch.delenv(ON_LOOPBACK, raising=False)
    if is_loopback:
        monkeypatch.setenv(ON_LOOPBACK, "1")
    given = {"host": "127.0.0.1:1", "content-type": "application/json", **headers}
    assert _status(method, path, given) == status
    elsewhere = 403 if is_loopback else status
    assert _status(method, path, {**given, "host": "other.example"}) == elsewhere


def _status(method: str, path: str, headers: dict[str, str]) -> int:
    """What one request gets through the guard, before an app that answers 200."""
    seen: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        if message["type"].endswith("http.response.start"):
            seen.append(message["status"])

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": lines}
    if method == "websocket":
        scope = {"type": method, "path": path, "headers": lines}
    asyncio.run(VllmGuard(app)(scope, receive, send))  # type: ignore[arg-type]
    (status,) = seen
    return status


@pytest.mark.parametrize(
    "answer", [b"220 no web server\r\n", b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"]
)
def test_what_answers_at_vllms_port_without_http_is_not_vllm(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        assert server.page("127.0.0.1", listener.getsockname()[1], "health") is None


# vLLM itself


class Vllm:
    """A serve job of ours whose engine is vLLM."""

    def __init__(
        self, python: Path, folder: Path, adapter: Path, model: Path, drain_s: int
    ) -> None:
        self.results = folder / "results" / "12"
        self.results.parent.mkdir()
        self._log = folder / "log"
        places = {"RESULTS": folder / "results", "MODEL": model.parent}
        environment = {f"SOPERATOR_PLACE_{name}": str(path) for name, path in places.items()}
        # On a CPU it takes 92 % of the machine's memory unless told otherwise (cpu.py of 0.32.0).
        environment["VLLM_CPU_KVCACHE_SPACE"] = "2"
        words = ["--base", MODEL, "--adapter", str(adapter), "--engine", "vllm", "--port", "0"]
        words += ["--set", "serve.dtype=fp32", "--set", f"serve.drain_s={drain_s}"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(python), "-m", "workloads.serve", *words],
                cwd=CHECKOUT,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment, "SLURM_JOB_ID": "12", "HF_HUB_OFFLINE": "1"},
            )

    def until(self, text: str) -> str:
        """Wait until the log has it; return the log."""
        deadline_s = time.monotonic() + WAIT_S
        while text not in (log := self.log()):
            assert self.process.poll() is None, log[-4000:]
            assert time.monotonic() < deadline_s, log[-4000:]
            time.sleep(0.5)
        return log

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def endpoint(self) -> dict[str, Any]:
        return json.loads((self.results / "endpoint.json").read_text(encoding="utf-8"))

    @property
    def key(self) -> str:
        return (self.results / "api_key").read_text(encoding="ascii").strip()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.endpoint()['port']}/v1"

    def client(self) -> Any:
        """OpenAI's own, with the key; of no type, as requests here are made of parameters."""
        return openai.OpenAI(base_url=self.url, api_key=self.key, max_retries=0, timeout=WAIT_S)

    def status(self, path: str, body: Any = None, **headers: str) -> int:
        """The status of a request without the key."""
        connection = HTTPConnection("127.0.0.1", self.endpoint()["port"], timeout=WAIT_S)
        data = None if body is None else json.dumps(body)
        kind = {"Content-Type": "application/json"}
        connection.request("GET" if body is None else "POST", path, data, {**kind, **headers})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status


@pytest.fixture(scope="module")
def python() -> Path:
    """The Python that has vLLM."""
    folder = os.environ.get(VARIABLE, "")
    python = Path(folder) / "bin" / "python"
    if not folder or not python.exists():
        pytest.skip(f"{VARIABLE} names no virtual environment with vLLM (docs/unverified.md)")
    return python


@pytest.fixture(scope="module")
def vllm(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    """One server for all, with a base and an adapter; the test of its end comes last."""
    model = Path.home() / ".cache/soperator-stack/models" / MODEL
    if not model.is_dir():
        pytest.skip(f"`make setup` brings {MODEL}")
    folder = tmp_path_factory.mktemp("vllm")
    server = Vllm(python, folder, _adapter(folder / "adapter", model), model, DRAIN_S)
    try:
        server.until(f"serving {MODEL} and {MODEL}-tuned with vllm")
        yield server
    finally:
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(timeout=WAIT_S)


DRAIN_S = 20


def _adapter(folder: Path, model: Path) -> Path:
    """An adapter of random weights that change every answer."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    size, made = config["hidden_size"], torch.Generator().manual_seed(0)
    weights = {
        f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{name}.weight": torch.randn(
            *shape, generator=made
        )
        for layer in range(config["num_hidden_layers"])
        for name, shape in (("A", (8, size)), ("B", (size, 8)))
    }
    folder.mkdir()
    save_file(
        {name: 0.5 * each for name, each in weights.items()}, folder / "adapter_model.safetensors"
    )
    (folder / "adapter_config.json").write_text(
        json.dumps(
            {
                "base_model_name_or_path": str(model),
                "lora_alpha": 16,
                "peft_type": "LORA",
                "r": 8,
                "target_modules": ["q_proj"],
                "task_type": "CAUSAL_LM",
            }
        )
    )
    return folder


def test_vllm_lists_base_and_adapter_and_both_answer(vllm: Vllm) -> None:
    client = ChatClient(vllm.url, vllm.key, timeout_s=WAIT_S, ignore_eos=True)

    async def ask() -> tuple[list[ServedModel], list[int]]:
        models, counts = await client.models(), []
        for each in models:
            client.model = each.name
            sample = await client.ask(say("hello"), 9)
            assert sample.is_ok, sample
            assert sample.ttft_s is not None
            assert sample.prompt_tokens
            counts.append(sample.output_tokens)
        traffic = await client.traffic()
        client.close()
        assert traffic is not None
        assert (traffic.num_ended, traffic.num_underway) == (2.0, 0.0)
        return models, counts

    models, counts = asyncio.run(ask())
    assert models == [
        ServedModel(name=name, engine="vllm", context_tokens=4096)
        for name in (MODEL, f"{MODEL}-tuned")
    ]
    assert counts == [9, 9], "ignore_eos"
    create = vllm.client().chat.completions.create
    told = [
        create(model=each.name, messages=say("hello"), temperature=0, max_tokens=8)
        for each in models
    ]
    assert told[0].choices[0].message.content != told[1].choices[0].message.content


def test_the_chat_page_asks_vllm(vllm: Vllm) -> None:
    client = Client([vllm.url], vllm.key)

    async def ask() -> Reply:
        base, tuned = await client.models()
        assert tuned.base == base.label
        reply = Reply(model=base.label, is_tuned=False, began_s=0.0)
        body = {"messages": say("hello"), "max_tokens": 5, "temperature": 0, "ignore_eos": True}
        await client.ask(base, body, reply, lambda: None)
        load = read_metrics(await client.look(vllm.url))
        assert (load.num_running, load.num_waiting) == (0.0, 0.0)
        assert load.kv_share is not None
        assert load.num_ended
        return reply

    reply = asyncio.run(ask())
    assert (reply.finish, reply.error, reply.output_tokens) == ("length", None, 5)


def test_every_metric_of_the_list_is_on_vllms_page(vllm: Vllm) -> None:
    page = (vllm.results / "metrics.prom").read_text(encoding="utf-8")
    missing = [
        name
        for name, each in EXPORTED.items()
        if each.exporter == "vllm" and not re.search(rf"^{name}{{", page, re.MULTILINE)
    ]
    assert missing == []


def test_vllm_tells_log_probabilities_and_usage(vllm: Vllm) -> None:
    create = vllm.client().chat.completions.create
    answer = create(model=MODEL, messages=say("hello"), max_tokens=2, logprobs=True, top_logprobs=2)
    assert answer.choices[0].logprobs is not None
    assert [len(each.top_logprobs) for each in answer.choices[0].logprobs.content or ()] == [2, 2]
    chunks = [
        *create(
            model=MODEL,
            messages=say("hello"),
            max_tokens=3,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
    ]
    assert chunks[-1].usage is not None
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 3)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_vllm_must_call(vllm: Vllm, choice: Any, stream: bool) -> None:
    answer = vllm.client().chat.completions.create(
        model=MODEL,
        messages=say("What is the weather in Oslo?"),
        tools=[WEATHER, OTHER],
        tool_choice=choice,
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=64,
        stream=stream,
    )
    reply = Reply(model="m", is_tuned=None, began_s=0.0)
    if stream:
        for chunk in answer:
            for each in chunk.model_dump()["choices"]:
                reply.take(each, 1.0)
    else:
        (given,) = answer.model_dump()["choices"]
        reply.take({"delta": given["message"], "finish_reason": given["finish_reason"]}, 1.0)
    if not reply.calls:
        assert (reply.finish, stream) == ("length", False), "a cut call is text in a whole answer"
        assert reply.text.startswith("<tool_call>")
        return
    (call,) = reply.calls
    assert call["name"] in ("get_weather", "other")
    assert reply.finish in ("tool_calls", "stop", "length")
    # Of a function without parameters it takes any JSON as arguments.
    if reply.finish != "length" and call["name"] == "get_weather":
        assert isinstance(json.loads(call["arguments"]), dict)


def test_vllm_may_call(vllm: Vllm) -> None:
    for choice in ("auto", "none"):
        answer = vllm.client().chat.completions.create(
            model=MODEL,
            messages=say("hello"),
            tools=[WEATHER],
            tool_choice=choice,
            max_tokens=8,
        )
        assert answer.choices[0].message.content or answer.choices[0].message.tool_calls


def test_vllm_takes_any_schema_of_a_call_that_may_be_made(vllm: Vllm) -> None:
    """Agents send what their own models of arguments give, and not all of it can be kept to."""
    cities = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    schema = {"type": "object", "properties": {"cities": cities}}
    function = {"type": "function", "function": {"name": "sort", "parameters": schema}}
    answer = vllm.client().chat.completions.create(
        model=MODEL, messages=say("hello"), tools=[function], max_tokens=8
    )
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls


def test_vllm_keeps_a_form(vllm: Vllm) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}, "is_large": {"type": "boolean"}},
        "required": ["city", "is_large"],
        "additionalProperties": False,
    }
    for form in ({"type": "json_object"}, json_schema(schema)):
        answer = vllm.client().chat.completions.create(
            model=MODEL,
            messages=say("Tell me of Oslo in JSON."),
            response_format=form,
            temperature=0,
            max_tokens=64,
        )
        if answer.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)
        else:  # white space as the model likes it
            assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"temperature": "hot"}, 400),
        ({"temperature": -1}, 400),
        ({"top_p": 2}, 400),
        ({"max_tokens": 10**6}, 400),
        ({"messages": None}, 400),
        ({"model": "nobody"}, 404),
    ],
)
def test_what_vllm_refuses_is_one_line(vllm: Vllm, body: dict[str, Any], status: int) -> None:
    client = Client([vllm.url], vllm.key)
    model = server_models(vllm.url, {"data": [{"id": body.get("model", MODEL)}]})[0]
    reply = Reply(model=MODEL, is_tuned=None, began_s=0.0)
    asyncio.run(client.ask(model, {"messages": say("hello"), **body}, reply, lambda: None))
    assert reply.finish == "failed"
    assert reply.error
    assert "\n" not in reply.error
    assert not reply.error.startswith(("answered", "{"))
    with pytest.raises(openai.APIStatusError) as caught:
        vllm.client().post(
            "/chat/completions",
            body={"model": MODEL, "messages": say("hello"), **body},
            cast_to=object,
        )
    assert caught.value.status_code == status


def test_vllm_asks_for_the_key_at_every_door(vllm: Vllm) -> None:
    chat = {"model": MODEL, "messages": say("hello"), "max_tokens": 1}
    right = {"Authorization": f"Bearer {vllm.key}"}
    for path in ("/v1/chat/completions", "/invocations"):
        assert vllm.status(path, chat) == 401
        assert vllm.status(path, chat, Authorization="Bearer another") == 401
        assert vllm.status(path, chat, **right) == 200
        assert vllm.status(path, chat, **right, Host="evil.example") == 403
    assert [vllm.status(path) for path in ("/v1/models", "/metrics", "/health")] == [401, 401, 200]


def test_a_load_test_of_vllm_says_what_it_measured(vllm: Vllm, tmp_path: Path) -> None:
    model = Path.home() / ".cache/soperator-stack/models"
    places = {"SOPERATOR_PLACE_RESULTS": str(tmp_path), "SOPERATOR_PLACE_MODEL": str(model)}
    words = ["--url", vllm.url, "--set", "load.sweep=[1,2]", "--set", "load.requests_per_stream=1"]
    words += ["--set", "load.prompt_tokens.mean=16", "--set", "load.output_tokens.mean=4"]
    words += ["--set", "load.open_loop.shares=[]", "--set", "load.timeout_s=600"]
    done = subprocess.run(
        [sys.executable, "-m", "workloads.load", *words],
        cwd=CHECKOUT,
        env={
            **os.environ,
            **places,
            "SLURM_JOB_ID": "7",
            "SOPERATOR_SERVE_API_KEY": vllm.key,
        },
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    record = json.loads(done.stdout.strip().splitlines()[-1])
    assert (record["engine"], record["outcome"]) == ("vllm", "PASS")


def test_vllm_lets_end_what_can_and_cuts_what_cannot(vllm: Vllm) -> None:
    """SIGTERM to the job, as Slurm sends it, in the middle of four answers."""
    told: dict[str, Any] = {}
    begun = threading.Semaphore(0)

    def ask(name: str, tokens: int) -> None:
        began: list[float] = []
        client = Client([vllm.url], vllm.key)
        reply = Reply(model=MODEL, is_tuned=False, began_s=0.0)

        def changed() -> None:
            if not began and len(reply.times_s) > 2:
                began.append(1.0)
                begun.release()

        body = {"messages": say(name), "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        model = server_models(vllm.url, {"data": [{"id": MODEL}]})[0]
        asyncio.run(client.ask(model, body, reply, changed))
        told[name] = reply

    threads = [threading.Thread(target=ask, args=each) for each in (("short", 16), ("long", 4000))]
    for each in threads:
        each.start()
    for _ in threads:
        assert begun.acquire(timeout=WAIT_S)
    began_s = time.monotonic()
    vllm.process.send_signal(signal.SIGTERM)
    code = vllm.process.wait(timeout=WAIT_S)
    took_s = time.monotonic() - began_s
    for each in threads:
        each.join(timeout=60)
    assert (told["short"].finish, told["short"].error) == ("length", None)
    assert told["long"].finish == "failed"
    assert took_s >= DRAIN_S
    assert code in (0, ExitCode.PREEMPTED), "killed where it waits for the reader of the long one"
    assert took_s < DRAIN_S + 60
