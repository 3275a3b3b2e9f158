"""The real CRDs of Soperator 4.1.7 as strict JSON schemas: problems(object) -> what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema

from tests.unit.kube.test_crds import real

_PLURALS = {
    "SlurmCluster": "slurmclusters",
    "NodeSet": "nodesets",
    "ActiveCheck": "activechecks",
    "JailedConfig": "jailedconfigs",
    "NodeConfigurator": "nodeconfigurators",
}


def problems(target: dict[str, Any]) -> list[str]:
    """Every place where the API server would refuse or drop something of the object."""
    return list(_found(spec_schema(target["kind"]), target["spec"]))


@cache
def spec_schema(kind: str) -> dict[str, Any]:
    """Schema of `spec`; a skip where the real CRDs are not at hand."""
    (version,) = real(_PLURALS[kind])["spec"]["versions"]
    return _strict(version["schema"]["openAPIV3Schema"]["properties"]["spec"])


def _found(schema: dict[str, Any], value: object) -> Iterator[str]:
    for error in jsonschema.Draft7Validator(schema).iter_errors(value):
        yield f"{error.json_path}: {error.message[:200]}"


def _strict(node: Any) -> Any:
    """The schema with unknown fields refused, as `kubectl --validate=strict` does."""
    if isinstance(node, list):
        return [_strict(each) for each in node]
    if not isinstance(node, dict):
        return node
    made = {key: _strict(value) for key, value in node.items()}
    if made.pop("x-kubernetes-int-or-string", False):
        made.pop("type", None)
        # The pattern is for texts; JSON schema does not apply it to numbers anyway.
    closed = "properties" in made and "additionalProperties" not in made
    if closed and isinstance(made["properties"], dict) and made.get("type") == "object":
        made["additionalProperties"] = bool(made.get("x-kubernetes-preserve-unknown-fields"))
    return made
