"""The load test against a server whose delays and faults are known.

The invariants: a stall of the server is in the latencies of all who would have come meanwhile, each
fault has its class, and every end has its own exit code and one line.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.bench.stand_in import Behaviour, StandIn, running
from tests.ports import free_ports
from workloads.common.exit_codes import ConfigError
from workloads.job import run_job
from workloads.load.__main__ import main, recipe_arguments
from workloads.load.client import ChatClient, Sample
from workloads.load.http import ChatEvents, HttpClient, HttpError
from workloads.load.prompts import Arrival
from workloads.load.run import Chat, closed_loop, open_loop, percentile

CHAT: Chat = ([{"role": "user", "content": "hello"}], 4)
SLACK_S = 10.0
"""What a busy machine may add to a delay; delays are never shorter than told."""
RunLoad = Callable[..., tuple[int, dict[str, Any], dict[str, Any]]]


@pytest.fixture
def load(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tokenizer: Any,
) -> RunLoad:
    """Runs the job with small lengths: exit code, run record, load.json."""
    tokenizer.save_pretrained(tmp_path / "models" / "tiny")
    (tmp_path / "models" / "tiny" / "config.json").write_text("{}")
    monkeypatch.setenv("SOPERATOR_PLACE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("SOPERATOR_PLACE_MODEL", str(tmp_path / "models"))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SOPERATOR_SERVE_API_KEY", raising=False)

    def run(*arguments: str) -> tuple[int, dict[str, Any], dict[str, Any]]:
        words = ["--model", "tiny", "--set", "load.open_loop.shares=[]", *arguments]
        code = run_job("load", main, recipe_arguments(words))
        record = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
        path = tmp_path / "results" / "7" / "load.json"
        return int(code), record, json.loads(path.read_text()) if path.exists() else {}

    return run


async def _client(url: str, timeout_s: float = 20.0) -> ChatClient:
    client = ChatClient(url, None, timeout_s=timeout_s, ignore_eos=True)
    client.model = "stand-in"
    return client


def ask(url: str, timeout_s: float = 20.0) -> Sample:
    """One chat."""

    async def go() -> Sample:
        client = await _client(url, timeout_s)
        try:
            return await client.ask(*CHAT)
        finally:
            client.close()

    return asyncio.run(go())


def test_latencies_are_the_delays_of_the_server():
    with running(lambda *_: Behaviour(first_s=0.2, gap_s=0.05, tokens=5)) as (_, url):
        sample = ask(url)
    assert sample.is_ok
    assert sample.ttft_s is not None
    assert sample.tpot_s is not None
    assert 0.2 <= sample.ttft_s < 0.2 + SLACK_S
    assert 0.4 <= sample.e2e_s < 0.4 + SLACK_S
    assert sample.tpot_s == pytest.approx((sample.times_s[-1] - sample.times_s[0]) / 4)
    assert (sample.output_tokens, len(sample.times_s), sample.prompt_tokens) == (5, 5, 1 + 7)


def stalling(at: int, stall_s: float) -> Callable[[int, dict[str, Any]], Behaviour]:
    """Answers at once, but nobody for `stall_s` after request `at` came."""
    until: list[float] = []

    def behave(number: int, _: dict[str, Any]) -> Behaviour:
        if number >= at and not until:
            until.append(time.monotonic() + stall_s)
        left_s = until[0] - time.monotonic() if until else 0.0
        return Behaviour(first_s=max(0.0, left_s))

    return behave


def test_a_stall_is_in_the_latencies_of_all_who_would_have_come_meanwhile():
    """100 requests/s, and a stall of 1 s for one connection: the closed loop has one slow sample.

    With `max_in_flight=1` this side sends as late as a closed loop does: from the moment of sending
    the stall is one sample of 80, from the intended one it is most of them.
    """
    arrivals = [Arrival(at_s=number / 100) for number in range(80)]

    async def go(url: str, max_in_flight: int) -> list[Sample]:
        client = await _client(url)
        chats = [CHAT] * len(arrivals)
        if max_in_flight == 0:
            return (await closed_loop(client, chats, 1, 0)).samples
        return (await open_loop(client, chats, arrivals, 0, max_in_flight)).samples

    def p50_and_most(samples: list[Sample]) -> tuple[float, float]:
        times = sorted(each.e2e_s for each in samples)
        return percentile(times, 0.5), times[-1]

    with running(stalling(10, 1.0)) as (_, url):
        closed = asyncio.run(go(url, 0))
    with running(stalling(10, 1.0)) as (_, url):
        late = asyncio.run(go(url, 1))
    with running(stalling(10, 1.0)) as (_, url):
        opened = asyncio.run(go(url, 1024))
    closed_p50, closed_most = p50_and_most(closed)
    assert closed_most >= 1.0
    assert closed_p50 < closed_most / 4, "the closed loop hides the stall"
    for samples in (late, opened):
        p50_s, most_s = p50_and_most(samples)
        assert p50_s > 0.3
        assert most_s >= 0.9
    from_sending = sorted(each.ended_s - each.sent_s for each in late)
    assert percentile(from_sending, 0.5) < from_sending[-1] / 4, "as a closed loop would have it"


def test_every_stream_of_a_sweep_is_busy_and_the_warm_up_counts_nowhere():
    most, now = [0], [0]
    lock = threading.Lock()

    class Watching(ChatClient):
        async def ask(self, *arguments: Any, **options: Any) -> Sample:
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            try:
                return await super().ask(*arguments, **options)
            finally:
                now[0] -= 1

    async def go(url: str):
        client = Watching(url, None, timeout_s=20, ignore_eos=True)
        client.model = "stand-in"
        return await closed_loop(client, [CHAT] * 20, 4, 4)

    with running(lambda *_: Behaviour(first_s=0.02)) as (_, url):
        loop = asyncio.run(go(url))
    assert most[0] == 4
    assert [each.is_measured for each in loop.samples].count(False) == 4
    assert loop.window_s[0] < loop.window_s[1]


@pytest.mark.parametrize(
    ("behaviour", "outcome", "detail"),
    [
        (Behaviour(cut_after=2), "disconnected", "closed early"),
        (Behaviour(garbage_after=2), "malformed", "no chat chunk: b'{not json'"),
        (Behaviour(tokens=0), "empty", "the answer has no token"),
        (Behaviour(status=500), "http_500", "as told"),
        (Behaviour(status=400), "http_400", "as told"),
        (Behaviour(status=429, retry_after="3"), "rejected", "as told"),
        (Behaviour(first_s=60), "timeout", "no whole answer in 0.3 s"),
    ],
)
def test_each_fault_has_its_class(behaviour: Behaviour, outcome: str, detail: str):
    with running(lambda *_: behaviour) as (_, url):
        sample = ask(url, timeout_s=0.3 if outcome == "timeout" else 20)
    assert (sample.outcome, sample.detail) == (outcome, detail)
    assert sample.retry_after_s == (3.0 if outcome == "rejected" else None)
    assert sample.is_error is (outcome not in ("rejected", "timeout"))


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (b"HTTP/1.1 2\xb20 OK\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"1" * 5000 + b"\r\n\r\n", "malformed"),
        (b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\n\r\n", "malformed"),
        # A length below 0 would send the reader back to what it has read, for ever.
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-ff\r\n", "malformed"),
        (
            b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n",
            "http_503",
        ),
    ],
)
def test_an_answer_that_is_not_http_ends_its_request_alone(answer: bytes, outcome: str):
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    async def go() -> Sample:
        async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            client = await _client(f"http://127.0.0.1:{port}/v1", timeout_s=2)
            try:
                return await client.ask(*CHAT)
            finally:
                client.close()

    assert asyncio.run(go()).outcome == outcome


def test_a_port_where_nobody_listens_is_a_failed_connect():
    (port,) = free_ports(1)
    assert ask(f"http://127.0.0.1:{port}/v1").outcome == "connect"


def test_a_connection_is_used_again_and_replaced_once_when_the_server_closed_it():
    async def go(url: str) -> list[Sample]:
        client = await _client(url)
        first = await client.ask(CHAT[0], 2)
        (kept,) = client._http._idle
        second = await client.ask(CHAT[0], 2)
        assert client._http._idle == [kept]
        assert kept.transport is not None
        kept.transport.abort()  # closed, and this side has not seen it yet
        kept.is_open = True
        third = await client.ask(CHAT[0], 2)
        client.close()
        return [first, second, third]

    with running(lambda *_: Behaviour()) as (server, url):
        assert [each.outcome for each in asyncio.run(go(url))] == ["ok"] * 3
    assert len(server.requests) == 3


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_a_stream_is_read_alike_however_its_bytes_are_cut(size: int, line_end: bytes):
    token = b'data: {"choices": [{"delta": {"content": "a"}}]}'
    lines = [
        b": a comment",
        b"",
        b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}',
        b"",
        *[token, b""] * 3,
        b'data: {"choices": [],',
        b'data: "usage": {"completion_tokens": 3}}',
        b"",
        b"data: [DONE]",
        b"",
        b"",
    ]
    data = line_end.join(lines)
    events = ChatEvents()
    for at in range(0, len(data), size):
        events.feed(data[at : at + size], float(at))
    events.finish()
    assert len(events.times_s) == 3
    assert events.usage == {"completion_tokens": 3}


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"data: []\n\n", "malformed"),
        (b"data: {}\n\n", "malformed"),
        (b"<html>\n\n", "malformed"),
        (b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n', "malformed"),
        (b'data: {"error": {"message": "out of memory"}}\n\n', "stream_error"),
    ],
)
def test_what_is_no_whole_chat_stream_is_told_by_kind(data: bytes, kind: str):
    events = ChatEvents()

    def read() -> None:
        events.feed(data, 0.0)
        events.finish()

    with pytest.raises(HttpError) as caught:
        read()
    assert caught.value.kind == kind


def test_the_job_writes_curve_record_and_settings(load: RunLoad, tmp_path: Path):
    with running(lambda *_: Behaviour(first_s=0.02, gap_s=0.005)) as (server, url):
        code, record, result = load(
            *("--url", url, "--set", "load.sweep=[1,4]", "--set", "load.slo.ttft_ms=5000"),
            *("--set", "load.target.model=stand-in"),
            *("--set", "load.target.platform=p", "--set", "load.target.preset=q"),
            *("--set", "load.target.engine=vllm", "--set", "load.open_loop.rates_per_s=[40]"),
            *("--set", "load.open_loop.requests=8"),
        )
    assert (code, record["outcome"], record["kind"]) == (0, "PASS", "load")
    assert record["model"] == "tiny"
    assert record["engine"] == "vllm"
    assert (record["hardware"]["platform"], record["hardware"]["preset"]) == ("p", "q")
    curve = [(each["loop"], each["concurrency"], each["rate_per_s"]) for each in result["curve"]]
    assert curve == [("closed", 1, None), ("closed", 4, None), ("poisson", None, 40.0)]
    assert result["verdicts"] == {"errors": "PASS", "slo": "PASS"}
    assert result["operating_point"]["concurrency"] == record["metrics"]["batch_size"] == 4
    assert record["metrics"]["median_ttft_ms"] >= 20
    kept = json.loads((tmp_path / "results" / "7" / "config.json").read_text())
    assert kept["load"]["sweep"] == [1, 4]
    # The first chat measures the template; then 1 + 8, 4 + 8, 1 + 8 with their warm-up.
    assert len(server.requests) == 1 + 9 + 12 + 9
    texts = [each["messages"][0]["content"] for each in server.requests]
    assert len(set(texts)) == len(texts), "a prefix cache must not gain by equal prompts"
    assert all(each["ignore_eos"] for each in server.requests)


@contextlib.contextmanager
def with_another_client(beside: Sequence[int]) -> Iterator[tuple[StandIn, str]]:
    """A server that somebody else asks too, at the same time as these requests."""
    others: list[threading.Thread] = []

    def behave(number: int, _: dict[str, Any]) -> Behaviour:
        if number in beside:
            others.append(threading.Thread(target=ask, args=(url,)))
            others[-1].start()
        return Behaviour(first_s=0.05)

    with running(behave) as (server, url):
        yield server, url
        for each in others:
            each.join()


def test_a_stage_beside_requests_of_others_is_measured_again(load: RunLoad):
    with with_another_client([4]) as (server, url):
        code, record, result = load("--url", url, "--set", "load.sweep=[1]")
    assert (code, record["outcome"]) == (0, "PASS")
    assert len(result["curve"]) == 1
    # The template's, 9 of the stage that does not count, the other's, 9 of the one that does.
    assert len(server.requests) == 1 + 9 + 1 + 9


def test_a_job_that_measures_says_what_it_measures_now_not_what_it_measured_last(
    load: RunLoad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workloads.common.log.QUIET_S", 0.05)
    with running(lambda *_: Behaviour(first_s=0.2)) as (_, url):
        monkeypatch.setattr("sys.stderr", said := io.StringIO())
        assert load("--url", url, "--set", "load.sweep=[1,2]")[0] == 0
    before, *ends = re.split(r" (closed loop at \d streams): .* answered\n", said.getvalue())
    loops = ends[::2]
    assert loops[:2] == ["closed loop at 1 streams", "closed loop at 2 streams"]
    for text, loop in zip([before, *ends[1::2]], loops, strict=False):
        still = re.findall(r"still: (.*), \d+ s", text)
        assert loop in still
        # On a busy machine what came before is said again too, but not once the loop runs.
        assert set(still[still.index(loop) :]) == {loop}


def test_a_server_that_others_use_all_the_time_gives_no_speed_and_no_price(load: RunLoad):
    with with_another_client([4, 6, 16]) as (server, url):
        code, record, result = load("--url", url, "--set", "load.sweep=[1,4]")
    assert (code, record["outcome"]) == (69, "NOT_RUN")
    assert "others use this server: 1 requests of theirs beside 1 streams" in record["reason"]
    assert result["curve"] == []
    assert "output_tokens_per_s" not in record["metrics"]
    assert len(server.requests) == 1 + 9 + 2 + 9 + 1


def test_rows_of_a_file_are_asked_without_their_answers(load: RunLoad, tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    roles = [("user", "first"), ("assistant", "no"), ("user", "second"), ("assistant", "last")]
    messages = [{"role": role, "content": content} for role, content in roles]
    rows.write_text(json.dumps({"messages": messages}) + "\n")
    with running(lambda *_: Behaviour()) as (server, url):
        code, *_ = load("--url", url, "--rows", str(rows), "--set", "load.sweep=[1]")
    assert code == 0
    assert {each["messages"][-1]["content"] for each in server.requests} == {"second"}


def test_a_promise_that_no_point_keeps_fails_only_when_it_is_required(load: RunLoad):
    with running(lambda *_: Behaviour(first_s=0.05)) as (_, url):
        words = ("--url", url, "--set", "load.sweep=[1]", "--set", "load.slo.ttft_ms=1")
        code, record, result = load(*words)
        assert (code, record["outcome"], result["verdicts"]["slo"]) == (0, "PASS", "FAIL")
        assert result["operating_point"] is None
        assert "output_tokens_per_s" in record["metrics"]
        code, record, _ = load(*words, "--set", "load.require_slo=true")
    assert (code, record["outcome"]) == (1, "FAIL")
    assert record["reason"].startswith("no point keeps load.slo")


def test_refusals_are_no_failure_and_errors_are(load: RunLoad):
    def sometimes(how: Behaviour) -> Callable[[int, dict[str, Any]], Behaviour]:
        return lambda number, _: how if number % 4 == 3 else Behaviour()

    with running(sometimes(Behaviour(status=429, retry_after="0"))) as (_, url):
        code, record, result = load("--url", url, "--set", "load.sweep=[1]")
    assert (code, record["outcome"]) == (0, "PASS")
    assert result["curve"][0]["num_rejected"] == 2
    assert result["curve"][0]["num_errors"] == 0
    with running(sometimes(Behaviour(garbage_after=1))) as (_, url):
        code, record, result = load("--url", url, "--set", "load.sweep=[1]")
    assert (code, record["outcome"]) == (1, "FAIL")
    assert "of 9 requests failed" in record["reason"]
    assert "the first: malformed: no chat chunk" in record["reason"]
    assert result["verdicts"]["errors"] == "FAIL"


def test_a_test_of_which_no_request_was_answered_passes_nothing(load: RunLoad):
    full = Behaviour(status=429, retry_after="0")
    with running(lambda number, _: full if number else Behaviour()) as (_, url):
        code, record, result = load("--url", url, "--set", "load.sweep=[1]")
    assert (code, record["outcome"]) == (69, "NOT_RUN")
    assert "none of 8 measured requests was answered in time" in record["reason"]
    assert result["verdicts"]["errors"] == "NOT RUN"
    with running(lambda number, _: Behaviour(status=500 if number > 1 else 200)) as (_, url):
        most = ("--set", "load.max_error_share=0.9")
        code, record, _ = load("--url", url, "--set", "load.sweep=[1]", *most)
    assert code == 69
    assert record["reason"].endswith("; the first error: http_500: as told"), record["reason"]


def test_a_server_that_dies_in_the_middle_ends_the_test_with_what_it_has(load: RunLoad):
    found: list[Any] = []

    def behave(number: int, _: dict[str, Any]) -> Behaviour:
        # The first of the second stage: each connection that is kept ends one request otherwise.
        if number >= 10:
            found[0].stop()
            return Behaviour(cut_after=1)
        return Behaviour()

    with running(behave) as (server, url):
        found.append(server)
        code, record, result = load("--url", url, "--set", "load.sweep=[1,2,4]")
    assert (code, record["outcome"]) == (1, "FAIL")
    assert "5 requests in a row could not connect after" in record["reason"]
    assert [each["concurrency"] for each in result["curve"]] == [1]


@pytest.mark.parametrize(
    ("path", "words", "code", "reason"),
    [
        ("/wrong", (), 2, "/wrong/models: answered 404, not a list of models; give the address"),
        ("/v1", ("--set", "load.target.model=x"), 2, "no model 'x' (has: stand-in)"),
        ("/v1", ("--set", "load.sweep=[2]"), 2, "load.sweep: got [2], expected rising numbers"),
        (
            "/v1",
            ("--set", "load.open_loop.trace=/nowhere.jsonl"),
            65,
            "/nowhere.jsonl: cannot be read",
        ),
        ("/v1", ("--tokenizer", "none"), 65, "model 'none' was not found"),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_an_exit_code(
    load: RunLoad, path: str, words: tuple[str, ...], code: int, reason: str
):
    with running(lambda *_: Behaviour()) as (server, url):
        got, record, _ = load("--url", url.removesuffix("/v1") + path, *words)
    assert (got, record["outcome"]) == (code, "FAIL")
    assert reason in record["reason"]
    assert "\n" not in record["reason"]
    assert server.requests == []


def test_a_server_that_is_not_there_is_one_line(load: RunLoad):
    (port,) = free_ports(1)
    code, record, _ = load("--url", f"http://127.0.0.1:{port}/v1")
    assert (code, record["outcome"]) == (1, "FAIL")
    assert f"http://127.0.0.1:{port}/v1/models: " in record["reason"]
    assert "is the server up" in record["reason"]
    code, record, _ = load()
    assert code == 2
    assert "load.target: no server; give --url" in record["reason"]


def test_a_serve_job_is_found_by_its_endpoint_and_its_key(load: RunLoad, tmp_path: Path):
    key_file = tmp_path / "key"
    key_file.write_text("a-key-of-some-length\n")
    with running(lambda *_: Behaviour()) as (server, url):
        port = int(url.split(":")[2].split("/")[0])
        endpoint = {"host": "127.0.0.1", "port": port, "api_key_file": str(key_file)}
        folder = tmp_path / "results" / "12"
        folder.mkdir(parents=True)
        (folder / "endpoint.json").write_text(json.dumps(endpoint))
        code, *_ = load("--serve-job", "12", "--set", "load.sweep=[1]")
    assert code == 0
    assert set(server.keys) == {"Bearer a-key-of-some-length"}
    code, record, _ = load("--serve-job", "13")
    assert code == 2
    assert "is that job a running server that has come up?" in record["reason"]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://localhost:70000/v1", "Port out of range 0-65535"),
        ("http://localhost:http/v1", "Port could not be cast to integer value as 'http'"),
        ("http://[::1/v1", "Invalid IPv6 URL"),
        ("http://localhost:0/v1", "port 0; allowed: 1 to 65535"),
        (
            "http://a..b/v1",
            "encoding with 'idna' codec failed (UnicodeError: label empty or too long)",
        ),
    ],
)
def test_an_address_that_cannot_be_read_is_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        HttpClient(url, at="--url")
    assert str(refusal.value) == (
        f"--url {url}: expected http://HOST:PORT/v1, without a user or any other @ in it: {reason}"
    )


@pytest.mark.parametrize("url", ["http://ann:hunter2@localhost/v1", "ann:hunter2@localhost:1/v1"])
def test_a_password_in_the_url_lies_in_no_file_of_the_results(
    url: str, load: RunLoad, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The refusal showed none, and recipe.json and config.json had it."""
    _, record, _ = load("--url", url)
    assert record["outcome"] != "PASS"
    assert "load.target.url: has an @" in str(record["reason"])
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert [each for each in files if "hunter2" in each.read_text(errors="replace")] == []
    assert "hunter2" not in json.dumps(record) + "".join(capsys.readouterr())
