"""Plain values <-> messages of the API, with the path of every value that does not fit.

Inputs may be written as people write them: enums as `network-ssd` or NETWORK_SSD, int64 as numbers,
durations as `90s`, `15m` or `1h30m`. `canonical` gives the one spelling that goes to the state.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from infra.nebius.schema import Schema, enum_of, is_map, message_of
from infra.plugins.provider import UNKNOWN, Secret

_DURATION: Final = "google.protobuf.Duration"
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_UNIT_S: Final = {"h": 3600, "m": 60, "s": 1}
_INTEGERS: Final = frozenset(
    {
        FieldDescriptor.CPPTYPE_INT32,
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT32,
        FieldDescriptor.CPPTYPE_UINT64,
    }
)
_FLOATS: Final = frozenset({FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE})


@dataclass
class Reading:
    """What was found while a mapping was read into a message."""

    problems: list[tuple[str, str]] = field(default_factory=list)
    """(path, reason) of each value that does not fit."""
    unknown: list[str] = field(default_factory=list)
    """Paths of values that are known only later."""

    def refuse(self, path: str, reason: str) -> None:
        """Notes a value that does not fit."""
        self.problems.append((path, reason))


def fill(schema: Schema, message: Any, values: Any, path: str, reading: Reading) -> None:
    """Sets the message's fields from a mapping; unknown values stay unset."""
    if not isinstance(values, Mapping):
        reading.refuse(path, f"{values!r} is no mapping")
        return
    for key, value in values.items():
        at = f"{path}.{key}" if path else str(key)
        own = message.DESCRIPTOR.fields_by_name.get(key)
        if own is None:
            reading.refuse(at, unknown_key(key, message.DESCRIPTOR.fields_by_name))
        elif value is UNKNOWN:
            reading.unknown.append(at)
            if own.containing_oneof is not None:
                reading.unknown.append(f"{path}.{own.containing_oneof.name}")
        elif value is not None:
            _fill_field(schema, message, own, value, at, reading)


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Why a key is refused, with the nearest name or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(key, names, n=1)
    return f"unknown; did you mean {near[0]}?" if near else f"unknown; has {', '.join(names)}"


def _fill_field(
    schema: Schema, message: Any, own: FieldDescriptor, value: Any, at: str, reading: Reading
) -> None:
    oneof = own.containing_oneof
    if oneof is not None and message.WhichOneof(oneof.name) not in (None, own.name):
        other = message.WhichOneof(oneof.name)
        reading.refuse(at, f"excludes {other}; declare one of the two")
    elif is_map(own):
        _fill_map(schema, getattr(message, own.name), own, value, at, reading)
    elif own.is_repeated:
        _fill_list(schema, getattr(message, own.name), own, value, at, reading)
    elif own.message_type is None:
        scalar = _scalar(own, value, at, reading)
        if scalar is not None:
            setattr(message, own.name, scalar)
    else:
        below = getattr(message, own.name)
        below.SetInParent()
        _fill_message(schema, below, own.message_type, value, at, reading)


def _fill_message(
    schema: Schema, message: Any, type_: Descriptor, value: Any, at: str, reading: Reading
) -> None:
    if type_.full_name == _DURATION:
        seconds = _seconds(value)
        if seconds is None:
            reading.refuse(at, f"{value!r} is no duration; write 90s, 15m or 1h30m")
        else:
            message.FromMilliseconds(round(seconds * 1000))
    elif type_.full_name == _TIMESTAMP:
        try:
            message.FromDatetime(datetime.fromisoformat(value))
        except (TypeError, ValueError):
            reading.refuse(at, f"{value!r} is no time; write 2026-01-31T12:00:00Z")
    else:
        fill(schema, message, value, at, reading)


def _fill_map(
    schema: Schema, target: Any, own: FieldDescriptor, value: Any, at: str, reading: Reading
) -> None:
    if not isinstance(value, Mapping):
        reading.refuse(at, f"{value!r} is no mapping")
        return
    item_type = message_of(own).fields_by_name["value"]
    for key, item in value.items():
        if item is UNKNOWN:
            reading.unknown.append(f"{at}.{key}")
        elif item_type.message_type is not None:
            fill(schema, target[key], item, f"{at}.{key}", reading)
        elif (scalar := _scalar(item_type, item, f"{at}.{key}", reading)) is not None:
            target[key] = scalar


