"""Prompts have the length that was drawn, and share what a prefix cache may gain, no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nightly import law
from workloads.common.exit_codes import DataError
from workloads.load.prompts import Rows, Words, load_tokenizer

SETTINGS = law(30)


@pytest.fixture(scope="module")
def words(tokenizer: Any) -> Words:
    return Words(tokenizer.backend_tokenizer, seed=1)


@SETTINGS
@given(number=st.integers(0, 10**6), tokens=st.integers(1, 400))
def test_a_prompt_has_the_tokens_that_were_asked_for(words: Words, number: int, tokens: int):
    (message,) = words.chat(number, tokens)
    assert words.count(message["content"]) == tokens
    assert words.chat(number, tokens) == [message]


def test_what_the_template_adds_is_taken_off(tokenizer: Any):
    made = Words(tokenizer.backend_tokenizer, seed=1)
    made.template_tokens = 12
    assert made.count(made.chat(3, 50)[0]["content"]) == 38
    assert made.count(made.chat(3, 5)[0]["content"]) == 1


def test_prompts_share_the_cached_part_and_nothing_after_it(tokenizer: Any):
    made = Words(tokenizer.backend_tokenizer, seed=1, cached_tokens=60)
    one, two = (made.chat(number, 100)[0]["content"] for number in (1, 2))
    assert one[:60] == two[:60]
    assert one[60:70] != two[60:70]


def test_a_real_tokenizer_gives_words_of_one_token():
    folder = Path.home() / ".cache/soperator-stack/models/SmolLM2-135M-Instruct"
    if not folder.is_dir():
        pytest.skip("no SmolLM2 in the cache; `make setup` brings it")
    made = Words(load_tokenizer(folder), seed=1)
    for tokens in (1, 17, 500):
        assert made.count(made.chat(0, tokens)[0]["content"]) == tokens


def test_a_line_separator_in_a_message_ends_no_line(tmp_path: Path):
    """JSON may hold it as it is: the row was taken for two, and refused."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "a\u2028b"}]}\n', encoding="utf-8")
    assert Rows(path, seed=0).chat(0, None)[0]["content"] == "a\u2028b"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text": "x"}', r"rows.jsonl:1: expected \{"),
        ('{"messages": [{"content": "x"}]}', r"rows.jsonl:1: expected"),
        ('{"messages": [{"role": "user"}]}', r"rows.jsonl:1: expected"),
        (
            '{"messages": [{"role": "user", "content": "x"}], "functions": [1]}',
            r"rows.jsonl:1: expected",
        ),
        ("not json", r"rows.jsonl:1: not JSON"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "no message but answers"),
        ("", "no chats; write one object"),
    ],
)
def test_rows_that_are_no_chats_are_refused_by_line(tmp_path: Path, line: str, words: str):
    path = tmp_path / "rows.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=words):
        Rows(path, seed=0)
