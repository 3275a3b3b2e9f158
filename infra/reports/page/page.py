"""The report as one self-contained HTML page: no script, no request, every foreign text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from markupsafe import Markup

from cost.bill.bill import document
from cost.report.layout import Format, render_report
from cost.run_record import RunRecord
from infra.render.stack_drawing import stack_svg
from infra.reports.page import training
from infra.reports.page.loop import REHEARSAL, close_loop, is_rehearsal, loop_charts, loop_html
from infra.reports.page.quality import (
    bar_width,
    bounds,
    busy_curve,
    evaluation_rows,
    loss_curve,
    samples,
    verdict,
)
from stacks.files import fill

_FOLDER = Path(__file__).parent
_KIND_NAMES = {
    "prepare-data": "Prepare data",
    "train": "Train",
    "evaluate": "Evaluate",
    "serve": "Serve",
    "load": "Load test",
}


def render(report: training.Report) -> str:
    """The page's HTML; equal input gives equal bytes."""
    told = (training.number, training.duration, training.figure, training.p_text)
    filters = {each.__name__: each for each in (*told, verdict, bounds, passed)}
    metrics = evaluation_rows(report.evaluation)
    loop = close_loop(report)
    bill = document(report.bill)
    return fill(
        _FOLDER / "page.html.j2",
        filters,
        report=report,
        spec=report.spec,
        estimate=report.bill.estimate,
        problems=report.bill.problems,
        bill=Markup(render_report(replace(bill, draw_figures=tuple), Format.HTML)),  # noqa: S704 (escaped in cost/report/layout.py)
        style=Markup((_FOLDER / "page.css").read_text(encoding="utf-8")),  # noqa: S704 (our own file)
        architecture=Markup(stack_svg(report.spec)),  # noqa: S704 (escaped in stack_drawing.py)
        training_rows=()
        if report.lineage.training is None or report.gpus is None
        else training.summary(report.lineage.training, report.gpus, report.records),
        busy_chart=Markup(busy_curve(() if report.gpus is None else report.gpus.moments)),  # noqa: S704 (numbers only)
        speed_rows=speed_rows(report.records),
        loss_chart=Markup(loss_curve(report.losses, report.eval_losses)),  # noqa: S704 (numbers only)
        loop=Markup(loop_html(loop)),  # noqa: S704 (escaped in cost/report/layout.py)
        metrics=metrics,
        answers=loop.answers,
        samples=samples(report.evaluation),
        figures=[Markup(chart) for chart in (*loop_charts(loop), *bill.draw_figures())],  # noqa: S704 (escaped in cost/report/charts.py)
        updated=max((each.finished_at for each in report.records), default=None),
        total_s=sum((each.duration_s for each in report.records), Decimal(0)),
        runs=[
            (
                "Runs of this finetune",
                [each for each in report.records if report.lineage.holds(each)],
            ),
            ("Other runs", [each for each in report.records if not report.lineage.holds(each)]),
        ],
        kind_names=_KIND_NAMES,
    )


def passed(record: RunRecord) -> str:
    """The outcome of a run; one on processors in place of its GPUs says so."""
    name = record.outcome.value
    return f"{name}, {REHEARSAL}" if is_rehearsal(record) else name


def speed_rows(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Throughput of every training run, with the width of its bar."""
    found = training.speeds(records)
    largest = max((float(speed) for _, speed in found), default=0.0)
    return [
        {"record": record, "speed": speed, "width": bar_width(float(speed), largest)}
        for record, speed in found
    ]
