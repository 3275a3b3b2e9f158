"""What our reduced CRDs accept, the real CRDs of Soperator 4.1.7 accept."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.local.kube.api_server import load_crds
from infra.operate.conformance.come_up import definitions
from infra.operate.conformance.sources import DEPLOYED, NotRunError, Sources

# Soperator's: of a folder with parts of upstream (docs/conformance.md), else beside the checkout.
SOURCES = os.environ.get("SOPERATOR_SOURCES")
REAL = Path(__file__).parents[3].parent / "shared/data/soperator-crds-4.1.7"
ABSENT = f"needs Soperator's own definitions, and {REAL} is no folder (docs/conformance.md)"
if SOURCES:
    try:
        REAL = Path(SOURCES, Sources(Path(SOURCES)).soperator(DEPLOYED), "config/crd/bases")
    except NotRunError as error:
        REAL, ABSENT = Path(SOURCES, "none"), str(error)
CRDS = {crd["spec"]["names"]["plural"]: crd for crd in load_crds()}
LIMITS = ("enum", "pattern", "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength")


_OPEN = "x-kubernetes-preserve-unknown-fields"


def stored(crd: dict[str, Any]) -> dict[str, Any]:
    """The version that is stored; ours have no other."""
    (version,) = [each for each in crd["spec"]["versions"] if each["storage"]]
    return version


def schema(crd: dict[str, Any]) -> dict[str, Any]:
    return stored(crd)["schema"]["openAPIV3Schema"]


def real(plural: str, folder: Path = REAL) -> dict[str, Any]:
    """Upstream's own definition; a skip where it is not at hand."""
    path = folder / f"slurm.nebius.ai_{plural}.yaml"
    if path.exists():
        return yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if folder != REAL or not REAL.is_dir():
        pytest.skip(ABSENT if folder == REAL else f"{folder} has no {path.name}")
    group = CRDS[plural]["spec"]["group"]
    if plural not in others():
        pytest.skip(f"needs SOPERATOR_SOURCES, for the definition of {plural}.{group}")
    return others()[plural]


@cache
def others() -> dict[str, dict[str, Any]]:
    """Definitions of the operators beside Soperator's, by plural name."""
    if not SOURCES:
        return {}
    found, _ = definitions(Sources(Path(SOURCES).resolve()))
    return {each["spec"]["names"]["plural"]: each for each in found}


def wider(ours: dict[str, Any], theirs: dict[str, Any], path: str) -> list[str]:
    """Every place where our schema accepts what theirs would refuse."""
    problems = []
    if ours.get("type") != theirs.get("type"):
        problems.append(f"{path}: type {ours.get('type')} is not {theirs.get('type')}")
    for limit in LIMITS:
        if limit in theirs and ours.get(limit) != theirs[limit]:
            problems.append(f"{path}: {limit} {ours.get(limit)} is not {theirs[limit]}")
    if ours.get(_OPEN) and not theirs.get(_OPEN):
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
    own, real_one = stored(ours), stored(theirs)
    for key in ("name", "served", "storage"):
        assert own[key] == real_one[key]
    assert own.get("subresources", {}) == real_one.get("subresources", {})


def test_the_check_sees_a_field_that_is_not_in_the_real_one():
    planted = {"type": "object", "properties": {"replica": {"type": "integer"}}}
    theirs = {"type": "object", "properties": {"replicas": {"type": "integer"}}}
    assert wider(planted, theirs, "spec") == ["spec.replica: does not exist there"]
