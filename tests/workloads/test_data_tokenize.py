"""Chats to token rows: the fast way equals the slow one, any number of workers gives one file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nightly import law
from tests.workloads.conftest import CHAT_TEMPLATE, make_tokenizer
from workloads.common.exit_codes import DataError, ExitCode
from workloads.common.models import load_tokenizer
from workloads.data import dataset_tokenize
from workloads.data.chat_template import (
    ChatRenderer,
    Rendered,
    _by_bytes,
    _by_offsets,
    _token_bytes,
    check_tokenizer,
    encode,
    render,
)
from workloads.data.chats import Chat
from workloads.data.dataset_tokenize import main, tokenize_file
from workloads.data.token_rows import IGNORED, Example, TokenRows, read_parquet
from workloads.data.token_worker import TokenizeConfig

CHECKOUT = Path(__file__).parents[2]
# Turns are trimmed, as Llama's template does it.
TRIMMING = CHAT_TEMPLATE.replace("m['content']", "m['content'] | trim")
# A default system message, as SmolLM2's template has one.
DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nHelp.<|im_end|>\n{% endif %}"
    + CHAT_TEMPLATE
)
REFUSES_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    + CHAT_TEMPLATE
)
# Earlier assistant turns lose their <think> block once another user turn follows, as in Qwen3.
REWRITING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.last %}<think></think>{% endif %}"
    "{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think></think>{% endif %}"
)
TEMPLATES = {
    name: make_tokenizer(template)
    for name, template in {
        "chatml": CHAT_TEMPLATE,
        "trimming": TRIMMING,
        "default system": DEFAULT_SYSTEM,
        "rewriting": REWRITING,
    }.items()
}
CONTENT = st.text(min_size=1, max_size=20).filter(lambda text: bool(text.strip()))
TURNS = st.lists(st.tuples(CONTENT, CONTENT), min_size=1, max_size=3)


def messages_of(turns: list[tuple[str, str]], system: str | None = None) -> list[dict[str, str]]:
    """Returns a chat of these questions and answers."""
    chat = [{"role": "system", "content": system}] if system else []
    for question, answer in turns:
        chat += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    return chat


def slow(tokenizer: Any, messages: list[dict[str, str]]) -> list[Rendered] | str:
    """Returns the turn by turn rendering, or why there is none."""
    try:
        return render(tokenizer, messages)
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("name", list(TEMPLATES))
@given(turns=TURNS, system=st.none() | CONTENT)
@law(60)
def test_what_was_learned_of_a_template_gives_what_turn_by_turn_rendering_gives(
    name: str, turns: list[tuple[str, str]], system: str | None
) -> None:
    tokenizer = TEMPLATES[name]
    messages = messages_of(turns, system)
    expected = slow(tokenizer, messages)
    if isinstance(expected, str):
        with pytest.raises(DataError, match=re.escape(expected)):
            ChatRenderer(tokenizer, {}).render([messages])
    else:
        assert ChatRenderer(tokenizer, {}).render([messages]) == [expected]


def test_a_learned_template_renders_each_chat_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow way renders twice a turn; rendering would take longer than tokenising."""
    tokenizer = make_tokenizer()
    renderer = ChatRenderer(tokenizer, {})
    chats = [messages_of([(f"q{i}", "a"), ("q", f"a{i}")]) for i in range(50)]
    renderer.render(chats[:1])
    rendered: list[int] = []
    apply = tokenizer.apply_chat_template

    def count(conversation: Any, **options: Any) -> Any:
        rendered.append(1 if isinstance(conversation[0], dict) else len(conversation))
        return apply(conversation, **options)

    monkeypatch.setattr(tokenizer, "apply_chat_template", count)
    renderer.render(chats)
    assert rendered == [50]


@given(turns=TURNS)
@law(100)
def test_labels_by_the_bytes_of_tokens_are_those_by_their_places(
    turns: list[tuple[str, str]],
) -> None:
    tokenizer = TEMPLATES["chatml"]
    (item,) = render(tokenizer, messages_of(turns))
    (example,) = encode(tokenizer, [item])
    encoding = tokenizer.backend_tokenizer.encode(item.text, add_special_tokens=False)
    learned = {t for a, b in _by_offsets(encoding.offsets, item) for t in range(a, b)}
    assert example.input_ids == tuple(encoding.ids)
    assert example.labels == tuple(
        token if place in learned else IGNORED for place, token in enumerate(encoding.ids)
    )
    assert _by_bytes(ends_of(encoding.ids, tokenizer), item) is not None, "the slow way was taken"


