"""Numbers that remember how they were computed: traced(spec) gives the same spec with such numbers.

What is computed from traced numbers is traced too, by the very code that makes the bill, so `cost
explain` restates no arithmetic: trace_of(number).expression gives it digit for digit. Everything
else sees plain ints and Decimals: `named` leaves a number that is not traced as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from decimal import Decimal
from typing import Any, Final, TypeVar, cast

from stacks.changes import name_key

_OPERATORS: Final[Mapping[str, Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,  # pyright: ignore[reportUnknownMemberType]
}
_RANKS: Final = {"+": 1, "-": 1, "*": 2, "/": 2, "": 3}
_Value = TypeVar("_Value")
_Number = TypeVar("_Number", bound=int | Decimal)
_Operation = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Where one number comes from: an operation on two others, or a name and a source."""

    value: int | Decimal
    sign: str = ""
    """One of + - * /; empty for a number that is given, or known under a name of its own."""
    parts: tuple[Trace, ...] = ()
    """Both sides of the operation; of a named number the one that was computed."""
    name: str = ""
    source: str = ""

    @property
    def expression(self) -> str:
        """Plain numbers, + - * / and parentheses, which give the value digit for digit."""
        return self._computed._written(lambda each: number(each.value))

    @property
    def formula(self) -> str:
        """The same in words, numbers without a name as they are."""
        words = self._computed._written(lambda each: each.name or number(each.value))
        return words.replace(" * ", " x ")

    @property
    def inputs(self) -> Iterator[Trace]:
        """Every number with a source that the expression holds, as often as it does."""
        inner = self._computed
        if inner.sign:
            for part in inner.parts:
                yield from (part,) if part.source else part.inputs
        elif inner.source:
            yield inner

    @property
    def _computed(self) -> Trace:
        return self.parts[0]._computed if self.parts and not self.sign else self

    def _written(self, leaf: Callable[[Trace], str]) -> str:
        if not self.sign:
            return leaf(self)
        rank = _RANKS[self.sign]
        left, right = (
            f"({part._written(leaf)})"
            # Without its parentheses the right side would be rounded at other places.
            if _RANKS[part.sign] < rank + place
            else part._written(leaf)
            for place, part in enumerate(self.parts)
        )
        return f"{left} {self.sign} {right}"


def _both(sign: str) -> tuple[_Operation, _Operation]:
    """The operation with the traced number on the left, and on the right."""
    return lambda a, b: _made(sign, a, b), lambda a, b: _made(sign, b, a)


class _Traced:
    """What a traced int and a traced Decimal have in common."""

    trace: Trace
    __add__, __radd__ = _both("+")
    __sub__, __rsub__ = _both("-")
    __mul__, __rmul__ = _both("*")
    __truediv__, __rtruediv__ = _both("/")


class _TracedInt(_Traced, int):
    """A whole number that remembers how it was computed."""


class _TracedDecimal(_Traced, Decimal):
    """A Decimal that remembers how it was computed."""


def named(
    value: _Number, name: str, source: str, *, beside: int | Decimal | None = None
) -> _Number:
    """The number under a name of its own, where it or the one `beside` it is traced.

    An expression of other numbers shows it as one number; its own one shows how it was computed.
    """
    if isinstance(value, _Traced):
        return _with(value, Trace(value=value, parts=(value.trace,), name=name, source=source))
    return leaf(value, name, source) if isinstance(beside, _Traced) else value


def given(value: _Number, name: str, source: str, *, beside: int | Decimal) -> _Number:
    """The number under the name where it has no trace of its own and the other one has."""
    return value if isinstance(value, _Traced) else named(value, name, source, beside=beside)


def decimal(value: int) -> Decimal:
    """The whole number as a Decimal, traced where it was."""
    plain = Decimal(value)
    return _with(plain, value.trace) if isinstance(value, _Traced) else plain


def leaf(value: _Number, name: str = "", source: str = "") -> _Number:
    """The number as one that is given."""
    return _with(value, Trace(value=value, name=name, source=source))


def leaves(item: _Value, source: str, **names: str) -> _Value:
    """The dataclass with each field of `names` that has a number as one given under that name."""
    values: dict[str, Any] = {field: getattr(item, field) for field in names}
    new = {
        field: leaf(each, names[field], source)
        for field, each in values.items()
        if each is not None
    }
    return replace(cast("Any", item), **new)


def trace_of(value: int | Decimal) -> Trace:
    """How the number was computed; one that is not traced is given."""
    return value.trace if isinstance(value, _Traced) else Trace(value=value)


def traced(value: _Value, key: str = "") -> _Value:
    """The value with every number in it traced to its config key."""
    found: object = value
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        name = key.rpartition(".")[2].replace("_", " ").replace(" gib", " GiB")
        found = leaf(value, name, key)
    elif is_dataclass(value) and not isinstance(value, type):
        given = {each.name: getattr(value, each.name) for each in fields(value)}
        inside = f"{key}." if key else ""
        new = {name: traced(each, f"{inside}{name}") for name, each in given.items()}
        found = replace(value, **new)
    elif isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        found = tuple(traced(each, f"{key}[{_called(each, at)}]") for at, each in enumerate(items))
    return cast("_Value", found)


def number(value: Decimal | int) -> str:
    """The number with every digit, without an exponent and without zeros at the end."""
    text = f"{value:f}" if isinstance(value, Decimal) else str(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _called(item: object, place: int) -> object:
    name = name_key(type(item))
    return place if name is None else getattr(item, name)


def _made(sign: str, left: Any, right: Any) -> Any:
    """The result of the operation, traced where it is a number."""
    value: Any = _OPERATORS[sign](_plain(left), _plain(right))
    if not isinstance(value, int | Decimal):
        return value
    # Sums begin at 0.
    if sign == "+" and not (left and right):
        sides = [each for each in (left, right) if each] or [left, right]
        return _with(value, trace_of(sides[0]))
    return _with(value, Trace(value=value, sign=sign, parts=(trace_of(left), trace_of(right))))


def _plain(value: object) -> object:
    if not isinstance(value, _Traced):
        return value
    return Decimal(value) if isinstance(value, Decimal) else int(cast("int", value))


def _with(value: _Number, trace: Trace) -> _Number:
    found: Any = (_TracedDecimal if isinstance(value, Decimal) else _TracedInt)(value)
    found.trace = trace
    return found
