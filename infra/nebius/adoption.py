"""What a create does about a resource that is there already: take it over, or say why not.

Owns the look-up by parent and name and the conditions of a takeover (docs/adr/0014, 0022). Changes
nothing: the provider updates what it adopts.
"""

from __future__ import annotations

from typing import Any, Final

from infra.nebius import ownership
from infra.nebius.api import Api
from infra.nebius.diff import find_changes, shrunk
from infra.nebius.errors import ApiError
from infra.nebius.resource_type import ResourceType
from infra.nebius.values import plain

Values = dict[str, Any]
_ADVICE: Final = "; rename this one, delete the other, or, where it is yours, `soperator adopt` it"
_LISTS: Final = {"List": "items", "ListMembers": "memberships"}
"""Methods that list what is under a parent, and the field of their answer."""
_LEAVING: Final = "DELET"
"""In every state of a resource that is being deleted, by whatever service."""


def find_namesake(api: Api, kind: ResourceType, inputs: Values) -> Any | None:
    """The live resource of the same name under the same parent, or None."""
    metadata = inputs["metadata"]
    if not metadata.get("name") or kind.schema.is_unnamed(kind.resource):
        return None
    if "GetByName" not in kind.service.methods_by_name:
        return None
    request = api.request(
        kind.service, "GetByName", parent_id=metadata["parent_id"], name=metadata["name"]
    )
    try:
        found = api.call(kind.service, "GetByName", request)
    except ApiError as error:
        if error.is_not_found:
            return None
        raise
    state = plain(kind.schema, found).get("status", {}).get("state")
    return None if isinstance(state, str) and _LEAVING in state.upper() else found


def declared_as(kind: ResourceType, found: Values, inputs: Values) -> Values:
    """The declaration that fits what is there, in the terms of the new declaration."""
    return kind.inputs_of(ownership.remove(found), inputs)


def obstacle(kind: ResourceType, found: Values, inputs: Values, urn: str) -> str | None:
    """Why the declaration cannot take over what is there; None where it can."""
    metadata = found["metadata"]
    taken = f"this name is taken by {metadata['id']}"
    stranger = ownership.foreign(metadata.get("labels", {}), urn)
    if stranger is not None:
        return f"{taken}, {stranger}{_ADVICE}"
    problem = mismatch(kind, found, inputs)
    if problem is None:
        return None
    return (
        f"{taken}, which an earlier run of this stack made and kept: {problem}; to start empty, "
        f"delete it with `soperator leftovers --purge {metadata['id']}`"
    )


def mismatch(kind: ResourceType, found: Values, inputs: Values) -> str | None:
    """What is there and cannot be made as declared; None where nothing is."""
    now = declared_as(kind, found, inputs)
    replaces = find_changes(kind, now, inputs).replaces
    if replaces:
        fixed = "; ".join(_change(path, now, inputs) for path in replaces)
        return f"{fixed} cannot be changed in place; declare what is there"
    return "; ".join(f"{path}: {reason}" for path, reason in shrunk(kind, now, inputs)) or None


def _change(path: str, now: Values, new: Values) -> str:
    return f"{path} ({_at(now, path)} -> {_at(new, path)})"


def _at(values: Any, path: str) -> Any:
    for step in path.split("."):
        values = values.get(step) if isinstance(values, dict) else None
    return values


def find_twin(api: Api, kind: ResourceType, inputs: Values, urn: str) -> Any | None:
    """What an earlier run of the same declaration made of a type that has no names; or None.

    By its labels, or, where nothing of it can change, by being what is declared.
    """
    listing = next((name for name in _LISTS if name in kind.service.methods_by_name), None)
    if listing is None or not kind.schema.is_unnamed(kind.resource):
        return None
    is_fixed = "Update" not in kind.service.methods_by_name
    parent_id, page = inputs["metadata"]["parent_id"], ""
    while True:
        request = api.request(kind.service, listing, parent_id=parent_id, page_token=page)
        answer = api.call(kind.service, listing, request)
        for found in getattr(answer, _LISTS[listing]):
            values = plain(kind.schema, found)
            if ownership.labels(urn).items() <= values["metadata"].get("labels", {}).items():
                return found
            if is_fixed and declared_as(kind, values, inputs)["spec"] == inputs["spec"]:
                return found
        page = answer.next_page_token
        if not page:
            return None


def is_told_once(kind: ResourceType) -> bool:
    """Whether the status holds a secret that a later read may not show again."""
    status = kind.resource.fields_by_name.get("status")
    if status is None or status.message_type is None:
        return False
    return any(kind.schema.is_sensitive(field) for field in status.message_type.fields)
