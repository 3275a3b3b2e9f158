"""How figures are written on the page: dollars, numbers, times."""

from __future__ import annotations

import math
from decimal import Decimal


def usd(amount: Decimal | None) -> str:
    """Whole dollars above 100, cents below."""
    if amount is None:
        return "unknown"
    return f"${amount:,.0f}" if abs(amount) >= 100 else f"${amount:,.2f}"


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
    if abs(value) < 1:
        return f"{value:.{2 - math.floor(math.log10(abs(value)))}f}"
    places = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
    return f"{value:,.{places}f}"


def p_text(p_value: float) -> str:
    """A p of resampling; 2,000 resamples tell nothing below 1 in 2,001."""
    return "<= 0.0005" if p_value <= 0.0005 else f"{p_value:.4f}"


def duration(seconds: Decimal | float) -> str:
    """Seconds as `1 h 02 min`, `3 min 04 s` or `12 s`."""
    total = round(float(seconds))
    hours, minutes, rest = total // 3600, total % 3600 // 60, total % 60
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def figure(value: float, unit: str) -> str:
    """A metric of quality.py: a share as percent with three digits, any other as a number."""
    return f"{value:.3g} {unit}" if unit else number(value)


def signed(value: float, unit: str = "") -> str:
    """A difference of a metric with its sign, that of a share in points."""
    shown = f"{value:.3g}" if unit else number(value)
    return f"+{shown}" if value > 0 else shown


def span_of_days(days: Decimal | float) -> str:
    """Days; hours and minutes below one, minutes below an hour."""
    seconds = float(days) * 86400
    if days >= 1:
        return f"{number(days)} days"
    return f"{seconds / 60:.0f} min" if 60 <= seconds < 3570 else duration(seconds)
