"""What our reduced CRDs accept, the real CRDs of Soperator 4.1.7 accept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.local.kube.crd import load_crds

REAL = Path(__file__).parents[3].parent / "shared/data/soperator-crds-4.1.7"
CRDS = {crd["spec"]["names"]["plural"]: crd for crd in load_crds()}
LIMITS = ("enum", "pattern", "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength")


def schema(crd: dict[str, Any]) -> dict[str, Any]:
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def real(plural: str, folder: Path = REAL) -> dict[str, Any]:
    path = folder / f"slurm.nebius.ai_{plural}.yaml"
    if not path.exists():
        pytest.skip(f"needs the real CRDs in {folder.name}, which the project does not ship")
    return yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def wider(ours: dict[str, Any], theirs: dict[str, Any], path: str) -> list[str]:
    """Every place where our schema accepts what theirs would refuse."""
    problems = []
    if ours.get("type") != theirs.get("type"):
        problems.append(f"{path}: type {ours.get('type')} is not {theirs.get('type')}")
    for limit in LIMITS:
        if limit in theirs and ours.get(limit) != theirs[limit]:
            problems.append(f"{path}: {limit} {ours.get(limit)} is not {theirs[limit]}")
    if ours.get("x-kubernetes-preserve-unknown-fields"):
        problems.append(f"{path}: is open to unknown fields")
    for rule in theirs.get("x-kubernetes-validations", []):
        if rule["rule"] not in [own["rule"] for own in ours.get("x-kubernetes-validations", [])]:
            problems.append(f"{path}: rule {rule['rule']!r} is missing")
    for name in theirs.get("required", []):
        if name not in ours.get("required", []):
            problems.append(f"{path}.{name}: is required there")
    known = theirs.get("properties", {})
    for name, own in ours.get("properties", {}).items():
        if name in known:
            problems += wider(own, known[name], f"{path}.{name}")
        else:
            problems.append(f"{path}.{name}: does not exist there")
    if "items" in ours:
        problems += wider(ours["items"], theirs["items"], f"{path}[]")
    return problems


@pytest.mark.parametrize("plural", sorted(CRDS))
def test_ours_is_nowhere_wider_than_the_real_one(plural):
    assert wider(schema(CRDS[plural]), schema(real(plural)), plural) == []


@pytest.mark.parametrize("plural", sorted(CRDS))
def test_name_scope_version_and_status_are_the_real_ones(plural):
    ours, theirs = CRDS[plural], real(plural)
    for key in ("group", "names", "scope"):
        assert ours["spec"][key] == theirs["spec"][key]
    own, real_one = ours["spec"]["versions"][0], theirs["spec"]["versions"][0]
    for key in ("name", "served", "storage"):
        assert own[key] == real_one[key]
    assert own.get("subresources", {}) == real_one.get("subresources", {})


def test_the_check_sees_a_field_that_is_not_in_the_real_one():
    planted = {"type": "object", "properties": {"replica": {"type": "integer"}}}
    theirs = {"type": "object", "properties": {"replicas": {"type": "integer"}}}
    assert wider(planted, theirs, "spec") == ["spec.replica: does not exist there"]
