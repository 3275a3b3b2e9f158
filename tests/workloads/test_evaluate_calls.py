"""Function calling: relevance, parse failures, names, argument names, and BFCL's own verdicts."""

from __future__ import annotations

import copy
import json
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.setup.tools.__main__ import CHECKER, DATA
from infra.state import Cache
from tests.workloads.conftest import EXCERPT
from workloads.common.exit_codes import DataError
from workloads.common.tool_calls import ToolCall, render
from workloads.data.chats import NO_CALL, OPTIONAL, Chat, bfcl_files, read_bfcl, reference_call
from workloads.evaluate.scores import call_scores

FUNCTION = {
    "name": "get_price",
    "description": "",
    "parameters": {
        "type": "object",
        "properties": {"fund": {"type": "string"}, "date": {"type": "string"}},
        "required": ["fund"],
    },
}


def chat(reference: str, *, functions: tuple[Any, ...] = (FUNCTION,)) -> Chat:
    """A chat whose last turn is `reference`, without a possible answer, as Glaive's rows are."""
    return Chat(
        id="x-1",
        messages=(
            {"role": "user", "content": "What is it worth?"},
            {"role": "assistant", "content": reference},
        ),
        group="x",
        functions=functions,
    )


def call(name: str = "get_price", **arguments: Any) -> str:
    """The text of a call."""
    return render(ToolCall(name=name, arguments=arguments))


@pytest.mark.feature("S001-08")
def test_a_row_without_functions_has_no_call_scores() -> None:
    assert call_scores(chat("It is worth 4.", functions=()), "It is worth 4.", call()) == {}


@pytest.mark.feature("S001-08")
def test_where_no_function_fits_no_call_is_right_and_nothing_else_is_asked() -> None:
    row = chat("I cannot do that.")
    assert call_scores(row, "I cannot do that.", "Sorry, no.") == {
        "call_parse_failure": 0.0,
        "relevance_accuracy": 1.0,
    }
    assert call_scores(row, "I cannot do that.", call(fund="A"))["relevance_accuracy"] == 0.0


@pytest.mark.feature("S001-08")
def test_a_broken_call_is_a_parse_failure_and_no_proof_of_relevance() -> None:
    broken = "<tool_call>{broken</tool_call>"
    assert call_scores(chat("No."), "No.", broken) == {
        "call_parse_failure": 1.0,
        "relevance_accuracy": 0.0,
    }
    wanted = call(fund="A")
    assert call_scores(chat(wanted), wanted, broken) == {
        "call_parse_failure": 1.0,
        "function_name_accuracy": 0.0,
        "argument_name_accuracy": 0.0,
        "argument_accuracy": 0.0,
    }


@pytest.mark.feature("S001-08")
@pytest.mark.parametrize(
    ("answer", "scores"),
    [
        (call(fund="Alpha", date="2024-01-01"), (1, 1, 1)),
        (call(date="2024/01/01", fund="alpha"), (1, 1, 1)),  # strings as BFCL compares them
        (call(fund="Beta", date="2024-01-01"), (1, 1, 0)),
        (call(fund="Alpha"), (1, 0, 0)),
        (call(fund="Alpha", date="2024-01-01", currency="USD"), (1, 0, 0)),
        (call("get_rate", fund="Alpha", date="2024-01-01"), (0, 0, 0)),
        ("It is worth 4.", (0, 0, 0)),
    ],
)
def test_name_argument_names_and_values_are_three_scores(
    answer: str, scores: tuple[int, int, int]
) -> None:
    reference = call(fund="Alpha", date="2024-01-01")
    found = call_scores(chat(reference), reference, answer)
    assert (
        found["function_name_accuracy"],
        found["argument_name_accuracy"],
        found["argument_accuracy"],
    ) == scores
    assert found["call_parse_failure"] == 0.0


@pytest.mark.feature("S001-08")
def test_several_calls_match_in_any_order_and_none_may_be_left() -> None:
    first, second = call(fund="A"), call(fund="B")
    reference = f"{first}\n{second}"
    row = chat(reference)
    assert call_scores(row, reference, f"{second}\n{first}")["argument_accuracy"] == 1.0
    one_left_out = call_scores(row, reference, first)
    assert set(one_left_out.values()) == {0.0}, one_left_out
    assert call_scores(row, reference, f"{first}\n{first}")["argument_accuracy"] == 0.0


