"""Labels that tell which resource of which stack this is; on the wire and never in the inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

Values = dict[str, Any]
MANAGER: Final = "soperator-stack"
_RESOURCE: Final = "resource"
_LABELS: Final = ("managed-by", "stack", "project", _RESOURCE)


def stack_labels(stack: str, project: str) -> dict[str, str]:
    """The labels that every resource of one stack carries."""
    return dict(zip(_LABELS, (MANAGER, stack, project), strict=False))


def labels(urn: str) -> dict[str, str]:
    """Ownership labels of a URN such as `urn:pulumi:<stack>::<project>::<type>::<name>`."""
    stack, project, place = urn.removeprefix("urn:pulumi:").split("::", 2)
    # One name can stand for two resources while the program is reordered: the old one is deleted
    # after the new one was made, so the new one must never take it over.
    return {
        **stack_labels(stack, project),
        _RESOURCE: hashlib.sha256(place.encode()).hexdigest()[:16],
    }


def is_ours(found: Mapping[str, str]) -> bool:
    """Whether labels name this program."""
    return found.get("managed-by") == MANAGER


def is_of(found: Mapping[str, str], stack: str, project: str) -> bool:
    """Whether labels name this stack of this Pulumi project."""
    return stack_labels(stack, project).items() <= found.items()


def foreign(found: Mapping[str, str], urn: str) -> str | None:
    """Why a resource with these labels is not the one of the URN; None where it is.

    Labels of the stack alone are what `soperator adopt` leaves: whoever has the name may take it.
    """
    own = labels(urn)
    if not is_ours(found):
        return "which no stack of this program made"
    if not is_of(found, own["stack"], own["project"]):
        stack, project = found.get("stack"), found.get("project")
        return f"which belongs to stack {stack!r} of Pulumi project {project!r}"
    if found.get(_RESOURCE, own[_RESOURCE]) != own[_RESOURCE]:
        return "which is another resource of this stack"
    return None


def add(inputs: Values, urn: str) -> Values:
    """The inputs with ownership labels; a label that the user declares wins."""
    metadata = inputs["metadata"]
    declared = metadata.get("labels") or {}
    return {**inputs, "metadata": {**metadata, "labels": {**labels(urn), **declared}}}


def remove(values: Values) -> Values:
    """The values without ownership labels."""
    metadata = dict(values.get("metadata", {}))
    found = metadata.get("labels", {})
    if is_ours(found):
        metadata["labels"] = {key: value for key, value in found.items() if key not in _LABELS}
    return {**values, "metadata": metadata}
