"""What is wrong: UserError refuses what was asked; a Problem is one finding about a stack.

The rules (rules/) find the problems; `nearest` is "did you mean", `visible` keeps it in one line.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from enum import StrEnum


class UserError(Exception):
    """What was asked cannot be done; the message is one line per problem, with what to do.

    The command prints it and ends with exit code 1; any other exception is a defect and shows its
    traceback. A class derives from it where somebody handles just that refusal.
    """


class Level(StrEnum):
    """An error would be refused by the API or break Soperator; a warning costs money or comfort."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Spare:
    """Nodes or GiB of storage that a warning calls unused; cost/ puts a price on them."""

    what: str
    """Role of the nodes, or the storage as price books name it: `filesystem/network-ssd`."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One finding: where, what came, what is allowed, what to do."""

    level: Level
    path: str
    message: str
    rule: str = ""
    """Id of the rule that found it, in stacks/rules/rules.tsv; empty where cost/ found it."""
    usd_per_month: Decimal | None = None
    """What the finding costs; None when there is no money in it or cost/ has not priced it yet."""
    spare: Spare | None = None

    def __str__(self) -> str:
        price = "" if self.usd_per_month is None else f" (${self.usd_per_month:,.2f} per month)"
        return f"{self.level}: {self.path}: {self.message}{price}"


class Judged:
    """What has problems, which are told by their level."""

    __slots__ = ()
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> tuple[Problem, ...]:
        """Problems that refuse it."""
        return tuple(problem for problem in self.problems if problem.level is Level.ERROR)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """Problems that cost money or comfort."""
        return tuple(problem for problem in self.problems if problem.level is Level.WARNING)


def nearest(name: str, allowed: tuple[str, ...]) -> str:
    """A hint at the allowed name that is most like the given one, or at all of them."""
    matches = get_close_matches(name, allowed, n=1, cutoff=0.5)
    known = ", ".join(allowed) or "none"
    return f"; did you mean '{matches[0]}'?" if matches else f"; known: {known}"


def visible(text: str) -> str:
    r"""The text on one line; what is not printable as \xNN or \uNNNN.

    A name from a cluster or a file of others could colour, erase or turn around what stands beside.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
