"""Refusals of the embedded cloud: one line each, with what to do."""


class LocalError(Exception):
    """The embedded cloud cannot do what was asked on this machine."""
