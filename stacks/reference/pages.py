"""Pages that are made from the code and from tables: `pages(docs)`, file name -> Markdown.

Owns their text. What a key means stands in the dataclasses, what a rule says in rules/rules.tsv.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from stacks.problem import Level
from stacks.reference.keys import Key, stack_keys
from stacks.reference.tables import Table, read_table
from stacks.rules.table import RULES, SOURCES

_MADE: Final = "<!-- Made by `python -m stacks.reference`; edit what it is made from instead. -->\n"
_STACK: Final = (
    "A stack is `stacks/Pulumi.NAME.yaml`; each top-level key stands there as "
    "`soperator-stack:KEY`.\nUnknown keys are refused with the nearest name. Sizes in `_gib` are "
    "GiB (2^30 bytes). `[]` is each entry of a list;\na node group takes `nodes: N` for equal "
    "`min_nodes` and `max_nodes`. What must hold between keys: [rules.md](rules.md).\n"
)
_RULES: Final = (
    "An error is what the API or Soperator would refuse or what would not come up;\na "
    "recommendation is a warning, with US dollars a month where there is money in it "
    "([decision 0013](adr/0013-validation-levels.md)).\nTypes, unknown keys and numbers below "
    "their least are refused before any rule, by the decoder (`stacks/decode.py`).\nEach rule "
    "has a planted mistake in `tests/unit/stacks/test_rules.py` or `test_check.py`.\n"
)
_TERRAFORM: Final = (
    "Every variable of the official recipe (nebius-solutions-library, "
    "`soperator/installations/example`) and the key\nthat does its work here, or why it is gone. "
    "Keys are explained in [stack.md](stack.md), what must hold between them in "
    "[rules.md](rules.md).\n\n"
)
_SEEDS: Final = (
    "Every command, file and folder that the five projects behind the shipped stacks name "
    "(S000 to S004),\nand what does its work here, or why it is gone.\n"
)
_ERAS: Final = (
    "Eras of the recipe: **B** 1.20.1 (2025-06), **F** 4.0.0 (commit 7b687e5, 2026-04-21), "
    "**N** later single files (2026-07 to 09). F holds for B too where B has the option.\n"
)


def pages(docs: Path) -> Mapping[str, str]:
    """Every page by its file name; `docs` holds the tables."""
    return {
        "stack.md": _stack_page(stack_keys()),
        "rules.md": _rules_page(read_table(docs / "recipe-conditions.tsv")),
        "from-terraform.md": _terraform_page(
            read_table(docs / "recipe-variables.tsv"), read_table(docs / "recipe-resources.tsv")
        ),
        "from-seeds.md": _seeds_page(read_table(docs / "seed-items.tsv")),
    }


def _stack_page(keys: Sequence[Key]) -> str:
    parts = [
        "# Every key of a stack\n" + _MADE,
        _STACK,
    ]
    for subject in dict.fromkeys(_subject(key.path) for key in keys):
        rows = [
            (f"`{key.path}`", key.type, _required(key.default), key.says)
            for key in keys
            if _subject(key.path) == subject
        ]
        parts.append(f"## {subject}\n" + _table(("key", "value", "default", "means"), rows))
    return "\n".join(parts)


def _subject(path: str) -> str:
    return path.split(".")[0].removesuffix("[]")


def _required(default: str | None) -> str:
    return "**required**" if default is None else default


def _rules_page(conditions: Table) -> str:
    levels = [rule.level for rule in RULES.values()]
    parts = [
        "# Rules of a stack\n" + _MADE,
        f"{levels.count(Level.ERROR)} errors and {levels.count(Level.WARNING)} warnings. {_RULES}",
        _table(("source", "what it is"), [(f"`{key}`", text) for key, text in SOURCES.items()]),
    ]
    for subject in dict.fromkeys(rule.id.split(".")[0] for rule in RULES.values()):
        rows = [
            (f"`{rule.id}`", str(rule.level), rule.says, rule.source)
            for rule in RULES.values()
            if rule.id.split(".")[0] == subject
        ]
        parts.append(f"## {subject}\n" + _table(("rule", "level", "holds", "source"), rows))
    rows = [(era, condition, _codes(rules), why) for era, condition, rules, why in conditions.rows]
    parts.append(
        "## The recipe's own conditions\n"
        f"All {len(rows)} conditions of the official Terraform recipe: the rule that covers each, "
        "or why it cannot occur.\n"
        f"{_ERAS}\n" + _table(("era", "condition", "rule", "remark"), rows)
    )
    return "\n".join(parts)


def _terraform_page(variables: Table, resources: Table) -> str:
    rows = [(era, f"`{name}`", _codes(keys), why) for era, name, keys, why in variables.rows]
    made = [
        (era, f"`{name}`", *map(_code, (field, ours)), why)
        for era, name, field, ours, why in resources.rows
    ]
    return (
        "# From the Terraform recipe\n"
        + _MADE
        + _TERRAFORM
        + f"{_ERAS}\n"
        + _table(("era", "variable", "key", "remark"), rows)
        + f"\n## Resources and their fields\n{coverage(resources)}\n"
        + "`tests/components/test_recipe_coverage.py` holds each row against what the shipped "
        "stacks and two fuller ones register.\nA chart of the recipe is a release here; both "
        "are named as their own side does.\n\n"
        + _table(("era", "resource", "field", "ours", "remark"), made)
    )


def coverage(resources: Table) -> str:
    """How many resources and fields of the recipe are made here, in one line."""
    heads = [row for row in resources.rows if row[2] == "-"]
    fields = [row for row in resources.rows if row[2] != "-"]
    made, given = (sum(row[3] != "-" for row in rows) for rows in (heads, fields))
    return (
        f"{len(heads)} resources of the recipe, of which {made} are made here and "
        f"{len(heads) - made} are gone for the reason given; {len(fields)} of their fields, of "
        f"which {given} are given and {len(fields) - given} are gone."
    )


def _seeds_page(items: Table) -> str:
    parts = ["# From the five source projects\n" + _MADE + _SEEDS]
    for seed in dict.fromkeys(items.column("seed")):
        rows = [
            (kind, f"`{item}`", ours) for owner, kind, item, ours in items.rows if owner == seed
        ]
        parts.append(f"## {seed}\n" + _table(("kind", "there", "here"), rows))
    return "\n".join(parts)


def _code(name: str) -> str:
    return "" if name == "-" else f"`{name}`"


def _codes(names: str) -> str:
    return "" if names == "-" else ", ".join(f"`{name}`" for name in names.split())


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(_lines(columns, rows)) + "\n"


def _lines(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
