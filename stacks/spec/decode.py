"""Plain values -> dataclasses, strictly: Decoder().record(cls, value, path).

The one reader of stack files, price books, the ledger and what jobs left behind. Every problem is
kept with its path, what is allowed and what came; nothing is made of a file that has one. What a
value may be stands in its field's type: `size_gib: SizeGib`, or a Reading of its own; a number
without either is a size or a count of something that must exist: over 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from stacks.errors import nearest, visible
from stacks.files import is_map

CLUSTER_NODES_MOST: Final = 5_000
"""https://kubernetes.io/docs/setup/best-practices/cluster-large, read 2026-11-21: no more nodes."""
_SIZE_GIB_MOST: Final = 4 << 20
"""4 PiB in one piece are bytes or MiB in the place of GiB."""
_WAIT_S_MOST: Final = 366 * 24 * 3_600
"""A longer wait is for ever, which 0 says; a duration of the API ends at 315,576,000,000."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Both ends are allowed; without `most` load.py's own end of every number holds."""

    least: int = 1
    most: int | None = None

    def __str__(self) -> str:
        return f"{self.least} or more" if self.most is None else f"{self.least} to {self.most:,}"


Nodes = Annotated[int, Bounds(1, CLUSTER_NODES_MOST)]
"""What is made one by one needs an end before anything counts it."""
NodesOrZero = Annotated[int, Bounds(0, CLUSTER_NODES_MOST)]
Pieces = Annotated[int, Bounds(1, 1_000)]
"""As Nodes, of disks that one machine has."""
SizeGib = Annotated[int, Bounds(1, _SIZE_GIB_MOST)]
SizeGibOrZero = Annotated[int, Bounds(0, _SIZE_GIB_MOST)]
Days = Annotated[int, Bounds(1, 3_650)]
"""Ten years are no end of a key or of daily copies."""
WaitSeconds = Annotated[int, Bounds(0, _WAIT_S_MOST)]
CountOrZero = Annotated[int, Bounds(0)]
AmountOrZero = Annotated[Decimal, Bounds(0)]
Share = Annotated[Decimal, Bounds(0, 1)]
FileText = Annotated[str, Bounds(1, 1 << 20)]
"""Lines and tabs are allowed, in as many characters as a ConfigMap holds; other text is a line."""

Reading = Callable[[object], tuple[object, str | None]]
"""The value as it is used, and what is wrong with it: `Annotated[Decimal, between(0, 100)]`."""

_Record = TypeVar("_Record")
_MOST: Final = 10**12
_LEAST: Final = Decimal("1e-9")
"""Outside of these a number is a slip of the keyboard, and no table could show what it costs."""
_MOST_CHARACTERS: Final = 4096
"""A public key of RSA with 16,384 bits has 2,800; every message and table holds what is read."""
_SHOWN_CHARACTERS: Final = 80
_ANY: Final = Bounds()


