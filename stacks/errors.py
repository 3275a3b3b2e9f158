"""The one refusal: what a user asked for cannot be done as asked."""


class UserError(Exception):
    """What was asked cannot be done; the message is one line per problem, with what to do.

    The command prints it and ends with exit code 1; any other exception is a defect and shows its
    traceback. A class derives from it where somebody handles just that refusal.
    """
