"""Which changes of a declaration need a new resource: immutable fields, and another parent."""

from __future__ import annotations

import re
from typing import Any, Final

from google.protobuf.descriptor import Descriptor

from infra.nebius.resource_type import ResourceType
from infra.nebius.schema import Schema, is_map
from infra.plugins.provider import Diff, compare

_STEP: Final = re.compile(r'\["((?:[^"\\]|\\.)*)"\]|\[(\d+)\]|([^.\[]+)')
_STABLE: Final = ("id",)


def find_changes(kind: ResourceType, old: dict[str, Any], new: dict[str, Any]) -> Diff:
    """The difference between two declarations in canonical spelling."""
    changes = compare(old, new)
    replaces = []
    for path in changes:
        if path == "metadata.parent_id":
            replaces.append(path)
        elif (immutable := _immutable(kind.schema, kind.resource, path)) is not None:
            replaces.append(immutable)
    return Diff(
        replaces=tuple(dict.fromkeys(replaces)),
        detailed=changes,
        stables=_STABLE,
        delete_before_replace=True,
    )


def _immutable(schema: Schema, resource: Descriptor, path: str) -> str | None:
    """The shortest part of the path that names an immutable field, or None."""
    type_: Descriptor | None = resource
    for step in _STEP.finditer(path):
        name = step.group(3)
        if name is None or type_ is None:
            continue
        field = type_.fields_by_name.get(name)
        if field is None:
            return None
        if "IMMUTABLE" in schema.behaviors(field):
            return path[: step.end()]
        # The keys of a map are not fields; its values are not immutable one by one.
        type_ = None if is_map(field) else field.message_type
    return None
