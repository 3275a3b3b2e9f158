"""The parts of the chat page that need no browser: models, answers, conversation, arms, metrics."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.chat import conversation as conversations
from workloads.chat import dialogue as dialogues
from workloads.chat.client import (
    Client,
    Model,
    Reply,
    caption,
    catalog,
    default_pair,
    partner,
    server_models,
)
from workloads.chat.dialogue import (
    Arms,
    Dialogue,
    Settings,
    SettingsError,
    View,
    parse_tools,
    restored_settings,
    table,
    wilson,
)
from workloads.chat.page import PageGuard, host_name
from workloads.common.exit_codes import ConfigError, NotRunError
from workloads.load.client import load_line, read_metrics
from workloads.load.http import ChatEvents
from workloads.serve.metrics import ServeMetrics
from workloads.serve.scheduler import Load

URL = "http://127.0.0.1:7860/v1"
PAIR = catalog(server_models(URL, {"data": [{"id": "base"}, {"id": "mine", "parent": "base"}]}))


def test_base_and_adapter_are_found_by_parent_and_by_name() -> None:
    assert default_pair(PAIR) == ("base", "mine")
    ours = catalog(server_models(URL, {"data": [{"id": "m"}, {"id": "m-tuned"}]}))
    assert [each.base for each in ours] == [None, "m"]
    assert (partner(ours, "m"), partner(ours, "m-tuned")) == (ours[1], ours[0])
    alone = catalog(server_models(URL, {"data": [{"id": "m"}]}))
    assert (default_pair(alone), partner(alone, "m")) == (("m", "m"), None)


def test_one_name_on_two_servers_is_told_apart_and_one_server_twice_is_refused() -> None:
    one = server_models("http://a:1/v1", {"data": [{"id": "m"}, {"id": "m-tuned"}]})
    two = server_models("http://b:2/v1", {"data": [{"id": "m"}]})
    found = catalog([*one, *two])
    assert [each.label for each in found] == ["m at a:1", "m-tuned", "m at b:2"]
    assert found[1].base == "m at a:1"
    with pytest.raises(ConfigError, match="m at a:1 comes twice"):
        catalog([*one, *one])


@pytest.mark.parametrize("body", [None, {}, {"data": []}, {"data": [1]}, [], {"data": [{}]}])
def test_what_lists_no_models_is_refused_with_its_address(body: Any) -> None:
    with pytest.raises(ConfigError, match=f"--url {URL}: answers no list of models"):
        server_models(URL, body)


@pytest.mark.feature("S000-51", "S000-52")
def test_times_and_speed_count_from_the_question_and_from_the_first_token() -> None:
    reply = Reply(model="m", is_tuned=False, began_s=10.0)
    reply.take({"delta": {"role": "assistant", "content": ""}}, 10.1)
    assert reply.ttft_s is None, "the role alone is no token"
    for number in range(5):
        reply.take({"delta": {"content": "x"}}, 10.5 + 0.25 * number)
    reply.take({"delta": {}, "finish_reason": "length"}, 12.0)
    reply.usage = {"prompt_tokens": 7, "completion_tokens": 5}
    assert (reply.ttft_s, reply.total_s, reply.tokens_per_s) == (0.5, 1.5, 4.0)
    line = caption(reply.to_json())
    assert line == (
        "TTFT 0.50 s | total 1.50 s | 5 tokens | 4.0 tokens/s | cut at the limit of tokens"
    )


@pytest.mark.feature("S000-51", "S000-52")
def test_the_clock_of_an_answer_starts_when_it_is_asked(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when the page made room for it, and not with the first bytes."""

    class Server:
        def __init__(self, url: str, key: None, *, at: str) -> None: ...

        def close(self) -> None: ...

        async def chat(self, body: bytes, events: ChatEvents, **_: Any) -> Any:
            for now_s, text in ((20.5, "a"), (22.0, "b")):
                delta = json.dumps({"choices": [{"delta": {"content": text}}]})
                events.feed(f"data: {delta}\n\n".encode(), now_s)
            events.feed(b"data: [DONE]\n\n", 22.1)
            return SimpleNamespace(status=200)

    monkeypatch.setattr("workloads.chat.client.HttpClient", Server)
    monkeypatch.setattr("workloads.chat.client.time.perf_counter", lambda: 20.0)
    reply = Reply(model="base", is_tuned=False, began_s=3.0)
    run(Client([URL], None).ask(PAIR[0], {}, reply, lambda: None))
    assert (reply.error, reply.text) == (None, "ab")
    assert (reply.ttft_s, reply.total_s) == (0.5, 2.0)


