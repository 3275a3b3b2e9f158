"""Raw rows of every kind and format to chats, and what becomes of rows that are none."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nightly import law
from workloads.common.exit_codes import DataError, ExitCode
from workloads.common.tool_calls import ToolCall, parse_calls, render
from workloads.data.chats import calls_of, for_template, parse_line, read_bfcl, read_jsonl
from workloads.data.dataset_convert import from_row, main, raw_rows
from workloads.data.manifest import json_lines

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(min_size=1, max_size=8), JSON, max_size=4)
NAMES = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)
GOOD = {"user": "q", "assistant": "a"}


def glaive(call: str) -> dict[str, str]:
    """Returns a row of Glaive's with one call, its result and an answer."""
    return {
        "system": "SYSTEM: You are a helpful assistant with access to the following functions. "
        'Use them if required -\n{"name": "rate", "parameters": {}}',
        "chat": f"USER: Rate?\n\n\nASSISTANT: {call} <|endoftext|>\n\n\n"
        'FUNCTION RESPONSE: {"r": 1}\n\n\nASSISTANT: It is 1. <|endoftext|>',
    }


@pytest.mark.feature("S001-07")
def test_glaive_rows_become_messages_with_calls_as_data() -> None:
    call = """<functioncall> {"name": "rate", "arguments": '{"of": "it's"}'}"""
    chat = from_row(glaive(call), "glaive", at="x:1")
    roles = [m["role"] for m in chat.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert calls_of(chat.messages[2]) == [ToolCall(name="rate", arguments={"of": "it's"})]
    assert chat.messages[3]["tool_call_id"] == chat.messages[2]["tool_calls"][0]["id"]
    # The functions are offered by the chat template, in its own words.
    assert chat.messages[0]["content"] == "You are a helpful assistant."
    assert chat.messages[4]["content"] == "It is 1."
    # The published code dropped the definitions, which stand in the system column.
    assert [function["name"] for function in chat.functions] == ["rate"]


@pytest.mark.feature("S001-07")
@given(NAMES, ARGUMENTS, st.booleans())
@law(200)
def test_a_glaive_call_comes_back_as_it_was_whatever_is_quoted_in_it(
    name: str, arguments: dict[str, Any], escaped: bool
) -> None:
    r"""A published parser cut at the first brace or quote; some rows escape apostrophes as \'."""
    inner = json.dumps(arguments)
    if escaped and "\\" not in inner:
        inner = inner.replace("'", "\\'")
    call = f'<functioncall> {{"name": "{name}", "arguments": \'{inner}\'}}'
    assert parse_calls(call) == [ToolCall(name=name, arguments=arguments)]


@given(NAMES, ARGUMENTS)
@law(100)
def test_our_own_call_form_comes_back_as_it_was(name: str, arguments: dict[str, Any]) -> None:
    call = ToolCall(name=name, arguments=arguments)
    assert parse_calls(render(call)) == [call]


@given(st.text(max_size=60))
@law(200)
def test_no_text_makes_the_parser_fail_with_anything_but_none(text: str) -> None:
    for whole in (text, f"<functioncall>{text}", f'<functioncall> {{"arguments": \'{text}'):
        parsed = parse_calls(whole)
        assert parsed is None or all(isinstance(call, ToolCall) for call in parsed)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (glaive('<functioncall> {"name": "rate", "arguments": \'{"of": }\'}'), "cannot be read"),
        ({"chat": "Hello USER: x"}, "does not start with USER:"),
        ({"chat": "USER: x"}, "no assistant turn in 1 messages"),
        ({"system": "s"}, "column chat is NoneType"),
    ],
)
def test_a_glaive_row_that_cannot_be_read_whole_is_refused(
    row: dict[str, str], reason: str
) -> None:
    with pytest.raises(DataError, match=reason):
        from_row(row, "glaive", at="x:1")


def openai_row(arguments: str) -> dict[str, Any]:
    """Returns a row as OpenAI's API writes it, with a tool and a call of it."""
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    return {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "1", "tool_call_id": "1"},
            {"role": "assistant", "content": "One."},
        ],
    }


