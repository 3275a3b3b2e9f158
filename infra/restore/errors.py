"""Refusals of a restore: one line each, with what to do."""


class RestoreError(Exception):
    """A snapshot cannot be listed or brought back as asked."""