@pytest.mark.feature("S000-52")
def test_a_call_that_comes_in_pieces_is_one_call() -> None:
    reply = Reply(model="m", is_tuned=True, began_s=0)
    first = {"index": 0, "id": "c1", "function": {"name": "get_weather", "arguments": '{"city"'}}
    rest = {"index": 0, "function": {"arguments": ': "Oslo"}'}}
    for call in (first, rest):
        reply.take({"delta": {"tool_calls": [call]}}, 1.0)
    reply.finish = "tool_calls"
    shown = dialogues.answer_messages(reply.to_json(), hides_name=False)
    assert shown[0]["metadata"] == {"title": "Tool call: get_weather"}
    assert json.loads(shown[0]["content"].split("```")[1].removeprefix("json")) == {"city": "Oslo"}
    assert "m, adapter on" in shown[-1]["content"]
    bare = {**reply.to_json(), "is_tuned": None}
    assert "adapter" not in dialogues.answer_messages(bare, hides_name=False)[-1]["content"]


def answer(model: str = "base", text: str = "yes", **more: Any) -> dict[str, Any]:
    made = Reply(model=model, is_tuned=model == "mine", began_s=0.0, text=text, finish="stop")
    return {**made.to_json(), **more}


def test_each_column_is_sent_its_own_answers_and_a_failed_turn_is_left_out() -> None:
    chat = conversations.new()
    chat = conversations.add_turn(chat, "q1", [answer(text="a"), answer(text="b")], role="user")
    failed = [answer(error="gone"), answer(error="gone")]
    chat = conversations.add_turn(chat, "q2", failed, role="user")
    sent = conversations.messages(chat, 1, system="be brief", role="user", text="q3")
    assert [(each["role"], each["content"]) for each in sent] == [
        ("system", "be brief"),
        ("user", "q1"),
        ("assistant", "b"),
        ("user", "q3"),
    ]


def test_a_result_answers_every_call_of_its_column_and_is_a_question_where_none_was_made() -> None:
    calls = [{"id": name, "name": "f", "arguments": "{}"} for name in ("c1", "c2")]
    chat = conversations.add_turn(
        conversations.new(), "q", [answer(calls=calls), answer()], role="user"
    )
    assert conversations.has_open_calls(chat)
    called = conversations.messages(chat, 0, system="", role="tool", text="21 C")
    assert [each.get("tool_call_id") for each in called[2:]] == ["c1", "c2"]
    assert called[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    plain = conversations.messages(chat, 1, system="", role="tool", text="21 C")
    assert plain[-1] == {"role": "user", "content": "21 C"}
    chat = conversations.add_turn(chat, "21 C", [answer(), answer()], role="tool")
    assert not conversations.has_open_calls(chat)


def test_a_result_that_the_tunnel_lost_is_sent_again_as_a_result(run: Any) -> None:
    made, answers = dialogue()
    calls = [{"id": "c1", "name": "f", "arguments": "{}"}]
    chosen = Settings(mode="one", left="base", right="mine")
    chat = conversations.add_turn(
        conversations.new(), "q", [answer("base", calls=calls)], role="user"
    )

    async def send(chat: conversations.Conversation) -> View:
        return await last(made.ask(chat, chosen, "21 C", is_result=True))

    answers.is_lost = True
    view: View = run(send(chat))
    assert (view.question, view.is_result) == ("21 C", True), "it comes back as what it was"
    answers.is_lost = False
    view = run(send(view.conversation))
    assert answers.bodies[-1][1]["messages"][-1]["role"] == "tool"
    assert not view.is_result


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(st.sampled_from(["version", "id", "columns", "turns", "settings"]), x)
        ),
    )
)
def test_whatever_a_browser_kept_gives_a_conversation(kept: Any) -> None:
    restored = conversations.restored(kept)
    assert restored["version"] == conversations.VERSION
    restored_settings(restored.get("settings"), PAIR)


