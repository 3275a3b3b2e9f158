"""Refusals of `soperator init`."""


class InitError(Exception):
    """What was asked cannot be set up; one line per problem, with what to do."""
