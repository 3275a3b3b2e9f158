"""What a load test says: load.json, the table for people, and the verdicts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from workloads.load.config import LoadConfig
from workloads.load.curve import operating_point, operating_rate
from workloads.load.measure import Point, Spread
from workloads.load.run import Found

SCHEMA_VERSION = 1
PASS, FAIL, NOT_RUN = "PASS", "FAIL", "NOT RUN"
_HEADERS = (
    "load",
    "tok/s",
    "req/s",
    "good/s",
    "TTFT p50/p90/p99 ms",
    "TPOT p50/p90/p99 ms",
    "ITL p50/p90/p99 ms",
    "E2E p50/p90/p99 ms",
    "429",
    "errors",
    "SLO",
)


def slo_verdict(found: Found, config: LoadConfig) -> str:
    """Return PASS when a point keeps the SLO, FAIL when none does, NOT RUN without one."""
    if not config.slo.is_declared or not found.points:
        return NOT_RUN
    return PASS if any(each.keeps_slo for each in found.points) else FAIL


def errors_verdict(found: Found, config: LoadConfig) -> str:
    """Return whether as few requests failed as the settings allow; NOT RUN before the first."""
    if not found.samples:
        return NOT_RUN
    return PASS if found.errors <= config.max_error_share * found.samples else FAIL


def to_json(found: Found, config: LoadConfig, url: str) -> dict[str, Any]:
    """Return the content of load.json."""
    best, rate = operating_point(found.points), operating_rate(found.points)
    return {
        "schema_version": SCHEMA_VERSION,
        "url": url,
        "model": found.model,
        "slo": asdict(config.slo),
        "verdicts": {"errors": errors_verdict(found, config), "slo": slo_verdict(found, config)},
        "curve": [each.to_json() for each in found.points],
        "operating_point": None if best is None else best.to_json(),
        "operating_rate": None if rate is None else rate.to_json(),
        "client_cpu_share": found.cpu_share,
    }


def table(found: Found) -> str:
    """Return the curve as lines of aligned columns."""
    rows = [_HEADERS, *(_row(each) for each in found.points)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADERS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def summary(found: Found, config: LoadConfig) -> str:
    """Return the operating point in one line."""
    verdict = slo_verdict(found, config)
    best = operating_point(found.points)
    promise = "no SLO declared" if verdict == NOT_RUN else f"SLO {verdict}"
    if best is None:
        return f"{promise}: no point of the sweep is feasible"
    rate = operating_rate(found.points)
    at = f", open loop {rate.rate_per_s:.3g} req/s" if rate and rate.rate_per_s else ""
    return (
        f"{promise}: operating point {best.concurrency} streams, "
        f"{best.output_tokens_per_s:,.1f} tokens/s, {best.requests_per_s:.3g} req/s{at}"
    )


def _row(each: Point) -> tuple[str, ...]:
    at = (
        f"{each.concurrency} streams"
        if each.concurrency
        else f"{each.loop} {each.rate_per_s:.3g}/s"
    )
    slo = {True: PASS, False: FAIL, None: "-"}[each.keeps_slo]
    return (
        at,
        f"{each.output_tokens_per_s:,.1f}",
        f"{each.requests_per_s:.3g}",
        f"{each.goodput_requests_per_s:.3g}",
        *(_spread(spread) for spread in (each.ttft, each.tpot, each.itl, each.e2e)),
        str(each.num_rejected),
        str(each.num_errors),
        slo,
    )


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    return f"{spread.p50_ms:,.0f}/{spread.p90_ms:,.0f}/{spread.p99_ms:,.0f}"
