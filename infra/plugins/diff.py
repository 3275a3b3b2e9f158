"""What changes between two property values, by path, in the engine's own path syntax.

Owns the comparison and the Diff that a plugin returns. Does not decide what needs a replacement.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from infra.plugins.values import UNKNOWN

Kind = Literal["add", "delete", "update"]
_PLAIN_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_FIRST_KEY = re.compile(r"""^(?:\["((?:[^"\\]|\\.)*)"\]|([^.\[]+))""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """The difference between a resource and its declaration; no `detailed` means no change."""

    replaces: tuple[str, ...] = ()
    """Paths whose change needs a new resource; a path covers everything below it."""
    detailed: Mapping[str, Kind] = field(default_factory=dict)
    """Path -> kind of change."""
    stables: tuple[str, ...] = ()
    """Outputs that keep their value through an update, so that dependents stay known."""
    delete_before_replace: bool = False

    def replaced_by(self, path: str) -> bool:
        """Whether a change at `path` needs a new resource."""
        return any(path == p or path.startswith((f"{p}.", f"{p}[")) for p in self.replaces)


def compare(old: Any, new: Any, path: str = "") -> dict[str, Kind]:
    """Every path at which `new` differs from `old`; an unknown value counts as changed."""
    if isinstance(old, dict) and isinstance(new, dict):
        found: dict[str, Kind] = {}
        for key in sorted(old.keys() | new.keys()):
            at = join(path, key)
            if key not in new:
                found[at] = "delete"
            elif key not in old:
                found[at] = "add"
            else:
                found |= compare(old[key], new[key], at)
        return found
    if isinstance(old, list) and isinstance(new, list):
        found = {}
        for index in range(max(len(old), len(new))):
            at = f"{path}[{index}]"
            if index >= len(new):
                found[at] = "delete"
            elif index >= len(old):
                found[at] = "add"
            else:
                found |= compare(old[index], new[index], at)
        return found
    if new is UNKNOWN or type(old) is not type(new) or old != new:
        return {path: "update"}
    return {}


def join(path: str, key: str) -> str:
    """`path` extended by one mapping key: `a.b`, or `a["b.c"]` where the key is no plain name."""
    if _PLAIN_KEY.fullmatch(key):
        return f"{path}.{key}" if path else key
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'{path}["{escaped}"]'


def first_keys(paths: Iterable[str]) -> list[str]:
    """The distinct top-level keys of the paths, in order."""
    keys: dict[str, None] = {}
    for path in paths:
        if match := _FIRST_KEY.match(path):
            quoted, plain = match.groups()
            keys[plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)] = None
    return list(keys)