@given(ARGUMENTS)
@law(100)
def test_openai_tool_calls_become_our_call_form(arguments: dict[str, Any]) -> None:
    chat = from_row(openai_row(json.dumps(arguments)), "messages", at="x:1")
    assert [m["role"] for m in chat.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert calls_of(chat.messages[2]) == [ToolCall(name="f", arguments=arguments)]
    assert parse_line(chat.to_line(), at="x") == chat


def test_openai_tools_stay_data_and_become_text_where_a_template_knows_none() -> None:
    chat = from_row(openai_row("{}"), "messages", at="x:1")
    assert chat.messages[0]["content"] == "Be brief."
    assert [function["name"] for function in chat.functions] == ["f"]
    plain, options = for_template(chat.messages, chat.functions, knows_tools=False)
    assert plain[0]["content"].startswith("Be brief.\n\nYou call functions.")
    assert '{"name": "f", "parameters": {}}' in plain[0]["content"]
    assert parse_calls(plain[2]["content"]) == [ToolCall(name="f")]
    assert not options


def test_calls_and_results_have_numbers_for_ids_and_keep_what_belongs_together() -> None:
    """Mistral's template takes nine characters; chats that differ in ids alone are equal."""
    row = openai_row("{}")
    call = row["messages"][2]["tool_calls"][0]
    row["messages"][2]["tool_calls"] = [{**call, "id": "call_a"}, {**call, "id": "call_b"}]
    results = [{"role": "tool", "content": each, "tool_call_id": f"call_{each}"} for each in "ba"]
    row["messages"][3:4] = results
    messages = from_row(row, "messages", at="x:1").messages
    assert [each["id"] for each in messages[2]["tool_calls"]] == ["000000000", "000000001"]
    assert [each["tool_call_id"] for each in messages[3:5]] == ["000000001", "000000000"]
    for each in results:
        del each["tool_call_id"]
    messages = from_row(row, "messages", at="x:1").messages
    assert [each["tool_call_id"] for each in messages[3:5]] == ["000000000", "000000001"]


def test_an_openai_call_whose_arguments_are_cut_short_is_refused() -> None:
    with pytest.raises(DataError, match=r"x:1: messages\[2\]: tool call cannot be read"):
        from_row(openai_row('{"a": '), "messages", at="x:1")


def test_white_space_around_an_answer_is_left_out() -> None:
    """In front it shares a token with the prompt's newline, which stops all of prepare-data."""
    row = {
        "messages": [
            {"role": "user", "content": "  q\n"},
            {"role": "assistant", "content": "\n\n  foo \n"},
        ]
    }
    chat = from_row(row, "messages", at="x:1")
    assert [message["content"] for message in chat.messages] == ["  q\n", "foo"]


def test_a_chat_that_opens_with_the_assistant_is_a_reject_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    """A template renders no prompt of no message, so no tokenizer could tell what is learned."""
    path, out = tmp_path / "rows.jsonl", tmp_path / "chats.jsonl"
    good = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    rows = [{"messages": [{"role": "assistant", "content": "Hello!"}, *good]}, {"messages": good}]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert main([str(path), str(out)]) == 0
    assert len(read_jsonl(out)) == 1
    (reject,) = [json.loads(line) for line in (tmp_path / "chats.rejects.jsonl").open()]
    assert reject["at"] == "rows.jsonl:1"
    assert reject["reason"].startswith("messages[0].role is assistant")


def write_rows(folder: Path, kind: str, rows: list[dict[str, Any]]) -> Path:
    """Writes `rows` as one file of `kind`; returns its path."""
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n\n" for row in rows), encoding="utf-8")
    elif kind == "json":
        path.write_text(json.dumps(rows, indent=2), encoding="utf-8")
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    return path


@pytest.mark.feature("S000-24")
@pytest.mark.parametrize("kind", ["parquet", "jsonl", "json", "csv"])
def test_every_kind_of_file_gives_the_same_chats_in_order(kind: str, tmp_path: Path) -> None:
    rows = [
        {"user": f"q{i}, \"x\"\n'y'", "assistant": f"a{i} \u00e9", "level": i % 2} for i in range(5)
    ]
    source = write_rows(tmp_path, kind, rows)
    out = tmp_path / "chats.jsonl"
    options = ["--format", "system_user_assistant", "--keep", "level"]
    assert main([str(source), str(out), *options]) == 0
    chats = read_jsonl(out)
    assert [chat.messages[0]["content"] for chat in chats] == [row["user"] for row in rows]
    assert [chat.messages[1]["content"] for chat in chats] == [row["assistant"] for row in rows]
    assert [str(chat.columns["level"]) for chat in chats] == ["0", "1", "0", "1", "0"]
    assert (tmp_path / "chats.rejects.jsonl").read_text() == ""


@pytest.mark.feature("S000-24")
def test_every_batch_of_every_row_group_of_parquet_is_read(tmp_path: Path) -> None:
    """Published data sets have thousands of rows a group, and several files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source, out = tmp_path / "rows", tmp_path / "chats.jsonl"
    source.mkdir()
    rows = [{"user": f"q{number}", "assistant": "a"} for number in range(1400)]
    for number, part in enumerate((rows[:700], rows[700:])):
        pq.write_table(pa.Table.from_pylist(part), source / f"{number}.parquet", row_group_size=600)
    assert main([str(source), str(out), "--format", "system_user_assistant"]) == 0
    chats = read_jsonl(out)
    assert [chat.messages[0]["content"] for chat in chats] == [row["user"] for row in rows]
    assert (chats[0].id, chats[-1].id) == ("0.parquet:1", "1.parquet:700")


@given(st.lists(JSON, max_size=8), st.integers(1, 40), st.sampled_from([None, 1]))
@law(150)
def test_a_json_array_is_read_piece_by_piece_as_json_reads_it_whole(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], read_chars: int, indent: int | None
) -> None:
    from unittest.mock import patch

    path = tmp_path_factory.mktemp("json") / "rows.json"
    path.write_text(json.dumps(values, indent=indent), encoding="utf-8")
    with patch("workloads.data.dataset_convert._READ_CHARS", read_chars):
        assert [row for _, row in raw_rows("json", path)] == values


def test_rows_that_cannot_be_read_are_kept_apart_with_line_and_reason(tmp_path: Path) -> None:
    path, out = tmp_path / "rows.jsonl", tmp_path / "chats.jsonl"
    bad = [b"{broken", json.dumps({"user": "q"}).encode(), b'{"user": "\xff"}', b"[1]"]
    bad.append(b'{"user": "half \\ud83d", "assistant": "a"}')
    path.write_bytes(b"\n".join([json.dumps(GOOD).encode(), *bad]) + b"\n")
    assert main([str(path), str(out), "--format", "system_user_assistant"]) == 0
    assert len(read_jsonl(out)) == 1
    rejects = [json.loads(line) for line in (tmp_path / "chats.rejects.jsonl").open()]
    assert [reject["at"] for reject in rejects] == [f"rows.jsonl:{n}" for n in (2, 3, 4, 5, 6)]
    assert rejects[0]["row"] == "{broken"
    assert rejects[1]["reason"].startswith("column assistant is missing or empty")
    assert "is not JSON" in rejects[2]["reason"]
    assert rejects[3]["reason"] == "is list, expected an object with columns"
    assert "text after" in rejects[4]["reason"]


def test_a_bare_carriage_return_ends_no_row(tmp_path: Path) -> None:
    """JSON has it as white space: a row that holds it was read as two that are no JSON."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a":\r1}\r\n\n{"b": "\xe2\x80\xa8"}\n')
    assert list(json_lines(path)) == [(1, {"a": 1}), (3, {"b": "\u2028"})]


