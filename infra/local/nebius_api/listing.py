"""Get by name, list, filters and paging, over any resource type."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from infra.local.nebius_api.errors import bad_request, unimplemented
from infra.local.nebius_api.store import Store
from infra.nebius.schema import Schema

_PAGING: Final = frozenset({"page_size", "page_token", "view"})
_PAGE: Final = 1000
# Request fields whose name is not the name of the resource's field.
_ALIASES: Final = {"group_id": "parent_id", "subject_id": "member_id", "disk_id": "source_disk_id"}


def select(schema: Schema, store: Store, request: Any, resource: Descriptor) -> list[Any]:
    """Resources of a type for which every filter field of the request is equal."""
    conditions = [
        (*_filtered_part(resource, request, field), value)
        for field, value in request.ListFields()
        if field.name not in _PAGING
    ]
    return [
        one
        for one in store.of_kind(schema.kind(resource))
        if all(getattr(getattr(one, part), name) == value for part, name, value in conditions)
    ]


def _filtered_part(resource: Descriptor, request: Any, field: FieldDescriptor) -> tuple[str, str]:
    """Part of the resource (metadata, spec or status) and name of the field that a filter means."""
    name = _ALIASES.get(field.name, field.name)
    for part in ("metadata", "spec", "status"):
        found = resource.fields_by_name.get(part)
        if found is None or found.message_type is None:
            continue
        if name in found.message_type.fields_by_name:
            return part, name
    raise unimplemented(f"filter {request.DESCRIPTOR.full_name}.{field.name}")


def fill_page(request: Any, response: Any, field: str, items: list[Any]) -> Any:
    """The response with one page of the items, and the token of the next."""
    size = int(getattr(request, "page_size", 0) or _PAGE)
    start = _offset(getattr(request, "page_token", ""))
    getattr(response, field).extend(items[start : start + size])
    if start + size < len(items) and hasattr(response, "next_page_token"):
        response.next_page_token = base64.b64encode(str(start + size).encode()).decode()
    return response


def _offset(token: str) -> int:
    try:
        return int(base64.b64decode(token, validate=True) or 0)
    except (ValueError, binascii.Error):
        raise bad_request([("page_token", f"{token!r} is none of ours")]) from None


def as_type(schema: Schema, resource: Any, wanted: Descriptor) -> Any:
    """The resource as another API version shows it: iam has two views of one resource."""
    if resource.DESCRIPTOR is wanted:
        return resource
    body = json_format.MessageToDict(
        resource, preserving_proto_field_name=True, descriptor_pool=schema.pool
    )
    other = schema.message(wanted.full_name)()
    return json_format.ParseDict(
        body, other, ignore_unknown_fields=True, descriptor_pool=schema.pool
    )
