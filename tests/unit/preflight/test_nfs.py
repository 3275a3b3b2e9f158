"""The machine of an NFS server in the pre-flight check: its quotas, its names, its hardware."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infra.operate.preflight.ask import ask
from infra.operate.preflight.supply import Finding, Outcome
from stacks.rules.quotas import quota_use
from stacks.spec import StackSpec
from stacks.spec.nodes import BootDiskSpec, DataDisksSpec, NfsSpec
from tests.unit.preflight.conftest import PROJECT, Account

OURS = {"managed-by": "soperator-stack", "stack": "h100-prod", "project": PROJECT}
IO_M3 = "compute.disk.size.network-ssd-io-m3"
NFS = NfsSpec(
    platform="cpu-d3",
    preset="8vcpu-32gb",
    boot_disk=BootDiskSpec(size_gib=64),
    data_disks=DataDisksSpec(size_gib=93, count=2),
)


@pytest.fixture
def spec(h100: StackSpec) -> StackSpec:
    return replace(h100, nfs=NFS)


def found(spec: StackSpec, check: str) -> list[Finding]:
    return [one for one in ask(spec, project=PROJECT) if one.check.startswith(check)]


def make_disks(account: Account, project: str, labels: dict[str, str] | None) -> None:
    for index in range(2):
        disk = {"type": "NETWORK_SSD_IO_M3", "size_gibibytes": 93}
        name = f"h100-prod-nfs-data-{index}"
        account.make("compute.v1.DiskService", project, name, disk, labels)


@pytest.mark.usefixtures("served")
def test_data_disks_of_an_earlier_up_are_not_counted_twice(
    account: Account, spec: StackSpec
) -> None:
    needs = quota_use(spec, at_max=False)[IO_M3]
    assert needs == 2 * 93
    account.limit(spec.nebius.project_id, IO_M3, needs << 30)
    make_disks(account, spec.nebius.project_id, OURS)
    (finding,) = found(spec, "quotas")
    assert finding.outcome is Outcome.PASS, finding.seen


@pytest.mark.usefixtures("served")
def test_disks_that_do_not_fit_are_certain_before_anything_is_made(
    account: Account, spec: StackSpec
) -> None:
    account.limit(spec.nebius.project_id, IO_M3, 93 << 30)
    (finding,) = found(spec, "quotas")
    assert finding.certain
    assert f"{IO_M3}  186 GiB" in finding.seen


@pytest.mark.usefixtures("served")
def test_a_disk_of_its_name_that_a_stranger_has_is_certain(
    account: Account, spec: StackSpec
) -> None:
    make_disks(account, spec.nebius.project_id, None)
    seen = [one.seen for one in found(spec, "names") if one.outcome is Outcome.FAIL]
    assert len(seen) == 2
    assert "the disk 'h100-prod-nfs-data-0' exists" in seen[0]


@pytest.mark.usefixtures("served")
def test_a_preset_that_the_project_does_not_have_is_named_with_its_key(spec: StackSpec) -> None:
    other = replace(spec, nfs=replace(NFS, preset="3vcpu-1gb"))
    seen = [one.seen for one in found(other, "platforms") if one.outcome is Outcome.FAIL]
    assert seen == ["nfs: cpu-d3 has no preset '3vcpu-1gb'"]