def test_keep_may_stand_there_once_for_each_column(tmp_path: Path) -> None:
    path, out = tmp_path / "rows.jsonl", tmp_path / "chats.jsonl"
    path.write_text(json.dumps({**GOOD, "a": 1, "b": 2, "c": 3}))
    keep = ["--keep", "a", "--keep", "b", "c"]
    assert main([str(path), str(out), "--format", "system_user_assistant", *keep]) == 0
    assert dict(read_jsonl(out)[0].columns) == {"a": 1, "b": 2, "c": 3}


def test_a_csv_row_with_a_field_too_many_is_a_reject(tmp_path: Path) -> None:
    path, out = tmp_path / "rows.csv", tmp_path / "chats.jsonl"
    path.write_text("user,assistant\nq,a\nq,a,b\n")
    assert main([str(path), str(out), "--format", "system_user_assistant"]) == 0
    (reject,) = [json.loads(line) for line in (tmp_path / "chats.rejects.jsonl").open()]
    assert (reject["at"], reject["reason"]) == (
        "rows.csv:3",
        "does not have the 2 fields of the header",
    )


DEEP = "[" * 200_000 + "]" * 200_000


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (DEEP, "is not JSON: maximum recursion depth"),
        (json.dumps({"messages": DEEP}), "messages is text that is not JSON: maximum recursion"),
        ('{"messages": [{"role": "assistant", "tool_calls": 5}]}', "tool_calls is int, expected a"),
        (
            '{"messages": [{"role": "assistant", "content": 5, "function_call": {"name": "f"}}]}',
            "messages[0].content is int, expected text",
        ),
        *(
            (json.dumps(openai_row(arguments)), "messages[2]: tool call cannot be read")
            for arguments in ("{'a': {1}}", "{'a': b'x'}", "{(1, 2): 3}", "{[]: 3}", "-" * 9000)
        ),
    ],
    ids=["deep", "deep text", "calls", "content", "set", "bytes", "tuple", "list", "minus"],
)
def test_a_row_that_python_cannot_read_is_a_reject_and_the_others_go_on(
    line: str, reason: str, tmp_path: Path
) -> None:
    path, out = tmp_path / "rows.jsonl", tmp_path / "chats.jsonl"
    path.write_text(f"{line}\n{json.dumps(openai_row('{}'))}\n")
    assert main([str(path), str(out)]) == 0
    assert len(read_jsonl(out)) == 1
    (reject,) = [json.loads(line) for line in (tmp_path / "chats.rejects.jsonl").open()]
    assert reject["at"] == "rows.jsonl:1"
    assert reason in reject["reason"]


