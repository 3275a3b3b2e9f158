"""Pages of docs/ made from code and tables: python -m tests.unit.stacks.reference [FOLDER].

Owns their text. What a key means stands in the dataclasses (Python drops attribute docstrings, so
their source is read), what a rule says in rules/rules.tsv, what the Terraform recipe and the seeds
have in tables of docs/.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, cast, get_args, get_origin, get_type_hints

from stacks.errors import Level
from stacks.rules import RULES, SOURCES
from stacks.spec import StackSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Column names and rows of one file."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def column(self, name: str) -> tuple[str, ...]:
        """Every cell of one column."""
        index = self.columns.index(name)
        return tuple(row[index] for row in self.rows)


def read_table(path: Path) -> Table:
    """The table of the file; ValueError names a row with too few or too many cells."""
    columns, *rows = (
        tuple(line.split("\t")) for line in path.read_text(encoding="utf-8").splitlines()
    )
    for number, row in enumerate(rows, 2):
        if len(row) != len(columns):
            raise ValueError(
                f"{path.name}:{number}: {len(row)} cells; give {len(columns)}: {', '.join(columns)}"
            )
    return Table(columns=columns, rows=tuple(rows))


_WORDS: Final = {
    "str": "text",
    "int": "whole number",
    "bool": "true or false",
    "Decimal": "number",
    "date": "day",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of a stack file."""

    path: str
    """Such as `nodes.workers[].preset`; `[]` stands for each entry of a list."""
    type: str
    """What is written there, in words."""
    default: str | None
    """As written in the file; None where the key is required."""
    says: str
    """The attribute's docstring, else that of its dataclass, in one line."""


def stack_keys() -> tuple[Key, ...]:
    """Every key, in the order of the dataclasses; the stack's name is that of its file."""
    return tuple(key for key in _keys(StackSpec, "") if key.path != "name")


def _keys(cls: type, prefix: str) -> Iterator[Key]:
    hints, says = get_type_hints(cls, include_extras=True), attribute_docs(cls)
    for item in _fields(cls):
        hint, many = _inner(hints[item.name])
        path = f"{prefix}{item.name}{'[]' if many else ''}"
        word = _type(hint, many=many)
        inner = cast("type", hint) if is_dataclass(hint) else None
        own = says.get(item.name) or (_first_line(inner) if inner is not None else "")
        yield Key(path=path, type=word, default=_default(item), says=own)
        if inner is not None:
            yield from _keys(inner, f"{path}.")


def attribute_docs(cls: type) -> Mapping[str, str]:
    """Field name -> the text that stands under it, base classes included, each in one line."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not is_dataclass(base):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        body = cast("ast.ClassDef", tree).body
        for above, below in pairwise(body):
            if (
                isinstance(above, ast.AnnAssign)
                and isinstance(above.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                docs[above.target.id] = " ".join(str(below.value.value).split())
    return docs


def _inner(hint: object) -> tuple[object, bool]:
    """The type without None and without its list; whether it is a list."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _inner(next(argument for argument in arguments if argument is not NoneType))
    if origin is tuple:
        return arguments[0], True
    return hint, False


def _type(hint: object, *, many: bool) -> str:
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        word = " \\| ".join(f"`{member.value}`" for member in hint)
    elif isinstance(hint, type) and is_dataclass(hint):
        word = "mapping"
    elif get_origin(hint) is Annotated:
        number, bounds = get_args(hint)
        unit = " characters" if number is str else ""
        word = f"{_WORDS[number.__name__]}, {bounds}{unit}"
    elif isinstance(hint, type):
        word = _WORDS[hint.__name__]
    else:
        word = "mapping of text"
    return f"list: {word}" if many else word


def _default(item: Field[Any]) -> str | None:
    if item.default is not MISSING:
        return _written(item.default)
    if item.default_factory is not MISSING:
        return _written(item.default_factory())
    return None


def _written(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if value == () or isinstance(value, Mapping):
        return "empty"
    if is_dataclass(value):
        return "its defaults"
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in cast("tuple[object, ...]", value))
    return f"`{value}`"


def _first_line(cls: type) -> str:
    return " ".join((cls.__doc__ or "").split("\n\n")[0].split())


def _fields(cls: type) -> tuple[Field[Any], ...]:
    return fields(cls)


_MADE: Final = (
    "<!-- Made by `python -m tests.unit.stacks.reference`; edit what it is made from instead. -->\n"
)
_STACK: Final = (
    "A stack is `stacks/Pulumi.NAME.yaml`; each top-level key stands there as "
    "`soperator-stack:KEY`.\nUnknown keys are refused with the nearest name. Sizes in `_gib` are "
    "GiB (2^30 bytes). `[]` is each entry of a list;\na node group takes `nodes: N` for equal "
    "`min_nodes` and `max_nodes`. A number that names no least is over 0. What must hold between "
    "keys: [rules.md](rules.md).\n"
)
_RULES: Final = (
    "An error is what the API or Soperator would refuse or what would not come up;\na "
    "recommendation is a warning, with US dollars a month where there is money in it "
    "([decision 0008](adr/0008-one-reader-and-two-levels.md)).\nTypes, unknown keys and numbers "
    "below their least are refused before any rule, by the decoder (`stacks/spec/decode.py`).\n"
    "Those of "
    "`change` hold a preview against what is deployed. Each rule "
    "has a planted mistake in `tests/unit/stacks/`: `test_rules.py`, `test_check.py` or "
    "`test_upgrade.py`.\n"
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
            (f"`{key.path}`", key.type, key.default or "**required**", key.says)
            for key in keys
            if _subject(key.path) == subject
        ]
        parts.append(f"## {subject}\n" + _table(("key", "value", "default", "means"), rows))
    return "\n".join(parts)


def _subject(path: str) -> str:
    return path.split(".")[0].removesuffix("[]")


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


DOCS = Path(__file__).resolve().parents[3] / "docs"


def main() -> None:
    """Writes each page into the folder, `docs/` by default, and names those that changed."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS
    for name, text in pages(DOCS).items():
        page = folder / name
        if not page.is_file() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")
            print(page)


if __name__ == "__main__":
    main()
