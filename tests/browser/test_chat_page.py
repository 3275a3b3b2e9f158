"""The chat page in a real browser, against a real small model with an adapter.

Screenshots of each test lie in .soperator/test-artifacts/chat/, where CI and people look at them.
The server is reached by a tunnel of ours, so that the tunnel can be cut.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from safetensors.numpy import save_file

from infra.clients.ssh import Tunnel
from infra.jobs.server import ChatPage
from infra.setup.tools.__main__ import MODEL
from infra.state import CHECKOUT, Cache
from tests.another_user import Neighbour, neighbour  # noqa: F401 (a fixture)
from tests.ports import free_ports
from tests.ssh_stand import SshStand, login_node
from workloads.chat.page import LOOK_EVERY_S

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1200)]

ARTIFACTS = CHECKOUT / ".soperator" / "test-artifacts" / "chat"
_WAIT_MS = 120_000
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    # The browser's own calls home must not leave this machine either.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
_LIMITS = {"context_tokens": 1024, "max_output_tokens": 600, "max_concurrency": 4}
_ELSEWHERE = "http://192.0.2.1/spy.png"
_KEY = "a-key-of-the-chat-tests"
_CALLED = "job 4 on worker-0"


@dataclass(frozen=True)
class Stand:
    """Everything between the browser and the model."""

    address: str
    login: SshStand
    said: list[str]
    record: Path


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    if not (Cache.from_environ().models / MODEL / "config.json").is_file():
        pytest.skip(f"needs the model {MODEL} (`make setup`)")
    folder = tmp_path_factory.mktemp("chat")
    port, page_port = free_ports(2)
    with contextlib.ExitStack() as closing:
        closing.enter_context(_server(folder, port))
        login = closing.enter_context(login_node(folder))
        said: list[str] = []
        tunnel = Tunnel(login.endpoint, "127.0.0.1", port, log=said.append)
        closing.callback(tunnel.close)
        record = folder / "chat.jsonl"
        called = [f"--server={_CALLED}"]
        page = ChatPage(
            tunnel.url,
            port=page_port,
            key=_KEY,
            token="of-the-chat-tests",
            record=record,
            checkout=CHECKOUT,
            options=called,
        )
        closing.callback(page.close)
        page.wait_until_up()
        yield Stand(page.address, login, said, record)


@contextlib.contextmanager
def _server(folder: Path, port: int) -> Iterator[None]:
    """The server job's own program on a port, with base and adapter."""
    model, adapter = Cache.from_environ().models / MODEL, folder / "adapter"
    _make_adapter(model, adapter)
    environment = {
        **os.environ,
        "SOPERATOR_PLACE_MODEL": str(model.parent),
        "SOPERATOR_PLACE_RESULTS": str(folder),
        "SOPERATOR_SERVE_API_KEY": _KEY,
        "SLURM_JOB_ID": "1",
    }
    words = ["--base", MODEL, "--adapter", str(adapter), "--port", str(port)]
    words += ["--set", "serve.dtype=fp32", "--set", "serve.cpu_threads=1"]
    words += ["--set", f"serve.limits={json.dumps(_LIMITS)}"]
    log = folder / "serve.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "workloads.serve", *words],
            cwd=CHECKOUT,
            env=environment,
            stdout=output,
            stderr=output,
        )
    try:
        up = threading.Event()
        while not (folder / "1" / "endpoint.json").exists():
            assert server.poll() is None, log.read_text()
            up.wait(0.2)
        yield
    finally:
        server.terminate()
        server.wait(60)


def _make_adapter(model: Path, folder: Path) -> None:
    """An adapter with random weights: that it answers otherwise is all that matters here."""
    config = json.loads((model / "config.json").read_text())
    size, rank, draw = config["hidden_size"], 4, np.random.default_rng(0)
    prefix = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"
    weights = {
        prefix.format(layer, half): draw.normal(0, 0.05, shape).astype(np.float32)
        for layer in range(config["num_hidden_layers"])
        for half, shape in (("A", (rank, size)), ("B", (size, rank)))
    }
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    described = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 8}
    described |= {"base_model_name_or_path": str(model), "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(described))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs the Debian package chromium (`make setup`)")
    expect.set_options(timeout=_WAIT_MS)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        yield opened
        opened.close()


@dataclass(frozen=True)
class Tab:
    """One tab, where it asked for anything, and what its policy kept it from asking."""

    page: Page
    asked: list[str]
    blocked: list[str]