def ends_of(ids: list[int], tokenizer: Any) -> Any:
    """Returns the bytes before each token and after the last."""
    import numpy as np

    sizes = _token_bytes(tokenizer.backend_tokenizer)
    return np.concatenate([[0], np.cumsum(sizes[np.array(ids)])])


@pytest.mark.parametrize("answer", ["a\n", "b c", "a  ", "\n"])
def test_a_tokenizer_that_trims_places_learns_the_same_tokens(answer: str) -> None:
    """As GPT-NeoX's: with a normalizer, so by places, of which white space has no width."""
    from tokenizers import normalizers, processors

    trimming = make_tokenizer()
    trimming.backend_tokenizer.normalizer = normalizers.NFC()
    trimming.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    text = f"user: q\n{answer}"
    item = Rendered(text=text, spans=((len(text) - len(answer), len(text)),))
    (expected,), (found,) = (encode(each, [item]) for each in (TEMPLATES["chatml"], trimming))
    assert found.labels == expected.labels


def test_a_token_across_the_edge_of_a_turn_is_refused() -> None:
    tokenizer = make_tokenizer()
    item = Rendered(text="ab", spans=((0, 1),))

    with pytest.raises(DataError, match="token 'ab' lies across the edge of an assistant turn"):
        _by_offsets([(0, 2)], item)
    assert len(encode(tokenizer, [item])[0].input_ids) == 2


def test_a_tokenizer_without_a_chat_template_is_refused() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(DataError, match="has no chat template; take an instruction-tuned model"):
        check_tokenizer(tokenizer)


def test_a_template_that_refuses_a_role_says_which() -> None:
    tokenizer = make_tokenizer("{{ raise_exception('only users') }}")
    with pytest.raises(DataError, match="refuses the roles user: only users"):
        render(tokenizer, messages_of([("q", "a")]))


def test_a_chat_without_a_prompt_is_refused_and_not_a_failure_of_the_library() -> None:
    greeting = [{"role": "assistant", "content": "Hello!"}, *messages_of([("q", "a")])]
    with pytest.raises(DataError, match="empty conversation"):
        ChatRenderer(make_tokenizer(), {}).render([greeting])


def write(path: Path, chats: list[list[dict[str, str]]]) -> Path:
    """Writes chats as JSON lines."""
    lines = [
        Chat(id=f"c{i}", group=f"c{i}", messages=tuple(messages)).to_line()
        for i, messages in enumerate(chats)
    ]
    path.write_bytes(b"".join(lines))
    return path


def tokenize(source: Path, model_dir: Path, **values: Any) -> tuple[TokenRows, Any]:
    """Returns the token rows of `source` and the counts."""
    num_workers = values.pop("num_workers", 0)
    config = TokenizeConfig(**{"max_tokens": 512, **values})
    output = source.with_suffix(f".{num_workers}.parquet")
    with source.with_suffix(".rejects").open("wb") as rejected:
        done = tokenize_file(
            source, output, rejected, model_dir=model_dir, config=config, num_workers=num_workers
        )
    return read_parquet(output), done


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """1,200 chats of growing length."""
    return write(
        tmp_path / "chats.jsonl",
        [messages_of([(f"q{i}", "a" * (i % 40 + 1))]) for i in range(1200)],
    )


