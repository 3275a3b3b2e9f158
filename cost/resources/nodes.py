"""Nodes by the hour: GPUs, vCPUs and memory of a preset, or a GPU price that covers its machine."""

from __future__ import annotations

from typing import Final

from cost.component import CostComponent, Rate, Section, Term, rate_of
from cost.price_book import PriceBook, Unit, UnknownPrice
from cost.resources.groups import Group
from stacks.catalog import find_preset
from stacks.node_spec import Billing, MachineSpec

_SKU_SUFFIX: Final = {
    Billing.ON_DEMAND: "",
    Billing.PREEMPTIBLE: "/preemptible",
    Billing.RESERVED: "/reserved",
}


def node_line(group: Group, book: PriceBook) -> CostComponent:
    """The nodes of one group, without their boot disks."""
    spec = group.spec
    found = machine_terms(spec, book)
    is_known = not isinstance(found, UnknownPrice)
    billing = "" if spec.billing is Billing.ON_DEMAND else f", {spec.billing}"
    return CostComponent(
        id=group.key,
        section=Section.COMPUTE,
        name=f"{group.label} ({spec.platform}{billing})",
        size=f"{group.count} x {spec.preset}",
        quantity_low=group.min_nodes,
        quantity_high=group.max_nodes,
        rate=rate_of(found, "node/h") if is_known else None,
        terms=found if is_known else (),
        unit="nodes",
        keys=(
            *group.count_keys,
            f"{group.key}.platform",
            f"{group.key}.preset",
            f"{group.key}.billing",
        ),
        unknown=None if is_known else found.reason,
        nodeset=group.nodeset,
        quantity_factors=(group.count_input,),
        num_per_node=1,
    )


def node_rate(group: MachineSpec, book: PriceBook) -> Rate | UnknownPrice:
    """US dollars an hour for one machine, without its disks."""
    found = machine_terms(group, book)
    return found if isinstance(found, UnknownPrice) else rate_of(found, "node/h")


def machine_terms(group: MachineSpec, book: PriceBook) -> tuple[Term, ...] | UnknownPrice:
    """What one machine is billed by for an hour, without its disks."""
    preset = find_preset(group.platform, group.preset)
    if preset is None:
        return UnknownPrice(
            sku=f"{group.platform}/{group.preset}",
            reason=f"'{group.preset}' of '{group.platform}' is not in stacks/catalog.py",
        )
    suffix = _SKU_SUFFIX[group.billing]
    wanted = (
        ("gpu", Unit.GPU_HOUR, "GPUs", preset.gpus),
        ("vcpu", Unit.VCPU_HOUR, "vCPUs", preset.vcpus),
        ("ram", Unit.GIB_HOUR, "GiB of memory", preset.memory_gib),
    )
    terms: list[Term] = []
    for part, unit, name, count in wanted if preset.gpus else wanted[1:]:
        price = book.find(f"{group.platform}/{part}{suffix}", unit)
        if isinstance(price, UnknownPrice):
            return price
        terms.append(Term(count=count, unit=name, price=price))
        if price.covers_vm:
            # One line per GPU since 2025-10-01: adding vCPUs and memory would charge them twice.
            break
    return tuple(terms)