@pytest.fixture
def tab(stand: Stand, browser: Browser, request: pytest.FixtureRequest) -> Iterator[Tab]:
    width, height = getattr(request, "param", (1200, 900))
    context = browser.new_context(viewport={"width": width, "height": height})
    page = context.new_page()
    asked: list[str] = []
    blocked: list[str] = []
    page.on("request", lambda each: asked.append(each.url))
    page.on(
        "requestfailed", lambda each: blocked.append(each.url) if each.failure == "csp" else None
    )
    page.set_default_timeout(_WAIT_MS)
    page.goto(stand.address)
    expect(page.locator("#status .up")).to_be_visible()
    # What a page was left with comes after it, and over what was written before.
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    _few_tokens(page)
    yield Tab(page, asked, blocked)
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=ARTIFACTS / f"{request.node.originalname}.png", full_page=True)
    context.close()
    # `blob:` and `data:` have no host: the browser made them itself.
    hosts = {urlsplit(url).hostname for url in asked if url not in blocked}
    assert hosts <= {"127.0.0.1", None}


def _few_tokens(page: Page) -> None:
    page.get_by_role("button", name="System prompt, sampling, tools").click()
    page.get_by_label("Tokens of an answer, at most").fill("12")
    page.get_by_role("button", name="System prompt, sampling, tools").click()


def ask(page: Page, question: str) -> None:
    page.get_by_label("Question").fill(question)
    page.get_by_label("Question").press("Enter")


def test_another_user_of_this_machine_gets_nothing_of_the_page(
    tab: Tab,
    stand: Stand,
    neighbour: Neighbour,  # noqa: F811
) -> None:
    asks = """
import sys, urllib.error, urllib.request
for path in sys.argv[2:]:
    try:
        print(urllib.request.urlopen(sys.argv[1] + path, timeout=20).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""
    address = stand.address.partition("?")[0].rstrip("/")
    paths = ["/", "/config", "/gradio_api/info", "/?token=", "/gradio_api/startup-events"]
    words = shlex.join(["python3", "-c", asks, address, *paths])
    assert neighbour.run(words).split() == ["401", "401", "401", "401", "200"]
    assert "token" not in tab.page.url


@pytest.mark.feature("S000-48", "S000-51", "S000-52")
def test_a_full_chat_side_by_side_with_times_votes_metrics_and_export(
    tab: Tab, stand: Stand
) -> None:
    page = tab.page
    expect(page.locator("#status")).to_contain_text(f"Connected to {_CALLED}: ")
    expect(page.locator("#load")).to_contain_text("memory of the server")
    ask(page, "Say hello.")
    better = page.get_by_role("button", name="Right is better")
    expect(better).to_be_visible()
    for side, adapter in (("left", "off"), ("right", "on")):
        shown = page.locator(f"#{side}-chat")
        expect(shown).to_contain_text("Say hello.")
        expect(shown).to_contain_text(
            re.compile(r"TTFT \d+\.\d\d s \| total \d+\.\d\d s \| \d+ tok")
        )
        expect(shown).to_contain_text(re.compile(r"\d+\.\d tokens/s"))
        expect(shown).to_contain_text(f"adapter {adapter}")
    better.click()
    expect(better).to_be_hidden()
    page.get_by_role("button", name="Metrics of each arm").click()
    row = page.locator(".arms tr", has_text=f"{MODEL}-tuned")
    expect(row).to_contain_text("1 / 0 / 0")
    assert '"vote": "right"' in stand.record.read_text()
    assert "hello" not in stand.record.read_text()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export JSON").click()
    exported = json.loads(Path(download.value.path()).read_text())
    assert exported["turns"][0]["vote"] == "right"
    assert [chat[0]["content"] for chat in exported["messages"]] == ["Say hello."] * 2
    # Gradio loses an answer that is asked for while it closes a stream: there is one, all the time.
    assert len([url for url in tab.asked if "/queue/data" in url]) == 1


@pytest.mark.feature("S000-48")
def test_a_reload_keeps_the_conversation_and_the_controls(tab: Tab) -> None:
    page = tab.page
    page.get_by_label("One model").check()
    expect(page.locator("#right-chat")).to_be_hidden()
    page.get_by_role("checkbox", name="Adapter on").check()
    ask(page, "Remember the word tulip.")
    expect(page.get_by_role("button", name="Good answer")).to_be_visible()
    page.reload()
    expect(page.locator("#left-chat")).to_contain_text("Remember the word tulip.")
    expect(page.locator("#left-chat")).to_contain_text("adapter on")
    expect(page.get_by_label("One model")).to_be_checked()
    expect(page.locator("#right-chat")).to_be_hidden()
    expect(page.get_by_role("checkbox", name="Adapter on")).to_be_checked()
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator("#left-chat")).not_to_contain_text("tulip")


def test_a_lost_tunnel_is_told_and_the_question_can_be_sent_again(tab: Tab, stand: Stand) -> None:
    page = tab.page
    stand.login.lose()
    try:
        alert = page.locator("#status .down")
        expect(alert).to_contain_text("the SSH tunnel")
        ask(page, "Is anybody there?")
        expect(page.locator("#left-chat")).to_contain_text("No answer")
        expect(page.get_by_label("Question")).to_have_value("Is anybody there?")
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=ARTIFACTS / "lost_tunnel.png")
    finally:
        stand.login.come_back()
    expect(page.locator("#status .up")).to_be_visible()
    page.get_by_label("Question").press("Enter")
    expect(page.get_by_role("button", name="Both alike")).to_be_visible()


@pytest.mark.parametrize("tab", [(1200, 860), (390, 844)], indirect=True)
def test_the_question_can_be_written_without_scrolling(tab: Tab) -> None:
    box = tab.page.get_by_label("Question").bounding_box()
    size = tab.page.viewport_size
    assert box is not None
    assert size is not None
    scrolled = tab.page.evaluate("scrollY")
    assert scrolled + box["y"] + box["height"] <= size["height"]
    # One accent: what is chosen has the colour of what sends.
    chosen, send = (
        tab.page.locator(each).first.evaluate("each => getComputedStyle(each).backgroundColor")
        for each in ("#mode input:checked", "#send")
    )
    assert chosen == send


class _OneModel(BaseHTTPRequestHandler):
    """A server that lists one model, without an adapter, and answers it in one piece."""

    num_looks = 0

    def do_GET(self) -> None:
        _OneModel.num_looks += self.path == "/metrics"
        self._answer("application/json", json.dumps({"data": [{"id": "alone"}]}))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        choice = {"index": 0, "delta": {"content": "Yes."}, "finish_reason": "stop"}
        self._answer(
            "text/event-stream", f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
        )

    def _answer(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())


@contextlib.contextmanager
def _page_of_one_model(record: Path) -> Iterator[str]:
    """The address of a page over `_OneModel`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _OneModel)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{server.server_port}/v1"
    with contextlib.ExitStack() as closing:
        closing.callback(server.server_close)
        closing.callback(server.shutdown)
        chat = ChatPage(url, port=port, key=None, token="t", record=record, checkout=CHECKOUT)
        closing.callback(chat.close)
        chat.wait_until_up()
        yield chat.address


