"""Refusals of `soperator init`."""


class InitError(Exception):
    """What was asked cannot be set up; one line per problem, with what to do."""


class UnseenError(InitError):
    """What was named is not there, or the credential may not see it."""
