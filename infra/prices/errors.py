"""Refusals of live prices."""


class LivePriceError(Exception):
    """Live prices cannot be asked for or read; what to do in one line, all prices stay."""
