"""Asks servers: one streamed answer into a Reply, the models, whether it is there, its metrics.

The clock and the stream are those of the load test (workloads.load.http, sse), so that what the
page shows and what a test measures are the same. Never raises for what a server does.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from workloads.chat.conversation import ANSWER_KEYS
from workloads.common.exit_codes import ConfigError, WorkloadError
from workloads.load.http import Answer, ChatEvents, HttpClient, HttpError, streamed

_TUNED_ENDING = "-tuned"
"""What workloads.serve adds to the base's name unless serve.tuned_name says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model that can be asked."""

    label: str
    """Its name on the page, unique there."""
    name: str
    """Its name in the API."""
    url: str
    """Its server, up to /v1."""
    base: str | None = None
    """Label of the model whose adapter it is; None: a whole model."""


def server_models(url: str, body: Any) -> list[Model]:
    """Return the models of one answer to GET /v1/models; ConfigError for anything else.

    A card names its base as `parent`, as vLLM's do; where none does, by the ending of its name.
    """
    try:
        cards: list[Mapping[str, Any]] = body["data"]
        names = [str(card["id"]) for card in cards]
        parents = [card.get("parent") for card in cards]
    except (KeyError, TypeError, AttributeError):
        names, parents = [], []
    if not names:
        raise ConfigError(
            f"--url {url}: answers no list of models; give an OpenAI-compatible server up to /v1"
        )
    return [
        Model(label=name, name=name, url=url, base=_base(name, parent, names))
        for name, parent in zip(names, parents, strict=True)
    ]


def catalog(found: Sequence[Model]) -> tuple[Model, ...]:
    """Return the models of all servers with labels that are unique."""
    counts = Counter(each.name for each in found)

    def label(name: str, url: str) -> str:
        return name if counts[name] == 1 else f"{name} at {urlsplit(url).netloc}"

    labelled = [
        replace(
            each,
            label=label(each.name, each.url),
            base=None if each.base is None else label(each.base, each.url),
        )
        for each in found
    ]
    repeated = [
        name for name, count in Counter(each.label for each in labelled).items() if count > 1
    ]
    if repeated:
        raise ConfigError(f"--url: {repeated[0]} comes twice; give each server once")
    return tuple(labelled)


def by_label(models: Sequence[Model], label: str) -> Model:
    """Return the model with this label."""
    return next(each for each in models if each.label == label)


def partner(models: Sequence[Model], label: str) -> Model | None:
    """Return the tuned half of a base, or the base of a tuned one; None where there is none."""
    chosen = by_label(models, label)
    if chosen.base is not None:
        return by_label(models, chosen.base)
    return next((each for each in models if each.base == label), None)


def default_pair(models: Sequence[Model]) -> tuple[str, str]:
    """Return what stands left and right at first: base and tuned where there are such."""
    for each in models:
        if each.base is not None:
            return each.base, each.label
    return models[0].label, models[min(1, len(models) - 1)].label


def _base(name: str, parent: Any, names: Sequence[str]) -> str | None:
    if isinstance(parent, str) and parent in names and parent != name:
        return parent
    ending = name.removesuffix(_TUNED_ENDING)
    return ending if ending != name and ending in names else None


@dataclass(slots=True, kw_only=True)
class Reply:
    """What came so far of one answer; times are of time.perf_counter."""

    model: str
    """Label of the model that answers."""
    is_tuned: bool | None
    """Whether its adapter is on; None: it has none."""
    began_s: float
    text: str = ""
    thought: str = ""
    calls: list[dict[str, str]] = field(default_factory=list)
    """`id`, `name` and `arguments` (JSON text) of each call."""
    times_s: list[float] = field(default_factory=list)
    """When each piece came: text, thought or a call."""
    usage: Mapping[str, Any] | None = None
    finish: str | None = None
    """OpenAI's finish_reason; `stopped` by the user, `failed` with `error`."""
    error: str | None = None

    def take(self, choice: Mapping[str, Any], now_s: float) -> None:
        """Take one choice of a chunk that came at `now_s`."""
        delta = choice.get("delta") or {}
        text = delta.get("content") or ""
        thought = delta.get("reasoning") or delta.get("reasoning_content") or ""
        calls = delta.get("tool_calls") or ()
        self.text += text
        self.thought += thought
        for call in calls:
            self._take_call(call)
        if text or thought or calls:
            self.times_s.append(now_s)
        self.finish = choice.get("finish_reason") or self.finish

    def fail(self, reason: str) -> None:
        """End it with what went wrong; what came before stays."""
        self.error, self.finish = reason, "failed"

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first piece; None before it."""
        return self.times_s[0] - self.began_s if self.times_s else None

    @property
    def total_s(self) -> float | None:
        """Seconds to the last piece so far; None before the first."""
        return self.times_s[-1] - self.began_s if self.times_s else None

    @property
    def output_tokens(self) -> int:
        """Tokens as the server counted them; the pieces where it did not."""
        counted = (self.usage or {}).get("completion_tokens")
        return counted if isinstance(counted, int) else len(self.times_s)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second after the first; None for fewer than two, or all at once."""
        if not self.times_s or self.output_tokens < 2:
            return None
        seconds = self.times_s[-1] - self.times_s[0]
        return (self.output_tokens - 1) / seconds if seconds > 0 else None

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens that were read, where the server counted them."""
        counted = (self.usage or {}).get("prompt_tokens")
        return counted if isinstance(counted, int) else None

    def to_json(self) -> dict[str, Any]:
        """Return the answer as the conversation keeps it."""
        return {name: getattr(self, name) for name in (*ANSWER_KEYS, "prompt_tokens")}

    def _take_call(self, call: Mapping[str, Any]) -> None:
        index = call.get("index", len(self.calls))
        while len(self.calls) <= index:
            self.calls.append({"id": "", "name": "", "arguments": ""})
        known, function = self.calls[index], call.get("function") or {}
        known["id"] = call.get("id") or known["id"]
        known["name"] += function.get("name") or ""
        known["arguments"] += function.get("arguments") or ""


def caption(answer: Mapping[str, Any]) -> str:
    """Return the line under an answer: times, tokens, speed, how it ended."""
    parts: list[str] = []
    if answer["ttft_s"] is not None:
        parts.append(f"TTFT {answer['ttft_s']:.2f} s")
        parts.append(f"total {answer['total_s']:.2f} s")
        count = answer["output_tokens"]
        parts.append(f"{count} token{'' if count == 1 else 's'}")
    if answer["tokens_per_s"] is not None:
        parts.append(f"{answer['tokens_per_s']:.1f} tokens/s")
    if answer["finish"] == "length":
        parts.append("cut at the limit of tokens")
    elif answer["finish"] == "stopped":
        parts.append("stopped")
    return " | ".join(parts)


def pretty_arguments(text: str) -> str:
    """Return a call's arguments indented; as they came where they are no JSON."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text


