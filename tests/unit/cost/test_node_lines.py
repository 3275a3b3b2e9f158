"""What nodes bring to the bill beside themselves: disks of their own, addresses, and a pause."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from cost.bill.bill import bill
from cost.diff.diff import diff, take
from cost.prices.book import Layer, PriceBook
from cost.resources.estimate import estimate
from cost.resources.lines import CostComponent, Section
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.nodes import ImageDiskSpec, LocalDiskSpec


@pytest.fixture
def spec(public_key_file: object) -> StackSpec:
    return load_stack("h100-prod")


def lines(spec: StackSpec) -> dict[str, CostComponent]:
    return {line.id: line for line in estimate(spec, PriceBook.load(spec.prices)).components}


def paused(spec: StackSpec) -> StackSpec:
    return replace(spec, nodes=replace(spec.nodes, paused=True))


def test_a_paused_stack_pays_for_everything_but_its_workers(spec: StackSpec) -> None:
    before, after = lines(spec), lines(paused(spec))
    assert before.keys() == after.keys()
    for id_, line in after.items():
        if line.nodeset is None:
            assert line == before[id_]
        else:
            assert (line.low_usd, line.high_usd) == (Decimal(0), Decimal(0))


def test_a_pause_is_named_as_the_cause_of_what_it_saves(spec: StackSpec) -> None:
    book = PriceBook.load(spec.prices)
    found = diff(take(bill(spec, book, ())), take(bill(paused(spec), book, ())))
    causes = {cause for line in found.changes for cause in line.causes}
    assert causes == {"nodes.paused: false -> true"}


def test_a_node_costs_the_same_on_and_off_the_bill(spec: StackSpec) -> None:
    """What a chat pays for nodes that are away must not become free with them."""
    for id_, line in lines(spec).items():
        if line.nodeset is not None:
            assert lines(paused(spec))[id_].monthly_usd_of_node == line.monthly_usd_of_node > 0
            assert line.low_usd == 2 * line.monthly_usd_of_node


def test_disks_that_each_worker_has_for_itself_are_paid_by_the_node(spec: StackSpec) -> None:
    (worker,) = spec.nodes.workers
    local = LocalDiskSpec(name="scratch", mount_path="/mnt/scratch", size_gib=100)
    rich = replace(worker, local_disks=(local,), image_disk=ImageDiskSpec(size_gib=930))
    found = lines(replace(spec, nodes=replace(spec.nodes, workers=(rich,))))
    own = {id_: line for id_, line in found.items() if line.section is Section.WORKER_DISKS}
    quantities = {id_: line.quantity_low for id_, line in own.items()}
    assert quantities == {
        "nodes.workers[worker].local_disks[scratch]": 200,
        "nodes.workers[worker].image_disk": 1860,
    }
    assert all(line.rate is not None for line in own.values())
    assert not any(line.section is Section.WORKER_DISKS for line in lines(spec).values())


def test_addresses_of_workers_are_in_the_rest_of_the_cluster(spec: StackSpec) -> None:
    """They were in no part of a spend, whose parts add up to its bill, nor in a run's share."""
    workers = tuple(replace(each, public_ip=True) for each in spec.nodes.workers)
    public = replace(spec, nodes=replace(spec.nodes, workers=workers))
    book = PriceBook.load("nebius")
    cent = replace(book.readings["public-ip"][-1], usd=Decimal("0.01"), layer=Layer.CONTRACT)
    before, after = (estimate(each, book.with_prices([cent])) for each in (spec, public))
    more = after.total.hourly_low_usd - before.total.hourly_low_usd
    assert more == sum(each.min_nodes for each in workers) * Decimal("0.01") > 0
    assert after.around_usd_per_hour - before.around_usd_per_hour == more


def test_public_addresses_are_on_the_bill_only_where_nodes_have_them(spec: StackSpec) -> None:
    login = replace(spec.nodes.login, public_ip=True)
    found = lines(replace(spec, nodes=replace(spec.nodes, login=login)))
    assert found["nodes.login.public_ip"].quantity_low == 1
    assert "nodes.login.public_ip" not in lines(spec)


def test_a_private_api_has_no_public_address(spec: StackSpec) -> None:
    private = replace(spec, cluster=replace(spec.cluster, public_endpoint=False))
    assert lines(private)["cluster.endpoint_address"].quantity_low == 0
    assert lines(spec)["cluster.endpoint_address"].quantity_low == 1


def test_an_nfs_group_is_on_the_bill_like_any_other(spec: StackSpec) -> None:
    nodes = replace(spec.nodes, nfs=spec.nodes.controller)
    found = lines(replace(spec, nodes=nodes))
    assert found["nodes.nfs"].low_usd == found["nodes.controller"].low_usd
    assert "nodes.nfs.boot_disk" in found


def test_a_private_door_has_no_public_address(spec: StackSpec) -> None:
    private = replace(spec, login=replace(spec.login, public_ip=False))
    assert lines(private)["login.address"].quantity_low == 0
    assert lines(spec)["login.address"].quantity_low == 1
