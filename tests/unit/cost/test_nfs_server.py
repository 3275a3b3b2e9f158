"""The bill of an NFS server: its machine, both kinds of disk, and an address where it has one."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from cost.prices.book import layered
from cost.resources.lines import CostComponent, Scope, Section, components
from stacks.load import load_stack
from stacks.rules.quotas import quota_use
from stacks.spec import StackSpec
from stacks.spec.nodes import BootDiskSpec, DataDisksSpec, NfsSpec
from stacks.spec.storage import DiskType

NFS = NfsSpec(
    platform="cpu-d3",
    preset="16vcpu-64gb",
    boot_disk=BootDiskSpec(size_gib=64),
    data_disks=DataDisksSpec(size_gib=930, count=2, type=DiskType.NETWORK_SSD),
)


@pytest.fixture
def spec(public_key_file: object) -> StackSpec:
    return load_stack("h100-prod")


def added(spec: StackSpec, nfs: NfsSpec) -> dict[str, CostComponent]:
    """Lines that the server brings, by id."""
    book = layered(spec)
    without = {line.id for line in components(spec, book)}
    lines = components(replace(spec, nfs=nfs), book)
    return {line.id: line for line in lines if line.id not in without}


def test_a_server_brings_its_machine_and_both_kinds_of_disk(spec: StackSpec) -> None:
    lines = added(spec, NFS)
    assert set(lines) == {"nfs", "nfs.boot_disk", "nfs.data_disks"}
    assert {line.scope for line in lines.values()} == {Scope.ALSO}
    assert lines["nfs.data_disks"].section is Section.FILESYSTEMS
    assert (lines["nfs.data_disks"].quantity_low, lines["nfs.data_disks"].size) == (
        1860,
        "2 x 930 GiB",
    )
    assert lines["nfs.boot_disk"].quantity_low == 64


def test_the_machine_costs_what_a_node_of_its_preset_costs(spec: StackSpec) -> None:
    """The login nodes of the stack have the same preset."""
    login = next(line for line in components(spec, layered(spec)) if line.id == "nodes.login")
    nodes = spec.nodes.login.min_nodes
    machine = added(spec, NFS)["nfs"]
    assert spec.nodes.login.preset == NFS.preset
    assert login.low_usd is not None
    assert machine.low_usd == login.low_usd / Decimal(nodes)


def test_a_public_address_is_a_line_of_its_own(spec: StackSpec) -> None:
    assert "nfs.public_ip" in added(spec, replace(NFS, public_ip=True))


def test_a_disk_type_without_a_price_is_unpriced_and_not_free(spec: StackSpec) -> None:
    book = replace(layered(spec), readings={})
    lines = {line.id: line for line in components(replace(spec, nfs=NFS), book)}
    for name in ("nfs", "nfs.boot_disk", "nfs.data_disks"):
        assert lines[name].unknown is not None


def test_a_server_needs_quota_of_its_own(spec: StackSpec) -> None:
    before = quota_use(spec, at_max=True)
    after = quota_use(replace(spec, nfs=replace(NFS, public_ip=True)), at_max=True)
    more = {name: after[name] - before.get(name, 0) for name in after}
    assert {name: amount for name, amount in more.items() if amount} == {
        "compute.instance.count": 1,
        "compute.instance.non-gpu.vcpu": 16,
        "compute.disk.count": 3,
        "compute.disk.size.network-ssd": 64 + 1860,
        "vpc.allocation.count": 2,
    }
