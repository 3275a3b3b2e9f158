"""Questions and curves that the tests of the preset advisor start from."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from cost.choose.advise import Advice, Candidate, advise
from cost.choose.servers import Ask, Measured, Promise, measured_curves
from cost.prices.book import PriceBook
from cost.size.shape import load_shape
from tests.unit.cost.loads import SWEEP, load_record

BOOK = PriceBook.load("nebius")
NODE = "gpu-l40s-d/2gpu-64vcpu-384gb"


def ask(**changes: Any) -> Ask:
    """50,000 chats of 8,000 + 2,000 tokens with Qwen3-14B under a promise of 2 s and 50 ms."""
    values: dict[str, Any] = {
        "shape": load_shape("Qwen3-14B"),
        "input_tokens": 8000,
        "output_tokens": 2000,
        "chats_per_day": 50_000,
        "promise": promise("2", "50"),
    }
    return Ask(**{**values, **changes})


def promise(ttft_p99_s: str | None = None, tpot_p99_ms: str | None = None) -> Promise:
    """Bounds as texts of numbers."""
    ttft, tpot = (None if bound is None else Decimal(bound) for bound in (ttft_p99_s, tpot_p99_ms))
    return Promise(ttft_p99_s=ttft, tpot_p99_ms=tpot)


def curves(sweep: Any = SWEEP, **changes: Any) -> tuple[Measured, ...]:
    """The curve of a load test of Qwen3-14B on the node of two L40S."""
    return measured_curves("Qwen3-14B", [load_record(sweep, model="Qwen/Qwen3-14B", **changes)])


def advice(measured: tuple[Measured, ...] = (), **changes: Any) -> Advice:
    """The answer to the changed question."""
    return advise(ask(**changes), BOOK, measured)


def candidate(found: Advice, name: str = NODE) -> Candidate:
    """One preset of the advice."""
    return next(each for each in found.candidates if each.name == name)
