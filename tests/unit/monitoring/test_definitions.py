"""What evaluates the rules has no field that the operator's definitions do not have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from infra.local.kube.api_server import load_crds
from infra.render.monitoring.objects import API_VERSION, custom_resources
from stacks.spec import StackSpec
from tests.unit.monitoring.conftest import BURN

CRDS = {crd["spec"]["names"]["kind"]: crd for crd in load_crds()}


def strict(node: Any) -> Any:
    """The schema with unknown fields refused, as the API server does when asked to be strict."""
    if isinstance(node, list):
        return [strict(each) for each in node]
    if not isinstance(node, dict):
        return node
    made = {name: strict(each) for name, each in node.items()}
    if "properties" in made:
        made.setdefault("additionalProperties", False)
    return made


def problems(target: dict[str, Any]) -> list[str]:
    (version,) = CRDS[target["kind"]]["spec"]["versions"]
    spec = strict(version["schema"]["openAPIV3Schema"]["properties"]["spec"])
    found = jsonschema.Draft7Validator(spec).iter_errors(target["spec"])
    return [f"{error.json_path}: {error.message}" for error in found]


@pytest.mark.parametrize("tells", [True, False])
def test_every_object_is_one_of_its_kind(watched: StackSpec, tells: bool) -> None:
    settings = replace(watched.soperator, slack_notifier=tells)
    made = custom_resources(replace(watched, soperator=settings), BURN)
    assert len(made) == (4 if tells else 2)
    for each in made:
        group, _, version = API_VERSION.partition("/")
        crd = CRDS[each["kind"]]["spec"]
        assert (crd["group"], crd["versions"][0]["name"]) == (group, version)
        assert problems(each) == []


def test_a_field_that_no_definition_has_is_found(watched: StackSpec) -> None:
    rule, *_ = custom_resources(watched, BURN)
    rule["spec"]["groups"][1]["rules"][0]["fro"] = "30m"
    assert len(problems(rule)) == 1
    assert "'fro' was unexpected" in problems(rule)[0]