def _fill_list(
    schema: Schema, target: Any, own: FieldDescriptor, value: Any, at: str, reading: Reading
) -> None:
    if not isinstance(value, list):
        reading.refuse(at, f"{value!r} is no list")
        return
    for index, item in enumerate(value):
        where = f"{at}[{index}]"
        if item is UNKNOWN:
            reading.unknown.append(where)
        elif own.message_type is not None:
            _fill_message(schema, target.add(), own.message_type, item, where, reading)
        elif (scalar := _scalar(own, item, where, reading)) is not None:
            target.append(scalar)


def _scalar(own: FieldDescriptor, value: Any, at: str, reading: Reading) -> Any:
    """The value as the field holds it, or None where it does not fit."""
    if own.enum_type is not None:
        return _enum_number(own, value, at, reading)
    kind = own.cpp_type
    if kind in _INTEGERS:
        if isinstance(value, str) and re.fullmatch(r"-?\d+", value):
            return int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        reading.refuse(at, f"{value!r} is no whole number")
    elif kind in _FLOATS:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        reading.refuse(at, f"{value!r} is no number")
    elif kind == FieldDescriptor.CPPTYPE_BOOL:
        if isinstance(value, bool):
            return value
        reading.refuse(at, f"{value!r} is neither true nor false")
    elif isinstance(value, str):
        return value.encode() if own.type == FieldDescriptor.TYPE_BYTES else value
    else:
        reading.refuse(at, f"{value!r} is no text")
    return None


def _enum_number(own: FieldDescriptor, value: Any, at: str, reading: Reading) -> int | None:
    by_name = enum_of(own).values_by_name
    name = str(value).upper().replace("-", "_")
    if name in by_name:
        return by_name[name].number
    allowed = [
        known.name.lower().replace("_", "-") for known in enum_of(own).values if known.number
    ]
    reading.refuse(at, f"{value!r} is not one of {', '.join(allowed)}")
    return None


def _seconds(value: Any) -> float | None:
    """Seconds of `1h30m`, `90s`, `5400` or None."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", value) if isinstance(value, str) else []
    if not parts or "".join(number + unit for number, unit in parts) != value:
        return None
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)


def plain(schema: Schema, message: Any) -> dict[str, Any]:
    """Every set field as plain values; what may hold a secret comes as Secret."""
    return {
        own.name: Secret(found) if schema.is_sensitive(own) else found
        for own, found in ((own, _plain(schema, own, value)) for own, value in message.ListFields())
    }


def _plain(schema: Schema, own: FieldDescriptor, value: Any) -> Any:
    if is_map(own):
        item = message_of(own).fields_by_name["value"]
        return {str(key): _plain_item(schema, item, value[key]) for key in sorted(value)}
    if own.is_repeated:
        return [_plain_item(schema, own, item) for item in value]
    return _plain_item(schema, own, value)


def _plain_item(schema: Schema, own: FieldDescriptor, value: Any) -> Any:
    if own.enum_type is not None:
        known = own.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    if own.message_type is None:
        return value.decode(errors="replace") if isinstance(value, bytes) else value
    if own.message_type.full_name == _DURATION:
        return f"{value.ToMilliseconds() / 1000:g}s"
    if own.message_type.full_name in (_TIMESTAMP, "google.protobuf.FieldMask"):
        return value.ToJsonString()
    return plain(schema, value)


def canonical(schema: Schema, type_: Descriptor, values: Any) -> Any:
    """A mapping that `fill` accepts, with every value in its one spelling; UNKNOWN stays."""
    found = {}
    for key, value in values.items():
        if value is not None:
            found[key] = _canonical(schema, type_.fields_by_name[key], value)
    return found


def _canonical(schema: Schema, own: FieldDescriptor, value: Any) -> Any:
    if value is UNKNOWN:
        return value
    if is_map(own):
        item = message_of(own).fields_by_name["value"]
        return {key: _canonical_item(schema, item, one) for key, one in value.items()}
    if own.is_repeated:
        return [_canonical_item(schema, own, item) for item in value]
    return _canonical_item(schema, own, value)


def _canonical_item(schema: Schema, own: FieldDescriptor, value: Any) -> Any:
    if value is UNKNOWN:
        return value
    if own.message_type is not None and not own.message_type.full_name.startswith("google."):
        return canonical(schema, own.message_type, value)
    reading = Reading()
    if own.message_type is not None:
        message: Any = schema.message(own.message_type.full_name)()
        _fill_message(schema, message, own.message_type, value, "", reading)
        return _plain_item(schema, own, message)
    return _plain_item(schema, own, _scalar(own, value, "", reading))