@dataclass(slots=True, kw_only=True)
class Decoder:
    """Collects problems instead of stopping at the first."""

    is_json: bool = False
    """Whether a program wrote the file: null is nothing, keys that are not read may be there."""
    problems: list[str] = field(default_factory=list[str])

    def refuse(self, path: str, message: str) -> None:
        """Keeps one problem, whatever a key or value of the file holds."""
        self.problems.append(visible(f"{path}: {message}"))

    def prepared(self, cls: type, values: dict[str, object], path: str) -> dict[str, object]:
        """The values of a record before they are read; for other ways to write one."""
        del cls, path
        return values

    def unknown(self, key: str, allowed: tuple[str, ...], path: str) -> None:
        """Refuses a key that the record does not have."""
        self.refuse(f"{path}.{key}", f"unknown key{nearest(key, allowed)}")

    def record(self, cls: type[_Record], value: object, path: str) -> _Record | None:
        """The dataclass; None where a value of it is refused."""
        before = len(self.problems)
        if not is_map(value):
            self.refuse(path, f"expected a mapping of {_keys(cls)}, got {described(value)}")
            return None
        hints, known = _hints(cls), {item.name: item for item in _fields(cls)}
        values = self.prepared(cls, dict(value), path)
        if self.is_json:
            values = {key: each for key, each in values.items() if each is not None}
        else:
            for key in [key for key in values if key not in known]:
                self.unknown(str(key), tuple(known), path)
        arguments: dict[str, object] = {}
        for key, item in known.items():
            at = f"{path}.{key}" if path else key
            if key in values:
                arguments[key] = self.value(hints[key], values[key], at, key)
            elif item.default is MISSING and item.default_factory is MISSING:
                arguments[key] = None
                if NoneType not in get_args(hints[key]):
                    self.refuse(at, f"missing; give {_wanted(hints[key])}")
        # With problems found the object would be half-true, so nobody may see it.
        return None if len(self.problems) > before else cls(**arguments)

    def value(self, hint: Any, value: object, path: str, key: str = "") -> object:
        """The value as the type that `hint` asks for; None after a problem."""
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            inner = next(argument for argument in arguments if argument is not NoneType)
            return None if value is None else self.value(inner, value, path, key)
        if origin is tuple:
            return self.items(arguments[0], value, path, key)
        if origin is Mapping:
            return self.mapping(arguments[1], value, path)
        if isinstance(hint, type) and is_dataclass(hint):
            return self.record(hint, value, path)
        return self._scalar(hint, value, path)

    def items(self, hint: object, value: object, path: str, key: str) -> tuple[object, ...]:
        """Every entry of a list."""
        if not isinstance(value, list | tuple):
            self.refuse(path, f"expected a list, got {described(value)}")
            return ()
        return tuple(
            self.value(hint, item, f"{path}[{index}]", key)
            for index, item in enumerate(cast("list[object]", value))
        )

    def mapping(self, hint: object, value: object, path: str) -> Mapping[str, Any]:
        """Every value of a mapping whose keys are the user's own."""
        if not is_map(value):
            kind = "text" if hint is str else f"{_wanted(hint).removeprefix('a ')}s"
            self.refuse(path, f"expected a mapping of {kind}, got {described(value)}")
            return MappingProxyType({})
        return MappingProxyType(
            {str(key): self.value(hint, item, f"{path}.{key}") for key, item in value.items()}
        )

    def _scalar(self, hint: Any, value: object, path: str) -> object:
        kind, bounds = hint, _ANY
        if get_origin(hint) is Annotated and hint not in _SCALARS:
            kind, bounds = get_args(hint)[:2]
        if self.is_json and kind is str:
            kind = _JSON_TEXT
        read = bounds if not isinstance(bounds, Bounds) else _SCALARS.get(kind) or one_of(*kind)
        decoded, problem = read(value)
        if problem is None and kind in (int, Decimal) and isinstance(bounds, Bounds):
            problem = _bounds_problem(cast("int | Decimal", decoded), bounds, described(value))
        if problem is None:
            return decoded
        self.refuse(path, problem)
        return None


def _bounds_problem(number: int | Decimal, bounds: Bounds, given: str) -> str | None:
    least, most = bounds.least, bounds.most
    # Compared, not abs(): arithmetic on 1e9999999 overflows, and on 1e-9999999 makes it 0.
    is_far = not -_MOST <= number <= _MOST or (number != 0 and -_LEAST < number < _LEAST)
    if is_far and (most is None or isinstance(number, Decimal)):
        return f"expected a number from {_LEAST:f} to {_MOST:,}, got {given}"
    if isinstance(number, int):
        if number < least:
            return f"expected a whole number of {least} or more, got {number}"
        if most is not None and number > most:
            return f"expected a whole number from {least} to {most:,}, got {number}"
    elif most is not None and number > most:
        return f"expected a share from {least} to {most}, got {given}"
    elif number < 0 or (number == 0 and least > 0):
        span = "over 0" if least else "of 0 or more"
        return f"expected a number {span}, got {given}"
    return None


def _text(value: object) -> tuple[object, str | None]:
    if isinstance(value, str):
        wanted = None
        if not value.strip():
            wanted = "text that is not blank"
        elif not value.isprintable():
            # It would break the lines of every table, and hide what a terminal shows.
            wanted = "one line of printable text"
        elif len(value) > _MOST_CHARACTERS:
            wanted = f"at most {_MOST_CHARACTERS:,} characters"
        return value, wanted and f"expected {wanted}, got {described(value)}"
    quote = "; put it in quotes" if isinstance(value, bool | int | Decimal | float) else ""
    return None, f"expected text, got {described(value)}{quote}"


