"""The whole pipeline: the sample that ships, its manifest, and a killed run."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.workloads.conftest import EXCERPT, Run
from tests.workloads.finance_chats import COLUMNS, NUM_ROWS, SAMPLE, TOPICS, rows
from workloads.common.exit_codes import ExitCode
from workloads.data import dataset_convert, dataset_split, dataset_tokenize
from workloads.data.chats import read_jsonl
from workloads.data.token_rows import read_parquet

CHECKOUT = Path(__file__).parents[2]


def test_the_sample_that_ships_is_what_its_program_makes() -> None:
    import pyarrow.parquet as pq

    table = pq.read_table(SAMPLE)
    assert tuple(table.column_names) == COLUMNS
    assert table.to_pylist() == rows()
    assert len({row["user"] for row in rows()}) == NUM_ROWS
    assert SAMPLE.stat().st_size < 100_000


def test_an_amount_of_the_sample_is_what_arithmetic_says() -> None:
    budget = next(row for row in rows() if row["topic"] == "budget")
    income = float(budget["user"].partition("$")[2].partition(" ")[0].replace(",", ""))
    assert f"${income * 0.5:,.2f}" in budget["assistant"]


@pytest.mark.feature("S000-21")
def test_the_sample_runs_through_convert_split_and_tokenise(
    tmp_path: Path, model_dir: Path
) -> None:
    chats, tokens = tmp_path / "chats.jsonl", tmp_path / "tokens.parquet"
    options = ["--format", "system_user_assistant", "--keep", "topic"]
    assert dataset_convert.main([str(SAMPLE), str(chats), *options]) == 0
    split = ["--rand-sort", "--test-ratio", "0.1", "--stratify-by", "topic"]
    assert dataset_split.main([str(chats), *split]) == 0
    held = [chat.columns["topic"] for chat in read_jsonl(tmp_path / "chats_test.jsonl")]
    for topic in TOPICS:
        num_rows = sum(row["topic"] == topic for row in rows())
        assert held.count(topic) == math.ceil(0.1 * num_rows)
    train = str(tmp_path / "chats_train.jsonl")
    assert dataset_tokenize.main([train, str(tokens), "--model", str(model_dir)]) == 0
    assert len(read_parquet(tokens)) == NUM_ROWS - len(held)


@pytest.mark.feature("S000-23", "S000-27", "S002-31")
def test_the_modules_by_hand_make_what_prepare_data_makes(
    places: Path, run: Run, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("test_ratio=0.3", "rand_sort=true", "seed=3", "max_tokens=1100")
    code, record = run("prepare-data", *(f"data.{each}" for each in settings))
    assert code == 0
    assert record["metrics"]["num_train_dropped"] > 0
    hand = places / "hand"
    hand.mkdir()
    names = ("chats.jsonl", "chats_train.jsonl", "chats_test.jsonl")
    tokens = ("tokens_train.parquet", "tokens_test.parquet")
    chats, *sides = (str(hand / name) for name in names)
    tokenize = ("--model", str(model_dir), "--max-tokens", "1100")
    for module, *words in (
        ("dataset_convert", str(EXCERPT), chats, "--kind", "bfcl"),
        ("dataset_split", chats, "--test-ratio", "0.3", "--rand-sort", "--seed", "3"),
        ("dataset_tokenize", sides[0], str(hand / tokens[0]), *tokenize),
        ("dataset_tokenize", sides[1], str(hand / tokens[1]), *tokenize),
    ):
        monkeypatch.setattr(sys, "argv", [module, *words])
        monkeypatch.delitem(sys.modules, f"workloads.data.{module}", raising=False)
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(f"workloads.data.{module}", run_name="__main__", alter_sys=True)
        assert ended.value.code == 0
    for name in (*names, *tokens):
        assert (hand / name).read_bytes() == (places / "data/prepared" / name).read_bytes(), name


@pytest.mark.feature("S000-26", "S002-31")
def test_prepare_data_does_nothing_the_second_time_and_something_when_settings_change(
    places: Path,
    run: Run,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, first = run("prepare-data")
    assert code == 0
    made = (places / "data/prepared/manifest.json").stat().st_mtime_ns
    held = (places / "data/prepared/chats_test.jsonl").read_bytes()
    code, second = run("prepare-data")
    assert (code, second["metrics"]) == (0, first["metrics"])
    assert (places / "data/prepared/manifest.json").stat().st_mtime_ns == made
    code, _ = run("prepare-data", "data.seed=1")
    assert code == 0
    assert (places / "data/prepared/manifest.json").stat().st_mtime_ns != made
    other = (places / "data/prepared/chats_test.jsonl").read_bytes()
    assert other != held, "the seed draws other rows"
    for seed in (2, 3):
        assert run("prepare-data", "data.rand_sort=false", f"data.seed={seed}")[0] == 0
        last = (places / "data/prepared/chats_test.jsonl").read_bytes()
        assert (places / "data/prepared/chats.jsonl").read_bytes().endswith(last)
    made = (places / "data/prepared/manifest.json").stat().st_mtime_ns
    (tmp_path / "tokenizer.json").write_text("of another model")
    other_files = [tmp_path / "tokenizer.json"]
    monkeypatch.setattr("workloads.data.__main__.tokenizer_files", lambda _: other_files)
    assert run("prepare-data", "data.rand_sort=false", "data.seed=3")[0] == 0
    assert (places / "data/prepared/manifest.json").stat().st_mtime_ns != made


def test_prepared_data_is_made_anew_where_the_class_of_its_settings_has_changed(
    places: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A default or a list of categories decides the rows, as the code beside it does."""
    from workloads.data import manifest
    from workloads.recipes import data as settings

    assert run("prepare-data")[0] == 0
    made = (places / "data/prepared/manifest.json").stat().st_mtime_ns
    edited = tmp_path / "data.py"
    edited.write_text(Path(settings.__file__).read_text() + "# edited\n")
    monkeypatch.setattr(settings, "__file__", str(edited))
    manifest._code.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert run("prepare-data")[0] == 0
    manifest._code.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert (places / "data/prepared/manifest.json").stat().st_mtime_ns != made


