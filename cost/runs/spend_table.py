"""Prints a spend report in every format: render_spend(report, format)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Final

from cost.report.layout import (
    Document,
    Format,
    Table,
    csv_text,
    exact_money,
    lay_out,
    money,
    number,
    usd_text,
)
from cost.runs.spend import JobRow, JobUse, Spend, SpendReport, grouped, total_usd

SCHEMA_VERSION: Final = 1
_CSV_JOB: Final = (
    "job",
    "job_id",
    "user",
    "partition",
    "state",
    "node_hours",
    "nodes_usd",
    "forecast_usd",
    "padding_usd",
)
_CSV_COLUMNS: Final = ("stack", "since", "until", "kind", "name", *_CSV_JOB[1:])


def render_spend(report: SpendReport, format: Format = Format.TABLE) -> str:
    """The report in the format, ending in a newline."""
    if format is Format.JSON:
        return json.dumps(_plain(report), indent=2) + "\n"
    if format is Format.CSV:
        return csv_text(_csv_rows(report))
    spend = report.spend
    tables = [_where(spend)]
    if report.rows:
        tables += [
            _jobs(report),
            _groups("Users", "User", spend, lambda use: use.user),
            _groups("Partitions", "Partition", spend, lambda use: use.partition),
        ]
    return lay_out(
        Document(heading=report.heading, tables=tuple(tables), notes=tuple(_notes(report))), format
    )


def parts(spend: Spend) -> tuple[tuple[str, Decimal], ...]:
    """What the bill of the period is made of; the parts add up to `bill_usd`."""
    return (
        ("jobs", spend.jobs_usd),
        ("idle workers", spend.idle_usd),
        ("control plane", spend.control_plane_usd),
        ("storage", spend.storage_usd),
    )


def _where(spend: Spend) -> Table:
    bound = ", at least" if spend.is_lower_bound else ""
    return Table(
        title=f"Spend of {spend.stack_name}, {spend.since:%Y-%m-%d %H:%M} to "
        f"{spend.until:%Y-%m-%d %H:%M} UTC (USD without tax)",
        headings=("What", "USD", "Share"),
        rows=(
            *((name, usd_text(usd), _share(usd, spend.bill_usd)) for name, usd in parts(spend)),
            (f"bill of the period{bound}", usd_text(spend.bill_usd), ""),
        ),
    )


def _jobs(report: SpendReport) -> Table:
    return Table(
        title="Jobs (own nodes)",
        headings=(
            "Job", "Id", "User", "State", "Node-hours", "USD", "Forecast", "Against it", "Padding"
        ),
        rows=tuple(_job_row(row) for row in report.rows),
        num_text_columns=4,
    )  # fmt: skip


def _job_row(row: JobRow) -> tuple[str, ...]:
    use, variance = row.job.use, row.variance
    return (
        use.name,
        use.job_id,
        use.user,
        use.state,
        f"{row.job.node_hours:,.3f}",
        usd_text(row.job.nodes_usd),
        usd_text(row.forecast_usd),
        "" if variance is None else f"{100 * variance:+.1f} %",
        "" if row.padding_usd is None else usd_text(row.padding_usd),
    )


def _groups(title: str, heading: str, spend: Spend, key: Callable[[JobUse], str]) -> Table:
    return Table(
        title=title,
        headings=(heading, "Jobs", "Node-hours", "USD", "Share of jobs"),
        rows=tuple(
            (
                name,
                str(len(jobs)),
                f"{sum((job.node_hours for job in jobs), Decimal(0)):,.3f}",
                usd_text(total_usd(jobs)),
                _share(total_usd(jobs), spend.jobs_usd),
            )
            for name, jobs in grouped(spend.jobs, key).items()
        ),
    )


def _notes(report: SpendReport) -> list[str]:
    spend = report.spend
    notes = list(report.notes)
    if spend.idle_share is not None:
        notes.append(
            f"Workers stood idle for {spend.idle_node_hours:,.2f} node-hours, "
            f"{100 * spend.idle_share:.1f} % of what they cost. The bill takes the stack as "
            "declared now, and as if it had been up in all of the period."
        )
    if report.padding_usd is not None:
        notes.append(f"{usd_text(report.padding_usd)} went into padding, as run records say.")
    if spend.foreign_nodes:
        notes.append(
            f"Not priced: nodes {', '.join(spend.foreign_nodes)} belong to no declared nodeset."
        )
    notes += [
        f"{entry.at:%Y-%m-%d %H:%M}: {entry.user} submitted {entry.job} (job {entry.job_id}) of "
        f"{usd_text(entry.forecast_usd)} with {usd_text(entry.left_usd)} left of "
        f"{usd_text(entry.budget_usd)}."
        for entry in report.overrides
    ]
    return notes if report.budget is None else [*notes, f"{str(report.budget).capitalize()}."]


def _plain(report: SpendReport) -> dict[str, object]:
    spend, budget = report.spend, report.budget
    return {
        "schema_version": SCHEMA_VERSION,
        "stack": spend.stack_name,
        "since": spend.since.isoformat(),
        "until": spend.until.isoformat(),
        "bill_usd": exact_money(spend.bill_usd),
        "is_lower_bound": spend.is_lower_bound,
        "jobs_usd": exact_money(spend.jobs_usd),
        "idle_usd": exact_money(spend.idle_usd),
        "idle_node_hours": number(spend.idle_node_hours),
        "idle_share": number(spend.idle_share),
        "control_plane_usd": exact_money(spend.control_plane_usd),
        "storage_usd": exact_money(spend.storage_usd),
        "padding_usd": exact_money(report.padding_usd),
        "jobs": [_plain_job(row) for row in report.rows],
        "users": _plain_groups(spend, lambda use: use.user),
        "partitions": _plain_groups(spend, lambda use: use.partition),
        "budget": None
        if budget is None
        else {
            "month": budget.month,
            "budget_usd": money(budget.budget_usd),
            "spent_usd": exact_money(budget.spent_usd),
            "reserved_usd": exact_money(budget.reserved_usd),
            "left_usd": exact_money(budget.left_usd),
            "num_unknown": budget.num_unknown,
        },
        "overrides": [
            {
                "at": entry.at.isoformat(),
                "job": entry.job,
                "job_id": entry.job_id,
                "user": entry.user,
                "forecast_usd": exact_money(entry.forecast_usd),
                "left_usd": exact_money(entry.left_usd),
            }
            for entry in report.overrides
        ],
        "notes": list(report.notes),
    }


def _plain_job(row: JobRow) -> dict[str, object]:
    use, variance = row.job.use, row.variance
    return {
        "job": use.name,
        "job_id": use.job_id,
        "user": use.user,
        "partition": use.partition,
        "state": use.state,
        "node_hours": number(row.job.node_hours),
        "nodes_usd": exact_money(row.job.nodes_usd),
        "forecast_usd": exact_money(row.forecast_usd),
        "variance": number(variance),
        "padding_usd": exact_money(row.padding_usd),
    }


def _plain_groups(spend: Spend, key: Callable[[JobUse], str]) -> list[dict[str, object]]:
    return [
        {"name": name, "num_jobs": len(jobs), "nodes_usd": exact_money(total_usd(jobs))}
        for name, jobs in grouped(spend.jobs, key).items()
    ]


def _csv_rows(report: SpendReport) -> Iterator[Sequence[object]]:
    spend = report.spend
    yield _CSV_COLUMNS
    period = (spend.stack_name, spend.since.isoformat(), spend.until.isoformat())
    for row in report.rows:
        values = _plain_job(row)
        yield (*period, "job", *(values[name] for name in _CSV_JOB))
    for name, usd in parts(spend)[1:]:
        yield (*period, "part", name, *[None] * 5, exact_money(usd), None, None)


def _share(usd: Decimal, whole: Decimal) -> str:
    return "" if whole == 0 else f"{100 * usd / whole:.1f} %"
