"""The page in Gradio: its parts, and which of them each event reads and changes.

Owns layout and wiring alone; what happens is dialogue.py's, what is shown render.py's. Loads
nothing from elsewhere: the fonts are the system's, and nothing is told to anyone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import gradio as gr

from workloads.chat import conversation as conversations
from workloads.chat import look, render, settings
from workloads.chat.client import UnreachableError
from workloads.chat.conversation import Vote
from workloads.chat.dialogue import Dialogue, View
from workloads.chat.models import by_label, partner
from workloads.chat.server_load import load_line, read_metrics
from workloads.chat.settings import MODES, Settings

_STORAGE_KEY: Final = "soperator-chat"
_LOOK_EVERY_S: Final = 2.0
_NUM_AT_ONCE: Final = 32
"""Answers that run at the same time, of all who have the page open."""


class Page:
    """The parts of one page over one Dialogue."""

    def __init__(self, dialogue: Dialogue, servers: Mapping[str, str] | None = None) -> None:
        """`servers` names them by URL, as their job and node; without a name it is the URL."""
        self._dialogue = dialogue
        self._servers = {url: (servers or {}).get(url, url) for url in dialogue.client.urls}
        self._labels = [each.label for each in dialogue.models]
        self._start = settings.default(dialogue.models)
        with gr.Blocks(title="Chat", analytics_enabled=False) as self.blocks:
            self._lay_out()
            self._wire()

    def _lay_out(self) -> None:
        start = self._start
        gr.HTML("<h1>Chat</h1>", elem_id="title")
        self._status = gr.HTML(elem_id="status")
        self._load = gr.HTML(elem_id="load")
        with gr.Row():
            self._mode = gr.Radio(
                list(MODES),
                value=_name(start),
                label="Who answers",
                elem_id="mode",
                visible=len(self._labels) > 1,
                scale=2,
                min_width=300,
            )
            self._left = gr.Dropdown(
                self._labels,
                value=start.left,
                label="Model (left, arm A)",
                elem_id="left-model",
                min_width=240,
            )
            self._right = gr.Dropdown(
                self._labels,
                value=start.right,
                label="Model (right, arm B)",
                elem_id="right-model",
                min_width=240,
                visible=len(self._labels) > 1,
            )
            self._adapter = gr.Checkbox(
                label="Adapter on", elem_id="adapter", visible=False, interactive=True
            )
            self._share = gr.Slider(
                0, 100, value=start.share_percent, step=1, label="Chats for arm B, %", visible=False
            )
        with gr.Row():
            self._columns = [
                gr.Chatbot(
                    label=label,
                    elem_id=f"{label.lower()}-chat",
                    height="clamp(8rem, calc(100vh - 34rem), 26rem)",
                    min_width=300,
                    buttons=["copy"],
                    feedback_options=None,
                    allow_tags=False,
                    visible=index == 0 or start.mode == "pair",
                )
                for index, label in enumerate(("Left", "Right"))
            ]
        self._notice = gr.HTML(elem_id="notice")
        self._question = gr.Textbox(
            label="Question (Enter sends, Shift+Enter starts a line)",
            elem_id="question",
            lines=1,
            max_lines=8,
            autofocus=True,
        )
        self._is_result = gr.Checkbox(
            label="This is the result of the called tool", visible=False, elem_id="is-result"
        )
        with gr.Row():
            self._send = gr.Button("Send", variant="primary", elem_id="send", min_width=90)
            self._stop = gr.Button("Stop", elem_id="stop", interactive=False, min_width=90)
            self._new = gr.Button("New conversation", elem_id="new", min_width=160)
            self._export = gr.Button("Export JSON", elem_id="export", min_width=90)
        with gr.Row():
            self._votes: dict[Vote, gr.Button] = {
                vote: gr.Button(text, visible=False, elem_id=f"vote-{vote}", min_width=90)
                for vote, text in look.VOTES.items()
            }
        with gr.Accordion("System prompt, sampling, tools", open=False, elem_id="settings"):
            self._system = gr.Textbox(
                start.system, label="System prompt", lines=2, elem_id="system"
            )
            self._temperature = gr.Slider(
                0,
                2,
                value=start.temperature,
                step=0.05,
                label="Temperature (0: likeliest word)",
            )
            self._max_tokens = gr.Number(
                start.max_tokens, label="Tokens of an answer, at most", precision=0, minimum=1
            )
            self._tools = gr.Textbox(
                start.tools,
                label="Tools: JSON list, as OpenAI's or their functions alone",
                lines=3,
                elem_id="tools",
            )
        with gr.Accordion("Metrics of each arm", open=False, elem_id="metrics"):
            self._arms = gr.HTML(elem_id="arms")
        self._kept = gr.BrowserState(None, storage_key=_STORAGE_KEY)
        self._file = gr.Textbox(visible="hidden")
        self._timer = gr.Timer(_LOOK_EVERY_S)

    def _wire(self) -> None:
        controls = [
            *(self._mode, self._left, self._right, self._share, self._adapter),
            *(self._system, self._temperature, self._max_tokens, self._tools),
        ]
        shown = [
            *(self._kept, *self._columns, self._question, self._is_result),
            *(self._send, self._stop, *self._votes.values(), self._notice, self._arms),
        ]
        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        seen = [self._status, self._load]
        self.blocks.load(self._opened, [self._kept], [*controls, *shown], **quiet)
        self.blocks.load(self._looked, None, seen, **quiet)
        self._timer.tick(self._looked, None, seen, concurrency_limit=_NUM_AT_ONCE, **quiet)
        asking = {"concurrency_limit": _NUM_AT_ONCE, "trigger_mode": "once", **quiet}
        asked = [self._kept, self._question, self._is_result, *controls]
        asks: list[dict[str, Any]] = [
            event(self._ask, asked, shown, concurrency_id="ask", **asking)
            for event in (self._question.submit, self._send.click)
        ]
        self._stop.click(self._stopped, [self._kept], None, queue=False, **quiet)
        for vote, button in self._votes.items():
            button.click(_voter(self, vote), [self._kept, *controls], shown, **quiet)
        clears = [column.clear for column in self._columns]
        for event in (self._new.click, self._mode.input, *clears):
            # An answer that still comes would bring its conversation back.
            event(self._renew, [self._kept, *controls], shown, cancels=asks, **quiet)
        layout = [self._left, self._right, self._share, self._adapter]
        for event in (self._mode.input, self._left.input):
            event(self._arrange, [self._mode, self._left], layout, **quiet)
        self._export.click(self._exported, [self._kept, *controls], [self._file], **quiet).success(
            None, [self._file], None, js=look.SAVE_FILE
        )

    def _opened(self, kept: Any) -> list[Any]:
        conversation = conversations.restored(kept)
        chosen = settings.restored(conversation.get("settings"), self._dialogue.models)
        values = (chosen.system, chosen.temperature, chosen.max_tokens, chosen.tools)
        left, right, share, adapter = self._arrange(_name(chosen), chosen.left)
        right["value"], share["value"] = chosen.right, chosen.share_percent
        adapter["value"] = self._whole(chosen.left) != chosen.left
        shown = self._show(self._dialogue.view(conversation, chosen), chosen)
        return [_name(chosen), left, right, share, adapter, *values, *shown]

    def _arrange(self, mode: str, left: str) -> list[dict[str, Any]]:
        """What of the controls a mode needs: one model alone has its adapter as a switch."""
        is_one, whole = MODES[mode] == "one", self._whole(left)
        wholes = [each.label for each in self._dialogue.models if each.base is None]
        has_adapter = partner(self._dialogue.models, whole) is not None
        return [
            gr.update(
                choices=wholes if is_one else self._labels,
                value=whole if is_one else left,
                label="Model" if is_one else "Model (left, arm A)",
            ),
            gr.update(visible=not is_one),
            gr.update(visible=MODES[mode] == "split"),
            gr.update(visible=is_one and has_adapter),
        ]

    def _whole(self, label: str) -> str:
        """The model itself, or the base of an adapter."""
        return by_label(self._dialogue.models, label).base or label

    async def _looked(self) -> list[str]:
        client = self._dialogue.client
        found = await asyncio.gather(
            *(client.look(url) for url in client.urls), return_exceptions=True
        )
        problems: dict[str, str] = {}
        lines: list[str] = []
        for url, each in zip(client.urls, found, strict=True):
            if isinstance(each, UnreachableError):
                problems[self._servers[url]] = str(each)
            elif isinstance(each, BaseException):
                raise each
            else:
                lines.append(load_line(read_metrics(each)))
        status = render.status_html(problems, list(self._servers.values()), self._labels)
        return [status, render.load_html(lines)]

    async def _ask(
        self, kept: Any, question: str, is_result: bool, *controls: Any
    ) -> AsyncIterator[list[Any]]:
        chosen = self._settings(*controls)
        conversation = conversations.restored(kept)
        async for view in self._dialogue.ask(conversation, chosen, question, is_result=is_result):
            yield self._show(view, chosen)

    async def _stopped(self, kept: Any) -> None:
        self._dialogue.stop(conversations.restored(kept))

    def _voted(self, vote: Vote, kept: Any, *controls: Any) -> list[Any]:
        chosen = self._settings(*controls)
        return self._show(self._dialogue.vote(conversations.restored(kept), chosen, vote), chosen)

    async def _renew(self, kept: Any, *controls: Any) -> list[Any]:
        chosen = self._settings(*controls)
        await self._dialogue.abandon(conversations.restored(kept))
        return self._show(self._dialogue.view(conversations.new(), chosen), chosen)

    def _exported(self, kept: Any, *controls: Any) -> str:
        chosen = self._settings(*controls)
        values = conversations.export(
            conversations.restored(kept),
            system=chosen.system,
            servers=self._dialogue.client.urls,
            settings=chosen.to_json(),
            hides_names=chosen.mode in settings.HIDING,
        )
        return json.dumps(values, indent=2, ensure_ascii=False)

    def _settings(
        self,
        mode: str,
        left: str,
        right: str,
        share: float,
        has_adapter_on: bool,
        system: str,
        temperature: float,
        max_tokens: float | None,
        tools: str,
    ) -> Settings:
        """The controls as they stand; the switch alone says which half of a model answers."""
        if MODES[mode] == "one":
            left = self._whole(left)
            tuned = partner(self._dialogue.models, left)
            left = tuned.label if has_adapter_on and tuned is not None else left
        return Settings(
            mode=MODES[mode],
            left=left,
            right=right,
            share_percent=share,
            system=system,
            temperature=temperature,
            max_tokens=None if max_tokens is None else int(max_tokens),
            tools=tools,
        )

    def _show(self, view: View, chosen: Settings) -> list[Any]:
        """Values for what every event changes, in the order of `shown`."""
        can_vote = not view.is_running and self._dialogue.can_vote(view.conversation, chosen)
        pair = len(view.columns) == 2
        return [
            view.conversation,
            gr.update(value=view.columns[0], label="Left" if pair else "Answers"),
            gr.update(value=view.columns[-1] if pair else [], visible=pair),
            gr.skip() if view.question is None else view.question,
            gr.update(
                visible=conversations.has_open_calls(view.conversation), value=view.is_result
            ),
            gr.update(interactive=not view.is_running),
            gr.update(interactive=view.is_running),
            *(
                gr.update(visible=can_vote and (vote in ("left", "right", "tie")) == pair)
                for vote in self._votes
            ),
            render.notice_html(view.notice),
            render.arms_html(self._dialogue.arms.arms),
        ]


def _voter(page: Page, vote: Vote) -> Any:
    return lambda kept, *controls: page._voted(vote, kept, *controls)


def _name(chosen: Settings) -> str:
    return next(name for name, mode in MODES.items() if mode == chosen.mode)
