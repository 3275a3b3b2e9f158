"""Tool calls in training, evaluation and serving: one prompt, by the templates of public models.

chat_templates/ has them, and a README that says where they come from.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.workloads.conftest import RECIPE, TEMPLATES, make_tokenizer, template
from workloads.common.dist import world
from workloads.common.exit_codes import DataError
from workloads.common.tool_calls import CallForm, parse_calls
from workloads.data.__main__ import main as prepare
from workloads.data.chat_template import as_answer, call_form, render
from workloads.data.chats import calls_of, read_jsonl, read_openai
from workloads.data.token_rows import IGNORED, read_parquet
from workloads.evaluate.held_out import HeldOut, context, last_turn
from workloads.evaluate.scores import call_scores
from workloads.job import Job, run_job, section
from workloads.recipes.evaluate import EvaluateConfig
from workloads.recipes.serve import Limits
from workloads.serve.protocol import parse_chat, prompt_ids

NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city, as it is now.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
TOOLS = [{"type": "function", "function": WEATHER}]


def call(city: str, number: int) -> dict[str, Any]:
    """A call as OpenAI's API writes it: the id is longer than Mistral's, arguments are text."""
    arguments = json.dumps({"city": city, "days": number}, ensure_ascii=False)
    function = {"name": "get_weather", "arguments": arguments}
    return {"id": f"call_{city}_{number:024d}", "type": "function", "function": function}


def rows(city: str) -> list[dict[str, Any]]:
    """Chats of every kind about a city: called at once, answered after a call, without tools."""
    asked = {"role": "user", "content": f"How is {city}?"}
    called = {"role": "assistant", "content": None, "tool_calls": [call(city, 1)]}
    result = {"role": "tool", "tool_call_id": call(city, 1)["id"], "content": '{"degrees": 4}'}
    said = {"role": "assistant", "content": f"It is 4 degrees in {city}."}
    system = {"role": "system", "content": f"You know {city}."}
    parts = [result, {**result, "tool_call_id": call(city, 2)["id"], "content": "5"}]
    two = {**called, "tool_calls": [call(city, 1), call(city, 2)]}
    chats: list[tuple[list[dict[str, Any]], Any]] = [
        ([system, asked, called], TOOLS),
        ([{**asked, "content": f"And {city}?"}, called, result, said], TOOLS),
        ([system, {**asked, "content": f"In {city}?"}, said, asked, called, result, said], TOOLS),
        ([{**asked, "content": f"Hi, {city}?"}, said], TOOLS),
        ([{**asked, "content": f"{city}, please."}, said, asked, said], None),
        ([{**asked, "content": f"{city} twice?"}, two], TOOLS),
        ([{**asked, "content": f"{city} and {city}?"}, two, *parts[::-1], said], TOOLS),
    ]
    return [
        {"id": f"{city}{number}", "messages": messages, **({"tools": tools} if tools else {})}
        for number, (messages, tools) in enumerate(chats)
    ]


def prepared(places: Path, tokenizer: Any) -> tuple[HeldOut, Path]:
    """Runs prepare-data with the tokenizer; what evaluation makes of its folder."""
    # Beside the weights of the shared model, of which neither job reads any.
    model = places / "own-models" / "tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    tokenizer.save_pretrained(model)
    raw = places / "data" / "raw.jsonl"
    raw.write_text("".join(f"{json.dumps(row)}\n" for row in rows("Oslo") + rows("Turin")))
    data = {
        **RECIPE["data"],
        "source": {"kind": "jsonl", "path": "raw.jsonl"},
        "test_ratio": 0.5,
        "rand_sort": False,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    recipe = places / "recipe.json"
    evaluate = {**RECIPE["evaluate"], "num_rows": 99, "num_perplexity_rows": 99}
    recipe.write_text(json.dumps({**RECIPE, "data": data, "evaluate": evaluate}))
    found: list[HeldOut] = []

    def look(job: Job) -> None:
        with world(cpu_threads=1) as here:
            found.append(context(job, section(job.recipe, EvaluateConfig), here, None).held_out)

    assert run_job("prepare-data", prepare, ["--recipe", str(recipe)]) == 0
    assert run_job("evaluate", look, ["--recipe", str(recipe)]) == 0
    return found[0], places / "data" / "prepared"


def served(tokenizer: Any, row: dict[str, Any]) -> list[int]:
    """The prompt of a request over HTTP that asks for the last turn of a raw row."""
    last = max(n for n, each in enumerate(row["messages"]) if each["role"] == "assistant")
    request = {"model": "m", "messages": row["messages"][:last], "tools": row.get("tools")}
    asked = parse_chat(json.dumps(request).encode(), Limits())
    return list(prompt_ids(tokenizer, asked.messages, asked.tools, {"enable_thinking": False}))


@pytest.mark.feature("S001-06", "S001-07")
@pytest.mark.parametrize("name", [*NAMES, "no tools"])
def test_training_evaluation_and_serving_have_one_prompt_token_by_token(
    name: str, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOPERATOR_PLACE_MODEL", str(places / "own-models"))
    tokenizer = make_tokenizer() if name == "no tools" else template(name)
    held_out, folder = prepared(places, tokenizer)
    examples = read_parquet(folder / "tokens_test.parquet")
    refused = (folder / "tokens_test.rejects.jsonl").read_text().splitlines()
    raw = {row["id"]: row for row in rows("Oslo") + rows("Turin")}
    # Llama's template takes one call a message: a chat that goes on behind two has no prompt.
    assert len(held_out.chats) == (6 if name == "llama3_1" else 7)
    for chat, prompt, reference in zip(
        held_out.chats, held_out.prompts, held_out.references, strict=True
    ):
        assert list(prompt) == served(tokenizer, raw[chat.id]), chat.id
        if name == "llama3_1" and chat.id.endswith("5"):
            continue
        (example,) = [
            each
            for each in examples
            if list(each.input_ids[: len(prompt)]) == list(prompt)
            and each.labels[len(prompt)] != IGNORED
        ]
        learned = [label for label in example.labels[len(prompt) :] if label != IGNORED]
        assert learned == list(example.input_ids[len(prompt) : len(prompt) + len(learned)])
        assert learned[-1] == tokenizer.eos_token_id
        answer = tokenizer.decode(learned, skip_special_tokens=True)
        last = chat.messages[last_turn(chat)]
        assert parse_calls(answer) == calls_of(last)
        assert reference == (answer if calls_of(last) else last["content"])
        if chat.functions:
            assert set(call_scores(chat, reference, answer).values()) <= {0.0, 1.0}
            wrong = call_scores(chat, reference, "{")
            assert call_scores(chat, reference, answer) != wrong or not calls_of(last)
    assert len(refused) == (2 if name == "llama3_1" else 0), refused
    if refused:
        assert "single tool-calls" in json.loads(refused[0])["reason"]


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("qwen2_5", CallForm()),
        ("qwen3", CallForm()),
        ("llama3_1", CallForm(before="", between=None, after="", arguments="parameters")),
        ("mistral_nemo", CallForm(before="[TOOL_CALLS][", between=", ", after="]", has_id=True)),
    ],
)
def test_the_form_of_calls_is_learned_from_the_template(name: str, form: CallForm) -> None:
    assert call_form(template(name)) == form
    # A tokenizer without the markers as tokens, too.
    bare = make_tokenizer((TEMPLATES / f"{name}.jinja").read_text())
    assert call_form(bare) == form
    bare.chat_template = make_tokenizer().chat_template
    assert call_form(bare) is None, "the answer is that of the template as it is now"


def test_the_loss_is_on_the_call_in_the_model_s_own_form_and_on_nothing_else() -> None:
    for name, learned in {
        "qwen3": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 1}}\n'
        "</tool_call><|im_end|>",
        "llama3_1": '{"name": "get_weather", "parameters": {"city": "Oslo", "days": 1}}<|eot_id|>',
        "mistral_nemo": '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo", '
        '"days": 1}, "id": "000000000"}]<|im_end|>',
    }.items():
        tokenizer = template(name)
        row = rows("Oslo")[0]
        messages, functions = read_openai(row, at="row")
        (piece,) = render(tokenizer, messages, functions, enable_thinking=False)
        ((start, end),) = piece.spans
        assert piece.text[start:end] == learned


def test_the_system_text_of_mistral_is_in_the_prompt_that_is_learned() -> None:
    """Its template writes it into a user turn that is last, so never before an answer."""
    tokenizer = template("mistral_nemo")
    messages, functions = read_openai(rows("Oslo")[2], at="row")
    pieces = render(tokenizer, messages, functions)
    assert ["You know Oslo." in piece.text for piece in pieces] == [True, True, False]
    assert pieces[0].text.endswith("[INST]You know Oslo.\n\nIn Oslo?[/INST]It is 4 degrees in "
                                   "Oslo.<|im_end|>")  # fmt: skip


def test_a_template_that_loses_what_stands_beside_a_call_refuses_the_row() -> None:
    row = rows("Oslo")[0]
    row["messages"][-1]["content"] = "Let me look."
    messages, functions = read_openai(row, at="row")
    (piece,) = render(template("qwen2_5"), messages, functions)
    ((start, end),) = piece.spans
    assert piece.text[start:end].startswith("Let me look.\n<tool_call>")
    for name in ("llama3_1", "mistral_nemo"):
        with pytest.raises(DataError, match="the chat template changes the text of the turn"):
            render(template(name), messages, functions)


def test_equal_questions_with_other_functions_are_two_chats(places: Path) -> None:
    """The functions stood in the system message once, which told such chats apart."""
    raw = [row | {"id": str(n)} for n, row in enumerate([rows("Oslo")[3]] * 3)]
    raw[1] = raw[1] | {"tools": [{"type": "function", "function": {**WEATHER, "name": "other"}}]}
    (places / "data" / "raw.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in raw))
    from workloads.data.dataset_convert import main as convert
    from workloads.data.dataset_split import key_of

    out = places / "chats.jsonl"
    assert convert([str(places / "data" / "raw.jsonl"), str(out)]) == 0
    keys = [key_of(chat).digest for chat in read_jsonl(out)]
    assert keys[0] == keys[2] != keys[1]


def test_an_answer_of_mistral_is_read_though_its_marker_is_no_text() -> None:
    tokenizer = template("mistral_nemo")
    text = '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abcDEF123"}]'
    assert as_answer(tokenizer, text).startswith("[{")
    (made,) = parse_calls(as_answer(tokenizer, text)) or []
    assert (made.name, made.arguments) == ("f", {"a": 1})
