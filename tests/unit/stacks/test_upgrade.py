"""A deployed stack only becomes what its versions and its filesystems can become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from stacks.changes import declared_values, refused, stage_of
from stacks.errors import Level, Problem
from stacks.load import load_stack
from stacks.spec.storage import FilesystemType

BASE = {"cluster.kubernetes_version": "1.33", "cluster.soperator_version": "4.1.7"}
CHANGES = [
    ("change.kubernetes-back", BASE, {**BASE, "cluster.kubernetes_version": "1.32"}),
    ("change.kubernetes-step", BASE, {**BASE, "cluster.kubernetes_version": "1.35"}),
    ("change.soperator-back", BASE, {**BASE, "cluster.soperator_version": "4.1.5"}),
    (
        "change.soperator-skips",
        {"cluster.soperator_version": "4.0.5"},
        {"cluster.soperator_version": "5.0.0"},
    ),
    (
        "change.slurm-back",
        {"cluster.soperator_version": "5.0.0"},
        {"cluster.soperator_version": "4.1.7"},
    ),
    (
        "change.two-at-once",
        BASE,
        {"cluster.kubernetes_version": "1.34", "cluster.soperator_version": "4.1.13"},
    ),
    (
        "change.filesystem-shrinks",
        {**BASE, "storage.jail.size_gib": "2"},
        {**BASE, "storage.jail.size_gib": "1"},
    ),
]
"""Rule, what was deployed, and a change that only it is about."""


@pytest.mark.parametrize(("rule", "before", "after"), CHANGES, ids=[row[0] for row in CHANGES])
def test_a_refused_change_is_found_by_its_rule(
    rule: str, before: Mapping[str, str], after: Mapping[str, str]
):
    assert [problem.rule for problem in refused("s", before, after)] == [rule]


def found(**changes: str) -> tuple[Problem, ...]:
    """Problems of a change of these cluster keys."""
    after = {**BASE, **{f"cluster.{key}": value for key, value in changes.items()}}
    return refused("s", BASE, after)


def test_no_change_is_no_problem():
    assert found() == ()


def test_the_next_minor_version_of_kubernetes_is_taken():
    assert found(kubernetes_version="1.34") == ()


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("1.32", "the control plane is at 1.33 and never goes back; declare 1.33 or 1.34"),
        (
            "1.35",
            "takes one minor version at a time (kubernetes.io, version skew policy)",
        ),
        ("2.0", "go to 1.34 first"),
    ],
)
def test_another_version_of_kubernetes_is_refused_with_the_way(version: str, words: str):
    (problem,) = found(kubernetes_version=version)
    assert problem.level is Level.ERROR
    assert problem.path == "s.cluster.kubernetes_version"
    assert words in problem.message


def soperator(was: str, now: str) -> Problem:
    """The only problem of this change."""
    (problem,) = refused(
        "s", {"cluster.soperator_version": was}, {"cluster.soperator_version": now}
    )
    return problem


def test_a_patch_of_soperator_goes_both_ways_and_back_with_a_warning():
    assert found(soperator_version="4.1.13") == ()
    problem = soperator("4.1.7", "4.1.5")
    assert problem.level is Level.WARNING
    assert "older than the deployed 4.1.7: a way back" in problem.message
    assert "Slurm is 25.11.3 in both" in problem.message


def test_an_older_slurm_is_refused_because_it_cannot_read_the_state():
    problem = soperator("5.0.0", "4.1.7")
    assert problem.level is Level.ERROR
    assert "Slurm 25.11.3, which cannot read what the deployed 5.0.0 with Slurm 26.05.3 wrote" in (
        problem.message
    )


def test_a_slurm_that_no_source_names_is_doubted_and_not_refused():
    problem = soperator("4.1.7", "4.0.5")
    assert problem.level is Level.WARNING
    assert "no source says which Slurm it has" in problem.message


def test_a_skipped_line_of_soperator_is_doubted_by_its_name():
    problem = soperator("4.0.5", "5.0.0")
    assert problem.level is Level.WARNING
    assert "skips 4.1 after the deployed 4.0.5" in problem.message
    assert found(soperator_version="5.0.0") == ()


def test_two_upgrades_at_once_are_doubted():
    (problem,) = found(soperator_version="4.1.13", kubernetes_version="1.34")
    assert problem.level is Level.WARNING
    assert "change one at a time" in problem.message


def test_every_problem_is_told_at_once():
    problems = found(kubernetes_version="1.32", soperator_version="4.1.5")
    assert {problem.path for problem in problems} == {
        "s.cluster.kubernetes_version",
        "s.cluster.soperator_version",
    }


def storage(name: str = "l40s-dev", **changes: object) -> Mapping[str, str]:
    """Declared values with another jail."""
    spec = load_stack(name)
    jail = replace(spec.storage.jail, **changes)
    return declared_values(replace(spec, storage=replace(spec.storage, jail=jail)))


def test_a_smaller_filesystem_is_refused_with_both_sizes(public_key_file: object):
    before = storage()
    size = int(before["storage.jail.size_gib"])
    (problem,) = refused("s", before, storage(size_gib=size - 1))
    assert problem.path == "s.storage.jail.size_gib"
    assert f"{size - 1} GiB, but it was deployed with {size} GiB" in problem.message
    assert refused("s", before, storage(size_gib=size + 1)) == ()


def test_another_type_is_another_filesystem_of_any_size(public_key_file: object):
    smaller = storage(size_gib=64, type=FilesystemType.WEKA)
    assert refused("s", storage(), smaller) == ()


def test_a_deployment_that_did_not_remember_its_versions_refuses_nothing():
    assert refused("s", {}, BASE) == ()


def test_operators_come_first_and_workers_last():
    assert stage_of("system") < stage_of("controller") == stage_of("login") < stage_of(None)
