"""Who answers, and the answers as they come: from a question and the controls to views of a page.

Owns the draw of arms, stopping, and what is counted: answers, latencies and votes of each arm (a
model in one mode, as who sees a name votes otherwise), kept over a restart in a file without any
text; what a vote counts for, and how sure a share of wins is. Knows no Gradio.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import statistics
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Final, cast, get_args

from workloads.chat import conversation as conversations
from workloads.chat.client import (
    Client,
    Model,
    Reply,
    by_label,
    caption,
    default_pair,
    partner,
    pretty_arguments,
)
from workloads.chat.conversation import Conversation, Mode, Vote, answer_of
from workloads.common.exit_codes import ConfigError
from workloads.common.log import log
from workloads.load.run import percentile

Key = tuple[str, Mode]
"""Model and mode of an arm."""
_Z_95 = 1.959964
"""Two-sided 95 % of the normal distribution."""


@dataclass(slots=True, kw_only=True)
class Arm:
    """What one model did on this page in one mode."""

    num_answers: int = 0
    num_failed: int = 0
    ttft_s: list[float] = field(default_factory=list)
    """One of each answer that has it, as for the two below."""
    total_s: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)
    good: int = 0
    bad: int = 0
    wins: int = 0
    losses: int = 0
    ties: int = 0


class Arms:
    """All arms of a page."""

    def __init__(self, path: Path | None = None) -> None:
        self.arms: dict[Key, Arm] = {}
        self._path = path
        if path is not None:
            self._read(path)

    def answered(self, answer: Mapping[str, Any], *, mode: Mode) -> None:
        """Count one answer; one that the user stopped counts nowhere."""
        if answer["finish"] == "stopped":
            return
        names = ("model", "ttft_s", "total_s", "tokens_per_s", "output_tokens", "finish")
        self._add({"kind": "answer", "mode": mode, **{name: answer[name] for name in names}})

    def voted(self, models: Sequence[str], vote: str, *, mode: Mode) -> None:
        """Count one vote on answers of one model, or of two."""
        self._add({"kind": "vote", "mode": mode, "models": list(models), "vote": vote})

    def _add(self, event: dict[str, Any]) -> None:
        self._count(event)
        if self._path is not None:
            stamped = {"at": datetime.now(UTC).isoformat(timespec="seconds"), **event}
            _append(self._path, json.dumps(stamped) + "\n")

    def _count(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "answer":
            arm = self._arm(event["model"], event["mode"])
            if event["finish"] == "failed":
                arm.num_failed += 1
                return
            arm.num_answers += 1
            for name in ("ttft_s", "total_s", "tokens_per_s"):
                if event[name] is not None:
                    getattr(arm, name).append(event[name])
            return
        arms = [self._arm(model, event["mode"]) for model in event["models"]]
        vote = event["vote"]
        if len(arms) == 1:
            arms[0].good += vote == "good"
            arms[0].bad += vote == "bad"
            return
        for arm, side in zip(arms, ("left", "right"), strict=True):
            arm.ties += vote == "tie"
            arm.wins += vote == side
            arm.losses += vote not in (side, "tie")

    def _arm(self, model: str, mode: Mode) -> Arm:
        if mode not in get_args(Mode):
            raise ValueError(f"mode {mode!r}")
        return self.arms.setdefault((model, mode), Arm())

    def _read(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            with path.open("a", encoding="utf-8"):
                pass
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"--record {path}: {error}; name a file that can be written"
            ) from error
        whole, newline, cut = text.rpartition("\n")
        if cut:
            log(f"--record {path}: its last line was cut off and is left out")
            os.truncate(path, len((whole + newline).encode()))
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                self._count(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(
                    f"--record {path}: line {number} is no event of a chat page; remove that line, "
                    "or the file"
                ) from error


def _append(path: Path, line: str) -> None:
    """Write the line whole or not at all: a full disk must not take the answer from its reader."""
    try:
        num_bytes = path.stat().st_size
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError:
            os.truncate(path, num_bytes)
            raise
    except OSError as error:
        log(f"--record {path}: {error}; an answer or a vote is counted on this page only")


def table(arms: Mapping[Key, Arm]) -> list[list[str]]:
    """Return a row an arm, under HEADERS."""
    return [
        [
            model,
            _MODE_NAMES[mode],
            str(arm.num_answers),
            str(arm.num_failed),
            _quantile(arm.ttft_s, 0.5),
            _quantile(arm.ttft_s, 0.9),
            _quantile(arm.total_s, 0.5),
            f"{statistics.median(arm.tokens_per_s):.1f}" if arm.tokens_per_s else "-",
            f"{arm.good} / {arm.bad}",
            f"{arm.wins} / {arm.losses} / {arm.ties}",
            _share(arm.wins, arm.wins + arm.losses),
        ]
        for (model, mode), arm in sorted(arms.items(), key=lambda each: each[0])
    ]


_MODE_NAMES: Mapping[Mode, str] = {
    "pair": "side by side",
    "one": "alone",
    "blind": "blind",
    "split": "A/B split",
}
HEADERS = (
    "Model", "Mode", "Answers", "Failed", "TTFT p50, s", "TTFT p90, s", "Total p50, s",
    "Tokens/s p50", "Good / bad", "Won / lost / tied", "Share won, 95 %"
)  # fmt: skip


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a share after `trials` > 0 (Wilson 1927, without correction)."""
    share, square = successes / trials, _Z_95**2
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    half = math.sqrt(share * (1 - share) / trials + square / (4 * trials**2))
    half *= _Z_95 / (1 + square / trials)
    return max(0.0, middle - half), min(1.0, middle + half)


