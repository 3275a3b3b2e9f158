"""Asks the server one chat and measures the answer; names the class of every failure."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from workloads.chat.server_load import read_metrics
from workloads.common.exit_codes import ConfigError, WorkloadError
from workloads.load.http import Answer, HttpClient, HttpError
from workloads.load.prompts import Message
from workloads.load.sample import REJECTED, TIMEOUT, Sample
from workloads.load.sse import ChatEvents

_MAX_RETRY_AFTER_S = 3600.0
_CONTROL_TIMEOUT_S = 30.0


# `owned_by` of GET /v1/models: ours (workloads/serve/answers.py), and vLLM's
# (vllm/entrypoints/openai, ModelCard.owned_by; read 2026-11-21).
_ENGINES = {"soperator-stack": "transformers", "vllm": "vllm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model of GET /v1/models."""

    name: str
    engine: str | None
    """None: the server does not tell by what it runs."""
    context_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests of all who use the server."""

    ended: float
    """Since its start."""
    underway: float


class ChatClient:
    """One server and how it is asked."""

    def __init__(self, url: str, key: str | None, *, timeout_s: float, ignore_eos: bool) -> None:
        self.url = url.rstrip("/")
        self._http = HttpClient(self.url)
        self._root = HttpClient(self.url.removesuffix("/v1"))
        self._headers: Mapping[str, str] = {"Authorization": f"Bearer {key}"} if key else {}
        self._timeout_s = timeout_s
        self._ignore_eos = ignore_eos
        self.model = ""

    def close(self) -> None:
        """Close the kept connections."""
        self._http.close()
        self._root.close()

    async def traffic(self) -> Traffic | None:
        """Return what the server's /metrics counts; None where it has no such page."""
        try:
            async with asyncio.timeout(_CONTROL_TIMEOUT_S):
                answer = await self._root.request("GET", "/metrics", headers=self._headers)
        except (TimeoutError, HttpError):
            return None
        load = read_metrics(bytes(answer.body).decode(errors="replace"))
        if answer.status != 200 or load.num_ended is None:
            return None
        return Traffic(
            ended=load.num_ended, underway=(load.num_running or 0) + (load.num_waiting or 0)
        )

    async def models(self) -> list[ServedModel]:
        """Return the models that the server lists; whatever else is there is refused."""
        address = f"{self.url}/models"
        try:
            async with asyncio.timeout(_CONTROL_TIMEOUT_S):
                answer = await self._http.request("GET", "/models", headers=self._headers)
        except TimeoutError as error:
            raise WorkloadError(
                f"{address}: no answer in {_CONTROL_TIMEOUT_S:g} s; is the server up?"
            ) from error
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
            found = [_served(each) for each in json.loads(bytes(answer.body))["data"]]
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
        """Return what came of one chat; never raises for what the server does."""
        body = json.dumps(self._request(messages, output_tokens)).encode()
        now_s = time.perf_counter()
        sample = Sample(
            intended_s=now_s if intended_s is None else intended_s,
            is_measured=is_measured,
            sent_s=now_s,
        )
        events = ChatEvents()
        try:
            left_s = self._timeout_s - (now_s - sample.intended_s)
            async with asyncio.timeout(max(0.0, left_s)):
                answer = await self._http.request(
                    "POST",
                    "/chat/completions",
                    headers=self._headers,
                    body=body,
                    on_body=events.feed,
                )
            sample.ended_s = time.perf_counter()
            _judge(sample, answer, events)
        except TimeoutError:
            sample.outcome = TIMEOUT
            sample.detail = f"no whole answer in {self._timeout_s:g} s"
        except HttpError as error:
            sample.outcome, sample.detail = error.kind, str(error)
        sample.ended_s = sample.ended_s or time.perf_counter()
        sample.times_s = events.times_s
        sample.output_tokens = len(events.times_s)
        _count(sample, events.usage)
        return sample

    def _request(self, messages: list[Message], output_tokens: int) -> dict[str, Any]:
        values: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "max_tokens": output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return values | ({"ignore_eos": True} if self._ignore_eos else {})


def _served(card: Mapping[str, Any]) -> ServedModel:
    length = card.get("max_model_len")
    return ServedModel(
        name=str(card["id"]),
        engine=_ENGINES.get(card.get("owned_by", "")),
        context_tokens=length if isinstance(length, int) else None,
    )


def _judge(sample: Sample, answer: Answer, events: ChatEvents) -> None:
    if answer.status == 200:
        events.finish()
        if not events.times_s:
            if not (events.usage or {}).get("completion_tokens"):
                raise HttpError("empty", "the answer has no token")
            # Tokens without text, such as half a character at the end: they came by its end.
            events.times_s.append(sample.ended_s)
        # The end of the answer is its last token, not the closing lines of the stream.
        sample.ended_s = events.times_s[-1]
        return
    sample.outcome = REJECTED if answer.status == 429 else f"http_{answer.status}"
    sample.detail = _error_text(bytes(answer.body))
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


def _error_text(body: bytes) -> str:
    try:
        text = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        text = body.decode("utf-8", "replace")
    return " ".join(str(text).split())[:200]


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
