"""Helm releases: pinned versions, in the order in which they need each other."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from infra.render.charts import KRUISE, REGISTRY
from stacks.spec import StackSpec
from tests import SHIPPED
from tests.components.conftest import Deploy
from tests.components.recorder import Recorder, Registered

RELEASE = "kubernetes:helm.sh/v3:Release"
OURS = {
    "soperator",
    "soperatorchecks",
    "nodeconfigurator",
    "slurm-cluster-storage",
    "slurm-cluster",
    "nodesets",
    "soperator-activechecks",
}


def releases(recorder: Recorder) -> dict[str, Registered]:
    return {each.name: each for each in recorder.of(RELEASE)}


def from_registry(recorder: Recorder) -> dict[str, Registered]:
    return {
        name: each
        for name, each in releases(recorder).items()
        if each.inputs["chart"].startswith(REGISTRY)
    }


@pytest.mark.feature("S000-01", "S000-13", "S000-67")
@pytest.mark.parametrize("stack", SHIPPED)
def test_every_soperator_chart_has_the_declared_version(deployed: Deploy, stack: str) -> None:
    found = from_registry(deployed(stack))
    # Classes for disks that only some stacks give their workers: test_soperator.py.
    assert set(found) - {"storageclasses"} == OURS
    assert {each.inputs["version"] for each in found.values()} == {"4.1.7"}


def test_another_declared_version_reaches_every_soperator_chart_and_no_other(
    deployed: Deploy, load: Callable[[str], StackSpec]
) -> None:
    spec = load("local")
    newer = replace(spec, cluster=replace(spec.cluster, soperator_version="4.2.0"))
    recorder = deployed(newer)
    versions = {name: each.inputs["version"] for name, each in releases(recorder).items()}
    assert {name for name, version in versions.items() if version == "4.2.0"} == OURS


@pytest.mark.feature("S000-67")
@pytest.mark.parametrize("stack", SHIPPED)
def test_no_release_takes_the_newest_chart(deployed: Deploy, stack: str) -> None:
    """A star is Soperator's own: any patch of that minor version (stacks/compatibility.yaml)."""
    for name, each in releases(deployed(stack)).items():
        version = each.inputs["version"]
        assert re.fullmatch(r"v?\d+\.\d+\.(\d+(-\w+)?|\*)", version), f"{name}: {version}"
        assert each.inputs["name"] == name, "an unnamed release gets a random suffix"


@pytest.mark.parametrize("stack", SHIPPED)
def test_every_release_frees_its_name_of_an_earlier_run_first(deployed: Deploy, stack: str) -> None:
    """Helm installs none whose name is in use, as after a kill or a lost state."""
    made = releases(deployed(stack)).values()
    assert {(len(each.before_create), len(each.before_update)) for each in made} == {(1, 1)}


def test_objects_of_an_earlier_run_are_taken_over(deployed: Deploy) -> None:
    """The plugin refuses what is there already, from 4.29 on, and fields that others wrote."""
    inputs = deployed("local").one("pulumi:providers:kubernetes").inputs
    assert (inputs["upsertExistingObjects"], inputs["enablePatchForce"]) == ("true", "true")


@pytest.mark.feature("S000-13", "S002-05", "S003-12")
@pytest.mark.parametrize(
    ("later", "earlier"),
    [
        ("kruise", "cert-manager"),
        ("soperator", "cert-manager"),
        ("soperator", "kruise"),
        ("soperator", "prometheus-operator-crds"),
        ("soperator", "mariadb-operator"),
        ("mariadb-operator", "mariadb-operator-crds"),
        ("soperatorchecks", "soperator"),
        ("slurm-cluster-storage", "soperator"),
        ("slurm-cluster", "slurm-cluster-storage"),
        ("nodesets", "slurm-cluster"),
        ("nodeconfigurator", "soperator"),
        ("soperator-activechecks", "slurm-cluster"),
        ("soperator-activechecks", "nodesets"),
    ],
)
def test_a_release_waits_for_what_it_needs(deployed: Deploy, later: str, earlier: str) -> None:
    found = releases(deployed("l40s-dev"))
    assert found[earlier].urn in found[later].depends_on


@pytest.mark.parametrize("stack", SHIPPED)
def test_no_release_lies_in_the_namespace_that_kruise_makes_itself(
    deployed: Deploy, stack: str
) -> None:
    """Helm refuses the Namespace of a chart that it has made for the release already."""
    found = releases(deployed(stack))
    assert found["kruise"].inputs["namespace"] == "soperator-system"
    assert KRUISE not in {each.inputs["namespace"] for each in found.values()}


def test_the_database_operator_comes_only_with_accounting(
    deployed: Deploy, load: Callable[[str], StackSpec]
) -> None:
    spec = load("local")
    without = replace(
        spec,
        slurm=replace(spec.slurm, accounting=False),
        storage=replace(spec.storage, accounting=None),
        nodes=replace(spec.nodes, accounting=None),
    )
    found = releases(deployed(without))
    assert not [name for name in found if name.startswith("mariadb")]
    environment = found["soperator"].inputs["values"]["controllerManager"]["manager"]["env"]
    assert environment["isMariadbCrdInstalled"] == "false"


@pytest.mark.parametrize("stack", SHIPPED)
def test_the_allocation_reaches_the_load_balancer_and_no_node_port(
    deployed: Deploy, stack: str
) -> None:
    login = releases(deployed(stack))["slurm-cluster"].inputs["values"]["slurmNodes"]["login"]
    annotations = login.get("sshdServiceAnnotations", {})
    assert list(annotations.values()) == ([] if stack == "local" else [f"allocation-{stack}-login"])


DEFINITIONS = {
    "soperator": ("slurm.nebius.ai", "nebius/soperator 4.1.7 helm/soperator/crds"),
    "k8up": ("k8up.io", "k8up-io/k8up charts/k8up/crds"),
    "security-profiles-operator": (
        "security-profiles-operator.x-k8s.io",
        "kubernetes-sigs/security-profiles-operator deploy/helm/crds",
    ),
}
"""Charts with a folder crds/: the group of what is in it and where it was read, 2026-11-21.

All others have theirs among the templates, where Helm upgrades them: cert-manager, kruise,
prometheus-operator-crds (charts/crds/templates), mariadb-operator-crds, csi-driver-nfs and
victoria-metrics-operator-crds, which `metrics` is told to leave to it.
"""


def test_helm_leaves_the_definitions_of_crds_folders_to_what_upgrades_them(
    deployed: Deploy, load: Callable[[str], StackSpec]
) -> None:
    """Helm installs what lies in crds/ once: a newer operator would run on old definitions."""
    spec = load("h100-prod")
    recorder = deployed(replace(spec, soperator=replace(spec.soperator, apparmor=True)))
    found = releases(recorder)
    definitions = {
        each.name.removesuffix("-custom-resources"): each
        for each in recorder.of("soperator:kube:CustomResources")
    }
    assert set(definitions) == set(DEFINITIONS)
    skipping = {name for name, each in found.items() if each.inputs.get("skipCrds")}
    assert skipping == set(DEFINITIONS)
    for name, each in definitions.items():
        release = found[name]
        assert each.urn in release.depends_on
        assert each.inputs["version"] == release.inputs["version"]
        assert each.inputs["chart"] == release.inputs["chart"]
        source = (release.inputs.get("repositoryOpts") or {}).get("repo")
        assert each.inputs.get("repository") == source
        assert each.inputs["group"] == DEFINITIONS[name][0]
