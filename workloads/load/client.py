"""The server under load: where it is, what it says of itself, and one chat asked and timed."""

from __future__ import annotations

import json
import os
import re
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from workloads.common import atomic
from workloads.common.exit_codes import ConfigError, WorkloadError
from workloads.common.places import Places
from workloads.load.http import Answer, ChatEvents, HttpClient, HttpError, streamed
from workloads.load.prompts import Message
from workloads.recipes.load import Target

OK = "ok"
REJECTED = "rejected"
"""Answered 429: the server protects itself. Counted apart from errors."""
TIMEOUT = "timeout"


@dataclass(slots=True, kw_only=True)
class Sample:
    """One request of a run; times are of time.perf_counter."""

    intended_s: float
    """When it had to be sent; in a closed loop: when it was."""
    is_measured: bool
    """Whether it counts; requests of the warm-up do not."""
    sent_s: float = 0.0
    ended_s: float = 0.0
    outcome: str = OK
    """ok, rejected, timeout, or the class of the error: connect, tls, disconnected, malformed,
    stream_error, empty, http_<status>."""
    detail: str = ""
    times_s: Sequence[float] = field(default_factory=lambda: array("d"))
    """When each piece of the answer came."""
    prompt_tokens: int | None = None
    """As the server counted them; None where it did not."""
    cached_tokens: int = 0
    output_tokens: int = 0
    retry_after_s: float | None = None

    @property
    def is_ok(self) -> bool:
        """Whether the whole answer came."""
        return self.outcome == OK

    @property
    def is_error(self) -> bool:
        """Whether it failed by itself; a refusal or a timeout says that there is too much."""
        return self.outcome not in (OK, REJECTED, TIMEOUT)

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token; None when none came."""
        return self.times_s[0] - self.intended_s if len(self.times_s) else None

    @property
    def e2e_s(self) -> float:
        """Seconds to the end of the answer."""
        return self.ended_s - self.intended_s

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds for each token after the first; None for an answer of one."""
        if self.output_tokens < 2 or len(self.times_s) < 2:
            return None
        return (self.times_s[-1] - self.times_s[0]) / (self.output_tokens - 1)


KEY_VARIABLE = "SOPERATOR_SERVE_API_KEY"
ENDPOINT_FILE = "endpoint.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that can be asked."""

    url: str
    key: str | None
    adapter_dir: str | None = None
    """Adapter of its tuned model, where the server says it."""


def find_server(
    target: Target, places: Places, environment: Mapping[str, str] | None = None
) -> Server:
    """Return address and key; what is missing is refused with what to set."""
    environment = os.environ if environment is None else environment
    key_file = adapter_dir = None
    if target.api_key_file is not None:
        key_file = places.expand(target.api_key_file, at="load.target.api_key_file")
    if target.serve_job is not None:
        url, job_key_file, adapter_dir = _endpoint(
            places.path("results") / target.serve_job / ENDPOINT_FILE
        )
        key_file = key_file or job_key_file
    elif target.url is not None:
        url = target.url
    else:
        raise ConfigError(
            "load.target: no server; give --url http://HOST:PORT/v1, or the id of a running serve "
            "job as --serve-job"
        )
    key = environment.get(KEY_VARIABLE) or None
    if not key and key_file is not None:
        try:
            key = key_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"load.target.api_key_file: {key_file} cannot be read: {error}"
            ) from error
    return Server(url=url.rstrip("/"), key=key, adapter_dir=adapter_dir)


def _endpoint(path: Path) -> tuple[str, Path | None, str | None]:
    # It says which file is read as a key, and who is sent it.
    for each in (path.parent, path):
        if whose := atomic.foreign(each):
            raise ConfigError(f"load.target.serve_job: {each}: {whose}, or give --url")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        host, port, key_file = values["host"], values["port"], values["api_key_file"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"load.target.serve_job: {path} cannot be read ({error}); is that job a running server "
            "that has come up?"
        ) from error
    host = f"[{host}]" if ":" in host else host
    url = f"http://{host}:{port}/v1"
    return url, Path(key_file) if key_file else None, values.get("adapter_dir")


