"""Which chats train and which test, and the two files that hold them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nightly import law
from workloads.common.exit_codes import DataError, ExitCode
from workloads.data.chats import Chat, read_jsonl
from workloads.data.dataset_split import Choice, Key, choose, key_of, main


def keys_of(names: list[str]) -> list[Key]:
    """Returns one key per name: the group, and after a colon the stratum; all chats differ."""
    return [
        Key(str(i).encode(), name.partition(":")[0].encode(), name.partition(":")[2])
        for i, name in enumerate(names)
    ]


def choice_of(names: list[str], *, test_ratio: float, rand_sort: bool, seed: int = 0) -> Choice:
    """Returns what `choose` takes of chats with these groups."""
    return choose(keys_of(names), test_ratio=test_ratio, rand_sort=rand_sort, seed=seed)


@pytest.mark.feature("S000-25")
@given(st.lists(st.sampled_from("abcdefgh"), min_size=8, max_size=40), st.integers(0, 5))
@law(60)
def test_no_group_is_on_both_sides_and_no_chat_is_lost(names: list[str], seed: int) -> None:
    names = [*names, "x", "y"]
    sides = choice_of(names, test_ratio=0.2, rand_sort=True, seed=seed)
    assert not {names[i] for i in sides.train} & {names[i] for i in sides.test}
    assert sorted(sides.train + sides.test) == list(range(len(names)))
    assert sides == choice_of(names, test_ratio=0.2, rand_sort=True, seed=seed)


@pytest.mark.feature("S000-25")
def test_the_ratio_is_of_chats_and_not_of_groups() -> None:
    """One group of ten and ten of one: half of them are ten chats, not six groups."""
    sides = choice_of([*"a" * 10, *map(str, range(10))], test_ratio=0.5, rand_sort=False)
    assert (sides.train, sides.test) == (tuple(range(10)), tuple(range(10, 20)))


@pytest.mark.feature("S000-26")
def test_without_rand_sort_the_order_stays_and_the_end_is_the_test() -> None:
    names = [str(i) for i in range(100)]
    sides = choice_of(names, test_ratio=0.4, rand_sort=False)
    assert (sides.train, sides.test) == (tuple(range(60)), tuple(range(60, 100)))


@pytest.mark.feature("S000-26")
def test_rand_sort_shuffles_both_sides_by_the_seed() -> None:
    names = [str(i) for i in range(100)]
    one, other = (choice_of(names, test_ratio=0.2, rand_sort=True, seed=s) for s in (1, 2))
    assert one.test != tuple(sorted(one.test))
    assert one.train != tuple(sorted(one.train))
    assert set(one.test) != set(other.test)
    assert len(one.test) == len(other.test) == 20


@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from("pqr")), min_size=40, max_size=120),
    st.integers(0, 3),
)
@law(60)
def test_every_stratum_of_two_groups_is_on_both_sides_by_the_ratio(
    rows: list[tuple[int, str]], seed: int
) -> None:
    names = [f"{stratum}{group}:{stratum}" for group, stratum in rows] + ["p1:p", "p2:p"]
    sides = choice_of(names, test_ratio=0.25, rand_sort=True, seed=seed)
    for stratum in {name[-1] for name in names}:
        members = [name for name in names if name[-1] == stratum]
        held = [i for i in sides.test if names[i][-1] == stratum]
        largest = max(members.count(name) for name in members)
        if len(set(members)) > 1:
            assert 0 < len(held) < len(members)
            assert len(held) < 0.25 * len(members) + largest
        else:
            assert not held
    assert sorted(sides.train + sides.test) == list(range(len(names)))


@pytest.mark.parametrize("names", [["a", "a"], ["a"], []])
def test_a_split_that_leaves_a_side_empty_is_refused(names: list[str]) -> None:
    with pytest.raises(DataError, match=rf"leaves {len(names)} to train and 0 to test"):
        choice_of(names, test_ratio=0.5, rand_sort=True)


def chat(question: str, answer: str = "a", **columns: str) -> Chat:
    """Returns a chat of one question."""
    return Chat(
        id=question,
        group=question,
        messages=({"role": "user", "content": question}, {"role": "assistant", "content": answer}),
        columns=columns,
    )


def write(path: Path, chats: list[Chat]) -> Path:
    """Writes chats as JSON lines."""
    path.write_bytes(b"".join(each.to_line() for each in chats))
    return path


@pytest.mark.feature("S000-25")
def test_the_sides_lie_beside_the_input_and_equal_conversations_count_once(tmp_path: Path) -> None:
    chats = [chat(f"q{i}") for i in range(10)]
    path = write(tmp_path / "chats.jsonl", [*chats, chats[0], chats[7]])
    assert main([str(path), "--test-ratio", "0.3"]) == 0
    train, test = (read_jsonl(tmp_path / f"chats_{side}.jsonl") for side in ("train", "test"))
    assert [each.id for each in train] == [f"q{i}" for i in range(7)]
    assert [each.id for each in test] == ["q7", "q8", "q9"]
    manifest = json.loads((tmp_path / "chats_split.manifest.json").read_text())
    assert manifest["counts"]["num_duplicates"] == 2
    assert main([str(path), "--test-ratio", "0.5"]) == 0
    assert [each.id for each in read_jsonl(tmp_path / "chats_train.jsonl")] == [
        f"q{i}" for i in range(5)
    ], "another ratio is another split"


def test_a_split_by_a_column_keeps_its_shares(tmp_path: Path) -> None:
    chats = [chat(f"q{i}", topic="rare" if i < 10 else "common") for i in range(100)]
    path = write(tmp_path / "chats.jsonl", chats)
    assert main([str(path), "--test-ratio", "0.2", "--rand-sort", "--stratify-by", "topic"]) == 0
    held = [each.columns["topic"] for each in read_jsonl(tmp_path / "chats_test.jsonl")]
    assert (held.count("rare"), held.count("common")) == (2, 18)


def test_a_column_that_was_not_kept_is_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"has no column 'topic' \(has: none\); keep it when"):
        key_of(chat("q"), "topic")


def test_plain_files_of_messages_can_be_split(tmp_path: Path) -> None:
    rows = [{"messages": [dict(m) for m in chat(f"q{i}").messages]} for i in range(4)]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    assert main([str(path), "--test-ratio", "0.25"]) == 0
    lines = (tmp_path / "mine_test.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == rows[3:]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "of 0 chats in 0 groups leaves 0 to train and 0 to test"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "no assistant turn in 1 messages"),
        ("x", "chats.jsonl:1: is not JSON"),
    ],
)
def test_an_unusable_file_ends_with_65_and_leaves_no_side(
    content: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(content)
    assert main([str(path)]) == ExitCode.BAD_DATA
    assert reason in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["chats.jsonl"]
