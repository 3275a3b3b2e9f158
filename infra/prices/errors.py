"""Refusals of live prices."""

from stacks.errors import UserError


class LivePriceError(UserError):
    """Live prices cannot be asked for or read; what to do in one line, all prices stay."""