def _share(wins: int, decided: int) -> str:
    if not decided:
        return "-"
    low, high = wilson(wins, decided)
    return f"{100 * wins / decided:.0f} % ({100 * low:.0f} to {100 * high:.0f})"


def _quantile(values: Sequence[float], share: float) -> str:
    return f"{percentile(sorted(values), share):.2f}" if values else "-"


MODES: Final[Mapping[str, Mode]] = {
    "Side by side": "pair",
    "One model": "one",
    "Blind pair": "blind",
    "A/B split": "split",
}
"""What the page calls each mode."""
HIDING: Final[frozenset[Mode]] = frozenset({"blind", "split"})
"""Modes that show who answered after the vote only."""


class SettingsError(Exception):
    """A control that cannot be sent as it stands; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The controls of one question."""

    mode: Mode
    left: str
    """Label of the model that answers alone, or left; arm A of a split."""
    right: str
    """Arm B of a split."""
    share_percent: float = 50.0
    """Of new conversations that arm B answers."""
    system: str = ""
    temperature: float = 0.7
    max_tokens: int | None = 512
    """None: the control is empty, which is refused."""
    tools: str = ""
    """JSON list of OpenAI's tools, or of their functions alone."""

    def request(self) -> dict[str, Any]:
        """Return what of a request follows from the controls."""
        tools = parse_tools(self.tools)
        if self.max_tokens is None or self.max_tokens < 1:
            raise SettingsError("Tokens of an answer, at most: a whole number from 1 is needed")
        return {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            **({"tools": tools} if tools else {}),
        }


def default_settings(models: Sequence[Model]) -> Settings:
    """Return what a new page shows: base and tuned side by side, one model alone."""
    left, right = default_pair(models)
    return Settings(mode="one" if left == right else "pair", left=left, right=right)


def restored_settings(value: Any, models: Sequence[Model]) -> Settings:
    """Return kept controls; the defaults where they are not ours or a model is gone."""
    names = {each.name for each in fields(Settings)}
    labels = {each.label for each in models}
    if not isinstance(value, dict) or set(value) != names:
        return default_settings(models)
    if not {value["left"], value["right"]} <= labels or value["mode"] not in get_args(Mode):
        return default_settings(models)
    kept = Settings(**value)
    # A server that lost its adapter has nothing left to put beside its model.
    return kept if len(models) > 1 else replace(kept, mode="one")


