"""Which changes of a declaration need a new resource, and which no resource takes.

Immutable fields and another parent need a new one; a smaller disk or filesystem is refused.
"""

from __future__ import annotations

import re
from typing import Any, Final

from google.protobuf.descriptor import Descriptor

from infra.nebius.resource_type import SIZES, ResourceType
from infra.nebius.schema import Schema, is_map
from infra.plugins.provider import Diff, Failure, compare

_STEP: Final = re.compile(r'\["((?:[^"\\]|\\.)*)"\]|\[(\d+)\]|([^.\[]+)')
_STABLE: Final = ("id",)
# No rule in the descriptors says so, but what lies beyond the new end would be lost.
_NEVER_SHRINK: Final = ("computedisk", "computefilesystem")
_GIB: Final = 1 << 30


def find_changes(kind: ResourceType, old: dict[str, Any], new: dict[str, Any]) -> Diff:
    """The difference between two declarations in canonical spelling."""
    changes = compare(old, new)
    replaces = []
    for path in changes:
        # When a parent is replaced, the engine asks with all metadata of its children unknown.
        if path in ("metadata", "metadata.parent_id"):
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


def shrunk(kind: ResourceType, old: dict[str, Any], new: dict[str, Any]) -> list[Failure]:
    """Sizes that a disk or filesystem cannot be reduced to; a replacement may have any size."""
    if kind.schema.kind(kind.resource) not in _NEVER_SHRINK:
        return []
    before, after = _size(old), _size(new)
    if before is None or after is None or after[1] >= before[1]:
        return []
    if find_changes(kind, old, new).replaces:
        return []
    sizes = f"{after[1] / _GIB:g} GiB, but it has {before[1] / _GIB:g} GiB"
    advice = f"declare {before[1] / _GIB:g} GiB or more, or copy the data to a new one"
    return [(f"spec.{after[0]}", f"{sizes} and cannot shrink; {advice}")]


def _size(inputs: dict[str, Any]) -> tuple[str, int] | None:
    """The declared size: its field and bytes."""
    spec = inputs.get("spec")
    for name, unit_bytes in SIZES.items():
        value = spec.get(name) if isinstance(spec, dict) else None
        if isinstance(value, int):
            return name, value * unit_bytes
    return None
