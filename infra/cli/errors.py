"""Refusals of the command itself."""


class CliError(Exception):
    """What was asked cannot be done; the message is one line per problem, with what to do."""
