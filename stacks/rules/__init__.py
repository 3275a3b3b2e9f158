"""Rules across fields, one subject per file; check.py runs them. `RULES` has every rule by its id.

What a rule compares is in the file of its subject, which names the rule's id with each finding; its
level, what holds, who says so and the message are in rules.tsv. docs/rules.md is made from there:
`python -m tests.unit.stacks.reference`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from types import MappingProxyType
from typing import Final, cast

from stacks.errors import Level, Problem, Spare
from stacks.spec import StackSpec

SOURCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "api": "the API's own definitions (nebius/api, as in the Nebius SDK of requirements.lock), "
        "read 2026-11-21",
        "docs": "https://docs.nebius.com, read 2026-11",
        "k8s": "https://kubernetes.io/docs, concepts and setup, read 2026-11-21",
        "openssh": "https://man.openbsd.org/sshd.8, read 2026-11-21",
        "recipe": "https://github.com/nebius/nebius-solutions-library, soperator/, "
        "commit 7b687e5 of 2026-04-21; N marks later single files of 2026-07 to 09",
        "slurm": "https://slurm.schedmd.com, 25.11, read 2026-11-21",
        "soperator": "https://github.com/nebius/soperator, 4.1.7, read 2026-11-21",
        "ours": "a promise of this project; the words after it say which",
    }
)
"""Source -> its address and day; a rule names one and says where in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule: what holds in a stack without a finding of it, and who says so."""

    id: str
    level: Level
    says: str
    source: str
    """Key of SOURCES, a colon, and the place in it."""
    message: str
    """What a finding says, with the names of its values in braces: `{value}` is what stands at its
    path, `{record}` what that is a field of, `{spec}` the stack; the code gives the others, and
    both under keys of the user's own, such as labels, which no field of a format names."""


def read_rules(text: str) -> Mapping[str, Rule]:
    """Rules by id in the order of the table; ValueError for a repeated id or an unknown source."""
    rules: dict[str, Rule] = {}
    for number, line in enumerate(text.splitlines()[1:], 2):
        id_, level, says, source, message = line.split("\t")
        if id_ in rules:
            raise ValueError(f"rules.tsv:{number}: id '{id_}' is used twice; ids are unique")
        if source.partition(":")[0] not in SOURCES:
            have = ", ".join(SOURCES)
            raise ValueError(f"rules.tsv:{number}: '{source}' names no source (has: {have})")
        rules[id_] = Rule(id=id_, level=Level(level), says=says, source=source, message=message)
    return MappingProxyType(rules)


RULES: Final = read_rules(Path(__file__).with_name("rules.tsv").read_text(encoding="utf-8"))


class _Message(Formatter):
    """Text of a message; a list or a mapping among its values shows its entries."""

    def format_field(self, value: object, format_spec: str) -> str:
        if isinstance(value, Collection) and not isinstance(value, str):
            value = ", ".join(map(str, cast("Collection[object]", value)))
        return format(value, format_spec)


@dataclass(slots=True)
class Findings:
    """Problems in the order in which the rules find them; paths start with the stack's name."""

    stack_name: str
    spec: StackSpec | None = None
    """The stack that is looked at; None where a change is."""
    problems: list[Problem] = field(default_factory=list[Problem])

    def add(self, rule: str, path: str, /, *, spare: Spare | None = None, **values: object) -> None:
        """Adds a finding with the level and the message of the table, which names the values."""
        place = f"{{spec.{path}"
        message = RULES[rule].message.replace("{value", place)
        message = message.replace("{record", place.rpartition(".")[0])
        shown = {"spec": self.spec, "spare": spare, **values}
        self.problems.append(
            Problem(
                level=RULES[rule].level,
                path=f"{self.stack_name}.{path}",
                message=_Message().vformat(message, (), shown),
                rule=rule,
                spare=spare,
            )
        )

    def add_text(self, rule: str, path: str, message: str | None) -> bool:
        """Adds what a shared test says, if it says something, and whether it does."""
        if message is not None:
            self.add(rule, path, message=message)
        return message is not None

    def unknown(self, rule: str, path: str, name: str, known: Iterable[str]) -> None:
        """Adds that no such thing is declared, with those that are."""
        self.add(rule, path, name=name, known=", ".join(known) or "none")

    def unique(self, rule: str, path: str, entries: Iterable[object], *, key: str = "") -> None:
        """Adds each entry of the list that was there, or whose `key` was, if it has one."""
        first: dict[object, str] = {}
        for index, entry in enumerate(entries):
            name: object = getattr(entry, key) if key else entry
            place = f"{path}[{index}].{key}".removesuffix(".")
            if name in first:
                self.add(rule, place, first=first[name])
            first.setdefault(name, place)