_COUNTERS = ("serve_requests_total", "vllm:request_success_total")
"""Requests that ended, by the server: a counter with labels has no sample before the first one."""
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_GPU = re.compile(r'gpu="([^"]*)"')
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoad:
    """What one page of metrics said; None: it did not say."""

    gpus: Mapping[str, Mapping[str, float]]
    """Gauges of each: utilization_ratio, memory_used_bytes, memory_total_bytes; those it has."""
    memory_bytes: float | None
    num_running: float | None
    num_waiting: float | None
    kv_share: float | None
    num_ended: float | None = None
    """Requests since its start that came to an end, whatever it was."""

    @property
    def num_underway(self) -> float:
        """Requests that have not ended."""
        return (self.num_running or 0) + (self.num_waiting or 0)


def read_metrics(text: str) -> ServerLoad:
    """Return what the page says; lines that it should not have are passed over."""
    sums = {name: 0.0 for name in _COUNTERS if f"# TYPE {name} counter\n" in text}
    gpus: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if found is None:
            continue
        name, labels, number = found.groups()
        try:
            value = float(number)
        except ValueError:
            continue
        gpu = _GPU.search(labels or "")
        if name.startswith("serve_gpu_") and gpu is not None:
            gpus.setdefault(gpu[1], {})[name.removeprefix("serve_gpu_")] = value
        else:
            sums[name] = sums.get(name, 0.0) + value
    room = sums.get("serve_kv_cache_tokens")
    used = sums.get("serve_kv_cache_used_tokens")
    return ServerLoad(
        gpus=dict(sorted(gpus.items())),
        memory_bytes=sums.get("serve_memory_bytes"),
        num_running=sums.get("serve_running_requests", sums.get("vllm:num_requests_running")),
        num_waiting=sums.get("serve_waiting_requests", sums.get("vllm:num_requests_waiting")),
        num_ended=next((sums[name] for name in _COUNTERS if name in sums), None),
        kv_share=used / room if room and used is not None else sums.get("vllm:kv_cache_usage_perc"),
    )


def load_line(load: ServerLoad) -> str:
    """Return the load in one line."""
    parts = [_gpu(name, gpu) for name, gpu in load.gpus.items()]
    if not parts:
        parts.append("No GPU reported")
        if load.memory_bytes is not None:
            parts.append(f"memory of the server {load.memory_bytes / _GIB:.1f} GiB")
    if load.num_running is not None and load.num_waiting is not None:
        parts.append(f"{load.num_running:.0f} answering, {load.num_waiting:.0f} waiting")
    if load.kv_share is not None:
        parts.append(f"KV cache {100 * load.kv_share:.0f} % used")
    return " | ".join(parts)


def _gpu(name: str, gauges: Mapping[str, float]) -> str:
    busy, used = gauges.get("utilization_ratio"), gauges.get("memory_used_bytes")
    total = gauges.get("memory_total_bytes")
    text = f"GPU {name}: " + ("use not reported" if busy is None else f"{100 * busy:.0f} % busy")
    if used is not None and total is not None:
        text += f", {used / _GIB:.1f} of {total / _GIB:.1f} GiB"
    return text


_GONE_AFTER = 5
"""Requests in a row that could not even connect: the server is gone."""
_MAX_RETRY_AFTER_S = 3600.0
_CONTROL_TIMEOUT_S = 30.0


