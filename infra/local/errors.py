"""Refusals of the embedded cloud: one line each, with what to do."""

from stacks.errors import UserError


class LocalError(UserError):
    """The embedded cloud cannot do what was asked on this machine."""
