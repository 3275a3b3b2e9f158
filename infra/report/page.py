"""The report as one self-contained HTML page: no script, no request, every foreign text escaped."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
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
from infra.report import architecture, charts
from infra.report.collect import Report, last_finished, total_seconds

_FOLDER = Path(__file__).parent
_LOWER_IS_BETTER = frozenset({"perplexity", "loss"})
_HIGHER_IS_BETTER = ("accuracy", "tokens_per_s", "f1", "parsed", "bleu", "rouge", "exact_match")
_NAMES = {
    "perplexity": "Perplexity on held-out rows",
    "function_name_accuracy": "Function name accuracy",
    "argument_accuracy": "Argument accuracy",
    "argument_name_accuracy": "Argument name accuracy",
    "bleu": "BLEU (0 to 100)",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "message_length_avg": "Average answer length (characters)",
    "output_tokens_per_s": "Output tokens per second, one stream",
    "batch_output_tokens_per_s": "Output tokens per second, batch",
    "prefill_tokens_per_s": "Prompt tokens read per second, one stream",
    "batch_prefill_tokens_per_s": "Prompt tokens read per second, batch",
}
_KIND_NAMES = {"prepare-data": "Prepare data", "train": "Train", "evaluate": "Evaluate"}


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
    }
    metrics = evaluation_rows(report.evaluation)
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
        loss_chart=Markup(charts.loss_curve(report.losses)),  # noqa: S704 (numbers only)
        metrics=metrics,
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
        kind_names=_KIND_NAMES,
    )


def part_html(part: Part) -> str:
    """Tables and notes of one subject of the bill, as `soperator cost --format html` has them."""
    return lay_out(Document(heading=None, tables=part.tables, notes=part.notes), Format.HTML)


def _heading(line: CostComponent) -> str:
    return str(line.section) if line.scope is Scope.SEED else BEYOND_SEED


def write(report: Report, path: Path) -> Path:
    """Writes the page, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(render(report), encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def evaluation_rows(evaluation: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """One row per number that both models have: before, after, change, and whether that is good."""
    if evaluation is None:
        return []
    base, tuned = evaluation["base_model"], evaluation["finetuned_model"]
    rows = []
    for key in base:
        before, after = base[key], tuned.get(key)
        if not (_is_number(before) and _is_number(after)) or key.startswith("num_"):
            continue
        share = "accuracy" in key and max(abs(before), abs(after)) <= 1
        shown_before, shown_after = (100 * before, 100 * after) if share else (before, after)
        delta = shown_after - shown_before
        largest = max(abs(shown_before), abs(shown_after))
        rows.append(
            {
                "key": key,
                "name": _NAMES.get(key, key.replace("_", " ").capitalize()),
                "unit": "%" if share else "",
                "before": shown_before,
                "after": shown_after,
                "change": _change(before, after, delta, share=share),
                "better": _better(key, delta),
                "before_width": charts.bar_width(shown_before, 100 if share else largest),
                "after_width": charts.bar_width(shown_after, 100 if share else largest),
            }
        )
    return sorted(rows, key=lambda row: row["better"] is None)


def samples(evaluation: Mapping[str, Any] | None) -> list[dict[str, str]]:
    """The same question to both models, with the reference answer."""
    if evaluation is None:
        return []
    before, after = (
        [
            each
            for each in evaluation[name].get("sample_generations") or []
            if isinstance(each, dict)
        ]
        for name in ("base_model", "finetuned_model")
    )
    return [
        {
            "input": str(base.get("input", "")),
            "reference": str(base.get("reference", "")),
            "base": str(base.get("generated", "")),
            "tuned": str(tuned.get("generated", "")),
        }
        for base, tuned in zip(before, after, strict=False)
    ]


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


def usd(amount: Decimal | None) -> str:
    """Whole dollars above 100, cents below."""
    if amount is None:
        return "unknown"
    return f"${amount:,.0f}" if abs(amount) >= 100 else f"${amount:,.2f}"


def price(amount: Decimal) -> str:
    """Dollars as a price list writes them: at least cents, no zeros behind them."""
    whole, _, places = f"{amount:.6f}".partition(".")
    return f"${int(whole):,}.{places.rstrip('0').ljust(2, '0')}"


def cents(amount: Decimal | None) -> str:
    """Dollars with as many places as a small amount needs for three digits."""
    if amount is None:
        return "unknown"
    places = 2 if amount >= 1 else max(2, 2 - amount.adjusted()) if amount else 2
    return f"${amount:,.{places}f}"


def number(value: Decimal | float) -> str:
    """A figure with three or four significant digits, in plain notation."""
    value = float(value)
    if value == int(value) and abs(value) < 1e6:
        return f"{value:,.0f}"
    places = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{places}f}"


def duration(seconds: Decimal | float) -> str:
    """Seconds as `1 h 02 min`, `3 min 04 s` or `12 s`."""
    total = round(float(seconds))
    hours, minutes, rest = total // 3600, total % 3600 // 60, total % 60
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _chats(units: UnitCosts) -> tuple[ChatCost, ...]:
    return () if isinstance(units.chats, NotKnown) else units.chats


def _change(before: float, after: float, delta: float, *, share: bool) -> str:
    if share:
        return f"{delta:+.1f} points"
    return f"{100 * (after - before) / before:+.1f} %" if before else "new"


def _better(key: str, delta: float) -> bool | None:
    """None where neither direction is better or nothing changed."""
    if not delta:
        return None
    if key in _LOWER_IS_BETTER:
        return delta < 0
    return delta > 0 if any(part in key for part in _HIGHER_IS_BETTER) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
