"""Chat formats, split, masks, packing, and the prepare-data job."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nightly import law
from tests.workloads.conftest import EXCERPT, make_tokenizer
from workloads.common.exit_codes import DataError, ExitCode
from workloads.data.chat_template import encode, prompt_text, render
from workloads.data.chats import calls_of, read_bfcl
from workloads.data.token_rows import IGNORED, Example, Pack, TokenRows, collate, pack, read_parquet

CHAT = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4"},
)
# Earlier assistant turns lose their <think> block once another user turn follows, as in Qwen3.
REWRITING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.last %}<think></think>{% endif %}"
    "{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think></think>{% endif %}"
)


def learned_text(tokenizer: Any, example: Example) -> list[str]:
    """Returns the texts of each run of labelled tokens."""
    runs: list[list[int]] = [[]]
    for label in example.labels:
        if label == IGNORED:
            runs.append([])
        else:
            runs[-1].append(label)
    return [tokenizer.decode(ids) for ids in runs if ids]


def test_only_the_assistants_tokens_carry_labels(tokenizer: Any) -> None:
    """A published run took the loss on prompts and padding: 85 % of it was padding."""
    (example,) = encode(tokenizer, render(tokenizer, CHAT))
    assert learned_text(tokenizer, example) == ["Hello<|im_end|>", "4<|im_end|>"]
    assert all(
        label in (IGNORED, token)
        for label, token in zip(example.labels, example.input_ids, strict=True)
    )


def test_the_first_learned_token_follows_exactly_the_generation_prompt(tokenizer: Any) -> None:
    (example,) = encode(tokenizer, render(tokenizer, CHAT))
    prompt = tokenizer(prompt_text(tokenizer, CHAT[:2]), add_special_tokens=False)["input_ids"]
    first = next(i for i, label in enumerate(example.labels) if label != IGNORED)
    assert list(example.input_ids[:first]) == prompt


def test_a_template_that_rewrites_earlier_turns_gives_one_example_per_turn() -> None:
    tokenizer = make_tokenizer(REWRITING_TEMPLATE)
    examples = encode(tokenizer, render(tokenizer, CHAT))
    assert [learned_text(tokenizer, example) for example in examples] == [
        ["Hello<|im_end|>"],
        ["4<|im_end|>"],
    ]


def test_a_generation_prompt_that_is_not_the_turns_start_is_refused() -> None:
    tokenizer = make_tokenizer(
        "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}<bot>{% endif %}"
    )
    with pytest.raises(DataError, match="generation prompt is not how the turn starts"):
        render(tokenizer, CHAT)


def test_a_template_that_changes_the_answer_is_refused() -> None:
    tokenizer = make_tokenizer(
        "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] | upper }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    with pytest.raises(DataError, match="changes the text of the turn"):
        render(tokenizer, CHAT)


def example_of(length: int, first: int = 0) -> Example:
    """Returns an example whose second half is learned."""
    ids = tuple((first + i) % 200 for i in range(length))
    half = length // 2
    return Example(input_ids=ids, labels=(IGNORED,) * half + ids[half:])


def rows_of(examples: Sequence[Example]) -> TokenRows:
    """Returns the flat arrays of `examples`."""
    ids = np.array([i for each in examples for i in each.input_ids], dtype=np.int32)
    labels = np.array([label for each in examples for label in each.labels], dtype=np.int32)
    lengths = [len(each.input_ids) for each in examples]
    return TokenRows.cut_at(ids, labels != IGNORED, lengths)


def examples_of(packed: Pack) -> list[Example]:
    """Returns the examples that share a row."""
    return [packed.rows[index] for index in packed.indices]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=40))
@law(60)
def test_packing_keeps_every_example_once_and_no_row_overflows(lengths: list[int]) -> None:
    examples = [example_of(length, first=i) for i, length in enumerate(lengths)]
    packs = pack(rows_of(examples), sequence_length=40)
    packed = [example for row in packs for example in examples_of(row)]
    assert sorted(packed, key=repr) == sorted(examples, key=repr)
    assert all(row.num_tokens <= 40 for row in packs)
    # Best fit never opens a row while two rows could be one.
    fills = sorted(row.num_tokens for row in packs)
    assert len(fills) < 2 or fills[0] + fills[1] > 40


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12))
@law(40)
def test_positions_restart_and_no_document_sees_or_predicts_another(lengths: list[int]) -> None:
    packs = pack(rows_of([example_of(length) for length in lengths]), sequence_length=30)
    batch = collate(packs, pad_id=0, multiple=32)
    for row, packed in enumerate(packs):
        start = 0
        for example in examples_of(packed):
            end = start + len(example.input_ids)
            assert batch.position_ids_BT[row, start:end].tolist() == list(range(end - start))
            mask = batch.mask_B1TT[row, 0]
            assert not mask[start:end, :start].any()
            assert not mask[start:end, end:].any()
            assert mask[start:end, start:end].tolist() == [
                [key <= query for key in range(end - start)] for query in range(end - start)
            ]
            # The last token of a document predicts nothing.
            assert batch.labels_BT[row, end - 1] == IGNORED
            assert batch.labels_BT[row, start : end - 1].tolist() == list(example.labels[1:])
            start = end
        assert (batch.labels_BT[row, start:] == IGNORED).all()
    ends = [0]
    for packed in packs:
        start = ends[-1]
        ends += [
            start + end
            for end in itertools.accumulate(len(e.input_ids) for e in examples_of(packed))
        ]
        ends += [start + 32] * (ends[-1] < start + 32)  # padding is a document
    assert batch.document_ends.tolist() == ends
    longest = max(e - s for s, e in itertools.pairwise(ends))
    assert longest <= batch.longest_document < 2 * longest
    assert batch.num_tokens == sum(lengths)


def test_an_example_longer_than_the_row_is_refused() -> None:
    with pytest.raises(DataError, match="41 tokens do not fit sequence_length 40"):
        pack(rows_of([example_of(41)]), sequence_length=40)


def test_packed_rows_give_the_logits_and_the_loss_of_single_rows(model: Any) -> None:
    import torch

    from workloads.train.model import AssistantLoss

    examples = [example_of(length, first=length) for length in (9, 17, 5, 11)]
    packs = pack(rows_of(examples), sequence_length=24)
    assert len(packs) < len(examples)
    loss = AssistantLoss(model)
    with torch.no_grad():
        packed = collate(packs, pad_id=0, multiple=26)
        singles = [collate(pack(rows_of([e]), sequence_length=24), pad_id=0) for e in examples]
        torch.testing.assert_close(loss(packed), sum(loss(batch) for batch in singles))
        for row, content in enumerate(packs):
            start = 0
            for example in examples_of(content):
                alone = model(torch.tensor([example.input_ids])).logits[0]
                together = model(
                    input_ids=packed.input_ids_BT[row : row + 1],
                    position_ids=packed.position_ids_BT[row : row + 1],
                    attention_mask=packed.mask_B1TT[row : row + 1],
                ).logits[0, start : start + len(example.input_ids)]
                torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)
                start += len(example.input_ids)


@pytest.mark.feature("S001-06")
def test_bfcl_references_are_calls_with_optional_arguments_left_out() -> None:
    chats = {chat.id: chat for chat in read_bfcl(EXCERPT)}
    assert len(chats) == 20
    (call,) = calls_of(chats["simple_python_0"].messages[-1])
    assert call.arguments == {"base": 10, "height": 5}
    assert [each["name"] for each in chats["simple_python_0"].functions] == [call.name]
    # Required by the function, though its answer marks it as optional.
    (call,) = calls_of(chats["simple_python_17"].messages[-1])
    assert call.arguments == {"number": 450, "formatted": True}


@pytest.mark.feature("S000-23", "S000-29")
def test_prepare_data_writes_chats_split_and_exactly_three_columns(places: Path, run: Any) -> None:
    import pyarrow.parquet as pq

    code, record = run("prepare-data")
    assert (code, record["outcome"], record["kind"]) == (0, "PASS", "prepare-data")
    folder = places / "data" / "prepared"
    lines = {
        name: (folder / name).read_text().splitlines()
        for name in ("chats.jsonl", "chats_train.jsonl", "chats_test.jsonl")
    }
    assert len(lines["chats.jsonl"]) == 20
    assert len(lines["chats_test.jsonl"]) == 5
    assert len(lines["chats_train.jsonl"]) == 15
    table = pq.read_table(folder / "tokens_train.parquet")
    assert table.column_names == ["input_ids", "labels", "attention_mask"]
    assert len(read_parquet(folder / "tokens_train.parquet")) == 15
    assert json.loads((folder / "manifest.json").read_text())["counts"]["num_train_chats"] == 15
    before = (folder / "tokens_train.parquet").read_bytes()
    assert run("prepare-data")[0] == 0
    assert (folder / "tokens_train.parquet").read_bytes() == before


def test_unusable_data_is_a_failed_record_and_its_own_exit_code(places: Path, run: Any) -> None:
    bad = places / "data" / "rows.jsonl"
    bad.write_text("{broken\n")
    code, record = run("prepare-data", "data.source.kind=jsonl", "data.source.path=rows.jsonl")
    assert code == ExitCode.BAD_DATA
    assert record["outcome"] == "FAIL"
    assert "rows.jsonl:1" in record["reason"]
    assert not (places / "data" / "prepared").exists()


def test_a_recipe_without_the_section_is_a_config_error(places: Path, run: Any) -> None:
    (places / "tiny_recipe.json").write_text(json.dumps({"model": "tiny"}))
    code, record = run("prepare-data")
    assert code == ExitCode.BAD_CONFIG
    assert "has no section 'data'" in record["reason"]


def test_converting_a_folder_without_a_model_says_what_was_expected(tmp_path: Path) -> None:
    from workloads.data.convert_gguf import main

    assert main([str(tmp_path), str(tmp_path / "out")]) == ExitCode.BAD_DATA
    assert main([str(tmp_path / "none"), str(tmp_path / "out")]) == ExitCode.BAD_DATA
    assert not (tmp_path / "out").exists()