def _file_text(value: object) -> tuple[object, str | None]:
    if not isinstance(value, str):
        return _text(value)
    most = get_args(FileText)[1].most
    wanted = None
    if not value.replace("\n", "").replace("\t", "").isprintable():
        wanted = "lines of printable text"
    elif not 0 < len(value) <= most:
        wanted = f"1 to {most:,} characters"
    return value, wanted and f"expected {wanted}, got {described(value)}"


def _only(kind: type) -> Reading:
    """A value of this very type: to Python true is a whole number too."""

    def read(value: object) -> tuple[object, str | None]:
        if type(value) is kind:
            return value, None
        return None, f"expected {_WORDS[kind]}, got {described(value)}"

    return read


def _exact(value: object) -> tuple[object, str | None]:
    if not isinstance(value, bool) and isinstance(value, int | str | float | Decimal):
        # str() of a float is its shortest exact form, so 3.8 stays 3.8.
        text = str(value)
        # Decimal() alone reads 1_000, and digits of other scripts.
        if re.fullmatch(r"[-+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,9})?", text):
            return Decimal(text), None
    return None, f"expected a number, got {described(value)}"


def one_of(*allowed: str) -> Reading:
    """One of these texts, or the member of an enumeration that is equal to it."""

    def read(value: object) -> tuple[object, str | None]:
        if isinstance(value, str) and value in allowed:
            return allowed[allowed.index(value)], None
        near = nearest(str(value), allowed)
        return None, f"expected one of {', '.join(allowed)}, got {described(value)}{near}"

    return read


def between(least: int, most: int) -> Reading:
    """A number with every digit that was written, both ends allowed."""

    def read(value: object) -> tuple[object, str | None]:
        number, problem = _exact(value)
        if isinstance(number, Decimal) and not least <= number <= most:
            problem = f"expected a number from {least:,} to {most:,}, got {described(value)}"
        return number, problem

    return read


def _moment(value: object) -> tuple[object, str | None]:
    try:
        found = datetime.fromisoformat(value if isinstance(value, str) else "")
    except ValueError:
        wanted = "a time such as 2026-11-21T05:00:00Z"
        return None, f"expected {wanted}, got {described(value)}"
    return found if found.tzinfo else found.replace(tzinfo=UTC), None


def _day(value: object) -> tuple[object, str | None]:
    try:
        found = date.fromisoformat(str(value))
    except ValueError:
        return None, f"expected a day of the form YYYY-MM-DD, got {described(value)}"
    # Today where the day is latest: here, or in UTC where the clock runs behind it.
    if found > max(datetime.now(UTC).date(), datetime.now(UTC).astimezone().date()):
        return None, f"{found} is in the future; give the day on which it was read"
    return found, None


def any_text(value: object) -> tuple[object, str | None]:
    """Text of any kind, of a file that a program wrote."""
    return value, None if isinstance(value, str) else f"expected text, got {described(value)}"


def _json_text(value: object) -> tuple[object, str | None]:
    return value, None if isinstance(value, str) and value else any_text(value or None)[1]


_JSON_TEXT: Final[Any] = object()
_SCALARS: Final[Mapping[object, Reading]] = {
    str: _text,
    FileText: _file_text,
    int: _only(int),
    bool: _only(bool),
    Decimal: _exact,
    datetime: _moment,
    date: _day,
    _JSON_TEXT: _json_text,
}


def _fields(cls: type) -> tuple[Field[Any], ...]:
    return fields(cls)


@cache
def _hints(cls: type) -> Mapping[str, Any]:
    return get_type_hints(cls, include_extras=True)


def _keys(cls: type) -> str:
    return ", ".join(item.name for item in _fields(cls))


def _wanted(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        return _wanted(get_args(hint)[0])
    if get_origin(hint) is tuple:
        return "a list"
    if get_origin(hint) is Mapping:
        return "a mapping"
    if isinstance(hint, type) and is_dataclass(hint):
        return f"a mapping of {_keys(hint)}"
    return _WORDS.get(cast("object", hint), "text")


_WORDS: Final[Mapping[object, str]] = {
    int: "a whole number",
    bool: "true or false",
    Decimal: "a number",
    datetime: "a time",
    date: "a day, YYYY-MM-DD",
}


def described(value: object) -> str:
    """What came, as an error shows it."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, bytes):
        return "binary data"
    if isinstance(value, str):
        short = value[:_SHOWN_CHARACTERS]
        return f"text {short!r}" + (f"... of {len(value):,} characters" if short != value else "")
    return str(value).lower() if isinstance(value, bool) else f"number {value}"
