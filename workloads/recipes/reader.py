"""Strict reader of recipes: JSON or YAML files into frozen dataclasses.

Unknown keys and wrong types are errors with the path of the value; `--set a.b=c` overrides one.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from workloads.common.exit_codes import ConfigError

T = TypeVar("T")
_MOST = 10**12
"""Beyond it a number is a slip of the keyboard, as are infinity and what is no number."""
_SHOWN_CHARACTERS = 80

_wrong_values: ContextVar[list[str] | None] = ContextVar("wrong values", default=None)
"""What `require` refused in the section that is being made."""


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping in a .json, .yaml or .yml file."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            value = json.loads(text)
        else:
            import yaml

            value = yaml.safe_load(text)
    except Exception as error:  # yaml's errors share no base with ValueError
        raise ConfigError(f"{path}: cannot be read as a recipe: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: a recipe is a mapping, got {type(value).__name__}")
    return value


def apply_overrides(mapping: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy of `mapping` with `a.b=c` overrides; values are JSON, else plain strings."""
    result = json.loads(json.dumps(mapping, default=str))  # YAML has dates
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {override}: write it as section.key=value")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        node = result
        *parents, last = key.split(".")
        for depth, parent in enumerate(parents):
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ConfigError(
                    f"--set {override}: '{'.'.join(parents[: depth + 1])}' is no section"
                )
        node[last] = value
    return result


def parse(kind: type[T], value: Any, *, at: str) -> T:
    """Return `value` as dataclass `kind`; `at` starts the path in every message."""
    problems: list[str] = []
    result = _convert(kind, value, at, problems)
    if problems:
        raise ConfigError("; ".join(problems))
    return result


def _convert(kind: Any, value: Any, at: str, problems: list[str]) -> Any:
    origin = typing.get_origin(kind)
    if origin is Annotated:
        return _convert(kind.__origin__, value, at, problems)
    if origin in (types.UnionType, typing.Union):
        members = [member for member in typing.get_args(kind) if member is not type(None)]
        if value is None or (len(members) > 1 and type(value) in members):
            return value
        if len(members) > 1:
            return _wrong(at, value, " or ".join(map(_name, members)), problems)
        return _convert(members[0], value, at, problems)
    if origin is tuple:
        if not isinstance(value, list):
            return _wrong(at, value, "a list", problems)
        item = typing.get_args(kind)[0]
        return tuple(_convert(item, x, f"{at}[{i}]", problems) for i, x in enumerate(value))
    if origin is typing.Literal:
        allowed = typing.get_args(kind)
        if value not in allowed:
            return _wrong(at, value, f"one of {', '.join(map(str, allowed))}", problems)
        return value
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            return _wrong(at, value, "a mapping", problems)
        return types.MappingProxyType(dict(value))
    if dataclasses.is_dataclass(kind):
        return _convert_dataclass(kind, value, at, problems)
    if kind in (int, float) and isinstance(value, int | float) and not -_MOST <= value <= _MOST:
        return _wrong(at, value, f"a number from {-_MOST:,} to {_MOST:,}", problems)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        return _wrong(at, value, _name(kind), problems)
    return value


def _name(kind: type) -> str:
    names = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
    return names.get(kind, f"a {kind.__name__}")


_hints = functools.partial(functools.cache(typing.get_type_hints), include_extras=True)
"""A trace may have a million rows of one kind."""


def _convert_dataclass(kind: Any, value: Any, at: str, problems: list[str]) -> Any:
    if not isinstance(value, dict):
        return _wrong(at, value, "a mapping", problems)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    hints = _hints(kind)
    arguments: dict[str, Any] = {}
    before = len(problems)
    for key, item in value.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else f"; allowed: {', '.join(fields)}"
            problems.append(f"{at}.{key}: unknown key{hint}")
            continue
        arguments[key] = _convert(hints[key], item, f"{at}.{key}", problems)
    for name, field in fields.items():
        required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if required and name not in value:
            problems.append(f"{at}.{name}: missing; it has no default")
    if len(problems) > before:
        return None
    wrong: list[str] = []
    collecting = _wrong_values.set(wrong)
    try:
        result = kind(**arguments)
    except ZeroDivisionError:  # by a 0 that is among the wrong values
        if not wrong:
            raise
        result = None
    finally:
        _wrong_values.reset(collecting)
    problems += [f"{at}.{message}" for message in wrong]
    return None if wrong else result


def _wrong(at: str, value: Any, allowed: str, problems: list[str]) -> None:
    got = json.dumps(value, default=str)
    cut = f"{got[:_SHOWN_CHARACTERS]}... of {len(got):,} characters"
    problems.append(
        f"{at}: got {got if len(got) <= _SHOWN_CHARACTERS else cut}, expected {allowed}"
    )


def require(condition: bool, message: str) -> None:
    """Refuse a value that its type allows and its meaning does not; used in __post_init__.

    `parse` tells all that are wrong at once; where a section is made without it, the first raises.
    """
    if condition:
        return
    wrong = _wrong_values.get()
    if wrong is None:
        raise ValueError(message)
    wrong.append(message)


class Bound(NamedTuple):
    """What a number must be beside its type, in a message's words and as a test."""

    expected: str
    holds: Callable[[Any], bool]


def over(bound: int) -> Bound:
    """Return the bound of a number above this one."""
    return Bound(f"> {bound}", lambda value: value > bound)


def least(bound: int) -> Bound:
    """Return the bound of this number and more."""
    return Bound(f">= {bound}", lambda value: value >= bound)


below_one = Bound("0 to below 1", lambda value: 0 <= value < 1)
Positive = Annotated[T, over(0)]
NotNegative = Annotated[T, least(0)]
AtLeastOne = Annotated[T, least(1)]


class Settings:
    """A dataclass whose values keep the bounds that their types name; None keeps every one."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, hint in _hints(type(self)).items():
            for bound in getattr(hint, "__metadata__", ()):
                value = getattr(self, name)
                is_kept = value is None or bound.holds(value)
                require(is_kept, f"{name}: got {value}, expected {bound.expected}")
        self._check()

    def _check(self) -> None:
        """Refuse, by `require`, values that each are allowed and not together."""