_CONTROL_TIMEOUT_S = 5.0
_WHOLE_ANSWER_S = 900.0
"""An answer that takes longer is given up; our server ends it after 600 s itself."""


class UnreachableError(Exception):
    """A server that does not answer as it should; the message says in one line why."""


class Client:
    """All servers of a page, and the key that they need."""

    def __init__(self, urls: Sequence[str], key: str | None) -> None:
        self.urls = tuple(url.rstrip("/") for url in urls)
        self._key = key
        for url in urls:
            HttpClient(url, key, at="--url")  # refuses what cannot be asked

    async def models(self) -> list[Model]:
        """Return the models of all servers; the first that does not list any is refused."""
        found: list[Model] = []
        for url in self.urls:
            try:
                found += server_models(url, json.loads(await self._get(url, "/models")))
            except UnreachableError as error:
                raise WorkloadError(f"--url {url}: {error}") from error
            except ValueError:
                found += server_models(url, None)
        return found

    async def look(self, url: str) -> str:
        """Return the server's page of metrics, "" where it has none; UnreachableError if gone."""
        root = url.removesuffix("/v1")
        try:
            return await self._get(root, "/metrics")
        except UnreachableError:
            # Other servers have no such page; whether this one is there its models say.
            await self._get(url, "/models")
            return ""

    async def ask(
        self, model: Model, body: Mapping[str, Any], reply: Reply, changed: Callable[[], None]
    ) -> None:
        """Ask one question; `reply` fills up, and `changed` is called whenever it did."""

        def take(choice: dict[str, Any], now_s: float) -> None:
            reply.take(choice, now_s)
            changed()

        events = ChatEvents(take)
        request = streamed(model=model.name, **body)
        client = HttpClient(model.url, self._key, at="--url")
        reply.began_s = time.perf_counter()
        try:
            answer = await client.chat(request, events, timeout_s=_WHOLE_ANSWER_S)
            if answer.status == 200:
                reply.usage = events.usage
                reply.finish = reply.finish or "stop"  # some servers do not say it
            else:
                reply.fail(_refusal(answer))
        except HttpError as error:
            reply.fail(_broken(error, has_begun=bool(reply.times_s)))
        finally:
            client.close()
            changed()

    async def _get(self, base: str, path: str) -> str:
        client = HttpClient(base, self._key, at="--url")
        try:
            answer = await client.get(path, _CONTROL_TIMEOUT_S)
        except HttpError as error:
            raise UnreachableError(_broken(error, has_begun=False)) from error
        finally:
            client.close()
        if answer.status != 200:
            raise UnreachableError(_refusal(answer))
        return bytes(answer.body).decode("utf-8", "replace")


def _broken(error: HttpError, *, has_begun: bool) -> str:
    if error.kind == "disconnected":
        return (
            "the connection broke in the middle of the answer"
            if has_begun
            else "the connection was closed before an answer"
        )
    return str(error)


def _refusal(answer: Answer) -> str:
    """One line for an answer that is none, in the server's own words where it has any."""
    line = answer.problem(300, otherwise=f"answered {answer.status}: {{}}")
    wait = answer.headers.get("retry-after", "")
    return f"{line} (try again in {wait} s)" if wait.isdigit() else line