def test_a_page_that_many_have_open_still_answers(browser: Browser, tmp_path: Path) -> None:
    """Each of them holds one of the events that Gradio runs at once, of which it has 40."""
    with (
        _page_of_one_model(tmp_path / "chat.jsonl") as address,
        contextlib.closing(browser.new_context()) as context,
    ):
        root = address.partition("?")[0].rstrip("/")
        assert context.request.get(address).ok
        parts = context.request.get(f"{root}/config").json()["dependencies"]
        (watch,) = (each["id"] for each in parts if "tick" in str(each["targets"]))
        for number in range(60):
            asked = {"data": [], "fn_index": watch, "session_hash": f"page{number}"}
            assert context.request.post(f"{root}/gradio_api/queue/join", data=asked).ok
        page = context.new_page()
        page.goto(root)
        expect(page.locator("#status .up")).to_contain_text("alone")
        ask(page, "Are you there?")
        expect(page.locator("#left-chat")).to_contain_text("Yes.")


def test_one_model_is_neither_compared_with_itself_nor_given_an_adapter(
    browser: Browser, tmp_path: Path
) -> None:
    with (
        _page_of_one_model(tmp_path / "chat.jsonl") as address,
        contextlib.closing(browser.new_context()) as context,
    ):
        page = context.new_page()
        page.goto(address)
        expect(page.locator("#status .up")).to_contain_text("alone")
        _wait(lambda: _OneModel.num_looks > 2, "a server is looked at as long as the page is open")
        expect(page.locator("#mode, #right-model, #right-chat")).to_have_count(0)
        ask(page, "Are you alone?")
        expect(page.locator("#left-chat")).to_contain_text("Yes.")
        expect(page.locator("#left-chat")).to_contain_text("TTFT ")
        expect(page.locator("#left-chat")).not_to_contain_text("adapter")
        page.close()

        def is_left_alone() -> bool:
            before = _OneModel.num_looks
            time.sleep(3 * LOOK_EVERY_S)
            return _OneModel.num_looks == before

        _wait(is_left_alone, "nobody looks for a page that was closed")


