"""Labels that tell which stack made a resource; they are on the wire and never in the inputs."""

from __future__ import annotations

from typing import Any, Final

Values = dict[str, Any]
_MANAGER: Final = "soperator-stack"
_LABELS: Final = ("managed-by", "stack", "project")


def labels(urn: str) -> dict[str, str]:
    """Ownership labels of a URN such as `urn:pulumi:<stack>::<project>::<type>::<name>`."""
    stack, project = urn.removeprefix("urn:pulumi:").split("::")[:2]
    return dict(zip(_LABELS, (_MANAGER, stack, project), strict=True))


def add(inputs: Values, urn: str) -> Values:
    """The inputs with ownership labels; a label that the user declares wins."""
    metadata = inputs["metadata"]
    declared = metadata.get("labels") or {}
    return {**inputs, "metadata": {**metadata, "labels": {**labels(urn), **declared}}}


def remove(values: Values) -> Values:
    """The values without ownership labels."""
    metadata = dict(values.get("metadata", {}))
    found = metadata.get("labels", {})
    if found.get("managed-by") == _MANAGER:
        metadata["labels"] = {key: value for key, value in found.items() if key not in _LABELS}
    return {**values, "metadata": metadata}
