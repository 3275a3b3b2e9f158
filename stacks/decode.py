"""Plain values -> frozen dataclasses, strictly, collecting every problem with its path.

Owns names, types and single values. Does not own files (load.py) or rules across fields (check.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from enum import StrEnum
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, TypeGuard, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from stacks.names import canonical_platform
from stacks.public_keys import expand_keys

_Record = TypeVar("_Record")
_MOST: Final = 10**12
_LEAST: Final = Decimal("1e-9")
"""Outside of these a number is a slip of the keyboard, and no table could show what it costs."""
CLUSTER_NODES_MOST: Final = 5_000
"""https://kubernetes.io/docs/setup/best-practices/cluster-large, read 2026-11-21: no more nodes."""
_MOST_OF: Final[Mapping[str, int]] = {
    **dict.fromkeys(
        (
            "nodes",
            "min_nodes",
            "max_nodes",
            "created_nodes",
            "least_nodes",
            "max_surge_nodes",
            "max_unavailable_nodes",
        ),
        CLUSTER_NODES_MOST,
    ),
    "count": 1_000,
    **dict.fromkeys(("size_gib", "config_bucket_gib", "registry_gib"), 4 << 20),
    "keep_daily": 3_650,
    "key_days": 3_650,
    "drain_timeout_s": 366 * 24 * 3_600,
}
"""What is made one by one needs an end before anything counts it; ten years are no end of a key or
of daily copies, and 4 PiB in one piece are bytes or MiB in the place of GiB.

A wait of more than a year is for ever, which 0 says; a duration of the API ends at 315,576,000,000.
"""
_SHARES: Final = ("max_idle_share",)
_ONE_OR_MORE: Final = ("after",)
"""Lists that may be given as the text of their only entry."""
_MAY_BE_ZERO: Final = frozenset(
    {
        "min_nodes",
        "priority",
        "restarts",
        "created_nodes",
        "drain_timeout_s",
        "max_surge_nodes",
        "max_surge_percent",
        "max_unavailable_nodes",
        "max_unavailable_percent",
        "gpus_per_node",
        "config_bucket_gib",
        "limit",
        "cached_share",
        "max_idle_share",
        "preemptions_per_node_day",
        "checkpoint_stall_s",
        "restart_s",
        "usd",
    }
)
"""Every other number of a stack is a size or a count of something that must exist."""
_GONE: Final[Mapping[str, str]] = {
    # nebius/soperator, helm/slurm-cluster/templates/slurm-cluster-cr.yaml at 4.1.7 and of 5.0.0:
    # the resource has a field for it, the chart has no value.
    "login.sshd_config_map": (
        "gone, as Soperator's chart takes no sshd configuration for login nodes and the key "
        "changed nothing; remove it (that of workers is nodes.workers[].sshd_config_map)"
    )
}
"""Key that a stack had once -> why it has it no more, and what to do."""


