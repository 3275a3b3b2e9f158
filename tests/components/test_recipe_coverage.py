"""Every resource of the Terraform recipe and every field of it, counted against what we make."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from stacks.spec import StackSpec
from stacks.spec.cluster import GpuDrivers, NfsHomeSpec, Observability
from stacks.spec.nodes import (
    Billing,
    BootDiskSpec,
    DataDisksSpec,
    ImageDiskSpec,
    LocalNvmeSpec,
    NfsSpec,
    NodeUserSpec,
    Reservation,
    ReservationSpec,
    StrategySpec,
)
from stacks.spec.storage import SubmountSpec
from tests import SHIPPED
from tests.components.conftest import Deploy
from tests.components.recorder import Recorder
from tests.unit.stacks.reference import DOCS, coverage, read_table

TABLE = read_table(DOCS / "recipe-resources.tsv")
RELEASE = "kubernetes:helm.sh/v3:Release"
Load = Callable[[str], StackSpec]
Made = Mapping[str, set[str]]


@pytest.fixture(scope="module")
def made(deployed: Deploy, load: Load) -> Made:
    """Type, or `release:NAME`, -> paths of the fields that some stack sets."""
    found: dict[str, set[str]] = defaultdict(set)
    stacks: list[str | StackSpec] = [*SHIPPED, *variants(load("h100-prod"))]
    for stack in stacks:
        _collect(deployed(stack), found)
    return found


def variants(spec: StackSpec) -> Iterator[StackSpec]:
    """One stack with all that goes together, and those that exclude something of it."""
    (first,) = spec.nodes.workers
    worker = replace(
        first,
        min_nodes=0,
        max_nodes=120,
        public_ip=True,
        max_pods=64,
        strategy=StrategySpec(drain_timeout_s=600),
        reservation=ReservationSpec(policy=Reservation.STRICT, ids=("capacityblockgroup-x",)),
        local_nvme=LocalNvmeSpec(),
        image_disk=ImageDiskSpec(size_gib=930),
    )
    user = NodeUserSpec(name="ops", ssh_public_keys=("ssh-ed25519 AAAA ops",))
    nfs = NfsSpec(
        platform="cpu-d3",
        preset="8vcpu-32gb",
        boot_disk=BootDiskSpec(size_gib=64),
        data_disks=DataDisksSpec(size_gib=93),
        mount_path="/mnt/nfs",
        public_ip=True,
    )
    guarded = SubmountSpec(name="kept", mount_path="/mnt/k", size_gib=1, forbid_deletion=True)
    yield replace(
        spec,
        nfs=nfs,
        nodes=replace(spec.nodes, workers=(worker,), ssh_users=(user,)),
        storage=replace(spec.storage, submounts=(*spec.storage.submounts, guarded)),
        cluster=replace(spec.cluster, audit_logs=True, allowed_cidrs=("203.0.113.0/24",)),
        login=replace(spec.login, public_ip=False),
        soperator=replace(
            spec.soperator,
            apparmor=True,
            observability=Observability.FULL,
            slack_notifier=True,
        ),
    )
    spot = replace(first, billing=Billing.PREEMPTIBLE)
    yield replace(
        spec,
        nodes=replace(spec.nodes, workers=(spot,)),
        cluster=replace(spec.cluster, gpu_drivers=GpuDrivers.OPERATORS),
        soperator=replace(spec.soperator, nfs_home=NfsHomeSpec(size_gib=100)),
    )


def _collect(recorder: Recorder, found: dict[str, set[str]]) -> None:
    for each in recorder.registered:
        paths = set(_paths(each.inputs.get("spec", {}))) if each.custom else set[str]()
        found[each.type] |= paths
        if each.type == RELEASE:
            found[f"release:{each.inputs['name']}"] |= set()


def _paths(value: Any, path: str = "") -> Iterator[str]:
    """Path of every value, without the places in lists."""
    if isinstance(value, list):
        for item in value:
            yield from _paths(item, path)
        return
    if path:
        yield path
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _paths(item, f"{path}.{name}" if path else name)


def test_every_resource_of_the_recipe_is_made_or_has_a_reason(made: Made) -> None:
    for _, resource, field, ours, why in TABLE.rows:
        if field == "-":
            assert ours in made if ours != "-" else why, resource


def test_every_field_of_the_recipe_is_set_by_some_stack_or_has_a_reason(made: Made) -> None:
    types = {row[1]: row[3] for row in TABLE.rows if row[2] == "-"}
    for _, resource, field, ours, why in TABLE.rows:
        if field == "-":
            continue
        if ours == "-":
            assert why, (resource, field)
        else:
            assert ours in made[types[resource]], (resource, field)


def test_the_page_tells_the_count() -> None:
    """Printed with -s: what an outsider would count first."""
    text = coverage(TABLE)
    print(text)
    assert text in (DOCS / "from-terraform.md").read_text(encoding="utf-8")
    resources = {row[1] for row in TABLE.rows}
    assert text.startswith(f"{len(resources)} resources of the recipe")


def test_a_resource_stands_once_and_before_its_fields() -> None:
    heads = [row[1] for row in TABLE.rows if row[2] == "-"]
    assert len(heads) == len(set(heads))
    fields = [row[1:3] for row in TABLE.rows]
    assert len(fields) == len(set(fields))
    seen: set[str] = set()
    for _, resource, field, *_ in TABLE.rows:
        assert (field == "-") is (resource not in seen), resource
        seen.add(resource)