def test_a_glaive_call_nested_too_deeply_is_a_reject(tmp_path: Path) -> None:
    path, out = tmp_path / "rows.jsonl", tmp_path / "chats.jsonl"
    rows = [glaive(f"<functioncall> {call}") for call in (DEEP, '{"name": "rate"}')]
    rows[1]["system"] += f' {{"a": {DEEP}}}'
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert main([str(path), str(out), "--format", "glaive"]) == 0
    (reject,) = [json.loads(line) for line in (tmp_path / "chats.rejects.jsonl").open()]
    assert reject["reason"].startswith("function call cannot be read")


def test_a_csv_row_with_a_stray_quote_is_a_reject_that_names_its_lines(tmp_path: Path) -> None:
    path, out = tmp_path / "rows.csv", tmp_path / "chats.jsonl"
    path.write_text('user,assistant\nq1,a\n"q\n2"x,a\nq3,a\n')
    options = [str(out), "--format", "system_user_assistant"]
    assert main([str(path), *options]) == 0
    assert [chat.messages[0]["content"] for chat in read_jsonl(out)] == ["q1", "q3"]
    (reject,) = [json.loads(line) for line in (tmp_path / "chats.rejects.jsonl").open()]
    assert (reject["at"], reject["row"]) == ("rows.csv:4", '"q\n2"x,a')
    assert reject["reason"].startswith("lines 3 to 4: is not CSV")


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_a_row_that_is_not_unicode_is_a_reject_and_the_others_go_on(
    kind: str, tmp_path: Path
) -> None:
    rows = [GOOD, {**GOOD, "user": "caf\u00e9"}]
    path = write_rows(tmp_path, kind, rows)
    if kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        users = pa.Array.from_buffers(
            pa.string(), 2, pa.array([b"q", b"caf\xe9"], pa.binary()).buffers()
        )
        pq.write_table(pa.table({"user": users, "assistant": ["a", "a"]}), path)
    else:
        text = json.dumps(rows, ensure_ascii=False) if kind == "json" else path.read_text()
        path.write_bytes(text.encode("latin-1"))
    out = tmp_path / "chats.jsonl"
    assert main([str(path), str(out), "--format", "system_user_assistant"]) == 0
    assert [chat.messages[0]["content"] for chat in read_jsonl(out)] == ["q"]
    assert len((tmp_path / "chats.rejects.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("rows.parquet", "no parquet", "cannot be read as parquet"),
        ("rows.json", '{"a": 1}', "holds one array of rows, this one starts with '{'"),
        ("rows.json", "[1, 2", "the file ends inside the array"),
        ("rows.json", f"[{DEEP}]", "is not JSON that can be read: maximum recursion depth"),
        ("rows.csv", 'user\nq\n"open\nq\n', ":3: a quote of this row is never closed"),
        ("rows.csv", '"user"x\nq\n', ":1: the header cannot be read as CSV"),
        ("rows.json", "[1 2]", "is not followed by a comma or a bracket"),
        ("rows.txt", "x", "expected one kind of .parquet, .jsonl, .json, .csv"),
        ("rows.jsonl", '{"messages": [{"role": "user", "content": "x"}]}\n',
         "no usable row, 1 rejected; the first: rows.jsonl:1: no assistant turn in 1 messages"),
    ],
)  # fmt: skip
def test_a_file_that_gives_nothing_ends_with_65_and_leaves_nothing(
    name: str, content: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / name, tmp_path / "out" / "chats.jsonl"
    path.write_text(content)
    assert main([str(path), str(out)]) == ExitCode.BAD_DATA
    assert reason in capsys.readouterr().err
    assert not out.parent.exists() or not list(out.parent.iterdir())


def test_a_folder_is_read_file_by_file_without_what_is_hidden(tmp_path: Path) -> None:
    for name in ("b/two.jsonl", "a/one.jsonl", ".cache/three.jsonl"):
        (tmp_path / "raw" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "raw" / name).write_text(json.dumps(GOOD))
    assert [at for at, _ in raw_rows("jsonl", tmp_path / "raw")] == [
        "a/one.jsonl:1",
        "b/two.jsonl:1",
    ]


def test_a_second_run_over_unchanged_rows_does_nothing_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "rows.jsonl", tmp_path / "chats.jsonl"
    path.write_text(json.dumps(GOOD))
    command = [str(path), str(out), "--format", "system_user_assistant"]
    assert main(command) == 0
    made = out.stat().st_mtime_ns
    capsys.readouterr()
    assert main(command) == 0
    assert "nothing changed since it was made; nothing to do" in capsys.readouterr().err
    assert out.stat().st_mtime_ns == made
    # Each of input, settings and outputs counts.
    assert main([*command, "--limit", "1"]) == 0
    assert "config changed; making it anew" in capsys.readouterr().err
    path.write_text(json.dumps({**GOOD, "user": "other"}))
    assert main([*command, "--limit", "1"]) == 0
    assert "inputs changed; making it anew" in capsys.readouterr().err
    out.write_text("")
    assert main([*command, "--limit", "1"]) == 0
    assert "chats.jsonl: missing or changed since it was made" in capsys.readouterr().err
    assert len(read_jsonl(out)) == 1


def test_a_row_of_bfcl_ends_where_its_line_ends(tmp_path: Path) -> None:
    """Not at U+2028 or U+0085, which JSON may hold as they are."""
    asked = [[{"role": "user", "content": "One\u2028two\u0085three"}]]
    row = {"id": "irrelevance_0", "question": asked, "function": [{"name": "f", "parameters": {}}]}
    path = tmp_path / "BFCL_v4_irrelevance.json"
    path.write_text(json.dumps(row, ensure_ascii=False) + "\r\n\n", encoding="utf-8")
    (chat,) = read_bfcl(tmp_path, ("irrelevance",))
    assert chat.messages[0]["content"] == asked[0][0]["content"]


def test_a_bfcl_row_of_several_calls_asks_for_all_of_them(tmp_path: Path) -> None:
    """Live rows also hold plain values where others hold lists of allowed ones."""
    functions = [{"name": name, "parameters": {"required": ["x"]}} for name in ("f", "g")]
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Both."}]
    truth = [
        {"f": {"x": [{"a": [1], "b": 2.5, "c": ["", 3]}]}},
        {"g": {"x": ["", 4], "y": ["", 5]}},
    ]
    for path, row in (
        (tmp_path / "BFCL_v4_parallel.json", {"question": [asked], "function": functions}),
        (tmp_path / "possible_answer" / "BFCL_v4_parallel.json", {"ground_truth": truth}),
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"id": "parallel_0", **row}))
    (chat,) = read_bfcl(tmp_path, ("parallel",))
    assert [m["role"] for m in chat.messages] == ["system", "user", "assistant"]
    assert chat.messages[0]["content"] == "Be brief."
    assert calls_of(chat.messages[-1]) == [
        ToolCall(name="f", arguments={"x": {"a": 1, "b": 2.5}}),
        ToolCall(name="g", arguments={"x": 4}),
    ]
    assert list(chat.possible_answers) == truth
    assert parse_line(chat.to_line(), at="x") == chat


def test_a_long_field_of_csv_is_read_and_leaves_the_process_its_own_limit(tmp_path: Path) -> None:
    long = "x" * 200_000
    (tmp_path / "rows.csv").write_text(f"a,b\n1,{long}\n")
    limit = csv.field_size_limit()
    assert [row for _, row in raw_rows("csv", tmp_path / "rows.csv")] == [{"a": "1", "b": long}]
    assert csv.field_size_limit() == limit