@dataclass(slots=True, kw_only=True)
class Decoder:
    """Plain values -> dataclasses; collects problems instead of stopping at the first."""

    environ: Mapping[str, str]
    problems: list[str] = field(default_factory=list[str])

    def refuse(self, path: str, message: str) -> None:
        self.problems.append(f"{path}: {message}")

    def record(self, cls: type[_Record], value: object, path: str) -> _Record | None:
        if not is_map(value):
            self.refuse(path, f"expected a mapping of {_keys(cls)}, got {_describe(value)}")
            return None
        known = {item.name: item for item in _fields(cls)}
        values = self._spread_nodes(dict(value), known, path)
        for key in [key for key in values if key not in known]:
            allowed = (*known, "nodes") if "min_nodes" in known else tuple(known)
            _, _, name = f"{path}.{key}".partition(".")
            problem = _GONE.get(name) or f"unknown key{nearest(str(key), allowed)}"
            self.refuse(f"{path}.{key}", problem)
        hints = get_type_hints(cls)
        arguments: dict[str, object] = {}
        for key, item in known.items():
            if key in values:
                arguments[key] = self.value(hints[key], values[key], f"{path}.{key}", key)
            elif item.default is MISSING and item.default_factory is MISSING:
                self.refuse(f"{path}.{key}", f"missing; give {_wanted(hints[key])}")
                arguments[key] = None
        # With problems found the object would be half-true; nobody sees it, StackError is raised.
        return None if self.problems else cls(**arguments)

    def _spread_nodes(
        self, values: dict[str, object], known: Mapping[str, object], path: str
    ) -> dict[str, object]:
        """`nodes: N` of a node group -> min_nodes and max_nodes."""
        if "nodes" not in values or "min_nodes" not in known:
            return values
        if values.keys() & {"min_nodes", "max_nodes"}:
            self.refuse(f"{path}.nodes", "give either nodes or min_nodes and max_nodes, not both")
        count = self.value(int, values.pop("nodes"), f"{path}.nodes", "nodes")
        # A refused count is replaced by a valid one, so that it is reported once, not three times.
        stand_in = count if count is not None else 1
        return {**values, "min_nodes": stand_in, "max_nodes": stand_in}

    def value(self, hint: object, value: object, path: str, key: str) -> object:
        """The value as the type that `hint` asks for; None after a problem."""
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            inner = next(argument for argument in arguments if argument is not NoneType)
            return None if value is None else self.value(inner, value, path, key)
        if origin is tuple:
            return self._items(arguments[0], value, path, key)
        if origin is Mapping:
            return self._text_mapping(value, path)
        if isinstance(hint, type) and is_dataclass(hint):
            return self.record(hint, value, path)
        if isinstance(hint, type) and issubclass(hint, StrEnum):
            return self._choice(hint, value, path)
        return self._scalar(cast("type", hint), value, path, key)

    def _items(self, hint: object, value: object, path: str, key: str) -> tuple[object, ...]:
        if key in _ONE_OR_MORE and isinstance(value, str):
            value = [value]
        if not isinstance(value, list | tuple):
            self.refuse(path, f"expected a list, got {_describe(value)}")
            return ()
        items = [
            self.value(hint, item, f"{path}[{index}]", key)
            for index, item in enumerate(cast("list[object]", value))
        ]
        if key == "ssh_public_keys":
            lines = [item for item in items if isinstance(item, str)]
            return expand_keys(lines, self.environ, path, self.refuse)
        return tuple(items)

    def _text_mapping(self, value: object, path: str) -> Mapping[str, str]:
        if not is_map(value):
            self.refuse(path, f"expected a mapping of text, got {_describe(value)}")
            return MappingProxyType({})
        texts = {key: self._scalar(str, item, f"{path}.{key}", key) for key, item in value.items()}
        return MappingProxyType({str(key): str(text) for key, text in texts.items()})

    def _choice(self, hint: type[StrEnum], value: object, path: str) -> StrEnum | None:
        allowed = tuple(member.value for member in hint)
        if value in allowed:
            return hint(cast("str", value))
        hint_at = nearest(str(value), allowed)
        self.refuse(path, f"expected one of {', '.join(allowed)}, got {_describe(value)}{hint_at}")
        return None

    def _scalar(self, hint: type, value: object, path: str, key: str) -> object:
        check = _SCALARS[hint]
        decoded, problem = check(value)
        if problem is None and isinstance(decoded, int | Decimal) and _is_out_of_range(decoded):
            problem = f"expected a number from {_LEAST:f} to {_MOST:,}, got {_describe(value)}"
        if problem is None and isinstance(decoded, int) and hint is int:
            least = 0 if key in _MAY_BE_ZERO else 1
            most = _MOST_OF.get(key)
            if decoded < least:
                problem = f"expected a whole number of {least} or more, got {decoded}"
            elif most is not None and decoded > most:
                problem = f"expected a whole number from {least} to {most:,}, got {decoded}"
        if problem is None and isinstance(decoded, Decimal) and key in _SHARES and decoded > 1:
            problem = f"expected a share from 0 to 1, got {_describe(value)}"
        if problem is None and isinstance(decoded, Decimal):
            may_be_zero = key in _MAY_BE_ZERO
            if decoded < 0 or (decoded == 0 and not may_be_zero):
                least = "of 0 or more" if may_be_zero else "over 0"
                problem = f"expected a number {least}, got {_describe(value)}"
        if problem is not None:
            self.refuse(path, problem)
            return None
        if key == "platform":
            return canonical_platform(cast("str", decoded))
        return decoded


def _is_out_of_range(number: int | Decimal) -> bool:
    return abs(number) > _MOST or 0 < abs(number) < _LEAST


def _text(value: object) -> tuple[object, str | None]:
    if isinstance(value, str) and value.strip():
        if value.isprintable():
            return value, None
        # It would break the lines of every table, and hide what a terminal shows.
        return None, f"expected one line of printable text, got {_describe(value)}"
    quote = "; put it in quotes" if isinstance(value, bool | int | Decimal | float) else ""
    return None, f"expected text, got {_describe(value)}{quote}"


def _whole(value: object) -> tuple[object, str | None]:
    if isinstance(value, int) and not isinstance(value, bool):
        return value, None
    return None, f"expected a whole number, got {_describe(value)}"


def _truth(value: object) -> tuple[object, str | None]:
    if isinstance(value, bool):
        return value, None
    return None, f"expected true or false, got {_describe(value)}"


def _exact(value: object) -> tuple[object, str | None]:
    if not isinstance(value, bool) and isinstance(value, int | str | float | Decimal):
        try:
            # str() of a float is its shortest exact form, so 3.8 stays 3.8.
            number = Decimal(str(value))
        except InvalidOperation:
            number = Decimal("NaN")
        if number.is_finite():
            return number, None
    return None, f"expected a number, got {_describe(value)}"


_SCALARS: Final[Mapping[type, Callable[[object], tuple[object, str | None]]]] = {
    str: _text,
    int: _whole,
    bool: _truth,
    Decimal: _exact,
}


def is_map(value: object) -> TypeGuard[Mapping[str, object]]:
    """Whether the value is a mapping."""
    return isinstance(value, Mapping)


def _fields(cls: type) -> tuple[Field[Any], ...]:
    return fields(cls)


def _keys(cls: type) -> str:
    return ", ".join(item.name for item in _fields(cls))


def _wanted(hint: object) -> str:
    if get_origin(hint) is tuple:
        return "a list"
    if isinstance(hint, type) and is_dataclass(hint):
        return f"a mapping of {_keys(hint)}"
    return {int: "a whole number", bool: "true or false", Decimal: "a number"}.get(
        cast("type", hint), "text"
    )


def nearest(name: str, allowed: tuple[str, ...]) -> str:
    """A hint at the allowed name that is most like the given one, or at all of them."""
    matches = get_close_matches(name, allowed, n=1, cutoff=0.5)
    known = ", ".join(allowed) or "none"
    return f"; did you mean '{matches[0]}'?" if matches else f"; known: {known}"


def _describe(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, str):
        return f"text {value!r}"
    return str(value).lower() if isinstance(value, bool) else f"number {value}"
