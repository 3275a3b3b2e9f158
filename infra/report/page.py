"""The report as one self-contained HTML page: no script, no request, every foreign text escaped."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from cost.chat_table import answer_text
from cost.component import CostComponent, Scope
from cost.layout import Document, Format, lay_out
from cost.part import Part
from cost.table import BEYOND_SEED
from cost.unit_costs import Basis, ChatCost, NotKnown, UnitCosts
from infra import whole_file
from infra.report import architecture, charts
from infra.report.collect import Report, last_finished, total_seconds
from infra.report.loop import close_loop
from infra.report.loop_table import loop_html
from infra.report.quality import SIGNIFICANT_P, evaluation_rows, samples
from infra.report.training import Row, speeds, summary
from infra.report.words import cents, duration, number, p_text, price, signed, usd

_FOLDER = Path(__file__).parent
_KIND_NAMES = {
    "prepare-data": "Prepare data",
    "train": "Train",
    "evaluate": "Evaluate",
    "serve": "Serve",
    "load": "Load test",
}


def render(report: Report) -> str:
    """The page's HTML; equal input gives equal bytes."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "usd": usd,
        "cents": cents,
        "price": price,
        "number": number,
        "duration": duration,
        "answer": answer_text,
        "signed": signed,
        "p_text": p_text,
    }
    metrics = evaluation_rows(report.evaluation)
    loop = close_loop(report)
    bill, units = report.bill, report.bill.unit_costs
    return environment.get_template("page.html.j2").render(
        report=report,
        spec=report.spec,
        bill=bill.estimate,
        problems=bill.problems,
        bill_parts=[
            (name, list(lines)) for name, lines in groupby(bill.estimate.components, key=_heading)
        ],
        style=Markup((_FOLDER / "page.css").read_text(encoding="utf-8")),  # noqa: S704 (our own file)
        architecture=Markup(architecture.draw(report.spec)),  # noqa: S704 (escaped in svg.py)
        training_rows=training_rows(report),
        busy_chart=Markup(busy_chart(report)),  # noqa: S704 (numbers only)
        speed_rows=speed_rows(report),
        loss_chart=Markup(charts.loss_curve(report.losses)),  # noqa: S704 (numbers only)
        loop=Markup(loop_html(loop)),  # noqa: S704 (escaped in cost/layout.py and cost/charts.py)
        metrics=metrics,
        significant_p=SIGNIFICANT_P,
        samples=samples(report.evaluation),
        chats=chat_rows(report),
        chat_charts=[Markup(chart) for part in bill.parts for chart in part.draw_figures()],  # noqa: S704 (escaped in cost/charts.py)
        chats_unknown=str(units.chats) if isinstance(units.chats, NotKnown) else "",
        run=None if isinstance(units.run, NotKnown) else units.run,
        run_unknown=str(units.run) if isinstance(units.run, NotKnown) else "",
        parts=[Markup(part_html(part)) for part in bill.parts if part.tables or part.notes],  # noqa: S704 (escaped in cost/layout.py)
        tiles=tiles(report, metrics),
        updated=last_finished(report),
        total_s=total_seconds(report.records),
        runs=[
            (
                "Runs of this finetune",
                [each for each in report.records if report.lineage.holds(each)],
            ),
            ("Other runs", [each for each in report.records if not report.lineage.holds(each)]),
        ],
        kind_names=_KIND_NAMES,
    )


def part_html(part: Part) -> str:
    """Tables and notes of one subject of the bill, as `soperator cost --format html` has them."""
    return lay_out(Document(heading=None, tables=part.tables, notes=part.notes), Format.HTML)


def training_rows(report: Report) -> tuple[Row, ...]:
    """The summary of the last training; nothing without one."""
    if report.training is None or report.gpus is None:
        return ()
    return summary(report.training, report.gpus, report.records)


def busy_chart(report: Report) -> str:
    """Utilisation and memory of the last training's GPUs over its time; empty without samples."""
    moments = () if report.gpus is None else report.gpus.moments
    return charts.busy_curve(
        [(each.minute, each.utilization_percent, each.memory_percent) for each in moments]
    )


def speed_rows(report: Report) -> list[dict[str, Any]]:
    """Throughput of every training run, with the width of its bar."""
    found = speeds(report.records)
    largest = max((float(speed) for _, speed in found), default=0.0)
    return [
        {
            "record": record,
            "speed": speed,
            "width": charts.bar_width(float(speed), largest),
        }
        for record, speed in found
    ]


def _heading(line: CostComponent) -> str:
    return str(line.section) if line.scope is Scope.SEED else BEYOND_SEED


def write(report: Report, path: Path) -> Path:
    """Writes the page, whole or not at all."""
    whole_file.write(path, render(report))
    return path


def chat_rows(report: Report) -> list[ChatCost]:
    """Assumed rows first, then what was measured, so that a measurement stands below its guess."""
    rows = [*_chats(report.assumed), *_chats(report.bill.unit_costs)]
    unique: list[ChatCost] = []
    for row in rows:
        if row not in unique:
            unique.append(row)
    return sorted(unique, key=lambda row: row.speed.basis is Basis.MEASURED)


def tiles(report: Report, metrics: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """The figures at the top: name, value, what it rests on."""
    bill = report.bill.estimate
    low, high = usd(bill.monthly_low_usd), usd(bill.monthly_high_usd)
    at_least = "at least " if bill.is_lower_bound else ""
    found = [("Monthly cost", at_least + (low if low == high else f"{low} to {high}"), "730 hours")]
    for row in metrics:
        if row["key"] in ("perplexity", "function_name_accuracy"):
            value = f"{number(row['before'])} to {number(row['after'])}{row['unit']}"
            found.append((row["name"], value, "base to fine-tuned model"))
    if report.training is not None:
        speed = report.training.metrics.get("train_tokens_per_s")
        if speed is not None:
            device = (
                report.training.hardware.device if report.training.hardware else "unknown device"
            )
            found.append(("Training", f"{number(speed)} tokens/s", f"on {device}"))
    measured = [row for row in _chats(report.bill.unit_costs) if row.speed.basis is Basis.MEASURED]
    shown = (measured or list(_chats(report.bill.unit_costs)))[:1]
    found += [("Cost per chat", at_least + cents(row.cluster_low_usd), basis(row)) for row in shown]
    return found


def basis(row: ChatCost) -> str:
    """Assumed or measured, with the day of the measurement."""
    day = row.speed.date
    return row.speed.basis.value if day is None else f"{row.speed.basis.value} {day.isoformat()}"


def _chats(units: UnitCosts) -> tuple[ChatCost, ...]:
    return () if isinstance(units.chats, NotKnown) else units.chats
