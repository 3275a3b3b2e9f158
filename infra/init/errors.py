"""Refusals of `soperator init`."""

from stacks.errors import UserError


class UnseenError(UserError):
    """What was named is not there, or the credential may not see it."""
