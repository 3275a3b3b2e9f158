"""What a load test says: load.json, the table for people, and the verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from workloads.load.measure import Point, Spread
from workloads.load.run import Found
from workloads.recipes.load import LoadConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Tokens a second of one server, all its streams together."""

    output_tokens_per_s: float
    prefill_tokens_per_s: float | None
    """Prompt tokens; None: reading took no time that can be told from writing."""


def operating_point(points: Sequence[Point]) -> Point | None:
    """Return the closed-loop point of the highest throughput that keeps the SLO; None: none does.

    Without a promise every point that answered all its requests counts.
    """
    feasible = [each for each in points if each.concurrency is not None and _is_feasible(each)]
    return max(feasible, key=lambda each: each.output_tokens_per_s, default=None)


def operating_rate(points: Sequence[Point]) -> Point | None:
    """Return the Poisson point of the highest rate that keeps the SLO; None: none does."""
    feasible = [each for each in points if each.loop == "poisson" and _is_feasible(each)]
    return max(feasible, key=lambda each: each.rate_per_s or 0.0, default=None)


def _is_feasible(each: Point) -> bool:
    if each.keeps_slo is None:
        return 0 < each.num_ok == each.num_requests
    return each.keeps_slo and each.num_ok > 0


def single_speeds(one: Point) -> Speeds | None:
    """Return the speeds of one stream: the time to the first token holds reading and one token."""
    if not one.output_tokens_per_s or one.ttft is None:
        return None
    answer_s = one.mean_output_tokens / one.output_tokens_per_s
    if one.tpot is None or one.mean_uncached_tokens is None or one.tpot.mean_ms <= 0:
        return Speeds(output_tokens_per_s=one.output_tokens_per_s, prefill_tokens_per_s=None)
    write_s = one.mean_output_tokens * one.tpot.mean_ms / 1000
    read_s = answer_s - write_s
    if read_s <= 0 or not one.mean_uncached_tokens:
        return Speeds(output_tokens_per_s=one.output_tokens_per_s, prefill_tokens_per_s=None)
    return Speeds(
        output_tokens_per_s=one.mean_output_tokens / write_s,
        prefill_tokens_per_s=one.mean_uncached_tokens / read_s,
    )


def batch_speeds(single: Speeds, many: Point) -> Speeds:
    """Return the speeds of a full batch; with the lengths of the test they give its throughput.

    Reading is bound by arithmetic, which one prompt fills: its speed is that of one prompt, and
    writing has the rest of the time. Where that would have written more than `concurrency` times as
    fast as one stream, which no batch does, reading was faster instead.
    """
    assert many.concurrency is not None
    answer_s = many.mean_output_tokens / many.output_tokens_per_s
    if single.prefill_tokens_per_s is None or many.mean_uncached_tokens is None:
        return Speeds(output_tokens_per_s=many.output_tokens_per_s, prefill_tokens_per_s=None)
    fastest = many.concurrency * single.output_tokens_per_s
    read_s = many.mean_uncached_tokens / single.prefill_tokens_per_s
    write_s = max(answer_s - read_s, many.mean_output_tokens / fastest)
    # The figures of two loops never agree to the last digit; some time was spent reading.
    read_s = max(answer_s - write_s, read_s / many.concurrency)
    write_s = max(answer_s - read_s, 1e-9)
    return Speeds(
        output_tokens_per_s=many.mean_output_tokens / write_s,
        prefill_tokens_per_s=many.mean_uncached_tokens / read_s if read_s > 0 else None,
    )


def record_metrics(points: Sequence[Point]) -> dict[str, float | int]:
    """Return the metrics of the run record, under the names that cost/chat/speeds.py reads.

    The batch is that of the operating point: no speed is priced at which the promise breaks.
    """
    found: dict[str, float | int] = {}
    one = next((each for each in points if each.concurrency == 1), None)
    single = single_speeds(one) if one is not None and one.num_ok else None
    if single is not None:
        found |= _named("", single)
    best = operating_point(points)
    if best is not None:
        found |= _latencies(best)
        found |= {
            "operating_concurrency": best.concurrency or 0,
            "operating_output_tokens_per_s": best.output_tokens_per_s,
            "operating_requests_per_s": best.requests_per_s,
            "operating_goodput_requests_per_s": best.goodput_requests_per_s,
            "mean_output_tokens": best.mean_output_tokens,
        }
        if best.mean_prompt_tokens is not None:
            found["mean_prompt_tokens"] = best.mean_prompt_tokens
        if single is not None and best.concurrency is not None and best.concurrency > 1:
            found |= {"batch_size": best.concurrency} | _named("batch_", batch_speeds(single, best))
    rate = operating_rate(points)
    if rate is not None and rate.rate_per_s is not None:
        found["open_loop_requests_per_s"] = rate.rate_per_s
    return found


def _named(prefix: str, speeds: Speeds) -> dict[str, float | int]:
    found: dict[str, float | int] = {f"{prefix}output_tokens_per_s": speeds.output_tokens_per_s}
    if speeds.prefill_tokens_per_s is not None:
        found[f"{prefix}prefill_tokens_per_s"] = speeds.prefill_tokens_per_s
    return found


def _latencies(best: Point) -> dict[str, float | int]:
    found: dict[str, float | int] = {}
    for name in ("ttft", "tpot", "itl", "e2e"):
        spread = getattr(best, name)
        if spread is not None:
            found[f"median_{name}_ms"] = spread.p50_ms
            found[f"p90_{name}_ms"] = spread.p90_ms
            found[f"p99_{name}_ms"] = spread.p99_ms
    return found


SCHEMA_VERSION = 1
PASS, FAIL, NOT_RUN = "PASS", "FAIL", "NOT RUN"
_HEADERS = (
    "load", "tok/s", "req/s", "good/s", "TTFT p50/p90/p99 ms", "TPOT p50/p90/p99 ms",
    "ITL p50/p90/p99 ms", "E2E p50/p90/p99 ms", "429", "errors", "SLO"
)  # fmt: skip


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
        "curve": [asdict(each) for each in found.points],
        "operating_point": None if best is None else asdict(best),
        "operating_rate": None if rate is None else asdict(rate),
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