def test_a_manifest_that_is_none_is_made_anew(places: Path, run: Run) -> None:
    assert run("prepare-data")[0] == 0
    path = places / "data/prepared/manifest.json"
    whole = path.read_text()
    for damaged in ("[]", "{", ""):
        path.write_text(damaged)
        assert run("prepare-data")[0] == 0
        assert path.read_text() == whole


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_filesystem_is_told_with_what_to_do_and_leaves_what_was_there(
    code: int, places: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("prepare-data")[0] == 0
    path = places / "data/prepared/manifest.json"
    whole = path.read_text()

    def full(*arguments: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("workloads.data.__main__.tokenize_file", full)
    exit_code, record = run("prepare-data", "data.seed=1")
    assert exit_code == ExitCode.NOT_SAVED
    assert re.fullmatch(
        rf"no space left: \[Errno 28\] {os.strerror(code)}: '{places}/data/\S+'; "
        "free space there, or raise the quota: soperator status --filesystems -s STACK",
        record["reason"],
    )
    assert path.read_text() == whole
    assert not list((places / "data").glob(".prepared*"))


def test_a_command_on_a_full_filesystem_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(dataset_convert, "convert", full)
    chats, rejects = tmp_path / "chats.jsonl", tmp_path / "chats.rejects.jsonl"
    assert dataset_convert.main([str(SAMPLE), str(chats)]) == ExitCode.NOT_SAVED
    assert (
        f"NOT_SAVED (exit 73): no space left: [Errno 28] No space left on device: '{rejects}'; free"
        in capsys.readouterr().err
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.feature("S000-21", "S002-31")
def test_prepare_data_runs_the_sample_by_a_recipe(places: Path, run: Run) -> None:
    code, record = run(
        "prepare-data",
        "data.source="
        + json.dumps(
            {
                "kind": "parquet",
                "path": str(SAMPLE),
                "format": "system_user_assistant",
                "keep": ["topic"],
            }
        ),
        "data.stratify_by=topic",
    )
    assert code == 0
    assert record["metrics"]["num_chats"] == NUM_ROWS
    assert record["metrics"]["num_strata"] == len(TOPICS)


def test_a_kind_that_the_folder_does_not_hold_is_refused(places: Path, run: Run) -> None:
    (places / "data" / "raw").mkdir()
    (places / "data" / "raw" / "rows.csv").write_text("user,assistant\nq,a\n")
    code, record = run("prepare-data", "data.source.kind=jsonl", "data.source.path=raw")
    assert code == ExitCode.BAD_DATA
    assert "holds csv files, but data.source.kind is jsonl; set it to csv" in record["reason"]


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ('data.source.categories=["simple_ruby"]', "categories: got simple_ruby, expected some of"),
        ('data.source.keep=["topic"]', "keep: got topic, but bfcl rows have no columns"),
        ("data.stratify_by=topic", "stratify_by: got 'topic', expected one of source.keep"),
    ],
)
def test_an_impossible_setting_is_refused_by_its_path(
    override: str, reason: str, places: Path, run: Run
) -> None:
    code, record = run("prepare-data", override)
    assert code == ExitCode.BAD_CONFIG
    assert reason in record["reason"]


@pytest.mark.nightly
def test_a_killed_job_leaves_no_manifest_and_is_redone(
    places: Path, recipe_file: Path, run: Run
) -> None:
    """kill -9 as soon as it writes: nothing of it counts as prepared."""
    raw = places / "data" / "rows.jsonl"
    raw.write_text("".join(f'{{"user": "q{i}", "assistant": "a"}}\n' for i in range(60_000)))
    source = {"kind": "jsonl", "path": "rows.jsonl", "format": "system_user_assistant"}
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "workloads.data", "--recipe", str(recipe_file)),
            *("--set", f"data.source={json.dumps(source)}"),
        ],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not list((places / "data").glob(".prepared*/.chats*")):
        assert process.poll() is None, "it ended before it wrote"
        assert time.monotonic() < deadline
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (places / "data" / "prepared").exists()
    assert not list((places / "data").rglob("manifest.json"))
    raw.write_text("".join(f'{{"user": "q{i}", "assistant": "a"}}\n' for i in range(60)))
    code, record = run("prepare-data", f"data.source={json.dumps(source)}")
    assert (code, record["metrics"]["num_chats"]) == (0, 60)
    assert len(read_jsonl(places / "data" / "prepared" / "chats.jsonl")) == 60


