"""How an update changes a message: reset masks, immutable fields, fields that are not the caller's.

Source of the reset mask rules: README of github.com/nebius/api, section Update.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from infra.nebius.schema import Schema, is_google, is_map, message_of


def submask(mask: Any, key: str) -> Any:
    """The part of a mask below one key; None where the mask does not go there."""
    return None if mask is None else mask.field_parts.get(key, mask.any)


def merge(target: Any, source: Any, mask: Any) -> None:
    """Copies what `source` sets into `target`, and clears what `mask` names and it does not set."""
    for field in target.DESCRIPTOR.fields:
        below = submask(mask, field.name)
        if is_map(field):
            _merge_map(target, source, field, below)
        elif field.is_repeated:
            _merge_list(target, source, field, below)
        elif field.message_type is not None:
            _merge_message(target, source, field, below)
        elif _is_set(source, field):
            setattr(target, field.name, getattr(source, field.name))
        elif below is not None:
            target.ClearField(field.name)


def _is_set(message: Any, field: FieldDescriptor) -> bool:
    if field.has_presence:
        return message.HasField(field.name)
    return getattr(message, field.name) != field.default_value


def _merge_map(target: Any, source: Any, field: FieldDescriptor, mask: Any) -> None:
    old, new = getattr(target, field.name), getattr(source, field.name)
    if not new:
        if mask is not None:
            target.ClearField(field.name)
        return
    for key in [key for key in old if key not in new]:
        del old[key]
    for key in new:
        if message_of(field).fields_by_name["value"].message_type is None:
            old[key] = new[key]
        else:
            merge(old[key], new[key], submask(mask, str(key)))


def _merge_list(target: Any, source: Any, field: FieldDescriptor, mask: Any) -> None:
    old, new = getattr(target, field.name), getattr(source, field.name)
    if not new:
        if mask is not None:
            target.ClearField(field.name)
    elif field.message_type is None:
        old[:] = new
    else:
        del old[len(new) :]
        for index, item in enumerate(new):
            if index < len(old):
                merge(old[index], item, submask(mask, str(index)))
            else:
                old.add().CopyFrom(item)


def _merge_message(target: Any, source: Any, field: FieldDescriptor, mask: Any) -> None:
    if not source.HasField(field.name):
        if mask is not None:
            target.ClearField(field.name)
        return
    old, new = getattr(target, field.name), getattr(source, field.name)
    old.SetInParent()
    if is_google(message_of(field)):
        old.CopyFrom(new)
    else:
        merge(old, new, mask)


def changed_immutables(schema: Schema, old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Paths of immutable fields whose value differs."""
    for field in old.DESCRIPTOR.fields:
        at = f"{path}.{field.name}" if path else field.name
        immutable = "IMMUTABLE" in schema.behaviors(field)
        is_tree = field.message_type is not None and not field.is_repeated
        if is_tree and not is_google(message_of(field)):
            had, has = old.HasField(field.name), new.HasField(field.name)
            if immutable and had != has:
                yield at
            elif had and has:
                below = getattr(old, field.name), getattr(new, field.name)
                yield from changed_immutables(schema, *below, at)
        elif immutable and getattr(old, field.name) != getattr(new, field.name):
            yield at


def strip(schema: Schema, message: Any, behavior: str) -> None:
    """Removes every field of a behaviour: what a caller sends there is ignored."""
    for field, value in list(message.ListFields()):
        if behavior in schema.behaviors(field):
            message.ClearField(field.name)
        elif field.message_type is None or field.is_repeated:
            continue
        elif not is_google(field.message_type):
            strip(schema, value, behavior)