@pytest.mark.feature("S000-27", "S000-29")
def test_the_columns_are_exactly_three_and_no_row_is_padded(
    chats: Path, model_dir: Path, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    rows, done = tokenize(chats, model_dir)
    table = pq.read_table(tmp_path / "chats.0.parquet")
    assert table.column_names == ["input_ids", "labels", "attention_mask"]
    assert (len(rows), done.num_tokens) == (1200, rows.num_tokens)
    assert all(set(mask) == {1} for mask in table["attention_mask"].to_pylist())
    assert table["input_ids"].to_pylist() == [list(row.input_ids) for row in rows]
    # The published code put the loss on every token, padding included.
    assert done.num_assistant_tokens == sum(
        label != IGNORED for labels in table["labels"].to_pylist() for label in labels
    )
    assert done.num_assistant_tokens == sum(i % 40 + 2 for i in range(1200))


@pytest.mark.feature("S000-27")
@pytest.mark.parametrize(("switches", "text"), [({}, ""), ({"lead": "Briefly. "}, "Briefly. ")])
def test_switches_of_the_template_reach_it(
    tmp_path: Path, switches: dict[str, str], text: str
) -> None:
    tokenizer = make_tokenizer("{{ lead | default('') }}" + CHAT_TEMPLATE)
    tokenizer.save_pretrained(tmp_path / "model")
    path = write(tmp_path / "chats.jsonl", [messages_of([("q", "a")])])
    rows, _ = tokenize(path, tmp_path / "model", chat_template_kwargs=switches)
    turns = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>"
    assert tokenizer.decode(rows[0].input_ids).strip() == text + turns


@pytest.mark.feature("S000-28")
def test_any_number_of_workers_writes_the_same_bytes(
    chats: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def pool(num_workers: int, **more: Any) -> ProcessPoolExecutor:
        started.append(num_workers)
        return ProcessPoolExecutor(num_workers, **more)

    monkeypatch.setattr(dataset_tokenize, "ProcessPoolExecutor", pool)
    settings: dict[str, Any] = {"max_tokens": 60, "overlong": "cut"}
    one, done = tokenize(chats, model_dir, num_workers=0, **settings)
    other, done_by_two = tokenize(chats, model_dir, num_workers=2, **settings)
    assert done.num_cut > 0
    assert (
        chats.with_suffix(".2.parquet").read_bytes() == chats.with_suffix(".0.parquet").read_bytes()
    )
    assert one.digest == other.digest
    assert done == done_by_two
    assert done.workers_cpu_s > 0
    assert done_by_two.workers_cpu_s > 0
    assert started == [2]


@pytest.mark.feature("S000-28")
def test_unless_told_otherwise_there_is_a_worker_for_each_cpu(
    chats: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def pool(tasks: Any, model_dir: Path, config: TokenizeConfig, num_workers: int) -> Any:
        started.append(num_workers)
        return map(dataset_tokenize.TokenWorker(load_tokenizer(model_dir), config).tokenize, tasks)

    monkeypatch.setattr(dataset_tokenize, "_BLOCK_LINES", 32)
    monkeypatch.setattr(dataset_tokenize, "_blocks_of_workers", pool)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    tokenize(chats, model_dir, num_workers=None)
    assert started == [3]


def test_an_error_in_a_worker_names_the_chat(tmp_path: Path, model_dir: Path) -> None:
    path = write(tmp_path / "chats.jsonl", [messages_of([("q", "a" * 50)])] * 600)
    with pytest.raises(DataError, match=r"chat c0: .* at most 20 allowed"):
        tokenize(path, model_dir, num_workers=2, max_tokens=20, overlong="refuse")


def test_an_overlong_chat_is_dropped_cut_or_refused_as_declared(
    tmp_path: Path, model_dir: Path, tokenizer: Any
) -> None:
    short, long = messages_of([("q", "a")]), messages_of([("q", "a" * 90)])
    late = messages_of([("q" * 90, "a")])
    path = write(tmp_path / "chats.jsonl", [short, long, late])
    (expected,) = encode(tokenizer, render(tokenizer, long))
    limit = 60
    rows, done = tokenize(path, model_dir, max_tokens=limit, overlong="drop")
    assert (len(rows), done.num_dropped, done.num_cut) == (1, 2, 0)
    rows, done = tokenize(path, model_dir, max_tokens=limit, overlong="cut")
    # Of the last one nothing to learn would be left.
    assert (len(rows), done.num_dropped, done.num_cut) == (2, 1, 1)
    assert rows[1] == Example(input_ids=expected.input_ids[:limit], labels=expected.labels[:limit])
    with pytest.raises(DataError, match=f"chat c1: .* at most {limit} allowed"):
        tokenize(path, model_dir, max_tokens=limit, overlong="refuse")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_chat_that_the_template_refuses_is_a_reject_with_its_line_and_reason(
    num_workers: int, tmp_path: Path
) -> None:
    model_dir = tmp_path / "model"
    make_tokenizer(REFUSES_SYSTEM).save_pretrained(model_dir)
    chats = [messages_of([("q", f"a{i}")]) for i in range(1200)]
    good = write(tmp_path / "good.jsonl", chats)
    lines = good.read_text().splitlines(keepends=True)
    refused = json.dumps({"id": "x", "messages": messages_of([("q", "a")], "Be brief.")})
    all_lines = [*lines[:3], f"{refused}\n", *lines[3:], "{cut\n"]
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(all_lines))
    expected, _ = tokenize(good, model_dir)
    rows, done = tokenize(path, model_dir, num_workers=num_workers)
    assert rows.digest == expected.digest
    assert (done.num_chats, done.num_refused) == (1200, 2)
    found = [json.loads(line) for line in path.with_suffix(".rejects").read_text().splitlines()]
    assert [each["at"] for each in found] == ["chats.jsonl:4", "chats.jsonl:1202"]
    assert found[0]["row"] == refused
    assert found[0]["reason"].endswith("refuses the roles system, user: no system role")
    assert found[1]["reason"].startswith("is not JSON")


def test_a_bare_carriage_return_ends_no_line(tmp_path: Path, model_dir: Path) -> None:
    line = json.dumps({"id": "c", "messages": messages_of([("q", "a")])}).replace(", ", ",\r")
    path = tmp_path / "chats.jsonl"
    path.write_text(f"{line}\r\n", newline="")
    _, done = tokenize(path, model_dir)
    assert (done.num_chats, done.num_refused) == (1, 0)


def test_a_block_of_refused_chats_alone_costs_no_other_block(
    tmp_path: Path, model_dir: Path
) -> None:
    bad = '{"messages": []}\n'
    good = json.dumps({"id": "c", "messages": messages_of([("q", "a")])}) + "\n"
    path = tmp_path / "chats.jsonl"
    path.write_text(bad * 512 + good)
    rows, done = tokenize(path, model_dir)
    assert (len(rows), done.num_chats, done.num_refused) == (1, 1, 512)


@pytest.mark.parametrize(
    ("chats", "reason"),
    [
        ([], "has no chat; the split is empty"),
        (
            [[{"role": "user", "content": "q"}]],
            "no usable chat, 1 rejected; the first: chats.jsonl:1: no assistant turn",
        ),
        ([messages_of([("q", "a" * 50)])], "no conversation of 1 fits data.max_tokens 20"),
    ],
)
def test_a_file_that_gives_no_row_ends_with_65_and_leaves_nothing(
    chats: list[Any],
    reason: str,
    tmp_path: Path,
    model_dir: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, out = write(tmp_path / "chats.jsonl", chats), tmp_path / "out" / "tokens.parquet"
    command = [str(path), str(out), "--model", str(model_dir), "--max-tokens", "20"]
    assert main(command) == ExitCode.BAD_DATA
    assert reason in capsys.readouterr().err
    assert not list(out.parent.iterdir())


def test_an_impossible_limit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["chats.jsonl", str(tmp_path / "out"), "--model", "none", "--max-tokens", "1"]
    assert main(command) == ExitCode.BAD_CONFIG
    assert "max_tokens: got 1, expected > 1" in capsys.readouterr().err


def test_the_command_writes_a_manifest_with_the_tokenizer_and_does_nothing_twice(
    chats: Path, model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tokens.parquet"
    assert main([str(chats), str(out), "--model", str(model_dir)]) == 0
    manifest = json.loads((tmp_path / "tokens.parquet.manifest.json").read_text())
    assert set(manifest["tokenizer"]) >= {"tokenizer.json", "tokenizer_config.json"}
    assert manifest["counts"]["num_examples"] == 1200
    assert main([str(chats), str(out), "--model", str(model_dir)]) == 0
    assert "nothing to do" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["columns", "labels"])
def test_a_file_that_another_program_wrote_is_refused(change: str, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"input_ids": [[1, 2]], "labels": [[IGNORED, 3]], "attention_mask": [[1, 1]]}
    if change == "columns":
        del columns["attention_mask"]
    pq.write_table(pa.table(columns), tmp_path / "tokens.parquet")
    reason = {"columns": "expected exactly input_ids", "labels": "neither the token nor -100"}
    with pytest.raises(DataError, match=reason[change]):
        read_parquet(tmp_path / "tokens.parquet")


@pytest.mark.nightly
def test_a_killed_run_leaves_no_output_and_no_manifest_and_is_redone(
    tmp_path: Path, model_dir: Path, chats: Path
) -> None:
    """kill -9 while workers tokenise; the next run starts anew and ends whole."""
    out = tmp_path / "out" / "tokens.parquet"
    command = [
        *(sys.executable, "-m", "workloads.data.dataset_tokenize", str(chats), str(out)),
        *("--model", str(model_dir), "--num-workers", "2"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    process = subprocess.Popen(
        command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while not list(out.parent.glob(".tokens*.partial")):
        assert process.poll() is None, "it ended before it wrote"
        assert time.monotonic() < deadline
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not out.exists()
    assert not list(out.parent.glob("*.json"))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "1200 examples of 1200 chats" in done.stderr
    assert len(read_parquet(out)) == 1200


@pytest.mark.feature("S000-28")
def test_a_worker_that_is_killed_ends_the_run_and_says_why(
    chats: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """multiprocessing.Pool waits for ever when the kernel kills a worker for its memory."""
    from workloads.common.exit_codes import WorkloadError
    from workloads.data import token_worker

    monkeypatch.setattr(token_worker, "work", die)
    with pytest.raises(WorkloadError, match="a tokenizing process was killed, most likely for mem"):
        tokenize(chats, model_dir, num_workers=2)


def die(task: Any) -> None:
    """Ends this process as the kernel does it."""
    os.kill(os.getpid(), signal.SIGKILL)
