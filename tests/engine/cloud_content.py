"""Everything that an emulated cloud holds, in words that two clouds can be compared by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format

from infra.local.nebius_api.states import Store

Content = dict[str, Any]
_FLEETING = ("created_at", "updated_at", "resource_version", "id")
"""Metadata that differs between two runs of the same program."""


def content(store: Store, ignored: Mapping[str, Any]) -> Content:
    """Every resource but the `ignored` ids, each by kind, parent and name; ids become those."""
    made = {id_: one for id_, one in store.resources.items() if id_ not in ignored}
    known = {id_: _called(one) for id_, one in made.items()}
    found: Content = {}
    for id_, resource in made.items():
        body = json_format.MessageToDict(resource, preserving_proto_field_name=True)
        for key in _FLEETING:
            body["metadata"].pop(key, None)
        # A list: two resources of one name would be a duplicate, and must not hide each other.
        found.setdefault(known[id_], []).append(_renamed(body, known))
    return found


def unfinished(store: Store) -> list[str]:
    """Operations that still run."""
    return [id_ for id_, operation in store.operations.items() if not operation.done]


def _called(resource: Any) -> str:
    return f"{resource.DESCRIPTOR.full_name} {resource.metadata.name}"


def _renamed(value: Any, known: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _renamed(one, known) for key, one in value.items()}
    if isinstance(value, list):
        return [_renamed(one, known) for one in value]
    if isinstance(value, str):
        return re.sub(r"[a-z0-9]+-e00[0-9a-z]+", lambda id_: known.get(id_[0], id_[0]), value)
    return value
