"""Batches equal one by one; finished rows stay finished; test rows that were trained on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from workloads.common.exit_codes import DataError, ExitCode
from workloads.common.places import Places
from workloads.data.chats import Chat
from workloads.data.token_rows import IGNORED, Example
from workloads.evaluate.generate import RowStore
from workloads.evaluate.held_out import HeldOut, training_sets
from workloads.evaluate.subject import FORMAT, Header

LENGTHS = (3, 50, 7, 22, 5, 41, 4, 23)
PROMPTS = [[10 + (7 * row + i) % 200 for i in range(n)] for row, n in enumerate(LENGTHS)]


def header(**changes: Any) -> Header:
    """A header; equal changes give equal keys."""
    values: dict[str, Any] = {
        "format": FORMAT,
        "model": "tiny",
        "base_sha256": "b",
        "tuned_sha256": None,
        "rows_sha256": "r",
        "prompts_sha256": "p",
        "settings": {"dtype": "fp32"},
        "code_sha256": "c",
    }
    return Header(**{**values, **changes})


def test_every_prompt_is_in_one_bucket_of_similar_lengths() -> None:
    from workloads.evaluate.generate import PADDING_SHARE, batches

    buckets = batches(LENGTHS, batch_size=4)
    assert sorted(row for bucket in buckets for row in bucket) == list(range(len(LENGTHS)))
    for bucket in buckets:
        lengths = [LENGTHS[row] for row in bucket]
        assert len(bucket) <= 4
        assert sum(lengths) >= (1 - PADDING_SHARE) * len(lengths) * max(lengths)
    assert buckets == [[1, 5, 7], [3], [2, 4, 6], [0]]


@pytest.mark.feature("S000-44")
def test_samples_are_drawn_by_the_seed_and_not_the_first_rows() -> None:
    chats = [Chat(id=f"c{row}", group="", messages=()) for row in range(100)]
    rows = HeldOut(chats=chats, prompts=[], examples=[], pad_id=0, overlap={})
    drawn = rows.sampled(5, seed=0)
    assert drawn == rows.sampled(5, seed=0) == sorted(set(drawn))
    assert len({tuple(rows.sampled(5, seed=seed)) for seed in range(4)} | {tuple(range(5))}) == 5
    assert rows.sampled(200, seed=0) == list(range(100))


@pytest.mark.feature("S002-80")
@pytest.mark.parametrize("batch_size", [2, 8])
def test_batched_answers_are_those_of_one_by_one(model: Any, batch_size: int) -> None:
    """In fp32 the tokens are equal; a stop that some streams meet early drops them on the way."""
    from workloads.evaluate.generate import generate, generate_in_batches

    free = generate(model, PROMPTS[:1], max_new_tokens=16, pad_id=0, stop_ids=frozenset())
    for stop_ids in (frozenset(), frozenset({free.token_ids[0][2]})):
        options = {"max_new_tokens": 16, "pad_id": 0, "stop_ids": stop_ids}
        batched = {
            row: tokens
            for made in generate_in_batches(model, PROMPTS, batch_size=batch_size, **options)
            for row, tokens in made.items()
        }
        for row, prompt in enumerate(PROMPTS):
            assert batched[row] == generate(model, [prompt], **options).token_ids[0]


def test_streams_that_end_at_other_steps_leave_the_others_untouched(model: Any) -> None:
    """Each stop token ends some streams of one bucket; what is left of it must not shift."""
    from workloads.evaluate.generate import generate

    prompts = [[20 + row, 30, 40 + 3 * row] for row in range(6)]
    free = generate(model, prompts, max_new_tokens=12, pad_id=0, stop_ids=frozenset())
    seen = {token for tokens in free.token_ids for token in tokens}
    shortened = 0
    for stop in seen:
        made = generate(model, prompts, max_new_tokens=12, pad_id=0, stop_ids=frozenset({stop}))
        for tokens, whole in zip(made.token_ids, free.token_ids, strict=True):
            end = whole.index(stop) if stop in whole else len(whole)
            assert tokens == whole[:end]
            shortened += end < len(whole)
    assert shortened > 6


def test_left_padding_leaves_the_logits_within_1e_4(model: Any) -> None:
    import torch

    prompt = PROMPTS[0]
    padded = torch.tensor([[0] * 30 + prompt])
    mask = torch.tensor([[0] * 30 + [1] * len(prompt)])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.inference_mode():
        alone = model(torch.tensor([prompt])).logits[0, -1]
        beside = model(padded, attention_mask=mask, position_ids=positions).logits[0, -1]
    torch.testing.assert_close(beside, alone, atol=1e-4, rtol=1e-4)


def test_losses_in_batches_are_those_of_one_by_one(model: Any) -> None:
    from workloads.evaluate.generate import row_losses

    examples = [
        Example(input_ids=tuple(ids), labels=(IGNORED, *ids[1:]) if row else (IGNORED,) * len(ids))
        for row, ids in enumerate(PROMPTS)
    ]

    def losses(rows: list[Example]) -> list[tuple[float, int]]:
        made = list(row_losses(model, rows, pad_id=0))
        return [found for _, found in sorted((k, v) for part in made for k, v in part.items())]

    together = losses(examples)
    for example, (nats, count) in zip(examples, together, strict=True):
        ((alone, alone_count),) = losses([example])
        assert count == alone_count
        assert nats == pytest.approx(alone, rel=1e-5)
    assert together[0] == (0.0, 0), "a row without labels adds nothing"


def test_finished_rows_come_back_and_a_cut_line_does_not(places: Path) -> None:
    store = RowStore(places / "results", header(), rank=0)
    store.add("answer", {0: {"text": "a"}, 1: {"text": "b"}})
    store.add("loss", {0: {"nats": 0.5}})
    (path,) = store.folder.glob("*.jsonl")
    with path.open("a") as file:
        file.write('{"part": "answer", "row": 2, "te')
    again = RowStore(places / "results", header(), rank=0)
    assert set(again.finished("answer")) == {0, 1}
    again.add("answer", {2: {"text": "c"}})
    assert {row: each["text"] for row, each in again.finished("answer").items()} == {
        0: "a",
        1: "b",
        2: "c",
    }


def test_rows_of_another_header_are_not_taken(places: Path) -> None:
    RowStore(places / "results", header(), rank=0).add("answer", {0: {"text": "a"}})
    other = header(settings={"dtype": "bf16"})
    assert RowStore(places / "results", other, rank=0).finished("answer") == {}


def test_a_second_run_does_only_what_is_missing(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run dies while the tuned model answers; the rows of before are not made again."""
    from workloads.evaluate import generate

    assert run("prepare-data")[0] == 0
    assert run("train", "train.max_steps=1")[0] == 0
    real, calls = generate.generate, {"answers": 0}

    def dies_after_two(model: Any, prompts: Any, **options: Any) -> Any:
        if options["stop_ids"]:
            calls["answers"] += 1
            if calls["answers"] == 2:
                raise RuntimeError("lost")
        return real(model, prompts, **options)

    monkeypatch.setattr(generate, "generate", dies_after_two)
    code, _ = run("evaluate", "evaluate.batch_size=1")
    assert code == ExitCode.FAILED
    asked: list[int] = []

    def counts(model: Any, prompts: Any, **options: Any) -> Any:
        if options["stop_ids"]:
            asked.append(len(prompts))
        return real(model, prompts, **options)

    monkeypatch.setattr(generate, "generate", counts)
    code, record = run("evaluate", "evaluate.batch_size=1")
    assert code == 0
    assert sum(asked) == 2 * 3 - 1, "three rows a model, one of them was finished"
    result = json.loads(Path(record["artifacts"]["evaluation"]).read_text())
    assert result["base_model"]["num_rows"] == 3
    asked.clear()
    assert run("evaluate", "evaluate.batch_size=1")[0] == 0
    assert asked == []


