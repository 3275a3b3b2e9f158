"""A certificate as the lines that `soperator accept` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from infra.accept.page import limit_text, measured_text, outcome_text, ranks_text, usd_text

HEADERS: Final = ("outcome", "check", "of", "measured", "limit", "$ a month")


def rows(values: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row for each check; what failed or is missing comes with its reason below the table."""
    found: list[tuple[str, ...]] = []
    for check in values["checks"]:
        usd = check["usd_per_month"]
        cost = usd_text(usd) if usd else "not known" if check["outcome"] == "FAIL" else ""
        found.append(
            (
                check["outcome"].replace("_", " "),
                check["id"],
                check["subject"],
                measured_text(check, values["measurements"]),
                limit_text(check["limit"]),
                cost,
            )
        )
    return found


def summary(values: Mapping[str, Any]) -> list[str]:
    """Reasons, nodes with their ranks, memory, what it certifies, and the outcome as last line."""
    lines = [
        f"{check['id']} of {check['subject']}: {check['reason']}"
        for check in values["checks"]
        if check["outcome"] != "PASS" and check["reason"]
    ]
    for node in values["nodes"]:
        memory = node["gpu_memory_gib"]
        size = "" if memory is None else f", {node['gpus']} x {memory:.2f} GiB"
        lines.append(
            f"{node['name']} ({node['role']}): {ranks_text(node['ranks'])}, {node['device']}{size}"
        )
    total = values["hardware"].get("total_gpu_memory_gib")
    if total:
        lines.append(f"GPU memory in total: {total:,.1f} GiB")
    lines.append(f"certifies {values['hardware']['certifies']}")
    counts = {
        outcome: sum(check["outcome"] == outcome for check in values["checks"])
        for outcome in ("PASS", "FAIL", "NOT_RUN")
    }
    lines.append(
        f"{outcome_text(values)}: {counts['PASS']} passed, {counts['FAIL']} failed, "
        f"{counts['NOT_RUN']} not run; {values['stack']}, measured on {values['measured_on']}"
    )
    return lines
