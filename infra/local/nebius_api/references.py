"""Which resource an id inside a message names, read from the `nid` options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from infra.local.nebius_api.errors import bad_request, bad_state, not_found
from infra.local.nebius_api.store import Store
from infra.nebius.schema import Schema, is_google, is_map


def walk(message: Any, path: str = "") -> Iterator[tuple[str, FieldDescriptor, Any]]:
    """(path, field, value) of every set field, at every depth."""
    for field, value in message.ListFields():
        at = f"{path}.{field.name}" if path else field.name
        yield at, field, value
        if field.message_type is None or is_google(field.message_type):
            continue
        if is_map(field):
            if field.message_type.fields_by_name["value"].message_type is not None:
                for key in value:
                    yield from walk(value[key], f"{at}.{key}")
        elif field.is_repeated:
            for index, item in enumerate(value):
                yield from walk(item, f"{at}.{index}")
        else:
            yield from walk(value, at)


def references(schema: Schema, message: Any) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """(path, kinds that it may name, id) of every reference in the message."""
    for path, field, value in walk(message):
        if field.type != FieldDescriptor.TYPE_STRING or is_map(field):
            continue
        kinds = schema.ids_named(field)[0]
        if kinds and kinds != ("*",):
            for id_ in value if field.is_repeated else [value]:
                yield path, kinds, id_


def check_references(schema: Schema, store: Store, request: Any) -> None:
    """Refuses an id that names nothing, or a resource of another kind."""
    for path, kinds, id_ in references(schema, request):
        if path == "metadata.parent_id" or not schema.kinds.intersection(kinds):
            continue
        target = store.resources.get(id_)
        if target is None or schema.kind(target.DESCRIPTOR) not in kinds:
            raise not_found(f"{path}: {'/'.join(kinds)} {id_!r} not found", id_)


def check_parent(schema: Schema, store: Store, request: Any) -> None:
    """Refuses a new resource whose parent is missing or of another kind."""
    allowed = schema.ids_named(request.DESCRIPTOR.fields_by_name["metadata"])[1]
    parent_id = request.metadata.parent_id
    if not parent_id:
        raise bad_request([("metadata.parent_id", "value is required")])
    parent = store.resources.get(parent_id)
    if parent is None:
        raise not_found(f"metadata.parent_id: {parent_id!r} not found", parent_id)
    kind = schema.kind(parent.DESCRIPTOR)
    if allowed and kind not in allowed:
        reason = f"must name one of {', '.join(allowed)}; {parent_id} is a {kind}"
        raise bad_request([("metadata.parent_id", reason)])


def check_unused(schema: Schema, store: Store, id_: str) -> None:
    """Refuses the deletion of a resource that another one names or lives in."""
    for other in store.resources.values():
        if other.metadata.id == id_:
            continue
        named = hasattr(other, "spec") and any(
            target == id_ for _, _, target in references(schema, other.spec)
        )
        if named or other.metadata.parent_id == id_:
            name = f"{other.metadata.name} ({other.metadata.id})".lstrip()
            raise bad_state(id_, f"{id_} is in use by {name}")
