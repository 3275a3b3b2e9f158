"""The report says what was declared and measured, and nothing that it was given becomes markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markupsafe import escape

from cost.bill.bill import bill
from cost.report.layout import small_usd_text
from cost.runs.ledger import FILE_NAME, Ledger
from infra.jobs import records
from infra.operate.prices import price_book
from infra.render.stack_drawing import stack_svg
from infra.reports.page import page, quality, training
from infra.reports.page.loop import answers
from infra.reports.page.quality import evaluation_rows
from infra.reports.page.training import Report, collect, figure, p_text, signed
from stacks.load import load_stack
from stacks.spec.cost import PolicySpec, PreemptionSpec
from stacks.spec.nodes import Billing
from tests.damage import damaged
from tests.unit.cost.run_stacks import actual_entry, at
from tests.unit.report.reports import HOSTILE, evaluation, record, write_record, write_runs


class Tags(HTMLParser):
    """Every tag of a page with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.fixture
def report(tmp_path: Path, public_key_file: Path) -> Report:
    write_runs(tmp_path, hostile=HOSTILE)
    return collect(load_stack("local"), tmp_path)


def test_text_from_models_and_records_never_becomes_a_tag(report: Report) -> None:
    tags = Tags()
    html = page.render(report)
    tags.feed(html)
    assert html.count("&lt;script&gt;alert(") >= 5
    assert not {"script", "img", "link", "iframe", "object"} & {tag for tag, _ in tags.tags}
    assert not any(name.startswith("on") for _, attrs in tags.tags for name in attrs)


def test_the_page_refers_to_nothing_outside_itself(report: Report) -> None:
    tags = Tags()
    html = page.render(report)
    tags.feed(html)
    assert not [attrs for _, attrs in tags.tags if {"src", "href", "srcset"} & set(attrs)]
    style = html[html.index("<style>") : html.index("</style>")]
    assert not re.search(r"url\(|@import", style)


def test_the_bill_of_a_stack_that_pays_nothing_is_headed_so(report: Report) -> None:
    assert "What this shape would cost on Nebius; this machine bills nothing." in page.render(
        report
    )


def test_the_bill_has_the_preemption_rate_that_the_stack_s_jobs_met(
    tmp_path: Path, public_key_file: Path
) -> None:
    """As `soperator cost` and the preview have it: the page says that its tables are the same."""
    spec = load_stack("l40s-dev")
    workers = tuple(replace(each, billing=Billing.PREEMPTIBLE) for each in spec.nodes.workers)
    rate = PreemptionSpec(
        preemptions_per_node_day=Decimal(1),
        checkpoint_stall_s=Decimal(30),
        restart_s=Decimal(300),
        source="a guess",
    )
    spec = replace(spec, nodes=replace(spec.nodes, workers=workers), preemption=rate)
    ended = actual_entry("7", None, at(0), at(23))
    Ledger(tmp_path / "runs" / spec.name / FILE_NAME).append(ended)
    assert "the rate is learned: 0 preemptions in 3.83 node-days" in page.render(
        collect(spec, tmp_path)
    )


def test_a_cut_line_of_the_loss_curve_is_skipped(report: Report) -> None:
    assert [step for step, _ in report.losses] == list(range(1, 13))


def test_every_part_of_the_bill_is_on_the_page_in_its_own_words(
    tmp_path: Path, public_key_file: Path
) -> None:
    spec = load_stack("l40s-dev")
    html = page.render(collect(spec, tmp_path))
    parts = bill(spec, price_book(spec, tmp_path)).parts
    tables = [table.title for part in parts for table in part.tables]
    assert tables
    for line in (*tables, *(note for part in parts for note in part.notes)):
        assert escape(line) in html
    assert f"The same tables as <code>soperator cost --stack {spec.name}</code>" in html


def test_a_broken_limit_stands_above_the_bill(tmp_path: Path, public_key_file: Path) -> None:
    spec = replace(load_stack("l40s-dev"), policy=PolicySpec(max_usd_per_month=Decimal(100)))
    html = page.render(collect(spec, tmp_path))
    assert '<p class="notice bad">error: l40s-dev.policy.max_usd_per_month: ' in html


