"""The page in Gradio: its parts, and which of them each event reads and changes.

What happens and what is shown is dialogue.py's. Nothing is loaded from elsewhere: the fonts are the
system's, nothing is told to anyone, and no other site reaches the page.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import gradio as gr
from gradio.themes import Base, Default
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from workloads.chat import conversation as conversations
from workloads.chat.client import UnreachableError, by_label, partner
from workloads.chat.conversation import Vote
from workloads.chat.dialogue import (
    HIDING,
    MODES,
    Dialogue,
    Settings,
    View,
    arms_html,
    default_settings,
    load_html,
    notice_html,
    restored_settings,
    status_html,
)
from workloads.load.client import load_line, read_metrics

CSS: Final = Path(__file__).with_name("page.css")
VOTES: Final[Mapping[Vote, str]] = {
    "left": "Left is better",
    "tie": "Both alike",
    "right": "Right is better",
    "good": "Good answer",
    "bad": "Bad answer",
}
SAVE_FILE: Final = """(text) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], {type: "application/json"}));
  link.download = "chat.json";
  link.click();
  URL.revokeObjectURL(link.href);
}"""
"""Gives the reader a text as a file, without a copy of it on the server."""


def theme() -> Base:
    """Return Gradio's plain theme with the fonts that the reader's system has."""
    # One accent: Send has this blue in page.css.
    accent = "*primary_700"
    plain = Default(
        primary_hue="blue",
        font=("system-ui", "sans-serif"),
        font_mono=("ui-monospace", "monospace"),
    )
    return plain.set(
        checkbox_background_color_selected=accent, checkbox_background_color_selected_dark=accent
    )


LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
# Gradio 6 makes code of strings (its templates) and sets styles of elements.
_POLICY: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "media-src 'self' blob:; worker-src 'self' blob:; connect-src 'self'; object-src 'none'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
_UPLOAD: Final = "/gradio_api/upload"
_STARTED: Final = "/gradio_api/startup-events"
"""Gradio asks it of its own page; the answer tells nothing but that the page is up."""
_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PageGuard:
    """Refuses other hosts, other pages and whoever has no token; adds the policy to all else.

    Any user of this machine reaches a port of 127.0.0.1. The address that was printed has the
    token; it is changed for a cookie, so that it stays in no link and no picture of the page.
    """

    def __init__(self, app: ASGIApp, *, token: str | None) -> None:
        """`token` None: the page is shared, and Gradio asks for its password."""
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse with 401, 403 or 421."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":  # the page has no WebSocket
            await (self._own_answer(Request(scope)) or self._app_guarded)(scope, receive, send)

    async def _app_guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, guarded)

    def _own_answer(self, request: Request) -> Response | None:
        """None: the page's own is due."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        port = host.rpartition(":")[2]
        is_ours = host_name(host) in LOOPBACK and port.isdecimal()
        if self._token is not None and not is_ours:
            return PlainTextResponse("open this page as http://127.0.0.1:PORT\n", 421)
        is_foreign = origin is not None and origin.partition("://")[2] != host
        path = request.scope["path"]
        if path.startswith(_UPLOAD) or (is_foreign and self._token is not None):
            return PlainTextResponse("this page takes no files and no other page\n", 403)
        if self._token is None or (request.method, path) == ("GET", _STARTED):
            return None
        # A browser gives a cookie to every port of a host: another page's has another name.
        cookie = f"soperator-chat-{port}"
        if path == "/" and self._is_token(request.query_params.get("token", "")):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(cookie, self._token, httponly=True, samesite="strict")
            return answer
        if self._is_token(request.cookies.get(cookie, "")):
            return None
        return PlainTextResponse("open the whole address that was printed, with its token\n", 401)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), (self._token or "").encode())


