"""Create, update and delete of any resource, with every check before the first change."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable
from typing import Any, Final

from google.protobuf.descriptor import Descriptor
from nebius.base.fieldmask_parser import parse as parse_mask

from infra.local.nebius_api import references
from infra.local.nebius_api.errors import (
    already_exists,
    bad_request,
    bad_state,
    not_found,
    version_conflict,
)
from infra.local.nebius_api.listing import as_type
from infra.local.nebius_api.mutate import changed_immutables, merge, strip, submask
from infra.local.nebius_api.operations import Operations
from infra.local.nebius_api.rules import check_rules
from infra.local.nebius_api.states import set_state
from infra.local.nebius_api.store import Store
from infra.local.nebius_api.usage import check_quota
from infra.nebius.schema import Schema
from infra.nebius.validation import Validator

_OWNED_BY_SERVER: Final = ("id", "parent_id", "resource_version", "created_at", "updated_at")


class Changes:
    """Changes to one store."""

    def __init__(
        self, schema: Schema, store: Store, operations: Operations, clock: Callable[[], float]
    ) -> None:
        self._schema = schema
        self._store = store
        self._operations = operations
        self._clock = clock
        self._validator = Validator(schema)

    def get(self, id_: str) -> Any:
        """The resource of this id; refused where there is none."""
        resource = self._store.resources.get(id_)
        if resource is None:
            raise not_found(f"resource {id_!r} not found", id_)
        return resource

    def create(self, request: Any, resource: Descriptor) -> str:
        """Adds what the request describes, in its first state; the new id."""
        self._validate(request)
        references.check_parent(self._schema, self._store, request)
        references.check_references(self._schema, self._store, request)
        new: Any = self._schema.message(resource.full_name)()
        for part, value in request.ListFields():
            own = resource.fields_by_name.get(part.name)
            if own is None or own.message_type is None:
                continue
            if own.message_type is part.message_type:
                getattr(new, part.name).CopyFrom(value)
        strip(self._schema, new, "OUTPUT_ONLY")
        strip(self._schema, new, "INPUT_ONLY")
        self._check_name_is_free(new)
        check_rules(self._schema, self._store, new)
        check_quota(self._schema, self._store, new)
        new.metadata.id = f"{self._schema.kind(resource)}-e00{uuid.uuid4().hex[:16]}"
        new.metadata.resource_version = 1
        now = self._operations.timestamp(self._clock())
        new.metadata.created_at.CopyFrom(now)
        new.metadata.updated_at.CopyFrom(now)
        set_state(self._schema, new, "creating")
        self._store.put(new)
        return new.metadata.id

    def _check_name_is_free(self, new: Any) -> None:
        kind, metadata = self._schema.kind(new.DESCRIPTOR), new.metadata
        if self._schema.is_unnamed(new.DESCRIPTOR) or not metadata.name:
            return
        other = self._store.find(kind, parent_id=metadata.parent_id, name=metadata.name)
        if other is not None:
            raise already_exists(f"{kind} {metadata.name!r}", other.metadata.id)

    def update(self, request: Any, resource: Descriptor, metadata: dict[str, str]) -> str:
        """Changes what the request sets and its reset mask clears; the id."""
        old = as_type(self._schema, self.get(request.metadata.id), resource)
        version = request.metadata.resource_version
        if version not in (0, old.metadata.resource_version):
            raise version_conflict(old.metadata.id, old.metadata.resource_version, version)
        self._operations.check_idle(old.metadata.id)
        mask = parse_mask(metadata.get("x-resetmask", ""))
        new = copy.deepcopy(old)
        for part in request.DESCRIPTOR.fields:
            own = resource.fields_by_name.get(part.name)
            if part.message_type is None or own is None:
                continue
            if own.message_type is not part.message_type:
                continue
            below = submask(mask, part.name)
            if request.HasField(part.name):
                merge(getattr(new, part.name), getattr(request, part.name), below)
            elif below is not None:
                new.ClearField(part.name)
        for name in _OWNED_BY_SERVER:
            new.metadata.ClearField(name)
        for own, value in old.metadata.ListFields():
            if own.name in _OWNED_BY_SERVER and own.message_type is None:
                setattr(new.metadata, own.name, value)
            elif own.name in _OWNED_BY_SERVER:
                getattr(new.metadata, own.name).CopyFrom(value)
        self._validate(request, exempt="metadata.parent_id")
        references.check_references(self._schema, self._store, request)
        if changed := list(changed_immutables(self._schema, old, new)):
            raise bad_request((path, "field is immutable") for path in changed)
        check_rules(self._schema, self._store, new)
        check_quota(self._schema, self._store, new, old)
        if new != old:
            new.metadata.resource_version += 1
            new.metadata.updated_at.CopyFrom(self._operations.timestamp(self._clock()))
        set_state(self._schema, new, "updating")
        self._store.put(new)
        return new.metadata.id

    def delete(self, id_: str) -> str:
        """Begins the deletion; the operation's end completes it."""
        resource = self.get(id_)
        if getattr(getattr(resource, "spec", None), "forbid_deletion", False):
            raise bad_state(id_, f"{id_} has forbid_deletion set")
        self._operations.check_idle(id_)
        references.check_unused(self._schema, self._store, id_)
        set_state(self._schema, resource, "deleting")
        self._store.put(resource)
        return id_

    def _validate(self, request: Any, exempt: str | None = None) -> None:
        """Refuses what breaks a buf.validate rule; the SDK's own updates leave out `exempt`."""
        found = [one for one in self._validator.violations(request) if one[0] != exempt]
        if found:
            raise bad_request(found)
