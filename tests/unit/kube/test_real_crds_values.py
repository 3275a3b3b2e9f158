"""What the program makes of every stack, field by field under the CRDs of Soperator 4.1.7."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from infra.local.kube.values import Object, Release
from infra.local.plugins.kubernetes_objects import render
from infra.render import login
from infra.render.charts import chart_values, cluster_charts
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.cluster import (
    ChecksProfile,
    JailFileSpec,
    NfsHomeSpec,
    Observability,
    SoperatorSpec,
    SssdSpec,
)
from stacks.spec.nodes import (
    BootDiskSpec,
    DataDisksSpec,
    ImageDiskSpec,
    LocalDiskSpec,
    LocalNvmeSpec,
    NfsSpec,
)
from stacks.spec.slurm import AccountSpec
from tests import SHIPPED
from tests.unit.kube.real_crds import other_version, problems, spec_schema

pytestmark = pytest.mark.usefixtures("public_key_file")

CHARTS = ("slurm-cluster", "nodesets")


def objects(spec: StackSpec) -> list[Object]:
    """Custom resources of the stack as the charts render them."""
    made: list[Object] = []
    for chart in cluster_charts(
        spec, allocation_id="id", ssh_public_keys=["ssh-ed25519 A u"], nfs_address="10.0.0.9"
    ):
        if chart.release in CHARTS:
            release = Release(
                name=chart.release,
                namespace=chart.namespace,
                chart=f"helm-{chart.release}",
                version=chart.version,
            )
            made += render(release, chart.values).objects
    return [each for each in made if each["apiVersion"].startswith("slurm.nebius.ai/")]


def everything(spec: StackSpec) -> StackSpec:
    """The stack with every setting that reaches a custom resource."""
    first, *others = spec.nodes.workers
    own = replace(
        first,
        min_nodes=0,
        max_nodes=max(first.max_nodes, 2),
        local_disks=(
            LocalDiskSpec(name="own", mount_path="/mnt/own", size_gib=93, folders=("tmp",)),
        ),
        local_nvme=LocalNvmeSpec(),
        image_disk=ImageDiskSpec(size_gib=930),
        gres_lines=("Name=gpu File=/dev/nvidia0 Cores=0-31",),
        extra='{"ib_pod": "$TOPO_SWITCH_TIER2"}',
        sshd_config_map="worker-sshd",
    )
    slurm = replace(
        spec.slurm,
        accounts=(AccountSpec(name="red", users=("ann",)),),
        config_lines=("PriorityDecayHalfLife=7-0",),
    )
    settings = SoperatorSpec(
        cuda_version="13.0.2",
        checks=ChecksProfile.FULL,
        observability=Observability.FULL,
        apparmor=True,
        nfs_home=NfsHomeSpec(size_gib=100),
        sssd=SssdSpec(config_secret="sssd-conf", ca_config_map="ldap-ca"),
    )
    return replace(
        spec,
        nodes=replace(spec.nodes, workers=(own, *others)),
        slurm=slurm,
        soperator=settings,
        nfs=NfsSpec(
            platform="cpu-d3",
            preset="8vcpu-32gb",
            boot_disk=BootDiskSpec(size_gib=64),
            data_disks=DataDisksSpec(size_gib=93),
            mount_path="/mnt/nfs",
        ),
    )


@pytest.mark.feature("S002-05")
@pytest.mark.parametrize("stack", SHIPPED)
def test_every_custom_resource_of_a_shipped_stack_is_accepted_in_full(stack: str) -> None:
    made = objects(load_stack(stack))
    assert {each["kind"] for each in made} == {"SlurmCluster", "NodeSet"}
    assert [(each["kind"], found) for each in made for found in problems(each)] == []


@pytest.mark.parametrize("stack", SHIPPED)
def test_every_setting_that_a_stack_may_declare_is_accepted_too(stack: str) -> None:
    made = objects(everything(load_stack(stack)))
    assert [(each["kind"], found) for each in made for found in problems(each)] == []


@pytest.mark.parametrize("stack", SHIPPED)
def test_another_version_of_soperator_takes_every_setting(stack: str) -> None:
    """Before an upgrade: SOPERATOR_TEST_CRDS=FOLDER with config/crd/bases of that version."""
    folder = other_version()
    made = [*objects(load_stack(stack)), *objects(everything(load_stack(stack)))]
    assert [(each["kind"], found) for each in made for found in problems(each, folder)] == []


@pytest.mark.parametrize("stack", SHIPPED)
def test_init_containers_are_those_of_kubernetes(stack: str) -> None:
    """Our renderers leave them out: nothing in the embedded cloud runs a container."""
    schema = spec_schema("NodeSet")["properties"]["customInitContainers"]
    for nodeset in chart_values(everything(load_stack(stack)), "nodesets")["nodesets"]:
        assert len(nodeset["customInitContainers"]) > 1
        jsonschema.validate(nodeset["customInitContainers"], schema)


@pytest.mark.parametrize(
    "profile", [ChecksProfile.ESSENTIAL, ChecksProfile.QUICK, ChecksProfile.FULL]
)
@pytest.mark.parametrize("stack", SHIPPED)
def test_every_override_of_a_check_is_a_field_of_an_active_check(
    stack: str, profile: ChecksProfile
) -> None:
    """The chart copies these into the resource; `enabled` is its own."""
    spec = load_stack(stack)
    spec = replace(spec, soperator=replace(spec.soperator, checks=profile))
    fields = spec_schema("ActiveCheck")["properties"]
    for name, check in chart_values(spec, "soperator-activechecks")["checks"].items():
        for key, value in check.items():
            if key != "enabled":
                assert key in fields, (name, key)
                assert type_of(value) == fields[key]["type"], (name, key)


def test_a_jailed_config_is_accepted() -> None:
    files = [JailFileSpec(path="/etc/motd", content="hello\n", mode="0600")]
    assert problems({"kind": "JailedConfig", "spec": login.jailed_config(files)}) == []


def test_the_check_sees_a_field_that_the_operator_does_not_know() -> None:
    (cluster, *_) = objects(load_stack("local"))
    cluster["spec"]["slurmConfig"]["topolgyPlugin"] = ""
    assert any("topolgyPlugin" in found for found in problems(cluster))


def type_of(value: Any) -> str:
    return {bool: "boolean", list: "array", dict: "object", str: "string"}[type(value)]
