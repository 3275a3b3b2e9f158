"""Names that a stranger has, of every kind that a stack makes in its project."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from infra.operate.preflight.ask import ask, wanted_names
from infra.operate.preflight.supply import KINDS, Finding, Outcome
from stacks.load import load_stack
from stacks.spec import StackSpec
from tests.unit.preflight.conftest import PROJECT

GRAPHS = Path(__file__).parents[2] / "golden" / "graph"
OURS = {"managed-by": "soperator-stack", "stack": "h100-prod", "project": PROJECT}
NOT_ASKED = {"NodeGroup", "GroupMembership", "AccessPermit", "K8sRelease", "AccessKey"}
"""Kinds under a resource of ours, where no stranger has names, and keys, which need none."""


@pytest.fixture
def wide(h100: StackSpec) -> StackSpec:
    """A stack that also makes a registry."""
    return replace(h100, storage=replace(h100.storage, registry_gib=100))


def names(spec: StackSpec) -> list[Finding]:
    return [one for one in ask(spec, project=PROJECT) if one.check == "names"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("bucket", "h100-prod-backups"),
        ("bucket", "h100-prod-configs"),
        ("service account", "h100-prod-backup"),
        ("service account", "h100-prod-config-upload"),
        ("group", "h100-prod-backup-writers"),
        ("registry", "h100-prod-images"),
    ],
)
def test_a_stranger_of_any_kind_is_certain_and_our_own_is_not(served, account, wide, kind, name):
    project = wide.nebius.project_id
    id_ = account.make(KINDS[kind], project, name)
    (finding,) = names(wide)
    assert finding.certain
    assert f"the {kind} {name!r} exists as {id_}" in finding.seen
    account.remove(KINDS[kind], id_)
    account.make(KINDS[kind], project, name, labels=OURS)
    (finding,) = names(wide)
    assert finding.outcome is Outcome.PASS, finding.seen


def test_two_strangers_are_told_at_once(served, account, wide):
    for kind, name in (("bucket", "h100-prod-configs"), ("registry", "h100-prod-images")):
        account.make(KINDS[kind], wide.nebius.project_id, name)
    assert [one.certain for one in names(wide)] == [True, True]


def test_a_service_that_may_not_be_listed_hides_no_stranger_of_another(served, account, wide):
    account.make(KINDS["registry"], wide.nebius.project_id, "h100-prod-images")
    fault = {"method": r"\.GroupService\.List$", "code": "PERMISSION_DENIED", "times": 99}
    served.emulator.faults.plant([fault])
    unlisted, stranger = names(wide)
    assert unlisted.outcome is Outcome.NOT_CHECKED
    assert "group h100-prod-backup-writers, h100-prod-config-upload-writers: " in unlisted.seen
    assert stranger.certain


@pytest.mark.parametrize("stack", ["h100-prod", "h200-elastic", "l40s-dev", "local"])
def test_every_name_that_the_program_takes_in_the_project_is_asked_for(stack, public_key_file):
    """The graph is what the real program declares."""
    made = {
        one["name"]
        for one in json.loads((GRAPHS / f"{stack}.json").read_text())
        if one["type"].startswith("nebius:") and one["type"].split(":")[2] not in NOT_ASKED
    }
    assert {name for _, name in wanted_names(load_stack(stack))} == made
