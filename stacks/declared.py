"""Declared leaf values by config key, as the user writes both: declared_values(spec).

    nodes.workers[worker].nodes -> "5"
Entries of a list go by their name; by their place where none of their keys names them. Secrets and
key lines are not among them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import sha256
from typing import Final, cast

from stacks.node_spec import NodeUserSpec
from stacks.spec import StackSpec

_NAMES: Final = ("name", "sku", "scenario", "job", "mount_path", "path", "key")
"""What an entry of a list is called by, first of these that it has."""
_COUNTS: Final = ("min_nodes", "max_nodes")
_MARKS: Final = re.compile(r"[.\[\]]")
_DEPTH: Final = {".": 0, "[": 1, "]": -1}
_LEFT_OUT: Final = frozenset({"name", "login", "code_path", "python_env_path", "bill_heading"})
_FREE: Final = frozenset({"ssh_public_keys", "content"})
"""Texts of any record that cost neither money nor data; keys of the nodes are kept as a digest."""


def declared_values(spec: StackSpec) -> Mapping[str, str]:
    """Every declared value that can cost money or data, by its config key."""
    found: dict[str, str] = {}
    for name in _names(StackSpec):
        if name not in _LEFT_OUT:
            _collect(name, getattr(spec, name), found)
    return found


def parents_of(key: str) -> Iterator[str]:
    """The key itself and every key that it is inside of, innermost last; names may hold dots."""
    depth = 0
    for mark in _MARKS.finditer(key):
        index, letter = mark.start(), mark[0]
        if letter != "]" and depth == 0 and index:
            yield key[:index]
        depth += _DEPTH[letter]
    yield key


def _collect(key: str, value: object, found: dict[str, str], own_name: str | None = None) -> None:
    """Adds the leaves under the key; `own_name` is the field that the key has in brackets."""
    if value is None:
        return
    if names := _names(type(value)):
        for name in names:
            if name == own_name:
                continue
            if name in _FREE:
                if isinstance(value, NodeUserSpec):
                    # In the user data of every node: other keys are other nodes.
                    found[f"{key}.{name}"] = _digest(value.ssh_public_keys)
                continue
            written = _written(value, name) if name in _COUNTS else name
            if written is not None:
                _collect(f"{key}.{written}", getattr(value, name), found)
    elif isinstance(value, Mapping):
        for name, item in cast("Mapping[str, object]", value).items():
            _collect(f"{key}.{name}", item, found)
    elif isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        if items and _names(type(items[0])):
            for place, item in enumerate(items):
                name = _name_key(type(item))
                called = place if name is None else getattr(item, name)
                _collect(f"{key}[{called}]", item, found, name)
        elif items:
            found[key] = ", ".join(map(str, items))
    else:
        found[key] = str(value).lower() if isinstance(value, bool) else str(value)


def _digest(lines: tuple[str, ...]) -> str:
    """Eight characters that stand for the lines."""
    return sha256("\n".join(lines).encode()).hexdigest()[:8]


def _written(record: object, name: str) -> str | None:
    """The field's key in the file; None where another stands for it: `nodes: N` sets both ends."""
    if getattr(record, "min_nodes", None) != getattr(record, "max_nodes", None):
        return name
    return "nodes" if name == "max_nodes" else None


@cache
def _names(cls: type) -> tuple[str, ...]:
    """Fields of a dataclass; none of any other type."""
    return tuple(field.name for field in fields(cls)) if is_dataclass(cls) else ()


@cache
def _name_key(cls: type) -> str | None:
    names = _names(cls)
    return next((name for name in _NAMES if name in names), None)
