"""Original against trained: the numbers of seed 002, the refusals, the report and its page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from workloads.common.exit_codes import ExitCode
from workloads.evaluate.__main__ import category_of
from workloads.evaluate.compare_models import (
    change_percent,
    improvement_percent,
    main,
    percent,
    spread,
)
from workloads.evaluate.subject import FORMAT

HEADER: dict[str, Any] = {
    "format": FORMAT,
    "model": "tiny",
    "base_sha256": "b" * 64,
    "tuned_sha256": None,
    "rows_sha256": "r" * 64,
    "prompts_sha256": "p" * 64,
    "settings": {"dtype": "bf16"},
    "code_sha256": "c" * 64,
}
Write = Callable[..., Path]


def row(number: int, scores: dict[str, float], *, answer: str = "x", category: str = "a") -> Any:
    """One line of rows.jsonl."""
    return {
        "id": f"{category}_{number}",
        "category": category,
        "prompt_sha256": f"{number:064x}",
        "input": f"question {number}",
        "reference": "<b>reference</b>",
        "generated": answer,
        "num_tokens": 3,
        "scores": scores,
    }


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write("trained", rows)`: a result folder as an inference job leaves it."""

    def folder(side: str, rows: list[Any], **header: Any) -> Path:
        path = tmp_path / side
        path.mkdir()
        tuned = "t" * 64 if side == "trained" else None
        values = {**HEADER, "tuned_sha256": tuned, **header}
        (path / "header.json").write_text(json.dumps(values))
        lines = [json.dumps(each, ensure_ascii=False) + "\n" for each in rows]
        (path / "rows.jsonl").write_text("".join(lines), encoding="utf-8")
        nats = 2.0 if side == "original" else 1.5
        summary = {"num_rows": len(rows), "losses": [[nats * 4, 4], [nats * 9, 9]]}
        (path / "inference_results.json").write_text(json.dumps(summary))
        return path

    return folder


@pytest.fixture
def compare(tmp_path: Path) -> Callable[..., int]:
    """Runs the command on both folders; its exit code."""

    def command(*options: str) -> int:
        return main(
            [
                *("--trained-results", str(tmp_path / "trained")),
                *("--original-results", str(tmp_path / "original")),
                *("--output", str(tmp_path / "comparison_report.json")),
                *options,
            ]
        )

    return command


ROWS = [
    (row(0, {"argument_accuracy": 0.0, "rougeL": 0.5}), {"argument_accuracy": 1.0, "rougeL": 0.9}),
    (row(1, {"argument_accuracy": 1.0, "rougeL": 0.9}), {"argument_accuracy": 0.0, "rougeL": 0.95}),
    (row(2, {"rougeL": 0.4}, category="b"), {"rougeL": 0.3}),
    (row(3, {"rougeL": 0.4, "call_parse_failure": 1.0}, category="b"),
     {"rougeL": 0.6, "call_parse_failure": 0.0}),
]  # fmt: skip


def write_pair(write: Write, **trained_header: Any) -> None:
    """Both folders over ROWS."""
    write("original", [before for before, _ in ROWS])
    write(
        "trained",
        [{**before, "generated": "<i>y", "scores": after} for before, after in ROWS],
        **trained_header,
    )


@pytest.mark.feature("S002-58", "S002-60")
def test_improvement_and_spread_are_those_of_seed_002() -> None:
    """0.5234 +- 0.1234 to 0.6789 +- 0.0987 over 100 rows each: +0.1555, +29.7 %, std -20 %."""
    half = (0.1234**2 * 99 / 100) ** 0.5
    original = spread([0.5234 + half, 0.5234 - half] * 50)
    half = (0.0987**2 * 99 / 100) ** 0.5
    trained = spread([0.6789 + half, 0.6789 - half] * 50)
    assert original == pytest.approx({"mean": 0.5234, "std": 0.1234, "count": 100})
    assert trained == pytest.approx({"mean": 0.6789, "std": 0.0987, "count": 100})
    assert trained["mean"] - original["mean"] == pytest.approx(0.1555)
    better = improvement_percent(original["mean"], trained["mean"], higher_is_better=True)
    assert percent(better) == "+29.7 %"
    assert percent(change_percent(original["std"], trained["std"])) == "-20.0 %"


def test_less_is_an_improvement_where_less_is_better() -> None:
    assert improvement_percent(4.0, 3.0, higher_is_better=False) == 25.0
    assert improvement_percent(4.0, 3.0, higher_is_better=True) == -25.0
    assert improvement_percent(4.0, 3.0, higher_is_better=None) == -25.0
    assert improvement_percent(0.0, 3.0, higher_is_better=True) is None
    assert percent(None) == "n/a"


