"""Gives an existing resource the name and the labels under which the next `up` takes it over.

Owns the conditions and the one update. The place in the program is left open: the create that finds
the resource fills it in (adoption.py).
"""

from __future__ import annotations

from typing import Any

from infra.nebius import ownership
from infra.nebius.adoption import find_namesake, mismatch
from infra.nebius.api import Api
from infra.nebius.errors import ApiError
from infra.nebius.resource_type import ResourceType
from infra.nebius.values import plain

Values = dict[str, Any]


class HandoverError(Exception):
    """The resource cannot become the stack's; one line with what to do."""


def get(api: Api, kind: ResourceType, id_: str, *, project_id: str) -> Values:
    """The resource as plain values, which must stand in the project."""
    prefix = api.schema.kind(kind.resource)
    if not id_.startswith(f"{prefix}-"):
        raise HandoverError(
            f"{id_}: is no id of a {kind.name}, which starts with '{prefix}-'; copy it from the "
            "console"
        )
    request = api.request(kind.service, "Get", id=id_)
    try:
        found = plain(api.schema, api.call(kind.service, "Get", request))
    except ApiError as error:
        if not error.is_unseen:
            raise
        raise HandoverError(
            f"{id_}: is no {kind.name} that this credential can see; copy the id from the console, "
            f"among those of {project_id}"
        ) from error
    parent_id = found["metadata"].get("parent_id")
    if parent_id != project_id:
        raise HandoverError(
            f"{id_}: stands in {parent_id}, but the stack is in {project_id}; only resources of "
            "the stack's own project can be taken over"
        )
    return found


def refuse_other_owner(found: Values, *, stack: str, project: str) -> None:
    """Raises where the labels name another stack."""
    metadata = found["metadata"]
    labels = metadata.get("labels", {})
    if ownership.is_ours(labels) and not ownership.is_of(labels, stack, project):
        raise HandoverError(
            f"{metadata['id']}: belongs to stack {labels.get('stack')!r} of Pulumi project "
            f"{labels.get('project')!r}, which would go on changing it; destroy that stack or take "
            "the resource out of it first, and remove the label `managed-by`"
        )


def hand_over(
    api: Api, kind: ResourceType, found: Values, declared: Values, *, stack: str, project: str
) -> bool:
    """Names and labels it as what the stack declares; False where it already is.

    `declared` has metadata, and spec as far as it is known before an `up`.
    """
    refuse_other_owner(found, stack=stack, project=project)
    metadata = found["metadata"]
    labels, name = metadata.get("labels", {}), declared["metadata"]["name"]
    if ownership.is_of(labels, stack, project):
        if metadata.get("name") == name:
            return False
        raise HandoverError(
            f"{metadata['id']}: is {metadata.get('name')!r} of this stack already, not {name!r}"
        )
    problem = mismatch(kind, found, declared)
    if problem is not None:
        raise HandoverError(f"{metadata['id']}: {problem}")
    other = find_namesake(api, kind, declared)
    if other is not None and other.metadata.id != metadata["id"]:
        raise HandoverError(
            f"{metadata['id']}: the name {name!r} is taken by {other.metadata.id}; delete or "
            "rename that one first"
        )
    # An import's declaration: everything that the resource has, so that nothing else changes.
    everything = kind.inputs_of(found, {})
    changed = {
        **everything["metadata"],
        "name": name,
        "labels": {**labels, **ownership.stack_labels(stack, project)},
    }
    request = kind.update_request(metadata["id"], {**everything, "metadata": changed})
    operation = api.when_idle(kind.service, lambda: api.call(kind.service, "Update", request))
    api.wait(kind.service, operation)
    return True