@pytest.mark.feature("S003-60")
def test_the_heading_says_whose_the_stack_is(tmp_path: Path, public_key_file: Path) -> None:
    spec = load_stack("l40s-dev")
    assert "<h1>Stack l40s-dev</h1>" in page.render(collect(spec, tmp_path))
    named = replace(spec, nebius=replace(spec.nebius, company_name="your-company"))
    assert "<h1>Stack l40s-dev of your-company</h1>" in page.render(collect(named, tmp_path))


def test_before_and_after_say_which_direction_is_better() -> None:
    rows = {row["key"]: row for row in evaluation_rows(evaluation())}
    # (4.704128742218018 - 7.033111572265625) / 7.033111572265625, as seed 000 prints it.
    assert (rows["perplexity"]["change"], rows["perplexity"]["better"]) == ("-33.1 %", True)
    accuracy = rows["function_name_accuracy"]
    assert (accuracy["change"], accuracy["better"]) == ("+83.3 points", True)
    assert rows["message_length_avg"]["better"] is None


@pytest.mark.feature("S000-121")
def test_fewer_inventions_and_more_terms_of_the_domain_are_better() -> None:
    found = evaluation()
    found["base_model"] |= {"invented_share": 0.5, "term_recall": 0.25}
    found["finetuned_model"] |= {"invented_share": 0.125, "term_recall": 0.75}
    rows = {row["key"]: row for row in evaluation_rows(found)}
    shown = {
        key: (rows[key]["change"], rows[key]["better"])
        for key in found["base_model"]
        if key in ("invented_share", "term_recall")
    }
    assert shown == {
        "invented_share": ("-37.5 points", True),
        "term_recall": ("+50.0 points", True),
    }
    assert rows["invented_share"]["name"] == "Numbers and names that the answer made up"


def test_nothing_before_and_after_is_nothing_new() -> None:
    found = evaluation()
    found["base_model"]["exact_match"] = found["finetuned_model"]["exact_match"] = 0.0
    rows = {row["key"]: row["change"] for row in evaluation_rows(found)}
    assert rows["exact_match"] == "0"
    found["finetuned_model"]["exact_match"] = 0.5
    rows = {row["key"]: row["change"] for row in evaluation_rows(found)}
    assert rows["exact_match"] == "new"


@pytest.mark.feature("S002-91")
def test_both_models_have_a_bar_for_every_metric(report: Report) -> None:
    html = page.render(report)
    section = html[html.index('<section id="evaluation">') :]
    drawn = re.findall(
        r'class="bar" style="width:([\d.]+)%"></div><div class="bar tuned" style="width:([\d.]+)%"',
        section[: section.index("</section>")],
    )
    rows = evaluation_rows(evaluation())
    assert [(float(one), float(two)) for one, two in drawn] == [
        (row["before_width"], row["after_width"]) for row in rows
    ]
    widths = {row["key"]: (row["before_width"], row["after_width"]) for row in rows}
    assert widths["perplexity"] == (100.0, 66.9), "4.704 of 7.033"


def test_a_stack_that_ran_nothing_says_so_in_every_section(
    tmp_path: Path, public_key_file: Path
) -> None:
    html = page.render(collect(load_stack("local"), tmp_path))
    assert "NOT RUN: no training run" in html
    assert "NOT RUN: no evaluation" in html
    assert "NOT KNOWN" in html


def test_a_failed_run_is_listed_and_is_not_the_training_that_is_shown(
    tmp_path: Path, public_key_file: Path
) -> None:
    write_record(tmp_path, record("train", "5", outcome="FAIL", reason="out of memory"))
    report = collect(load_stack("local"), tmp_path)
    assert report.lineage.training is None
    assert "out of memory" in page.render(report)


def test_a_damaged_record_is_named_on_the_page(tmp_path: Path, public_key_file: Path) -> None:
    folder = write_record(tmp_path, record("train", "5"))
    (folder / "run_record.json").write_text('{"schema_version": 1')
    assert f"{folder}/run_record.json: not valid JSON" in page.render(
        collect(load_stack("local"), tmp_path)
    )


