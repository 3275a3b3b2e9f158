"""Bandwidth of collectives: algorithm bandwidth, bus bandwidth and the factors between them. Pure.

Source of the factors and of what `size` means for each collective: doc/PERFORMANCE.md of
https://github.com/NVIDIA/nccl-tests, read 2026-11-21. GB/s is 10^9 bytes a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

# From algorithm to bus bandwidth, n ranks. `size` is the whole message: what each rank ends with
# (all-gather) or starts with (reduce-scatter).
BUS_FACTORS: Final[dict[str, Callable[[int], float]]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "send_recv": lambda n: 1.0,
}
_TOLERANCE: Final = 0.02
"""Share by which a printed number may miss its formula: three digits are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One collective at one size."""

    op: str
    ranks: int
    bytes: int
    time_s: float
    """Of one call, the slowest rank's."""
    algbw_gb_per_s: float
    busbw_gb_per_s: float
    wrong: int | None = 0
    """Elements that arrived with another value; None: not looked at."""
    source: str = "torch"
    """`torch` or `nccl-tests`."""

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain values."""
        return asdict(self)


def transfer(op: str, ranks: int, num_bytes: int, time_s: float, wrong: int | None = 0) -> Transfer:
    """Return the row of a collective that took `time_s`."""
    algbw = num_bytes / time_s / 1e9
    return Transfer(
        op=op,
        ranks=ranks,
        bytes=num_bytes,
        time_s=time_s,
        algbw_gb_per_s=algbw,
        busbw_gb_per_s=algbw * BUS_FACTORS[op](ranks),
        wrong=wrong,
    )


def arithmetic_trouble(row: Transfer) -> str | None:
    """Return what is wrong with a row's own numbers; None where they agree with the formulas."""
    algbw = row.bytes / row.time_s / 1e9
    if _differ(algbw, row.algbw_gb_per_s):
        return (
            f"{row.bytes} bytes in {row.time_s:.6g} s are {algbw:.4g} GB/s, "
            f"not {row.algbw_gb_per_s:.4g}: another size or another time was meant"
        )
    factor = BUS_FACTORS[row.op](row.ranks)
    if _differ(row.algbw_gb_per_s * factor, row.busbw_gb_per_s):
        used = row.busbw_gb_per_s / row.algbw_gb_per_s if row.algbw_gb_per_s else 0
        return (
            f"bus factor {used:.4g} was used, {row.op} over {row.ranks} ranks has {factor:.4g}: "
            f"busbw is {row.algbw_gb_per_s * factor:.4g} GB/s, not {row.busbw_gb_per_s:.4g}"
        )
    return None


def _differ(one: float, other: float) -> bool:
    # Two decimals are printed: a small number has few digits.
    return abs(one - other) > max(_TOLERANCE * abs(one), 0.011)
