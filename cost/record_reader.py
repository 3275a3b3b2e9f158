"""Reads the values of one JSON object of a run; errors name the file and the key.

Owns kinds of values and their bounds. Which keys there are is run_record.py's and load_curve.py's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Final, NoReturn, TypeGuard

from stacks.errors import UserError

_LEAST: Final = -30
_MOST: Final = 15
"""Powers of ten between which a measurement lies that is not 0."""


class RunRecordError(UserError):
    """A file that is not a run record of this schema."""


def read_object(text: str, path: str) -> Mapping[str, object]:
    """The JSON object in the text, numbers as decimals; `path` names it in errors."""
    try:
        document: object = json.loads(
            text, parse_float=Decimal, parse_int=Decimal, parse_constant=_refuse_constant
        )
    except (json.JSONDecodeError, RecursionError, RunRecordError) as error:
        raise RunRecordError(f"{path}: not valid JSON: {error}") from error
    if not is_map(document):
        raise RunRecordError(f"{path}: expected one JSON object")
    return document


def check_version(document: Mapping[str, object], path: str, expected: int) -> None:
    """Refuses an object of another schema version."""
    version = document.get("schema_version")
    if isinstance(version, bool) or version != expected:
        raise RunRecordError(
            f"{path}: schema_version: got {version}, expected {expected}; "
            "run the job again with this version, or read it with the one that wrote it"
        )


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the values of one object; errors name the file and the key."""

    values: Mapping[str, object]
    path: str
    prefix: str = ""

    def refuse(self, key: str, wanted: str) -> NoReturn:
        """Raises what was expected under the key and what is there."""
        got = json.dumps(self.values.get(key), default=str)[:60]
        raise RunRecordError(f"{self.path}: {self.prefix}{key}: expected {wanted}, got {got}")

    def text(self, key: str) -> str:
        """The text, not empty."""
        value = self.values.get(key)
        if not isinstance(value, str) or not value:
            self.refuse(key, "text")
        return value

    def text_or_none(self, key: str) -> str | None:
        """The text; None where it is null or missing."""
        return None if self.values.get(key) is None else self.text(key)

    def count(self, key: str, least: int = 0) -> int:
        """The whole number, from `least`."""
        value = self.values.get(key)
        if not isinstance(value, Decimal) or value.adjusted() > _MOST or value % 1 or value < least:
            self.refuse(key, f"a whole number of {least} or more")
        return int(value)

    def time(self, key: str) -> datetime:
        """The time; UTC where it says no zone."""
        text = self.text(key)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.refuse(key, "a time such as 2026-11-21T05:00:00Z")
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    def number(self, key: str) -> Decimal:
        """The number, 0 or of a size that a measurement has."""
        value = self.values.get(key)
        if not isinstance(value, Decimal) or not value.is_finite():
            self.refuse(key, "a number")
        if value and not _LEAST <= value.adjusted() <= _MOST:
            self.refuse(key, f"0 or a size from 1e{_LEAST} to 1e{_MOST}")
        return value

    def number_or_none(self, key: str) -> Decimal | None:
        """The number; None where it is null or missing."""
        return None if self.values.get(key) is None else self.number(key)

    def numbers(self) -> Mapping[str, Decimal]:
        """Every value of the object, all of them numbers."""
        return MappingProxyType({key: self.number(key) for key in self.values})

    def flag_or_none(self, key: str) -> bool | None:
        """True or false; None where it is null or missing."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            self.refuse(key, "true, false or null")
        return value

    def inner(self, key: str, wanted: str = "an object") -> Reader:
        """A reader of the object under the key."""
        value = self.values.get(key)
        if not is_map(value):
            self.refuse(key, wanted)
        return Reader(value, self.path, f"{self.prefix}{key}.")

    def each(self, key: str) -> tuple[Reader, ...]:
        """A reader of every object of the list under the key."""
        values = self.values.get(key)
        if not _is_list(values) or not all(map(is_map, values)):
            self.refuse(key, "a list of objects")
        return tuple(
            Reader(value, self.path, f"{self.prefix}{key}[{number}].")
            for number, value in enumerate(values)
            if is_map(value)
        )


def is_map(value: object) -> TypeGuard[Mapping[str, object]]:
    """Whether the value is a JSON object."""
    return isinstance(value, Mapping)


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def _refuse_constant(name: str) -> NoReturn:
    raise RunRecordError(f"{name} is not a number that JSON knows")