@pytest.mark.parametrize("calls", [None, "f", [{"name": "f"}], [["id", "name", "arguments"]]])
def test_a_kept_conversation_whose_calls_are_not_ours_is_begun_anew(calls: Any) -> None:
    kept = conversations.add_turn(conversations.new(), "q", [answer(calls=calls)], role="user")
    assert conversations.restored(kept)["turns"] == []


def test_a_kept_conversation_comes_back_whole() -> None:
    chat = conversations.add_turn(conversations.new(), "q", [answer()], role="user")
    assert conversations.restored(json.loads(json.dumps(chat))) == chat


def test_the_export_has_every_turn_and_the_chats_of_both_columns() -> None:
    both = [answer(text="a"), answer("mine", text="b")]
    chat = conversations.add_turn(conversations.new(), "q", both, role="user")
    made = conversations.export(
        chat, system="s", servers=[URL], settings={"mode": "pair"}, hides_names=False
    )
    assert made["turns"] == chat["turns"]
    assert [chat[-1] for chat in made["messages"]] == [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]


@pytest.mark.feature("S000-51", "S000-52")
def test_arms_count_votes_latencies_and_failures_and_outlive_the_page(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "chat.jsonl"
    arms = Arms(path)
    for ttft_s in (0.1, 0.2, 0.3):
        arms.answered(answer(ttft_s=ttft_s, total_s=1.0, tokens_per_s=20.0), mode="pair")
    arms.answered(answer(finish="failed", error="x"), mode="pair")
    arms.answered(answer(finish="stopped"), mode="pair")
    arms.voted(["base", "mine"], "right", mode="pair")
    arms.voted(["mine", "base"], "left", mode="pair")
    arms.voted(["mine", "base"], "right", mode="blind")
    arms.voted(["base", "mine"], "tie", mode="pair")
    arms.voted(["mine"], "good", mode="split")
    rows = table(arms.arms)
    assert rows == [
        ["base", "blind", "0", "0", *"----", "0 / 0", "1 / 0 / 0", "100 % (21 to 100)"],
        [
            *("base", "side by side", "3", "1", "0.20", "0.28", "1.00", "20.0"),
            *("0 / 0", "0 / 2 / 1", "0 % (0 to 66)"),
        ],
        ["mine", "blind", "0", "0", *"----", "0 / 0", "0 / 1 / 0", "0 % (0 to 79)"],
        ["mine", "side by side", "0", "0", *"----", "0 / 0", "2 / 0 / 1", "100 % (34 to 100)"],
        ["mine", "A/B split", "0", "0", *"----", "1 / 0", "0 / 0 / 0", "-"],
    ]
    assert table(Arms(path).arms) == rows
    assert "yes" not in path.read_text(), "no text of a chat is kept"
    path.write_text("{}\n")
    with pytest.raises(ConfigError, match="line 1 is no event of a chat page"):
        Arms(path)


def test_a_record_that_cannot_be_written_takes_no_answer_from_its_reader(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chat.jsonl"
    arms = Arms(path)
    path.unlink()
    path.mkdir()
    arms.answered(answer(), mode="pair")
    assert arms.arms["base", "pair"].num_answers == 1
    assert "counted on this page only" in capsys.readouterr().err


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    Arms(path).voted(["mine"], "good", mode="split")
    path.write_text(path.read_text() + '{"at": "2026-11-21T')
    again = Arms(path)
    again.voted(["mine"], "good", mode="split")
    assert Arms(path).arms["mine", "split"].good == 2


def test_the_interval_is_wilson_s() -> None:
    # By hand, z^2 = 3.841459: middle (0.8 + z^2/20) / (1 + z^2/10) = 0.716740, half 0.226578.
    assert wilson(8, 10) == pytest.approx((0.490162, 0.943318), abs=1e-6)


def test_gpu_and_memory_are_read_from_our_page_and_less_from_vllm_s() -> None:
    ours = read_metrics(
        '# HELP x y\nserve_gpu_utilization_ratio{gpu="0"} 0.87\n'
        'serve_gpu_memory_used_bytes{gpu="0"} 6.6e10\n'
        'serve_gpu_memory_total_bytes{gpu="0"} 1.5e11\n'
        "serve_running_requests 2.0\nserve_waiting_requests 1.0\n"
        "serve_kv_cache_used_tokens 50.0\nserve_kv_cache_tokens 100.0\nodd line\n"
    )
    assert load_line(ours) == (
        "GPU 0: 87 % busy, 61.5 of 139.7 GiB | 2 answering, 1 waiting | KV cache 50 % used"
    )
    vllm = read_metrics(
        'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
        'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25\n'
    )
    assert load_line(vllm) == "No GPU reported | 3 answering, 0 waiting | KV cache 25 % used"
    assert load_line(read_metrics("")) == "No GPU reported"


def test_a_server_that_nobody_has_asked_yet_counts_no_request_rather_than_not_counting() -> None:
    """Else a load test of a fresh server does not see whom else it serves meanwhile."""
    load = Load(num_running=0, num_waiting=0, kv_used_tokens=0, kv_total_tokens=8)
    assert read_metrics(ServeMetrics(lambda: load, lambda: 0).text().decode()).num_ended == 0
    fresh_vllm = "# TYPE vllm:request_success_total counter\nvllm:num_requests_running 0.0\n"
    assert read_metrics(fresh_vllm).num_ended == 0
    assert read_metrics("vllm:num_requests_running 0.0\n").num_ended is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{", "no JSON"), ("{}", "a list is needed"), ('[{"x": 1}]', r"Tools\[0\]: needs a name")],
)
def test_tools_that_cannot_be_sent_are_named(text: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        parse_tools(text)


def test_tools_may_be_given_as_functions_alone() -> None:
    whole = [{"type": "function", "function": {"name": "f"}}]
    assert parse_tools('[{"name": "f"}]') == parse_tools(json.dumps(whole)) == whole


@pytest.mark.parametrize(
    ("host", "name"),
    [("127.0.0.1:7861", "127.0.0.1"), ("[::1]:7861", "[::1]"), ("localhost", "localhost")],
)
def test_a_host_header_is_read_without_its_port(host: str, name: str) -> None:
    assert host_name(host) == name


def test_foreign_text_stays_text() -> None:
    evil = "<img src=x onerror=alert(1)>"
    arms = Arms()
    arms.voted([evil], "good", mode="one")
    for html in (
        dialogues.arms_html(arms.arms),
        dialogues.status_html({URL: evil}, [URL], []),
        dialogues.load_html([evil]),
        dialogues.notice_html(evil),
    ):
        assert "<img" not in html


class Answers:
    """Stands in for servers: each model says its own name."""

    urls = (URL,)

    def __init__(self) -> None:
        self.bodies: list[tuple[str, Mapping[str, Any]]] = []
        self.is_lost = False

    async def ask(
        self, model: Model, body: Mapping[str, Any], reply: Reply, changed: Callable[[], None]
    ) -> None:
        self.bodies.append((model.name, body))
        if self.is_lost:
            reply.fail("the SSH tunnel is lost")
            return
        reply.take({"delta": {"content": f"I am {model.name}"}, "finish_reason": "stop"}, 1.0)
        changed()


def dialogue() -> tuple[Dialogue, Answers]:
    answers = Answers()
    made = Dialogue(answers, PAIR, Arms(), random.Random(0))  # type: ignore[arg-type]
    return made, answers


async def last(views: AsyncIterator[View]) -> View:
    seen = [view async for view in views]
    return seen[-1]


async def ask(
    made: Dialogue, chosen: Settings, chat: conversations.Conversation | None = None
) -> View:
    return await last(made.ask(chat or conversations.new(), chosen, "who?", is_result=False))


@pytest.mark.feature("S002-80")
def test_a_split_draws_an_arm_for_each_conversation_and_keeps_it(run: Any) -> None:
    made, answers = dialogue()
    chosen = Settings(mode="split", left="base", right="mine", share_percent=25)

    async def many() -> None:
        for _ in range(400):
            await ask(made, chosen)
        share = sum(name == "mine" for name, _ in answers.bodies) / 400
        # Four standard deviations of 400 draws.
        assert share == pytest.approx(0.25, abs=0.09)
        view = await ask(made, chosen)
        (arm,) = view.conversation["columns"]
        for _ in range(20):
            view = await ask(made, chosen, view.conversation)
        assert view.conversation["columns"] == [arm]
        assert {turn["answers"][0]["model"] for turn in view.conversation["turns"]} == {arm}

    run(many())


@pytest.mark.feature("S002-80")
def test_side_by_side_each_column_has_the_answer_of_the_model_above_it(run: Any) -> None:
    made, answers = dialogue()
    view: View = run(ask(made, Settings(mode="pair", left="mine", right="base")))
    assert sorted(name for name, _ in answers.bodies) == ["base", "mine"]
    (turn,) = view.conversation["turns"]
    said = [(each["model"], each["is_tuned"], each["text"]) for each in turn["answers"]]
    assert said == [("mine", True, "I am mine"), ("base", False, "I am base")]


@pytest.mark.parametrize("mode", ["blind", "split"])
def test_nothing_tells_who_answered_before_the_vote(run: Any, mode: Any) -> None:
    made, _ = dialogue()
    chosen = Settings(mode=mode, left="base", right="mine")
    view: View = run(ask(made, chosen))
    for shown in view.columns:
        assert "name shown after your vote" in shown[-1]["content"]
    assert made.arms.arms == {}, "a count of answers would tell it"

    def exported(chat: conversations.Conversation) -> set[str | None]:
        file = conversations.export(chat, system="", servers=[], settings={}, hides_names=True)
        return {answer["model"] for turn in file["turns"] for answer in turn["answers"]}

    assert exported(view.conversation) == {None}
    view = made.vote(view.conversation, chosen, "left" if mode == "blind" else "good")
    assert exported(view.conversation) == set(view.conversation["columns"])
    names = view.conversation["columns"]
    assert [made.arms.arms[name, mode].num_answers for name in names] == [1] * len(names)


def test_only_the_vote_on_unknown_sides_counts(run: Any) -> None:
    made, _ = dialogue()
    chosen = Settings(mode="blind", left="base", right="mine")
    view: View = run(ask(made, chosen))
    view = made.vote(view.conversation, chosen, "left")
    winner, loser = view.conversation["columns"]
    assert f"{winner}, adapter" in view.columns[0][-1]["content"]
    view = run(ask(made, chosen, view.conversation))
    assert f"{winner}, adapter" in view.columns[0][-1]["content"], "the sides are known"
    assert not made.can_vote(view.conversation, chosen)
    made.vote(view.conversation, chosen, "right")
    counts = [made.arms.arms[name, "blind"] for name in (winner, loser)]
    assert [(arm.wins, arm.losses, arm.num_answers) for arm in counts] == [(1, 0, 2), (0, 1, 2)]


def test_answers_without_a_vote_count_once_their_conversation_is_over(run: Any) -> None:
    made, _ = dialogue()
    chosen = Settings(mode="split", left="base", right="mine", share_percent=0)
    left: View = run(ask(made, chosen))
    run(ask(made, chosen))
    made.leave(left.conversation)
    assert made.arms.arms["base", "split"].num_answers == 1
    made.end()
    made.end()
    assert made.arms.arms["base", "split"].num_answers == 2


@pytest.mark.parametrize(
    ("control", "notice"),
    [({"tools": "{"}, "Tools are no JSON"), ({"max_tokens": None}, "a whole number from 1")],
)
def test_a_wrong_control_sends_nothing_and_keeps_the_question(
    run: Any, control: dict[str, Any], notice: str
) -> None:
    made, answers = dialogue()
    wrong = Settings(mode="one", left="base", right="mine", **control)
    view: View = run(ask(made, wrong))
    assert notice in view.notice
    assert (view.question, view.conversation["turns"], answers.bodies) == (None, [], [])


def test_an_emptied_number_of_tokens_is_not_taken_for_one() -> None:
    from workloads.chat.page import Page

    controls = ("Side by side", "base", "mine", 50.0, False, "", 0.7, None, "")
    assert Page(dialogue()[0])._settings(*controls).max_tokens is None


def test_the_page_promises_no_equal_answers_at_temperature_0() -> None:
    """In bf16 six of sixteen answers changed with the batch, under "0: always the same"."""
    from workloads.chat.page import Page

    assert Page(dialogue()[0])._temperature.label == "Temperature (0: likeliest word)"


@pytest.mark.feature("S000-48")
def test_every_control_of_the_page_does_what_it_says() -> None:
    from workloads.chat.page import Page

    page = Page(dialogue()[0])

    def does(part: Any, event: str) -> set[str | None]:
        functions = page.blocks.fns.values()
        return {each.name for each in functions if (part._id, event) in each.targets}

    assert does(page._send, "click") == does(page._question, "submit") == {"_ask"}
    assert not page._send.interactive, "nothing is sent before the page has its conversation"
    assert does(page._stop, "click") == {"_stopped"}
    assert "_renew" in does(page._new, "click")
    assert "_exported" in does(page._export, "click")
    assert all(does(button, "click") for button in page._votes.values())
    assert {"_opened", "_watched"} <= does(page.blocks, "load")
    assert does(page._timer, "tick") == {"_watched"}


def test_whatever_starts_a_conversation_ends_the_answers_of_the_one_before() -> None:
    from workloads.chat.page import Page

    functions = Page(dialogue()[0]).blocks.fns
    asks = {number for number, each in functions.items() if each.name == "_ask"}
    renews = [each.targets for each in functions.values() if each.name == "_renew"]
    ends = [each.targets for each in functions.values() if set(each.cancels) == asks]
    # New conversation, a change of mode, and the clearing of either column.
    assert (len(asks), len(renews)) == (2, 4)
    assert ends == renews


@pytest.mark.parametrize("is_dropped", [False, True])
def test_nothing_of_an_answer_comes_after_the_conversation_that_replaced_it(
    run: Any, is_dropped: bool
) -> None:
    """Gradio sends one view, then asks for the next, or drops the rest when it cancels in time.

    It sends the last view of an event again when the event ends, and the browser may draw that one
    after the view of an event which ended later: so the last one has to be the new conversation.
    """
    import asyncio

    from workloads.chat.page import Page

    class Endless(Answers):
        async def ask(self, model: Model, body: Any, reply: Reply, changed: Any) -> None:
            reply.take({"delta": {"content": "tulip"}}, 1.0)
            await asyncio.Event().wait()

    page = Page(Dialogue(Endless(), PAIR, Arms(), random.Random(0)))  # type: ignore[arg-type]
    controls = ("Side by side", "base", "mine", 50.0, True, "", 0.7, 500, "")
    old = conversations.new()
    sent: list[Any] = []
    renewed: list[Any] = []

    async def browser() -> None:
        views: Any = page._ask(old, "tell", False, *controls)
        view = (await anext(views))[0]
        assert view["id"] == old["id"]
        renewing = asyncio.create_task(_renew(view))
        for _ in range(20):  # Gradio makes the view ready to be sent
            await asyncio.sleep(0)
        sent.append(view)
        if is_dropped:
            await views.aclose()
        else:
            sent.extend([each[0] async for each in views])
        await renewing

    async def _renew(kept: Any) -> None:
        renewed.append((await page._renew(kept, *controls))[0])

    run(asyncio.wait_for(browser(), 30))
    assert [each["id"] for each in sent] == [old["id"], *([renewed[0]["id"]] * (not is_dropped))]
    assert renewed[0]["id"] != old["id"]


@pytest.fixture
def run() -> Callable[[Any], Any]:
    import asyncio

    return asyncio.run


def launched(
    monkeypatch: pytest.MonkeyPatch, share_url: str | None, *flags: str
) -> tuple[list[dict[str, Any]], Callable[[], None]]:
    """What the page is launched with, {} for its end; and the program to call."""
    import threading
    from types import SimpleNamespace

    from workloads.chat import __main__ as program

    done: list[dict[str, Any]] = []
    blocks = SimpleNamespace(
        share_url=share_url,
        launch=lambda **options: done.append(options),
        close=lambda **_: done.append({}),
    )

    async def models(_: Client) -> list[Model]:
        return list(PAIR)

    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "False")  # the program sets it for good
    monkeypatch.setattr(Client, "models", models)
    monkeypatch.setattr("workloads.chat.page.Page", lambda *_: SimpleNamespace(blocks=blocks))
    over = threading.Event()
    over.set()
    options = program.parse(["--url", URL, "--port", "0", *flags])
    return done, lambda: program.serve(options, over)


def test_a_public_link_that_did_not_come_ends_the_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done, serve = launched(monkeypatch, None, "--share")
    with pytest.raises(NotRunError, match="--share: Gradio's relay gave no link"):
        serve()
    assert (done[0]["share"], done[-1]) == (True, {})
    assert "password" not in capsys.readouterr().err


@pytest.mark.feature("S000-49")
def test_a_link_is_shared_only_when_asked_for_and_then_with_a_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done, serve = launched(monkeypatch, None)
    serve()
    alone = done[0]
    assert (alone["share"], alone["auth"], alone["server_name"]) == (False, None, "127.0.0.1")
    told = capsys.readouterr().err
    assert "shared" not in told
    assert re.search(r": http://127\.0\.0\.1:\d+/\?token=\S{40,}\n", told)
    done, serve = launched(monkeypatch, "https://1a2b.gradio.live", "--share")
    serve()
    user, password = done[0]["auth"]
    assert (done[0]["share"], len(password) >= 16) == (True, True)
    told = capsys.readouterr().err
    assert f"shared: https://1a2b.gradio.live, user {user}, password {password}" in told


@pytest.mark.feature("S000-48", "S000-52")
def test_a_question_has_the_server_s_own_name_of_the_model_and_times_from_when_it_is_sent(
    run: Any,
) -> None:
    """Two servers with a model of one name: only the page tells them apart by a label."""
    asked: list[dict[str, Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length:")[2].split()[0])
        asked.append(json.loads(await reader.readexactly(length)))
        chunk = json.dumps({"choices": [{"index": 0, "delta": {"content": "Yes."}}]})
        writer.write(
            b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
            + f"data: {chunk}\n\ndata: [DONE]\n\n".encode()
        )
        writer.close()

    async def ask_one() -> Reply:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        reply = Reply(model="m at a:1", is_tuned=None, began_s=0.0)
        model = Model(label="m at a:1", name="m", url=url)
        body = {"messages": [{"role": "user", "content": "Are you there?"}]}
        async with server:
            await Client([url], None).ask(model, body, reply, lambda: None)
        return reply

    began_s = time.perf_counter()
    reply = run(ask_one())
    assert (reply.text, reply.error) == ("Yes.", None)
    assert (asked[0]["model"], asked[0]["messages"][0]["content"]) == ("m", "Are you there?")
    assert reply.total_s is not None
    assert 0 < reply.total_s <= time.perf_counter() - began_s


def test_an_address_that_is_none_is_refused() -> None:
    for url in ("ftp://x/v1", "127.0.0.1:7860", "http://host:port/v1"):
        with pytest.raises(ConfigError, match=f"--url {url}: expected http://HOST:PORT/v1"):
            Client([url], None)


@pytest.mark.parametrize(
    "user",
    ["ann:secret", ":secret", "ann", "ann:a/secret", "ann:a#secret", "ann:[s", "a@b", "a:s\nt"],
)
@pytest.mark.parametrize("scheme", ["http://", "http:/", "http:", ""])
def test_a_user_in_an_address_is_refused_and_its_password_is_not_shown(
    user: str, scheme: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        Client([f"{scheme}{user}@localhost/v1"], None)
    assert str(refusal.value) == (
        "--url ...@localhost/v1: expected http://HOST:PORT/v1, without a user or any other @ in it"
    )


TOKEN = "of-this-page"
COOKIE = f"soperator-chat-7861={TOKEN}"
OWN = {"host": "127.0.0.1:7861", "cookie": COOKIE}


def guarded(
    path: str,
    headers: dict[str, str],
    *,
    token: str | None = TOKEN,
    query: str = "",
    method: str = "POST",
) -> tuple[int, dict[str, str]]:
    """Status and headers that the page's guard gives a request; 200 is the page's own."""
    answers: list[tuple[int, dict[str, str]]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        if "status" in message:
            pairs = [(name.decode(), value.decode()) for name, value in message["headers"]]
            answers.append((message["status"], dict(pairs)))

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "headers": raw, "method": method}
    scope["query_string"] = query.encode()
    asyncio.run(PageGuard(app, token=token)(scope, receive, send))
    (answer,) = answers
    return answer


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200),
        ("http://127.0.0.1:7861", 200),
        ("http://localhost:7861", 403),
        ("http://127.0.0.1:9999", 403),
        ("http://[", 403),
        ("http://evil.com", 403),
        ("http://127.0.0.1.evil.com", 403),
        ("null", 403),
    ],
)
def test_a_page_elsewhere_sends_nothing_to_this_one(origin: str | None, status: int) -> None:
    headers = OWN | ({} if origin is None else {"origin": origin})
    assert guarded("/gradio_api/queue/join", headers)[0] == status


@pytest.mark.parametrize("path", ["/", "/config", "/gradio_api/queue/join", "/gradio_api/info"])
@pytest.mark.parametrize(
    ("cookie", "query"),
    [
        ("", ""),
        ("soperator-chat-7861=", "token="),
        ("soperator-chat-7861=of-another-page", "token=of-another-page"),
        (f"soperator-chat-7862={TOKEN}", "token=%ff%00"),
        (f"token={TOKEN}", f"Token={TOKEN}"),
    ],
)
def test_whoever_has_no_token_gets_nothing_of_the_page(path: str, cookie: str, query: str) -> None:
    """Every user of a machine reaches its loopback ports."""
    headers = {"host": "127.0.0.1:7861", "cookie": cookie}
    assert guarded(path, headers, query=query)[0] == 401


def test_the_printed_address_opens_the_page_and_leaves_its_token_in_no_address() -> None:
    host = {"host": "127.0.0.1:7861"}
    status, headers = guarded("/", host, query=f"token={TOKEN}")
    assert (status, headers["location"]) == (303, "/")
    words = {word.lower() for word in headers["set-cookie"].split("; ")}
    assert words >= {COOKIE, "httponly", "samesite=strict", "path=/"}
    assert guarded("/", OWN)[0] == 200
    # Gradio asks its own page before anybody has the address.
    assert guarded("/gradio_api/startup-events", host, method="GET")[0] == 200
    assert guarded("/gradio_api/startup-events", host)[0] == 401
    # A shared page has Gradio's password in the place of the token.
    assert guarded("/", {"host": "1a2b.gradio.live"}, token=None)[0] == 200


@pytest.mark.parametrize("host", ["127.0.0.1:7861; x=1", "localhost:a b", "[::1]", "127.0.0.1", ""])
def test_a_host_that_is_no_loopback_address_with_a_port_is_refused(host: str) -> None:
    assert guarded("/", {"host": host}, query=f"token={TOKEN}")[0] == 421


def test_a_websocket_is_not_let_in() -> None:
    asked: list[Any] = []

    async def app(*given: Any) -> None:
        asked.extend(given)

    asyncio.run(PageGuard(app, token=TOKEN)({"type": "websocket", "path": "/"}, app, app))
    assert asked == []


@pytest.mark.parametrize("token", [TOKEN, None])
def test_the_page_takes_no_files(token: str | None) -> None:
    """60 MB of anybody's were kept, until the disk is full."""
    headers = {**OWN, "origin": "http://127.0.0.1:7861"}
    for path in ("/gradio_api/upload", "/gradio_api/upload_progress"):
        assert guarded(path, headers, token=token)[0] == 403
