"""The lines that end the demo: time per stage, what the fine-tune changed, what a chat costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cost.unit_costs import Basis, ChatCost, NotKnown, UnitCosts
from infra.report.collect import Report
from infra.report.page import cents, duration, evaluation_rows, number, usd


def text(report: Report, stages: Sequence[tuple[str, float, str]], page: Path) -> str:
    """The summary, ready to print."""
    lines = ["", f"Stack {report.spec.name}"]
    for name, seconds, remark in stages:
        lines.append(f"  {name:<28}{duration(seconds):>14}  {remark}".rstrip())
    lines += ["", "Held-out rows, base to fine-tuned model"]
    for row in evaluation_rows(report.evaluation):
        values = f"{number(row['before'])}{row['unit']} to {number(row['after'])}{row['unit']}"
        lines.append(f"  {row['name']:<42}{values:<24}{row['change']}")
    bill = report.bill.estimate
    low, high = usd(bill.monthly_low_usd), usd(bill.monthly_high_usd)
    lines += ["", f"Bill: {low} to {high} a month. {bill.heading or ''}".rstrip()]
    lines.append(f"Cost per chat: {_chat(report.assumed)} -> {_chat(report.bill.unit_costs)}")
    lines += ["", f"Report: {page}"]
    return "\n".join(lines)


def _chat(units: UnitCosts) -> str:
    if isinstance(units.chats, NotKnown):
        return "not known (no speed is declared)"
    measured = [row for row in units.chats if row.speed.basis is Basis.MEASURED]
    return _row((measured or list(units.chats))[0])


def _row(chat: ChatCost) -> str:
    speed = chat.speed
    day = f" on {speed.date.isoformat()}" if speed.date else ""
    return (
        f"{cents(chat.cluster_low_usd)} {speed.basis.value}{day} "
        f"({number(speed.output_tokens_per_s)} tokens/s)"
    )