def prepared(places: Path) -> Path:
    """The folder that prepare-data wrote."""
    return places / "data" / "prepared"


def leak(places: Path, *, into: str = "chats_train.jsonl") -> None:
    """Puts the first test row into the training rows and says so in the manifest."""
    from workloads.data.manifest import sha256

    folder = prepared(places)
    row = (folder / "chats_test.jsonl").read_text().splitlines()[0]
    file = folder / into
    file.write_text(file.read_text() + row + "\n")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["outputs"][into] = {"size_bytes": file.stat().st_size, "sha256": sha256(file)}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_a_test_row_that_was_trained_on_is_refused_and_marked_when_forced(
    places: Path, run: Any
) -> None:
    run("prepare-data")
    run("train", "train.max_steps=1")
    leak(places)
    code, record = run("evaluate")
    assert code == ExitCode.BAD_DATA
    assert "chats_train.jsonl holds 1 of the 3 test rows" in record["reason"]
    assert "set evaluate.force_overlap=true" in record["reason"]
    code, record = run("evaluate", "evaluate.force_overlap=true")
    assert (code, record["metrics"]["num_overlapping_rows"]) == (0, 1)
    result = json.loads(Path(record["artifacts"]["evaluation"]).read_text())
    assert result["test_set"]["overlap_forced"] is True
    assert [len(ids) for ids in result["test_set"]["overlap"].values()] == [1]