@pytest.mark.feature("S000-47", "S002-57", "S002-58", "S002-59", "S002-60", "S002-84")
def test_the_report_has_means_intervals_categories_and_regressions(
    write: Write, compare: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pair(write)
    assert compare() == ExitCode.OK
    report = json.loads((tmp_path / "comparison_report.json").read_text())
    rouge = report["metrics"]["rougeL"]
    assert rouge["original"]["mean"] == pytest.approx(0.55)
    assert rouge["trained"]["mean"] == pytest.approx(0.6875)
    assert rouge["original"]["count"] == rouge["trained"]["count"] == 4
    assert rouge["improvement_percent"] == pytest.approx(25.0)
    change = 100 * (rouge["trained"]["std"] / rouge["original"]["std"] - 1)
    assert rouge["std_change_percent"] == pytest.approx(change)
    assert rouge["paired"]["low"] <= rouge["paired"]["difference"] <= rouge["paired"]["high"]
    assert report["metrics"]["argument_accuracy"]["original"]["count"] == 2
    assert report["metrics"]["call_parse_failure"]["improvement_percent"] == 100.0
    assert report["categories"]["b"]["rougeL"] == pytest.approx(
        {"original_mean": 0.4, "trained_mean": 0.45, "count": 2}
    )
    assert report["perplexity"]["improvement_percent"] == pytest.approx(39.3469, abs=1e-4)
    assert [(each["id"], each["metric"]) for each in report["regressions"]] == [
        ("a_1", "argument_accuracy"),
        ("b_2", "rougeL"),
    ]
    assert (report["num_regressions"], report["num_gains"]) == (2, 2)
    told = capsys.readouterr().out
    assert "better on 2 rows, worse on 2" in told
    (line,) = (line for line in told.splitlines() if line.startswith("rougeL "))
    assert re.search(r" 0\.5500 .*-> +0\.6875 .* \+25\.0 %  difference \+0\.1375 \[", line)
    page = (tmp_path / "comparison_report.html").read_text()
    better = percent(report["perplexity"]["improvement_percent"])
    values = (f"{report['perplexity'][side]['value']:.4f}" for side in ("original", "trained"))
    assert f"Perplexity {' to '.join(values)}\n({better}, p " in page
    (row,) = re.findall(r"<tr><td>rougeL</td>.*?</tr>", page, re.DOTALL)
    cells = re.findall(r"<td[^>]*>([^<[]*)", row)
    assert [cell.strip() for cell in (*cells[1:3], cells[4], *cells[6:8])] == [
        "4", "0.5500", "0.6875", "+25.0 %", "+0.1375",
    ]  # fmt: skip


@pytest.mark.feature("S002-51", "S002-52", "S002-56")
def test_the_command_line_of_seed_002_runs_word_for_word(
    write: Write, compare: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pair(write)
    assert compare() == ExitCode.OK
    report = tmp_path / "comparison_report.json"
    by_folders = report.read_bytes()
    named = [
        *("--trained-results", str(tmp_path / "trained" / "inference_results.json")),
        *("--original-results", str(tmp_path / "original" / "inference_results.json")),
        *("--output", str(report)),
    ]
    assert main(named) == ExitCode.OK
    assert report.read_bytes() == by_folders
    found = json.loads(by_folders)
    assert found["original_results"] == str(tmp_path / "original")
    assert found["trained_results"] == str(tmp_path / "trained")
    other = tmp_path / "of_today.json"
    assert main([*named[:-1], str(other)]) == ExitCode.OK
    assert other.read_bytes() == by_folders
    named[1] = str(tmp_path / "trained" / "rows.jsonl")
    capsys.readouterr()
    assert main(named) == ExitCode.BAD_DATA
    assert (
        "rows.jsonl: no folder of results and no inference_results.json" in capsys.readouterr().err
    )


def test_equal_inputs_give_equal_bytes(
    write: Write, compare: Callable[..., int], tmp_path: Path
) -> None:
    write_pair(write)
    outputs = [tmp_path / "comparison_report.json", tmp_path / "comparison_report.html"]
    compare()
    first = [path.read_bytes() for path in outputs]
    compare()
    assert [path.read_bytes() for path in outputs] == first


def test_regressions_can_be_asked_of_another_metric(
    write: Write, compare: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pair(write)
    assert compare("--metric", "rougeL") == ExitCode.OK
    report = json.loads((tmp_path / "comparison_report.json").read_text())
    assert [each["id"] for each in report["regressions"]] == ["b_2"]
    assert compare("--metric", "call_parse_failure") == ExitCode.OK
    report = json.loads((tmp_path / "comparison_report.json").read_text())
    assert (report["num_regressions"], report["num_gains"]) == (0, 1)
    assert compare("--metric", "bleurt") == ExitCode.BAD_CONFIG
    assert "--metric bleurt: the rows have argument_accuracy, rougeL" in capsys.readouterr().err


def test_the_page_fetches_nothing_and_shows_texts_as_texts(
    write: Write, compare: Callable[..., int], tmp_path: Path
) -> None:
    write_pair(write)
    compare()
    page = (tmp_path / "comparison_report.html").read_text()
    links: list[str] = []
    tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            tags.append(tag)
            links.extend(name for name, _ in attrs if name in ("src", "href"))

    Reader().feed(page)
    assert not links
    assert not {"script", "link", "img", "b", "i"} & set(tags)
    assert "&lt;b&gt;reference&lt;/b&gt;" in page
    assert tags.count("details") == 2
    assert "url(" not in page


@pytest.mark.feature("S002-53")
@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"rows_sha256": "other"}, "other rows"),
        ({"prompts_sha256": "other"}, "other prompts"),
        ({"base_sha256": "other"}, "another base model"),
        ({"settings": {"dtype": "fp32"}}, "other settings"),
        ({"code_sha256": "other"}, "another version of the code"),
        ({"tuned_sha256": None}, "the trained results are of the original model"),
    ],
)
def test_results_of_other_rows_models_or_prompts_are_refused(
    header: dict[str, Any],
    reason: str,
    write: Write,
    compare: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_pair(write, **header)
    assert compare() == ExitCode.BAD_DATA
    message = capsys.readouterr().err
    assert reason in message
    assert len(message.splitlines()) == 1
    assert not (tmp_path / "comparison_report.json").exists()


@pytest.mark.parametrize(
    "edited",
    [
        [row(1, {"rougeL": 0.5}), row(0, {"rougeL": 0.5})],
        [row(0, {"token_f1": 0.5}), row(1, {"token_f1": 0.5})],
    ],
)
def test_rows_that_were_edited_under_an_equal_header_are_refused(
    edited: list[Any],
    write: Write,
    compare: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    write("original", [row(0, {"rougeL": 0.5}), row(1, {"rougeL": 0.5})])
    write("trained", edited)
    assert compare() == ExitCode.BAD_DATA
    assert "rows that the header does not tell apart" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("header.json", "{", "header.json: is damaged, not JSON"),
        ("header.json", "{}", "header.json: has no header of format 1"),
        ("rows.jsonl", "{\n", "rows.jsonl:1: not JSON"),
        ("rows.jsonl", '{"id": "a"}\n', "rows.jsonl:1: is damaged: expected id, category"),
        ("rows.jsonl", "", "rows.jsonl: is damaged: 0 rows, inference_results.json says 4"),
        ("inference_results.json", "[]", "inference_results.json: is damaged: list"),
        (
            "inference_results.json",
            '{"num_rows": 4, "losses": [[1]]}',
            "inference_results.json: is damaged: no losses",
        ),
        ("rows.jsonl", None, "rows.jsonl: cannot be read"),
        ("header.json", None, "header.json: cannot be read"),
    ],
)
def test_damaged_results_are_told_in_one_line_with_their_path(
    name: str,
    text: str | None,
    reason: str,
    write: Write,
    compare: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_pair(write)
    path = tmp_path / "trained" / name
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    assert compare() == ExitCode.BAD_DATA == 65
    message = capsys.readouterr().err
    assert f"{tmp_path}/trained/{reason}" in message
    assert len(message.splitlines()) == 1


@pytest.mark.feature("S002-56")
@pytest.mark.parametrize("mark", ["\u0085", "\u2028", "\u2029"])
def test_an_answer_with_a_line_separator_is_one_row(
    mark: str, write: Write, compare: Callable[..., int]
) -> None:
    """JSON holds them as they are, and str.splitlines() ends a line there."""
    rows = [{**before, "generated": f"one{mark}two"} for before, _ in ROWS]
    write("original", rows)
    write("trained", rows)
    assert compare() == ExitCode.OK


def test_a_folder_that_is_not_there_names_the_jobs(
    compare: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare() == ExitCode.BAD_DATA
    assert "original: no folder of results" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [("--output", "report.html"), ("--resamples", "0"), ("--confidence", "1")]
)
def test_bad_options_are_refused(options: tuple[str, str], compare: Callable[..., int]) -> None:
    assert compare(*options) == ExitCode.BAD_CONFIG


@pytest.mark.parametrize(
    ("chat_id", "category"),
    [("simple_python_12", "simple_python"), ("live_simple_3-1-2", "live_simple"), ("7", "all")],
)
def test_the_category_is_the_leading_part_of_the_id(chat_id: str, category: str) -> None:
    from workloads.data.chats import Chat

    chat = Chat(id=chat_id, messages=(), group="g")
    assert category_of(chat) == category
    named = Chat(id=chat_id, messages=(), group="g", columns={"category": "bonds"})
    assert category_of(named) == "bonds"


@pytest.mark.feature(
    "S000-06",
    "S000-07",
    "S002-41",
    "S002-51",
    "S002-52",
    "S002-53",
    "S002-54",
    "S002-55",
    "S002-56",
    "S002-57",
    "S002-80",
    "S002-84",
)
def test_both_inference_jobs_feed_compare_models(
    places: Path, run: Any, recipe_file: Path, tmp_path: Path
) -> None:
    from workloads.evaluate import compare_job, inference_original, inference_trained
    from workloads.job import run_job

    assert run("prepare-data")[0] == 0
    assert run("train")[0] == 0
    for kind, job in (
        ("inference_original", inference_original.main),
        ("inference_trained", inference_trained.main),
    ):
        assert run_job(kind, job, ["--recipe", str(recipe_file)]) == ExitCode.OK
        (path,) = (places / "results").glob("*/run_record.json")
        folder = places / "results" / kind.removeprefix("inference_")
        assert json.loads(path.read_text())["artifacts"]["results_dir"] == str(folder)
    results = places / "results"
    output = tmp_path / "comparison_report.json"
    folders = [
        *("--trained-results", str(results / "trained")),
        *("--original-results", str(results / "original")),
    ]
    assert main([*folders, "--output", str(output)]) == ExitCode.OK
    report = json.loads(output.read_text())
    assert report["num_rows"] == 3
    assert report["perplexity"]["improvement_percent"] > 0
    assert set(report["categories"]) == {"simple_python"}
    lines = (results / "original" / "rows.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [
        json.loads(line)["id"]
        for line in (places / "data" / "prepared" / "chats_test.jsonl").read_text().splitlines()[:3]
    ]
    for side in ("original", "trained"):
        header = json.loads((results / side / "header.json").read_text())
        (key,) = [
            each.parent for each in (results / "rows").glob("*/header.json")
            if json.loads(each.read_text()) == header
        ]  # fmt: skip
        made = {
            row["row"]: row["text"]
            for path in key.glob("*.jsonl")
            for row in map(json.loads, path.read_text().splitlines())
            if row["part"] == "answer"
        }
        assert len(set(made.values())) > 1
        lines = (results / side / "rows.jsonl").read_text().splitlines()
        told = [json.loads(line)["generated"] for line in lines]
        assert told == [made[number] for number in range(3)], "each beside its own question"
    swapped = [
        *("--trained-results", str(results / "original")),
        *("--original-results", str(results / "trained")),
    ]
    assert main([*swapped, "--output", str(output)]) == ExitCode.BAD_DATA

    assert run_job("compare", compare_job.main, ["--recipe", str(recipe_file)]) == ExitCode.OK
    (record_file,) = results.glob("*/run_record.json")
    record = json.loads(record_file.read_text())
    assert record["metrics"]["num_rows"] == 3
    assert record["metrics"]["perplexity_improvement_percent"] > 0
    for name in ("num_rows", "num_gains", "num_regressions"):
        assert record["metrics"][name] == report[name]
    compared = json.loads(Path(record["artifacts"]["comparison_report"]).read_text())
    assert compared["perplexity"] == report["perplexity"], "with the recipe's own sampling"
    assert Path(record["artifacts"]["comparison_page"]).read_text().startswith("<!")
    words = ["--recipe", str(recipe_file), "--set", 'evaluate.terms=["name"]']
    assert run_job("inference_trained", inference_trained.main, words) == ExitCode.OK
    assert run_job("compare", compare_job.main, ["--recipe", str(recipe_file)]) == ExitCode.BAD_DATA
    assert "other settings" in json.loads(record_file.read_text())["reason"], "other words count"
    (results / "trained" / "header.json").unlink()
    assert run_job("compare", compare_job.main, ["--recipe", str(recipe_file)]) == ExitCode.BAD_DATA
