"""What an orphan costs a month: from its own values, by hand."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from cost.prices.book import PriceBook, UnknownPrice
from infra.operate.orphans import ids_in, usd_per_month
from infra.providers.nebius.adoption import BUCKET, NODE_GROUP, Owned

BOOK = PriceBook.load("nebius").in_region("eu-north1")
CPU_GROUP = {
    "spec": {
        "template": {
            "resources": {"platform": "cpu-d3", "preset": "4vcpu-16gb"},
            "boot_disk": {"type": "NETWORK_SSD", "size_gibibytes": 128},
        }
    },
    "status": {"node_count": 2},
}


def price(token: str, **values: Any) -> Decimal | None:
    owned = Owned(token=token, id="id-1", name="one", values={"status": {}, **values})
    return usd_per_month(owned, BOOK)


def test_a_filesystem_costs_its_gib() -> None:
    """1000 GiB at 0.08 a GiB-month."""
    spec = {"type": "NETWORK_SSD", "size_gibibytes": 1000}
    assert price("nebius:compute/v1:Filesystem", spec=spec) == Decimal("80.00")


def test_a_size_in_bytes_counts_as_gib() -> None:
    spec = {"type": "NETWORK_SSD", "size_bytes": 100 << 30}
    assert price("nebius:compute/v1:Filesystem", spec=spec) == Decimal("8.00")


def test_a_type_without_a_price_is_not_known_and_not_free() -> None:
    assert price("nebius:compute/v1:Filesystem", spec={"type": "WEKA", "size_gibibytes": 1}) is None


def test_a_bucket_costs_what_it_holds_old_versions_too() -> None:
    """(6 + 4) GiB at 0.0147 a GiB-month."""
    counters = {
        "counters": {"simple_objects_size": 6 << 30},
        "non_current_counters": {"simple_objects_size": 4 << 30},
    }
    found = price(BUCKET, spec={}, status={"counters": [counters]})
    assert found == Decimal("0.147")


def test_only_a_public_address_costs() -> None:
    assert price("nebius:vpc/v1:Allocation", spec={"ipv4_private": {}}) == 0


def test_nodes_cost_their_hours_and_their_disks() -> None:
    group = {**CPU_GROUP, "status": {"node_count": 0}}
    assert price(NODE_GROUP, **group) == 0
    two = price(NODE_GROUP, **CPU_GROUP)
    vcpu, ram = BOOK.prices["cpu-d3/vcpu"].usd, BOOK.prices["cpu-d3/ram"].usd
    disk = BOOK.prices["disk/network-ssd"].usd
    assert two == 2 * 730 * (4 * vcpu + 16 * ram) + 2 * 128 * disk


def test_an_account_is_free() -> None:
    assert price("nebius:iam/v1:ServiceAccount", spec={}) == 0


@pytest.mark.parametrize("export", [{}, {"deployment": None}, {"deployment": {}}])
def test_a_state_without_resources_knows_no_id(export: dict[str, Any]) -> None:
    assert ids_in(export) == set()


def test_components_have_no_id_and_pending_deletions_count() -> None:
    found = [{"urn": "a"}, {"id": "fs-1"}, {"id": "fs-2", "delete": True}]
    assert ids_in({"deployment": {"resources": found}}) == {"fs-1", "fs-2"}


def test_a_machine_costs_its_hours_and_not_its_disks() -> None:
    """Half of two nodes of the same preset, without their boot disks."""
    hardware = {"platform": "cpu-d3", "preset": "4vcpu-16gb"}
    machine = price("nebius:compute/v1:Instance", spec={"resources": hardware})
    nodes = price(NODE_GROUP, **CPU_GROUP)
    disk = BOOK.find("disk/network-ssd")
    assert machine is not None
    assert nodes is not None
    assert not isinstance(disk, UnknownPrice)
    assert machine == nodes / 2 - 128 * disk.usd


def test_a_machine_of_a_preset_without_a_price_is_not_known() -> None:
    unknown = {"platform": "cpu-d3", "preset": "3vcpu-1gb"}
    assert price("nebius:compute/v1:Instance", spec={"resources": unknown}) is None