def parse_tools(text: str) -> list[dict[str, Any]]:
    """Return the tools in OpenAI's form; SettingsError names what is wrong with which."""
    if not text.strip():
        return []
    try:
        values = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"Tools are no JSON: {error}") from error
    if not isinstance(values, list):
        raise SettingsError("Tools: a list is needed, [ ... ]")
    tools: list[dict[str, Any]] = []
    for index, value in enumerate(values):
        function = value.get("function", value) if isinstance(value, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise SettingsError(f'Tools[{index}]: needs a name, such as {{"name": "get_weather"}}')
        tools.append({"type": "function", "function": cast("dict[str, Any]", function)})
    return tools


Shown = list[dict[str, Any]]


def column(conversation: Conversation, index: int, *, hides_names: bool) -> Shown:
    """Return one column of the conversation as the chat component takes it."""
    shown: Shown = []
    for each in conversation["turns"]:
        answer = answer_of(each, index)
        shown += turn(each["role"], each["text"], answer, hides_name=hides_names)
    return shown


def turn(role: str, text: str, answer: Mapping[str, Any], *, hides_name: bool) -> Shown:
    """Return a question and its answer, which may still be coming."""
    content = f"**Result of the tool:**\n\n{text}" if role == "tool" else text
    question = {"role": "user", "content": content}
    return [question, *answer_messages(answer, hides_name=hides_name)]


def answer_messages(answer: Mapping[str, Any], *, hides_name: bool) -> Shown:
    """Return an answer: thought, text, a fold for each call, what went wrong, the times."""
    shown: Shown = []
    is_over = answer["finish"] is not None
    if answer["thought"]:
        status = "done" if answer["text"] or is_over else "pending"
        shown.append(_fold("Thought", answer["thought"], status))
    if answer["text"]:
        shown.append(_said(answer["text"]))
    for call in answer["calls"]:
        arguments = pretty_arguments(call["arguments"])
        shown.append(_fold(f"Tool call: {call['name']}", f"```json\n{arguments}\n```", None))
    if answer["error"] is not None:
        shown.append(_said(f"**No answer:** {_plain(answer['error'])}"))
    if not shown:
        shown.append(_said("(an empty answer)" if is_over else "..."))
    if is_over and (line := caption(answer)):
        adapter = {True: ", adapter on", False: ", adapter off"}.get(answer["is_tuned"], "")
        who = "name shown after your vote" if hides_name else f"{answer['model']}{adapter}"
        shown.append(_said(f"*{_plain(line)}*\n\n*{_plain(who)}*"))
    return shown


def status_html(problems: Mapping[str, str], servers: Sequence[str], models: Sequence[str]) -> str:
    """Return the line that says whether every server is there."""
    if problems:
        lines = "; ".join(f"{url}: {reason}" for url, reason in problems.items())
        text = f"Not connected: {lines}. Trying again; what you wrote stays."
        return f'<p role="alert" class="status down">{escape(text)}</p>'
    text = f"Connected to {', '.join(servers)}: {', '.join(models)}"
    return f'<p role="status" class="status up">{escape(text)}</p>'


def load_html(lines: Sequence[str]) -> str:
    """Return how busy the servers are."""
    return "".join(f'<p class="load">{escape(line)}</p>' for line in lines)


def notice_html(text: str) -> str:
    """Return what the reader has to change before anything is sent; "" for nothing."""
    return f'<p role="alert" class="notice">{escape(text)}</p>' if text else ""


def arms_html(arms: Mapping[Key, Arm]) -> str:
    """Return the table of all arms."""
    if not arms:
        return '<p class="load">No answers yet.</p>'
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in HEADERS)
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, *cells in table(arms)
    )
    return (
        '<div class="arms" tabindex="0" role="region" aria-label="Metrics of each arm">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _fold(title: str, text: str, status: str | None) -> dict[str, Any]:
    metadata = {"title": title, **({"status": status} if status else {})}
    return {"role": "assistant", "content": text, "metadata": metadata}


def _plain(text: str) -> str:
    """Text that markdown leaves as it is."""
    return "".join(f"\\{each}" if each in "\\`*_{}[]<>#|~!" else each for each in text)


_REDRAW_S = 0.1
"""How often a growing answer is drawn; times under it are measured where bytes come in."""

_LEAVE_S = 5.0
"""How long answers that nobody reads any more may take to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the page shows after something happened."""

    conversation: Conversation
    columns: tuple[Shown, ...]
    """One or two."""
    is_running: bool = False
    question: str | None = None
    """What the box of the question holds from now on; None: what the reader has written."""
    is_result: bool = False
    """Whether that question is the result of a called tool."""
    notice: str = ""


class _RunningAnswers:
    """The answers of one conversation while they are written."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.over = asyncio.Event()
        """Set once no view of them can follow."""
        self.left_for: View | None = None
        """What the page shows in their place."""


class Dialogue:
    """Everything behind one page, for all who have it open."""

    def __init__(
        self,
        client: Client,
        models: Sequence[Model],
        arms: Arms,
        draw: random.Random | None = None,
    ) -> None:
        self.client = client
        self.models = tuple(models)
        self.arms = arms
        self._draw = draw or random.SystemRandom()
        self._running: dict[str, _RunningAnswers] = {}
        """By conversation."""
        self._held: dict[str, list[tuple[Mapping[str, Any], Mode]]] = {}
        """Answers whose count would tell whose they are, by conversation."""

    def view(self, conversation: Conversation, settings: Settings) -> View:
        """Return the conversation as it stands."""
        hides = _hides(conversation, settings)
        count = 2 if settings.mode in ("pair", "blind") else 1
        return View(
            conversation=conversation,
            columns=tuple(column(conversation, index, hides_names=hides) for index in range(count)),
        )

    async def ask(
        self, conversation: Conversation, settings: Settings, text: str, *, is_result: bool
    ) -> AsyncIterator[View]:
        """Yield views while the answers come; the last one has them whole."""
        before = self.view(conversation, settings)
        try:
            request = settings.request()
            if not text.strip():
                raise SettingsError("Write a question first.")
        except SettingsError as error:
            yield replace(before, notice=str(error))
            return
        role = "tool" if is_result and conversations.has_open_calls(conversation) else "user"
        models = self._columns(conversation, settings)
        conversation = {
            **conversation,
            "columns": [each.label for each in models],
            "settings": asdict(settings),
        }
        replies = [
            Reply(
                model=each.label,
                is_tuned=each.base is not None if partner(self.models, each.label) else None,
                began_s=time.perf_counter(),
            )
            for each in models
        ]
        hides = _hides(conversation, settings)
        changed = asyncio.Event()
        running = self._running[conversation["id"]] = _RunningAnswers()
        said = partial(conversations.messages, system=settings.system, role=role, text=text)
        asking = [
            asyncio.create_task(
                self.client.ask(
                    model, {**request, "messages": said(conversation, index)}, reply, changed.set
                )
            )
            for index, (model, reply) in enumerate(zip(models, replies, strict=True))
        ]
        stopping = asyncio.create_task(running.stop.wait())
        for task in (stopping, *asking):
            task.add_done_callback(lambda _: changed.set())
        box: str | None = ""
        try:
            while (waiting := {each for each in asking if not each.done()}) and not stopping.done():
                changed.clear()
                yield View(
                    conversation=conversation,
                    columns=tuple(
                        shown + turn(role, text, reply.to_json(), hides_name=hides)
                        for shown, reply in zip(before.columns, replies, strict=True)
                    ),
                    is_running=True,
                    question=box,
                )
                box = None
                # Not at every piece, but at once where an answer ends or the user stops it.
                await asyncio.wait(
                    {*waiting, stopping}, timeout=_REDRAW_S, return_when=asyncio.FIRST_COMPLETED
                )
                await changed.wait()
        finally:
            for task in (stopping, *asking):
                task.cancel()
            for task in (stopping, *asking):
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            if self._running.get(conversation["id"]) is running:
                del self._running[conversation["id"]]
            running.over.set()
        if running.left_for is not None:
            yield running.left_for
            return
        for reply in replies:
            reply.finish = reply.finish or "stopped"
        answers = [reply.to_json() for reply in replies]
        held = self._held.setdefault(conversation["id"], [])
        held += [(answer, settings.mode) for answer in answers]
        if not hides:
            self.leave(conversation)
        after = conversations.add_turn(conversation, text, answers, role=role)
        # A question that nobody answered comes back, to be sent again.
        is_lost = all(reply.error is not None for reply in replies)
        yield replace(
            self.view(after, settings),
            question=text if is_lost else None,
            is_result=is_lost and role == "tool",
        )

    def stop(self, conversation: Conversation) -> None:
        """End the answers that are running; what came stays."""
        if (running := self._running.get(conversation["id"])) is not None:
            running.stop.set()

    def can_vote(self, conversation: Conversation, settings: Settings) -> bool:
        """Whether a vote on the last turn counts."""
        return conversations.can_vote(conversation, hides_names=settings.mode in HIDING)

    def vote(self, conversation: Conversation, settings: Settings, vote: Vote) -> View:
        """Return the view with the vote counted; one that cannot count changes nothing."""
        if not self.can_vote(conversation, settings):
            return self.view(conversation, settings)
        self.leave(conversation)
        answers = conversation["turns"][-1]["answers"]
        self.arms.voted([each["model"] for each in answers], vote, mode=settings.mode)
        return self.view(conversations.with_vote(conversation, vote), settings)

    async def abandon(self, conversation: Conversation, shown: View) -> None:
        """Leave a conversation for what is `shown` from now on.

        The answers that still come end with that view too: a browser may draw the last view of
        one event after that of an event which ended later.
        """
        if (running := self._running.get(conversation["id"])) is not None:
            running.left_for = shown
            running.stop.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(running.over.wait(), _LEAVE_S)
        self.leave(conversation)

    def leave(self, conversation: Conversation) -> None:
        """Count the answers that were held back: nothing about them is to be guessed any more."""
        for answer, mode in self._held.pop(conversation["id"], ()):
            self.arms.answered(answer, mode=mode)

    def end(self) -> None:
        """Count what is held back in every conversation; nobody sees this page any more."""
        for identity in list(self._held):
            self.leave({"id": identity})

    def _columns(self, conversation: Conversation, settings: Settings) -> list[Model]:
        """The models that answer; those of a blind pair or a split stay for the conversation."""
        pair = [settings.left, settings.right]
        drawn = conversation["columns"]
        if settings.mode in HIDING and conversation["turns"] and set(drawn) <= set(pair):
            chosen = drawn
        elif settings.mode == "blind":
            chosen = self._draw.sample(pair, 2)
        elif settings.mode == "split":
            chosen = [pair[self._draw.uniform(0, 100) < settings.share_percent]]
        else:
            chosen = pair if settings.mode == "pair" else pair[:1]
        return [by_label(self.models, label) for label in chosen]


def _hides(conversation: Conversation, settings: Settings) -> bool:
    return settings.mode in HIDING and not conversations.has_vote(conversation)