_LATE_FRAMES = """const draw = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (then) => draw((now) => setTimeout(then, 1000, now));"""


def test_a_setting_is_not_written_over_by_what_the_page_draws_late(
    browser: Browser, tmp_path: Path
) -> None:
    """About one in 40 tabs lost the limit that was set as soon as its fold was open."""
    with (
        _page_of_one_model(tmp_path / "chat.jsonl") as address,
        contextlib.closing(browser.new_context()) as context,
    ):
        context.add_init_script(_LATE_FRAMES)
        page = context.new_page()
        page.goto(address)
        page.get_by_role("button", name="System prompt, sampling, tools").click()
        limit = page.get_by_label("Tokens of an answer, at most")
        limit.fill("12")
        page.wait_for_timeout(3000)  # longer than a frame takes here
        expect(limit).to_have_value("12")
        with page.expect_download() as download:
            page.get_by_role("button", name="Export JSON").click()
        settings = json.loads(Path(download.value.path()).read_text())["settings"]
        assert settings["max_tokens"] == 12


def _wait(is_so: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + _WAIT_MS / 1000
    while not is_so():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.2)


@pytest.mark.parametrize("tab", [(390, 844)], indirect=True)
def test_a_narrow_screen_needs_no_sideways_scroll(tab: Tab) -> None:
    page = tab.page
    ask(page, "Write " + "averyveryverylongword" * 6)
    expect(page.get_by_role("button", name="Both alike")).to_be_visible()
    page.get_by_role("button", name="Metrics of each arm").click()
    expect(page.locator(".arms table")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    left, right = (page.locator(f"#{side}-chat").bounding_box() for side in ("left", "right"))
    assert left is not None
    assert right is not None
    assert right["y"] >= left["y"] + left["height"], "one column below the other"


def test_the_keyboard_reaches_everything_and_text_can_be_read(tab: Tab) -> None:
    page = tab.page
    page.get_by_label("Question").focus()
    page.keyboard.type("By keys alone")
    reached: list[str] = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.id || document.activeElement.innerText")
        )
    assert {"send", "new", "export"} <= set(reached)
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "where the focus is can be seen"
    page.get_by_label("Question").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Both alike")).to_be_visible()
    for selector in ("#status p", "#load p", "#left-chat em", "#send", "#new", "label span"):
        assert _contrast(page, selector) >= 4.5, selector


def test_a_stop_keeps_what_came_and_an_image_of_elsewhere_is_not_fetched(tab: Tab) -> None:
    page = tab.page
    page.get_by_role("button", name="System prompt, sampling, tools").click()
    page.get_by_label("Tokens of an answer, at most").fill("500")
    ask(page, f"Tell a long story. ![x]({_ELSEWHERE})")
    stop = page.get_by_role("button", name="Stop")
    expect(stop).to_be_enabled()
    expect(page.locator("#load")).to_contain_text("2 answering")
    stop.click()
    expect(page.locator("#left-chat")).to_contain_text("stopped")
    expect(stop).to_be_disabled()
    expect(page.locator("#load")).to_contain_text("0 answering")
    assert _ELSEWHERE in tab.blocked


def test_a_new_conversation_ends_the_answers_that_still_come(tab: Tab) -> None:
    page = tab.page
    page.get_by_role("button", name="System prompt, sampling, tools").click()
    page.get_by_label("Tokens of an answer, at most").fill("500")
    ask(page, "Tell a story about a tulip.")
    expect(page.locator("#load")).to_contain_text("2 answering")
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator("#load")).to_contain_text("0 answering")
    expect(page.locator("#left-chat")).not_to_contain_text("tulip")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()


# WCAG 2.2, relative luminance and contrast ratio.
_RATIO = """(element) => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((each) => each / 255)
    .map((each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
    .reduce((sum, each, index) => sum + each * [0.2126, 0.7152, 0.0722][index], 0);
  let behind = element;
  while (behind.parentElement && (parse(getComputedStyle(behind).backgroundColor)[3] ?? 1) < 1)
    behind = behind.parentElement;
  const ground = parse(getComputedStyle(behind).backgroundColor);
  const pair = [light(parse(getComputedStyle(element).color)),
                light((ground[3] ?? 1) < 1 ? [255, 255, 255] : ground)].sort((a, b) => b - a);
  return (pair[0] + 0.05) / (pair[1] + 0.05);
}"""


def _contrast(page: Page, selector: str) -> float:
    ratio: Any = page.locator(selector).first.evaluate(_RATIO)
    return float(ratio)
