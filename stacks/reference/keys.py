"""Every key of a stack file: `stack_keys()` -> path, type, default and what it means.

Owns the walk through the dataclasses and their attribute docstrings, which Python itself drops.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import StrEnum
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Final, Union, cast, get_args, get_origin, get_type_hints

from stacks.spec import StackSpec

_WORDS: Final = {"str": "text", "int": "whole number", "bool": "true or false", "Decimal": "number"}


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
    hints, says = get_type_hints(cls), attribute_docs(cls)
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
