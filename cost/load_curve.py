"""The curve of a load test: parse_load_curve(text, path) reads load.json (docs/load-test.md).

Owns which point of a curve a server can be run at. What it measured is workloads.load's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from cost.record_reader import Reader, check_version, read_object
from cost.rounding import rounded

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a load test was asked to keep; a bound that is None was not promised."""

    ttft_ms: Decimal | None = None
    tpot_ms: Decimal | None = None
    e2e_s: Decimal | None = None
    share: Decimal = Decimal("0.99")
    """Share of all requests that must keep every bound."""

    @property
    def is_declared(self) -> bool:
        """Whether anything is promised."""
        return any(bound is not None for bound in (self.ttft_ms, self.tpot_ms, self.e2e_s))

    @property
    def options(self) -> list[str]:
        """The bounds on tokens as `soperator advise --slo` takes them."""
        return [
            f"{name}={_plain(bound).replace(',', '')}"
            for name, bound in (
                ("ttft_p99_s", None if self.ttft_ms is None else self.ttft_ms / 1000),
                ("tpot_p99_ms", self.tpot_ms),
            )
            if bound is not None
        ]

    def __str__(self) -> str:
        bounds = [
            f"{name} {_plain(bound)} {unit}"
            for name, bound, unit in (
                ("TTFT", self.ttft_ms, "ms"),
                ("TPOT", self.tpot_ms, "ms"),
                ("an answer", self.e2e_s, "s"),
            )
            if bound is not None
        ]
        share = f"{_plain(self.share * 100)} % of requests"
        return f"{', '.join(bounds)} for {share}" if bounds else "no SLO"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """One load on a server and what came of it."""

    concurrency: int | None
    """Streams of a closed loop; None where requests came at a rate."""
    rate_per_s: Decimal | None
    """Intended requests a second; None for a closed loop."""
    num_requests: int
    num_ok: int
    output_tokens_per_s: Decimal
    requests_per_s: Decimal
    goodput_requests_per_s: Decimal
    """Requests a second that keep every bound."""
    keeps_slo: bool | None
    """None: nothing is promised."""
    mean_prompt_tokens: Decimal | None
    """Tokens that the server read for a request; None where it does not count them."""
    mean_output_tokens: Decimal
    p50_ttft_ms: Decimal | None
    p99_ttft_ms: Decimal | None
    p50_tpot_ms: Decimal | None
    p99_tpot_ms: Decimal | None

    @property
    def latencies(self) -> str:
        """The 99th percentiles in words."""
        known = [
            f"{name} p99 {rounded(value, Decimal(1)):,f} ms"
            for name, value in (("TTFT", self.p99_ttft_ms), ("TPOT", self.p99_tpot_ms))
            if value is not None
        ]
        return ", ".join(known) or "no answer"

    @property
    def is_feasible(self) -> bool:
        """Whether the SLO is kept; without one, whether every request was answered."""
        if not self.num_ok:
            return False
        return self.num_ok == self.num_requests if self.keeps_slo is None else self.keeps_slo


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCurve:
    """Every point of one load test, in the order of the test."""

    slo: Slo
    points: tuple[LoadPoint, ...]
    model: str | None = None
    """Name in the API that was asked; None where the file does not say."""

    @property
    def sweep(self) -> tuple[LoadPoint, ...]:
        """The closed loops, by streams: the curve."""
        closed = [each for each in self.points if each.concurrency is not None]
        return tuple(sorted(closed, key=lambda each: each.concurrency or 0))

    @property
    def operating_point(self) -> LoadPoint | None:
        """The point of the sweep with the highest tokens/s that is feasible; None: none is."""
        feasible = [each for each in self.sweep if each.is_feasible]
        return max(feasible, key=lambda each: each.output_tokens_per_s, default=None)


def parse_load_curve(text: str, path: str) -> LoadCurve:
    """The curve in the text of a load.json; `path` names it in errors."""
    document = read_object(text, path)
    check_version(document, path, SCHEMA_VERSION)
    reader = Reader(document, path)
    slo = reader.inner("slo")
    return LoadCurve(
        slo=Slo(
            ttft_ms=slo.number_or_none("ttft_ms"),
            tpot_ms=slo.number_or_none("tpot_ms"),
            e2e_s=slo.number_or_none("e2e_s"),
            share=slo.number("share"),
        ),
        points=tuple(_point(each) for each in reader.each("curve")),
        # Empty in the file of a test that ended before its first request.
        model=reader.text_or_none("model") if document.get("model") != "" else None,
    )


def operating_point_of(metrics: Mapping[str, Decimal]) -> LoadPoint | None:
    """The operating point in the metrics of a load test's record; None where it found none."""
    concurrency = metrics.get("operating_concurrency")
    tokens_per_s = metrics.get("operating_output_tokens_per_s")
    if not concurrency or not tokens_per_s:
        return None
    zero = Decimal(0)
    return LoadPoint(
        concurrency=int(concurrency),
        rate_per_s=None,
        num_requests=0,
        num_ok=0,
        output_tokens_per_s=tokens_per_s,
        requests_per_s=metrics.get("operating_requests_per_s", zero),
        goodput_requests_per_s=metrics.get("operating_goodput_requests_per_s", zero),
        keeps_slo=None,
        mean_prompt_tokens=metrics.get("mean_prompt_tokens"),
        mean_output_tokens=metrics.get("mean_output_tokens", zero),
        p50_ttft_ms=metrics.get("median_ttft_ms"),
        p99_ttft_ms=metrics.get("p99_ttft_ms"),
        p50_tpot_ms=metrics.get("median_tpot_ms"),
        p99_tpot_ms=metrics.get("p99_tpot_ms"),
    )


def _point(reader: Reader) -> LoadPoint:
    ttft, tpot = _spread(reader, "ttft"), _spread(reader, "tpot")
    has_streams = reader.values.get("concurrency") is not None
    return LoadPoint(
        concurrency=reader.count("concurrency", least=1) if has_streams else None,
        rate_per_s=reader.number_or_none("rate_per_s"),
        num_requests=reader.count("num_requests"),
        num_ok=reader.count("num_ok"),
        output_tokens_per_s=reader.number("output_tokens_per_s"),
        requests_per_s=reader.number("requests_per_s"),
        goodput_requests_per_s=reader.number("goodput_requests_per_s"),
        keeps_slo=reader.flag_or_none("keeps_slo"),
        mean_prompt_tokens=reader.number_or_none("mean_prompt_tokens"),
        mean_output_tokens=reader.number("mean_output_tokens"),
        p50_ttft_ms=ttft[0],
        p99_ttft_ms=ttft[1],
        p50_tpot_ms=tpot[0],
        p99_tpot_ms=tpot[1],
    )


def _spread(reader: Reader, key: str) -> tuple[Decimal | None, Decimal | None]:
    """Median and 99th percentile in ms; None of nothing."""
    if reader.values.get(key) is None:
        return None, None
    inner = reader.inner(key)
    return inner.number("p50_ms"), inner.number("p99_ms")


def _plain(value: Decimal) -> str:
    """The number without zeros at its end."""
    text = f"{value:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