def test_what_a_killed_job_left_is_removed_a_day_later(places: Path, run: Run) -> None:
    left, young = (places / "data" / f".prepared.{pid}.partial" for pid in (1, 2))
    left.mkdir()
    young.mkdir()
    os.utime(left, (0, 0))
    assert run("prepare-data")[0] == 0
    assert not left.exists()
    assert young.exists(), "another job may be writing it"


def test_memory_does_not_grow_with_the_size_of_the_rows(tmp_path: Path) -> None:
    """20,000 chats of 6 KB are 120 MB as text alone."""
    source, chats = tmp_path / "rows.jsonl", tmp_path / "chats.jsonl"
    with source.open("w") as file:
        for i in range(20_000):
            file.write(json.dumps({"user": f"{i} " + "q" * 3000, "assistant": "a" * 3000}) + "\n")
    for module, arguments in (
        ("dataset_convert", [str(source), str(chats), "--format", "system_user_assistant"]),
        ("dataset_split", [str(chats), "--rand-sort"]),
    ):
        assert peak_mib(module, arguments) < 110, module


def peak_mib(module: str, arguments: list[Any]) -> float:
    """Returns the peak resident memory of a step in a process of its own."""
    code = (
        "import sys\n"
        f"from workloads.data.{module} import main\n"
        "status = main(sys.argv[1:])\n"
        # Not ru_maxrss: a new program starts with that of the process that started it.
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(int(peak.split()[1]) / 1024)\n"
        "sys.exit(status)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)