def test_a_damaged_evaluation_never_ends_the_page(report: Report) -> None:
    """A number where a mapping belongs, and NaN for a bound, were tracebacks."""
    tested = {"perplexity": {"low": -2.9, "high": -1.8, "p_value": 0.001, "num_rows": 8}}
    sampling = {"resamples": 2000, "confidence": 0.95}
    whole = {**evaluation(), "significance": tested, "sampling": sampling}
    count = 0
    for values in damaged(whole):
        if isinstance(values, dict) and all(
            isinstance(values.get(name), dict) for name in ("base_model", "finetuned_model")
        ):  # else no evaluation is found at all
            damage = replace(report, evaluation=values)
            rows = evaluation_rows(values)
            assert answers(damage, rows)
            for row in rows:
                assert figure(row["before"], row["unit"])
                assert row["low"] is None or signed(row["high"], row["unit"])
                assert row["p_value"] is None or p_text(row["p_value"], row["resamples"])
            count += 1
            if count % 20 == 0:
                assert page.render(damage)
    assert count > 300


def test_equal_input_gives_equal_bytes(report: Report) -> None:
    assert page.render(report) == page.render(report)


@pytest.mark.feature("S000-14", "S002-90")
def test_the_picture_of_the_page_is_that_of_cluster_draw(report: Report) -> None:
    assert stack_svg(report.spec) in page.render(report)


def test_the_moving_average_of_a_constant_is_the_constant() -> None:
    smoothed = quality.smooth([(step, 3.0) for step in range(9)])
    assert [loss for _, loss in smoothed] == pytest.approx([3.0] * 9)


def test_a_loss_that_is_not_a_number_leaves_no_gap_in_the_markup() -> None:
    nan = float("nan")
    chart = quality.loss_curve([(1, 2.0), (2, nan), (3, 1.0)], [(2, 1.5), (3, nan)])
    assert "nan" not in chart.lower()


def test_the_curve_has_held_out_rows_where_there_are_any(tmp_path: Path) -> None:
    lines = [
        '{"step": 0, "loss": 2.0}',
        '{"step": 1, "loss": 1.0}',
        '{"step": 1, "eval_loss": 1.5}',
    ]
    (tmp_path / "loss_curve.jsonl").write_text("\n".join(lines))
    losses, held_out = records.losses(tmp_path), records.losses(tmp_path, "eval_loss")
    assert (losses, held_out) == (((1, 2.0), (2, 1.0)), ((2, 1.5),))
    assert "held-out rows" in quality.loss_curve(losses, held_out)
    assert "held-out rows" not in quality.loss_curve(losses)


@pytest.mark.parametrize(
    ("amount", "shown"),
    [("0.4717", "$0.472"), ("0.00612", "$0.00612"), ("12.5", "$12.50"), ("0", "$0.00")],
)
def test_small_amounts_keep_three_digits(amount: str, shown: str) -> None:
    assert small_usd_text(Decimal(amount)) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(12, "12 s"), (184, "3 min 04 s"), (3720, "1 h 02 min")]
)
def test_times_are_written_for_people(seconds: int, shown: str) -> None:
    assert training.duration(seconds) == shown


def test_a_later_try_stands_apart_from_the_finetune_that_was_evaluated(
    tmp_path: Path, public_key_file: Path
):
    adapter = {"adapter_dir": "/mnt/chkpt/finetune/2/final"}
    write_record(tmp_path, record("train", "2", artifacts=adapter))
    folder = write_record(tmp_path, record("evaluate", "3", artifacts=adapter))
    (folder / "evaluation.json").write_text(json.dumps(evaluation()))
    own = {"adapter_dir": "/mnt/chkpt/finetune/7/final"}
    slow = {"train_tokens_per_s": 87.79}
    write_record(tmp_path, record("train", "7", artifacts=own, metrics=slow))
    report = collect(load_stack("local"), tmp_path)
    assert report.lineage.training is not None
    assert report.lineage.training.job_id == "2"
    text = page.render(report)
    assert "387.4 tokens/s" in text
    before, apart = text.split("<h3>Other runs</h3>")
    assert "7 finetune" not in before.split("<h3>Runs of this finetune</h3>")[1]
    assert "7 finetune" in apart
