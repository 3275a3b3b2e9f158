"""Real CRDs of Soperator as strict JSON schemas: problems(object) -> what they refuse.

Those of 4.1.7, or those of another version in the folder that $SOPERATOR_TEST_CRDS names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.unit.kube.test_crds import REAL, real

_PLURALS = {
    "SlurmCluster": "slurmclusters",
    "NodeSet": "nodesets",
    "ActiveCheck": "activechecks",
    "JailedConfig": "jailedconfigs",
    "NodeConfigurator": "nodeconfigurators",
}


def problems(target: dict[str, Any], folder: Path = REAL) -> list[str]:
    """Every place where the API server would refuse or drop something of the object."""
    return list(_found(spec_schema(target["kind"], folder), target["spec"]))


def other_version() -> Path:
    """Folder with the CRDs of another version of Soperator; a skip where none is named."""
    folder = os.environ.get("SOPERATOR_TEST_CRDS")
    if not folder:
        pytest.skip(
            "needs SOPERATOR_TEST_CRDS, a folder with the CRDs of another version of Soperator, "
            "which the project does not ship"
        )
    return Path(folder)


@cache
def spec_schema(kind: str, folder: Path = REAL) -> dict[str, Any]:
    """Schema of `spec`; a skip where the real CRDs are not at hand."""
    versions = real(_PLURALS[kind], folder)["spec"]["versions"]
    (version,) = [version for version in versions if version["storage"]]
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
    # The API server fills defaults in before it looks for what is required.
    if "required" in made and isinstance(made.get("properties"), dict):
        filled = {name for name, own in made["properties"].items() if "default" in own}
        made["required"] = [name for name in made["required"] if name not in filled]
    closed = "properties" in made and "additionalProperties" not in made
    if closed and isinstance(made["properties"], dict) and made.get("type") == "object":
        made["additionalProperties"] = bool(made.get("x-kubernetes-preserve-unknown-fields"))
    return made