def test_the_training_set_that_the_adapters_run_names_counts_too(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run trained on `prepared`; the test rows come from a folder with another split."""
    run("prepare-data", "data.output=elsewhere", "data.seed=5")
    run("prepare-data")
    run("train", "train.max_steps=1")
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    code, record = run("evaluate", "evaluate.dataset=elsewhere")
    assert code == ExitCode.BAD_DATA
    assert f"{prepared(places)}/chats_train.jsonl holds" in record["reason"]


@pytest.mark.parametrize("name", ["chats_test.jsonl", "tokens_test.parquet", "chats_train.jsonl"])
def test_a_file_that_is_not_the_manifests_is_refused_by_name(
    places: Path, run: Any, name: str
) -> None:
    run("prepare-data")
    run("train", "train.max_steps=1")
    (prepared(places) / name).write_bytes(b"other")
    code, record = run("evaluate")
    assert code == ExitCode.BAD_DATA
    assert f"prepared/{name}: changed since" in record["reason"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{", "is damaged, not JSON"), ("[]", "is damaged: list"), ("{}", "made by another version")],
)
def test_a_damaged_manifest_is_told_with_its_path(
    places: Path, run: Any, text: str, reason: str
) -> None:
    run("prepare-data")
    run("train", "train.max_steps=1")
    (prepared(places) / "manifest.json").write_text(text)
    code, record = run("evaluate")
    assert code == ExitCode.BAD_DATA
    assert "prepared/manifest.json" in record["reason"]
    assert reason in record["reason"]


def test_a_damaged_adapter_configuration_is_told_with_its_path(places: Path, run: Any) -> None:
    run("prepare-data")
    run("train", "train.max_steps=1")
    (path,) = (places / "chkpt").glob("finetune/12/final/adapter_config.json")
    path.write_text("{")
    code, record = run("evaluate")
    assert code == ExitCode.BAD_DATA
    assert str(path) in record["reason"]


def test_headers_differ_where_models_rows_or_prompts_do() -> None:
    from workloads.evaluate.subject import differences

    original, trained = header(), header(tuned_sha256="t")
    assert differences(original, trained) == []
    for name in ("base_sha256", "rows_sha256", "prompts_sha256", "code_sha256"):
        assert len(differences(original, header(tuned_sha256="t", **{name: "other"}))) == 1
    assert differences(trained, trained) == ["the original results are of a trained model"]
    assert differences(original, original) == ["the trained results are of the original model"]


@pytest.mark.parametrize(
    "name",
    [
        *(f"evaluate/{each}.py" for each in ("generate", "held_out", "scores", "subject")),
        "common/tool_calls.py",
        "data/chats.py",
    ],
)
def test_other_code_of_answers_or_scores_is_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Rows scored by other rules were compared as if by the same."""
    from workloads.evaluate import subject

    folder = shutil.copytree(Path(subject.__file__).parents[1], tmp_path / "workloads")
    monkeypatch.setattr(subject, "__file__", str(folder / "evaluate" / "subject.py"))
    before = subject.code_sha256.__wrapped__()
    assert before == subject.code_sha256.__wrapped__()
    with (folder / name).open("a") as file:
        file.write("# other\n")
    assert subject.code_sha256.__wrapped__() != before


def test_a_model_without_weights_has_no_hash(tmp_path: Path) -> None:
    from workloads.evaluate.subject import model_sha256

    with pytest.raises(DataError, match=r"has no \.safetensors file"):
        model_sha256(tmp_path)


@pytest.mark.parametrize("run_id", ["12", "12-2", "manual-29500", "manual-29500-2"])
def test_the_training_set_of_a_tuned_model_is_found_by_its_run(places: Path, run_id: str) -> None:
    """Of a second run by hand it was not looked for: its rows were measured as held out."""
    for name in ("prepared", "other"):
        (places / "data" / name).mkdir()
    for job in ("12", "manual-29500"):
        (places / "results" / job).mkdir()
        settings = json.dumps({"train": {"dataset": "other"}})
        (places / "results" / job / "config.json").write_text(settings)
    tuned = places / "chkpt" / "finetune" / run_id / "final"
    found = training_sets(places / "data" / "prepared", tuned, Places())
    assert [folder.name for folder in found] == ["prepared", "other"]