def host_name(host: str) -> str:
    """Return a Host header without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.rpartition(":")[0] or host


_STORAGE_KEY: Final = "soperator-chat"
LOOK_EVERY_S: Final = 2.0
_NUM_AT_ONCE: Final = 32
"""Answers that run at the same time, of all who have the page open."""


class Page:
    """The parts of one page over one Dialogue."""

    def __init__(self, dialogue: Dialogue, servers: Mapping[str, str] | None = None) -> None:
        """`servers` names them by URL, as their job and node; without a name it is the URL."""
        self._dialogue = dialogue
        self._servers = {url: (servers or {}).get(url, url) for url in dialogue.client.urls}
        self._labels = [each.label for each in dialogue.models]
        with gr.Blocks(title="Chat", analytics_enabled=False) as self.blocks:
            self._lay_out()
            self._wire()

    def _lay_out(self) -> None:
        start = default_settings(self._dialogue.models)
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
            self._send = gr.Button(
                "Send",
                variant="primary",
                elem_id="send",
                interactive=False,  # until `_opened` gave the page its conversation and controls
                min_width=90,
            )
            self._stop = gr.Button("Stop", elem_id="stop", interactive=False, min_width=90)
            self._new = gr.Button("New conversation", elem_id="new", min_width=160)
            self._export = gr.Button("Export JSON", elem_id="export", min_width=90)
        with gr.Row():
            self._votes: dict[Vote, gr.Button] = {
                vote: gr.Button(text, visible=False, elem_id=f"vote-{vote}", min_width=90)
                for vote, text in VOTES.items()
            }
        # Open until `_opened` closes it: Gradio makes the controls of a closed one when it opens,
        # and a frame later writes its own values over what was set meanwhile.
        title = "System prompt, sampling, tools"
        with gr.Accordion(title, visible="hidden", elem_id="settings") as self._fold:
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
        self._timer = gr.Timer(LOOK_EVERY_S)

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
        self.blocks.load(self._opened, [self._kept], [*controls, self._fold, *shown], **quiet)
        # It never ends: Gradio closes a page's stream of answers when no event is under way, and
        # one that is sent as it closes is lost. The timer starts it anew when a connection broke.
        looks: dict[str, Any] = {"trigger_mode": "once", "concurrency_limit": None, **quiet}
        seen = [self._status, self._load]
        gr.on([self.blocks.load, self._timer.tick], self._watched, None, seen, **looks)
        asking = {"concurrency_limit": _NUM_AT_ONCE, "trigger_mode": "once", **quiet}
        asked = [self._kept, self._question, self._is_result, *controls]
        asks: list[dict[str, Any]] = [
            event(self._ask, asked, shown, concurrency_id="ask", **asking)
            for event in (self._question.submit, self._send.click)
        ]
        self._stop.click(self._stopped, [self._kept], None, queue=False, **quiet)
        for vote, button in self._votes.items():
            button.click(partial(self._voted, vote), [self._kept, *controls], shown, **quiet)
        clears = [column.clear for column in self._columns]
        for event in (self._new.click, self._mode.input, *clears):
            # An answer that still comes would bring its conversation back.
            event(self._renew, [self._kept, *controls], shown, cancels=asks, **quiet)
        layout = [self._left, self._right, self._share, self._adapter]
        for event in (self._mode.input, self._left.input):
            event(self._arrange, [self._mode, self._left], layout, **quiet)
        self._export.click(self._exported, [self._kept, *controls], [self._file], **quiet).success(
            None, [self._file], None, js=SAVE_FILE
        )

    def _opened(self, kept: Any) -> list[Any]:
        conversation = conversations.restored(kept)
        chosen = restored_settings(conversation.get("settings"), self._dialogue.models)
        values = (chosen.system, chosen.temperature, chosen.max_tokens, chosen.tools)
        left, right, share, adapter = self._arrange(_name(chosen), chosen.left)
        right["value"], share["value"] = chosen.right, chosen.share_percent
        adapter["value"] = self._whole(chosen.left) != chosen.left
        shown = self._show(self._dialogue.view(conversation, chosen), chosen)
        fold = gr.update(open=False, visible=True)
        return [_name(chosen), left, right, share, adapter, *values, fold, *shown]

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

    async def _watched(self) -> AsyncIterator[list[str]]:
        """Yield what the servers say, again and again, as long as the page is open."""
        client = self._dialogue.client
        while True:
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
            status = status_html(problems, list(self._servers.values()), self._labels)
            yield [status, load_html(lines)]
            await asyncio.sleep(LOOK_EVERY_S)

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
        view = self._dialogue.view(conversations.new(), chosen)
        await self._dialogue.abandon(conversations.restored(kept), view)
        return self._show(view, chosen)

    def _exported(self, kept: Any, *controls: Any) -> str:
        chosen = self._settings(*controls)
        values = conversations.export(
            conversations.restored(kept),
            system=chosen.system,
            servers=self._dialogue.client.urls,
            settings=asdict(chosen),
            hides_names=chosen.mode in HIDING,
        )
        return json.dumps(values, indent=2, ensure_ascii=False)

    def _settings(self, *controls: Any) -> Settings:
        """The controls as they stand; the switch alone says which half of a model answers."""
        mode, left, right, share, has_adapter_on, system, temperature, max_tokens, tools = controls
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
            notice_html(view.notice),
            arms_html(self._dialogue.arms.arms),
        ]


def _name(chosen: Settings) -> str:
    return next(name for name, mode in MODES.items() if mode == chosen.mode)
