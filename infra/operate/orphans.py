"""What the cloud has of a stack that no state knows any more, and what it costs a month.

A resource is the stack's where the ownership labels name it. Reads only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from cost.prices.book import HOURS_PER_MONTH, Price, PriceBook, UnknownPrice
from cost.resources.lines import SKU as OBJECT_STORAGE
from cost.resources.lines import preset_rate
from infra.clients import pulumi
from infra.providers.nebius.adoption import BUCKET, CLUSTER, NODE_GROUP, Owned
from infra.providers.nebius.resource_type import GIB, SIZES
from stacks.errors import UserError
from stacks.spec.nodes import Billing

_FILESYSTEM: Final = "nebius:compute/v1:Filesystem"
_DISK: Final = "nebius:compute/v1:Disk"
_INSTANCE: Final = "nebius:compute/v1:Instance"
_ALLOCATION: Final = "nebius:vpc/v1:Allocation"


def usd_per_month(owned: Owned, book: PriceBook) -> Decimal | None:
    """US dollars a month; None where no source has the price; 0 for what is free of charge."""
    count = _PRICED.get(owned.token)
    return Decimal(0) if count is None else count(owned.values, book)


def _storage(kind: str, spec: Mapping[str, Any], book: PriceBook) -> Decimal | None:
    type_ = spec["type"].lower().replace("_", "-")
    gib = Decimal(sum(spec.get(name, 0) * unit for name, unit in SIZES.items())) / GIB
    return _times(gib, book.find(f"{kind}/{type_}"))


def _bucket(values: Mapping[str, Any], book: PriceBook) -> Decimal | None:
    """By what it holds now, of every storage class at the standard price."""
    counters = values.get("status", {}).get("counters", [])
    bytes_held = sum(
        part.get(name, 0)
        for counter in counters
        for part in (counter.get("counters", {}), counter.get("non_current_counters", {}))
        for name in ("simple_objects_size", "multipart_objects_size", "inflight_parts_size")
    )
    return _times(Decimal(bytes_held) / GIB, book.find(OBJECT_STORAGE))


def _address(values: Mapping[str, Any], book: PriceBook) -> Decimal | None:
    if "ipv4_public" not in values["spec"]:
        return Decimal(0)
    return _times(HOURS_PER_MONTH, book.find("public-ip"))


def _node_group(values: Mapping[str, Any], book: PriceBook) -> Decimal | None:
    template = values["spec"]["template"]
    machine, disk = _machine(template, book), _storage("disk", template["boot_disk"], book)
    nodes = values.get("status", {}).get("node_count", 0)
    return None if machine is None or disk is None else nodes * (machine + disk)


def _machine(spec: Mapping[str, Any], book: PriceBook) -> Decimal | None:
    """Without its disks, which of an instance are listed on their own."""
    hardware = spec["resources"]
    billing = Billing.PREEMPTIBLE if "preemptible" in spec else Billing.ON_DEMAND
    rate = preset_rate(hardware["platform"], hardware["preset"], book, billing)
    return None if isinstance(rate, UnknownPrice) else rate.usd_per_month


def _times(quantity: Decimal | int, price: Price | UnknownPrice) -> Decimal | None:
    return None if isinstance(price, UnknownPrice) else quantity * price.usd


_PRICED: Final[Mapping[str, Callable[[Mapping[str, Any], PriceBook], Decimal | None]]] = {
    _ALLOCATION: _address,
    BUCKET: _bucket,
    CLUSTER: lambda _, book: _times(HOURS_PER_MONTH, book.find("mk8s/control-plane")),
    _FILESYSTEM: lambda values, book: _storage("filesystem", values["spec"], book),
    _INSTANCE: lambda values, book: _machine(values["spec"], book),
    NODE_GROUP: _node_group,
    _DISK: lambda values, book: _storage("disk", values["spec"], book),
}


def known_ids(environ: Mapping[str, str]) -> frozenset[str]:
    """Ids of every resource in any state of the backend."""
    stacks = json.loads(_pulumi(["stack", "ls", "--json"], environ))
    found: set[str] = set()
    for stack in stacks:
        text = _pulumi(["stack", "export", "--stack", stack["name"]], environ)
        found.update(ids_in(json.loads(text)))
    return frozenset(found)


def ids_in(export: Mapping[str, Any]) -> set[str]:
    """Ids in one exported state, those that wait for their deletion too."""
    resources = (export.get("deployment") or {}).get("resources") or []
    return {resource["id"] for resource in resources if resource.get("id")}


def _pulumi(arguments: list[str], environ: Mapping[str, str]) -> str:
    done = pulumi.run([*arguments, "--non-interactive"], environ=environ)
    if done.returncode != 0:
        reason = " ".join((done.stderr or done.stdout).split())
        raise UserError(
            f"pulumi {' '.join(arguments)}: {reason}; without every state it is not known what "
            "is left over"
        )
    return done.stdout