def test_whole_numbers_equal_floats_and_true_is_not_1() -> None:
    reference = call(fund={"amount": 5, "days": [1, 2], "net": True})
    row = chat(reference)

    def right(**fund: Any) -> float:
        return call_scores(row, reference, call(fund=fund))["argument_accuracy"]

    assert right(amount=5.0, days=[1, 2], net=True) == 1.0
    assert right(amount=5, days=[1, 2], net=1) == 0.0
    assert right(amount=5, days=[2, 1], net=True) == 0.0


def test_an_optional_argument_may_be_left_out_where_the_possible_answer_says_so() -> None:
    row = next(each for each in read_bfcl(EXCERPT) if each.id == "simple_python_0")
    answer = call(row.group, base=10, height=5)
    assert call_scores(row, row.messages[-1]["content"], answer)["argument_name_accuracy"] == 1.0


Checker = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def checker() -> Iterator[tuple[Checker, Any]]:
    """bfcl-eval's ast_checker and its Python; its table of models needs every vendor's client."""
    folder = Cache.from_environ().data / DATA / CHECKER
    if not folder.is_dir():
        pytest.skip(f"{folder}: absent; make setup brings bfcl-eval's scorer")
    stand_in = types.ModuleType("bfcl_eval.constants.model_config")
    # The one thing that the scorer asks of a model: whether dots in names became underscores.
    model = types.SimpleNamespace(underscore_to_dot=False)
    stand_in.MODEL_CONFIG_MAPPING = {"any": model}  # type: ignore[attr-defined]
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    sys.modules[stand_in.__name__] = stand_in
    try:
        from bfcl_eval.constants.enums import Language  # type: ignore[import-not-found]
        from bfcl_eval.eval_checker.ast_eval.ast_checker import (  # type: ignore[import-not-found]
            ast_checker,
        )

        yield ast_checker, Language.PYTHON
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if name.startswith("bfcl_eval"):
                del sys.modules[name]


