"""Refusals of the job commands: one line each, with what to do."""


class JobsError(Exception):
    """A command that cannot do what was asked; the message says why and what to do."""


class UnknownJobError(JobsError):
    """Slurm answered, and knows no job of that id any more."""
