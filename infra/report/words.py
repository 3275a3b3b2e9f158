"""How figures are written on the page: dollars, numbers, times."""

from __future__ import annotations

import math
from decimal import Decimal


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


def signed(value: float) -> str:
    """The number with its sign."""
    return f"+{number(value)}" if value > 0 else number(value)