def variants(arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The reference, and it with one thing changed at a time."""
    yield arguments
    yield {**arguments, "surplus_argument": 1}
    for name, value in arguments.items():
        yield {key: each for key, each in arguments.items() if key != name}
        for other in (str(value), 0, 1.5, True, [value], [], {}, {"a": value}, None):
            yield {**arguments, name: other}
        if isinstance(value, str):
            yield {**arguments, name: f" {value.upper()}."}
        if isinstance(value, int) and not isinstance(value, bool):
            yield {**arguments, name: float(value)}
        if isinstance(value, list) and value:
            yield {**arguments, name: value[::-1]}
            yield {**arguments, name: value[1:]}
        if isinstance(value, dict) and value:
            yield {**arguments, name: dict(list(value.items())[1:])}


@pytest.mark.feature("S001-08")
@pytest.mark.parametrize("category", ["simple_python", "multiple", "live_simple", "live_multiple"])
def test_every_verdict_is_that_of_bfcls_own_scorer(
    category: str, checker: tuple[Checker, Any]
) -> None:
    check, language = checker
    folder: Path = Cache.from_environ().data / DATA
    disagreements: list[str] = []
    verdicts = {True: 0, False: 0}
    for row in read_bfcl(folder, (category,)):
        if not row.possible_answers:
            continue
        (answer,) = row.possible_answers
        ((name, allowed),) = answer.items()
        function = next(each for each in row.functions if each["name"] == name)
        reference = reference_call(answer, required=function["parameters"].get("required", ()))
        for arguments in variants(json.loads(json.dumps(dict(reference.arguments)))):
            try:
                theirs = check(
                    copy.deepcopy(list(row.functions)),
                    [{name: copy.deepcopy(arguments)}],
                    [copy.deepcopy({name: allowed})],
                    language,
                    category,
                    "any",
                )["valid"]
            except (KeyError, TypeError, AttributeError):
                continue  # their scorer ends with an error on this row
            ours = call_scores(
                row, row.messages[-1]["content"], render(ToolCall(name=name, arguments=arguments))
            )["argument_accuracy"]
            verdicts[theirs] += 1
            if bool(ours) != theirs:
                disagreements.append(f"{row.id} {arguments}: ours {bool(ours)}, theirs {theirs}")
    assert min(verdicts.values()) > 100, "both verdicts were compared"
    assert not disagreements, f"{len(disagreements)} of {sum(verdicts.values())}: " + "\n".join(
        disagreements[:10]
    )


def several(calls: list[ToolCall], answers: tuple[Any, ...]) -> Iterator[list[ToolCall]]:
    """The calls of a reference in other orders and numbers, and with one of them changed."""
    yield calls
    yield calls[::-1]
    yield calls[1:]
    yield [*calls, calls[0]]
    yield [calls[0]] * len(calls)
    for index, one in enumerate(calls):
        (allowed,) = answers[index].values()
        for name, values in allowed.items():
            for value in [each for each in values if each != OPTIONAL][1:]:
                if not isinstance(value, (dict, list)):
                    changed = ToolCall(name=one.name, arguments={**one.arguments, name: value})
                    yield [*calls[:index], changed, *calls[index + 1 :]]
    for arguments in variants(json.loads(json.dumps(dict(calls[-1].arguments)))):
        yield [*calls[:-1], ToolCall(name=calls[-1].name, arguments=arguments)]


@pytest.mark.parametrize(
    "category", ["parallel", "parallel_multiple", "live_parallel", "live_parallel_multiple"]
)
def test_every_verdict_on_several_calls_is_that_of_bfcls_own_scorer(
    category: str, checker: tuple[Checker, Any]
) -> None:
    check, language = checker
    disagreements: list[str] = []
    verdicts = {True: 0, False: 0}
    for row in read_bfcl(Cache.from_environ().data / DATA, (category,)):
        answers = row.possible_answers
        needed = {each["name"]: each["parameters"].get("required", ()) for each in row.functions}
        reference = [reference_call(each, required=needed[next(iter(each))]) for each in answers]
        for calls in several(reference, answers):
            try:
                theirs = check(
                    copy.deepcopy(list(row.functions)),
                    [{each.name: copy.deepcopy(dict(each.arguments))} for each in calls],
                    copy.deepcopy(list(answers)),
                    language,
                    category,
                    "any",
                )["valid"]
            except (KeyError, TypeError, AttributeError):
                continue  # their scorer ends with an error on this row
            text = "\n".join(map(render, calls))
            ours = call_scores(row, row.messages[-1]["content"], text)["argument_accuracy"]
            verdicts[theirs] += 1
            if bool(ours) != theirs:
                disagreements.append(f"{row.id} {calls}: ours {bool(ours)}, theirs {theirs}")
    assert min(verdicts.values()) > 50, "both verdicts were compared"
    assert not disagreements, f"{len(disagreements)} of {sum(verdicts.values())}: " + "\n".join(
        disagreements[:10]
    )


@pytest.mark.parametrize("category", ["irrelevance", "live_irrelevance"])
def test_bfcls_rows_that_fit_no_function_want_no_call(category: str) -> None:
    """BFCL's own runner: right is an answer without a call. Here a broken call is none either."""
    folder = Cache.from_environ().data / DATA
    if not folder.is_dir():
        pytest.skip(f"{folder}: absent; make setup brings BFCL's rows")
    rows = [row for row in read_bfcl(folder, (category,)) if row.functions]
    assert len(rows) > 200
    for row in rows:
        reference = row.messages[-1]["content"]
        wrong = call(name=str(row.functions[0]["name"]))
        verdicts = [call_scores(row, reference, text) for text in (reference, wrong, wrong[:-20])]
        assert [each["relevance_accuracy"] for each in verdicts] == [1.0, 0.0, 0.0]
        assert [each["call_parse_failure"] for each in verdicts] == [0.0, 0.0, 1.0]


def test_rows_that_want_no_call_are_divided_like_others(tmp_path: Path) -> None:
    """One group of all of them would train as a whole, and relevance would have no test row."""
    rows = [
        {"id": f"irrelevance_{n}", "question": [[{"role": "user", "content": f"{n}?"}]],
         "function": [{**FUNCTION, "name": f"f{n}"}]}
        for n in range(3)
    ]  # fmt: skip
    path = tmp_path / "BFCL_v4_irrelevance.json"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    chats = read_bfcl(tmp_path, ("irrelevance",))
    assert [chat.group for chat in chats] == ["f0", "f1", "f2"]
    assert [chat.messages[-1]["content"] for chat in chats] == [NO_CALL] * 3
    assert bfcl_files(tmp_path, ("irrelevance",)) == [path]


def test_a_row_of_a_category_with_calls_that_has_none_is_refused(tmp_path: Path) -> None:
    """It would be learned as one that fits no function."""
    row = {"id": "simple_0", "question": [[{"role": "user", "content": "?"}]], "function": []}
    (tmp_path / "possible_answer").mkdir()
    (tmp_path / "BFCL_v4_simple_python.json").write_text(json.dumps(row))
    answers = tmp_path / "possible_answer" / "BFCL_v4_simple_python.json"
    answers.write_text(json.dumps({"id": "simple_0", "ground_truth": []}))
    with pytest.raises(DataError, match="simple_0 has no possible answer"):
        read_bfcl(tmp_path, ("simple_python",))