# `owned_by` of GET /v1/models: ours (workloads/serve/app.py), and vLLM's
# (vllm/entrypoints/openai, ModelCard.owned_by; read 2026-11-21).
_ENGINES = {"soperator-stack": "transformers", "vllm": "vllm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model of GET /v1/models."""

    name: str
    engine: str | None
    """None: the server does not tell by what it runs."""
    context_tokens: int | None


class ChatClient:
    """One server and how it is asked."""

    def __init__(self, url: str, key: str | None, *, timeout_s: float, ignore_eos: bool) -> None:
        self.url = url.rstrip("/")
        self._http = HttpClient(self.url, key, at="load.target.url")
        self._root = HttpClient(self.url.removesuffix("/v1"), key, at="load.target.url")
        self._timeout_s = timeout_s
        self._ignore_eos = ignore_eos
        self._num_answered = self._num_unreached = 0
        self.model = ""

    def close(self) -> None:
        self._http.close()
        self._root.close()

    async def traffic(self) -> ServerLoad | None:
        """Return what the server's /metrics says; None where it counts no requests."""
        try:
            answer = await self._root.get("/metrics", _CONTROL_TIMEOUT_S)
        except HttpError:
            return None
        load = read_metrics(bytes(answer.body).decode(errors="replace"))
        return None if answer.status != 200 or load.num_ended is None else load

    async def models(self) -> list[ServedModel]:
        """Return the models that the server lists; whatever else is there is refused."""
        address = f"{self.url}/models"
        try:
            answer = await self._http.get("/models", _CONTROL_TIMEOUT_S)
        except HttpError as error:
            raise WorkloadError(
                f"{address}: {error}; is the server up, and this its address?"
            ) from error
        if answer.status in (401, 403):
            raise ConfigError(
                f"{address}: answered {answer.status}; export SOPERATOR_SERVE_API_KEY or set "
                "load.target.api_key_file"
            )
        try:
            cards = json.loads(bytes(answer.body))["data"]
            lengths = {card["id"]: card.get("max_model_len") for card in cards}
            found = [_served(card, lengths.get(card.get("parent"))) for card in cards]
            if answer.status != 200 or not found:
                raise ValueError
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{address}: answered {answer.status}, not a list of models; give the address of "
                "an OpenAI-compatible server up to /v1"
            ) from error
        return found

    async def ask(
        self,
        messages: list[Message],
        output_tokens: int,
        *,
        intended_s: float | None = None,
        is_measured: bool = True,
    ) -> Sample:
        """Return what came of one chat, whatever the server does; WorkloadError when it is gone."""
        body = streamed(
            model=self.model,
            messages=messages,
            max_tokens=output_tokens,
            temperature=0,
            **({"ignore_eos": True} if self._ignore_eos else {}),
        )
        now_s = time.perf_counter()
        sample = Sample(
            intended_s=now_s if intended_s is None else intended_s,
            is_measured=is_measured,
            sent_s=now_s,
        )
        events = ChatEvents()
        try:
            spent_s = now_s - sample.intended_s
            answer = await self._http.chat(body, events, timeout_s=self._timeout_s, spent_s=spent_s)
            sample.ended_s = time.perf_counter()
            _judge(sample, answer, events)
        except HttpError as error:
            sample.outcome, sample.detail = error.kind, str(error)
        sample.ended_s = sample.ended_s or time.perf_counter()
        sample.times_s = events.times_s
        sample.output_tokens = len(events.times_s)
        _count(sample, events.usage)
        self._num_answered += sample.is_ok
        self._num_unreached = self._num_unreached + 1 if sample.outcome == "connect" else 0
        if self._num_unreached >= _GONE_AFTER:
            raise WorkloadError(
                f"{self.url}: {_GONE_AFTER} requests in a row could not connect after "
                f"{self._num_answered} answers of this run ({sample.detail}); the server is gone: "
                "see its log"
            )
        return sample


def _served(card: Mapping[str, Any], base_tokens: object) -> ServedModel:
    length = card.get("max_model_len") or base_tokens  # vLLM's card of an adapter has none
    return ServedModel(
        name=str(card["id"]),
        engine=_ENGINES.get(card.get("owned_by", "")),
        context_tokens=length if isinstance(length, int) else None,
    )


def _judge(sample: Sample, answer: Answer, events: ChatEvents) -> None:
    if answer.status == 200:
        if not events.times_s:
            if not (events.usage or {}).get("completion_tokens"):
                raise HttpError("empty", "the answer has no token")
            # Tokens without text, such as half a character at the end: they came by its end.
            events.times_s.append(sample.ended_s)
        # The end of the answer is its last token, not the closing lines of the stream.
        sample.ended_s = events.times_s[-1]
        return
    sample.outcome = REJECTED if answer.status == 429 else f"http_{answer.status}"
    sample.detail = answer.problem(200)
    sample.retry_after_s = _retry_after_s(answer.headers.get("retry-after"))


def _count(sample: Sample, usage: Mapping[str, Any] | None) -> None:
    """Take the server's own counts; a stream may put several tokens into one event."""
    if not usage:
        return
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if isinstance(prompt, int):
        sample.prompt_tokens = prompt
    if isinstance(output, int) and output > 0:
        sample.output_tokens = output
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    if isinstance(cached, int):
        sample.cached_tokens = cached


def _retry_after_s(text: str | None) -> float | None:
    """Seconds of a Retry-After header, which is a number or a date; None for neither."""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(seconds, 0.0), _MAX_RETRY_AFTER_S) if seconds == seconds else None
