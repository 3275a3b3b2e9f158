"""Live prices of the cloud's own calculator, kept in a file, and the price book that they go into.

The calculator (`billing.v1 CalculatorService.EstimateBatch`) tells costs by SKU ids of its own,
which are not published, so a cost is recognised by its quantity: 64 vCPUs and 384 GiB are two
different numbers. Nodes of NVLink GPUs have one price for each GPU, however the answer splits it.
What cannot be recognised is left to the book, and told. Reserved nodes are left out: the calculator
estimates list prices. Sizes are large, because an answer has a limited number of digits. Reads
only. The emulator's prices are kept apart, so that none of them ever prices a real stack.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

from google.protobuf import json_format

from cost.prices.book import (
    CURRENCY,
    HOURS_PER_MONTH,
    UNITS,
    Layer,
    Price,
    PriceBook,
    PriceBookError,
    Unit,
    covers_vm,
    layered,
    node_sku,
    read_document,
    read_prices,
    refuse,
)
from infra import files
from infra.providers.nebius.api import Api, ApiError, explain
from infra.providers.nebius.resource_type import violations
from infra.providers.nebius.sdk import loopback_target
from infra.render.names import filesystems
from stacks.catalog import STRIPED_DISK_STEP_GIB
from stacks.errors import UserError
from stacks.machines import machines
from stacks.spec import StackSpec
from stacks.spec.decode import Decoder
from stacks.spec.nodes import Billing, MachineSpec
from stacks.spec.storage import DiskType, FilesystemType


class LivePriceError(UserError):
    """Live prices cannot be asked for or read; what to do in one line, all prices stay."""


_VOLUME_GIB: Final = 1000 * STRIPED_DISK_STEP_GIB
"""A multiple of what striped disks come in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One resource to estimate."""

    message: str
    """Full name of the request that would create it."""
    fields: dict[str, Any]
    """The request in the proto's field names."""
    counts: dict[str, int]
    """SKU -> how many of its unit the resource has."""


def wanted(spec: StackSpec) -> tuple[Wanted, ...]:
    """Everything that the stack's nodes, disks and filesystems are billed by, once each."""
    project = spec.nebius.project_id
    found: dict[str, Wanted] = {}
    for _, group in machines(spec):
        if group.billing is not Billing.RESERVED:
            key = f"{group.platform}/{group.preset}/{group.billing}"
            found.update((key, one) for one in _instance(group, project))
        disk = group.boot_disk.type
        found[f"disk/{disk}"] = _volume("Disk", disk, project)
    if spec.nfs is not None:
        data = spec.nfs.data_disks.type
        found[f"disk/{data}"] = _volume("Disk", data, project)
    for _, each in filesystems(spec):
        found[f"filesystem/{each.type}"] = _volume("Filesystem", each.type, project)
    return tuple(found.values())


def _instance(group: MachineSpec, project: str) -> Iterator[Wanted]:
    """The instance behind a node group; none where the catalogue does not know its parts."""
    preset = group.hardware
    if preset is None:
        return
    resources = {"platform": group.platform, "preset": group.preset}
    fields: dict[str, Any] = {"resources": resources}
    if group.billing is Billing.PREEMPTIBLE:
        fields["preemptible"] = {"on_preemption": "STOP"}
    parts = {"gpu": preset.gpus, "vcpu": preset.vcpus, "ram": preset.memory_gib}
    yield Wanted(
        message="nebius.compute.v1.CreateInstanceRequest",
        fields={"metadata": _metadata(project, "instance"), "spec": fields},
        counts={
            node_sku(group.platform, part, group.billing): count
            for part, count in parts.items()
            if count
        },
    )


def _volume(kind: str, type_: DiskType | FilesystemType, project: str) -> Wanted:
    """A disk or a filesystem of one type."""
    return Wanted(
        message=f"nebius.compute.v1.Create{kind}Request",
        fields={
            "metadata": _metadata(project, kind.lower()),
            "spec": {"size_gibibytes": _VOLUME_GIB, "type": type_.upper().replace("-", "_")},
        },
        counts={f"{kind.lower()}/{type_}": _VOLUME_GIB},
    )


def _metadata(project: str, kind: str) -> dict[str, str]:
    return {"parent_id": project, "name": f"estimate-{kind}"}


_DIGITS: Final = Decimal("1e-8")
"""A unit price is told to a hundred-millionth of a dollar; lists have at most nine digits."""


class NotRecognisedError(Exception):
    """The answer does not fit what was asked."""


def unit_prices(wanted: Wanted, breakdown: Any) -> Mapping[str, Decimal]:
    """SKU -> US dollars for one of its units, from the costs of one hour."""
    total = _decimal(breakdown.cost)
    if total == 0:
        raise NotRecognisedError("the answer is 0, which is taken for no price")
    (first, count), *others = wanted.counts.items()
    if not others or covers_vm(first):
        return {first: _unit_price(first, total / count)}
    costs = [(_decimal(sku.quantity), _decimal(sku.cost)) for sku in breakdown.sku_costs]
    return {
        sku: _unit_price(sku, _cost_of(sku, count, costs) / count)
        for sku, count in wanted.counts.items()
    }


def _cost_of(sku: str, count: int, costs: list[tuple[Decimal, Decimal]]) -> Decimal:
    """The one cost whose quantity is the number of units."""
    found = [usd for quantity, usd in costs if quantity == count]
    if len(found) != 1:
        told = ", ".join(f"{quantity:f}" for quantity, _ in costs)
        raise NotRecognisedError(f"no single item of quantity {count} for {sku} (items: {told})")
    return found[0]


def _unit_price(sku: str, usd_per_hour: Decimal) -> Decimal:
    """The price by the SKU's unit; months have 730 hours."""
    usd = usd_per_hour * HOURS_PER_MONTH if UNITS[sku] is Unit.GIB_MONTH else usd_per_hour
    text = f"{usd.quantize(_DIGITS, ROUND_HALF_UP):f}"
    return Decimal(text.rstrip("0").rstrip("."))


def _decimal(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation as error:
        raise NotRecognisedError(f"{text!r} is not a number") from error
    if not value.is_finite() or value < 0:
        raise NotRecognisedError(f"{text!r} is not an amount")
    return value


_SERVICE: Final = "nebius.billing.v1.CalculatorService"
_HOUR: Final = "FILTER_AGGREGATION_UNIT_HOUR"
_HOURLY: Final = frozenset({"", "h", "hour", "hours", "Hour", "HOUR"})
"""How the answer may spell the unit that was asked for."""
_ONE_IS_REFUSED: Final = frozenset({"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"})
# An estimate needs neither: the cloud prices an instance from its platform and preset alone
# (github.com/skypilot-org/skypilot/pull/9829, run against the live API on 2026-08-28).
_NOT_NEEDED: Final = frozenset({"spec.network_interfaces", "spec.boot_disk"})


def estimate(spec: StackSpec, today: date) -> tuple[tuple[Price, ...], list[str]]:
    """Today's list prices of what the stack uses; LivePriceError where there is none at all.

    Also what was asked and could not be read, a line each; the book's prices stay for these.
    """
    api, asked = Api(), wanted(spec)
    whose = (
        "Nebius, list prices"
        if api.target is None
        else "the emulated cloud, not what Nebius charges"
    )
    source = f"CalculatorService of {whose}"
    found, not_recognised = dict[str, set[Decimal]](), list[str]()
    for one, answer in zip(asked, _ask_each(api, asked), strict=True):
        try:
            if isinstance(answer, str):
                raise NotRecognisedError(answer)
            told = unit_prices(one, answer)
        except NotRecognisedError as error:
            not_recognised.append(f"{', '.join(one.counts)}: {error}")
            continue
        for sku, usd in told.items():
            found.setdefault(sku, set()).add(usd)
    for sku in [sku for sku, told in found.items() if len(told) > 1]:
        amounts = " and ".join(str(usd) for usd in sorted(found.pop(sku)))
        not_recognised.append(f"{sku}: {amounts} for nodes of different sizes")
    if not found:
        raise LivePriceError("\n".join(f"estimate prices: {line}" for line in not_recognised))
    region = spec.nebius.region
    prices = tuple(
        _live(sku, region, usd=told.pop(), source=source, date=today) for sku, told in found.items()
    )
    return prices, not_recognised


def _live(sku: str, region: str, **told: Any) -> Price:
    """What was told of a SKU as a price of the region."""
    vm = covers_vm(sku)
    return Price(sku=sku, unit=UNITS[sku], region=region, covers_vm=vm, layer=Layer.LIVE, **told)


def _ask_each(api: Api, asked: Sequence[Wanted]) -> list[Any]:
    """For each resource the costs of an hour, or why there are none.

    One resource without a price makes the calculator refuse a whole batch; then each is asked
    for on its own.
    """
    try:
        return _ask(api, asked)
    except ApiError as failure:
        if failure.code not in _ONE_IS_REFUSED:
            told = explain(failure, "estimate prices", target=api.target)
            raise LivePriceError(told) from failure
        if len(asked) == 1:
            return [explain(failure, "refused", target=api.target)]
    return [answer for one in asked for answer in _ask_each(api, [one])]


def _ask(api: Api, asked: Sequence[Wanted]) -> list[Any]:
    """The costs of an hour for each resource, in the order of the request."""
    service = api.schema.services[_SERVICE]
    request: Any = api.request(service, "EstimateBatch", currency=CURRENCY)
    for one in asked:
        message = _filled(api.schema.message(one.message)(), one.fields)
        request.resource_specs.add().spec.Pack(message)
    hourly = {"filter_aggregation_unit": {"filter_aggregation_unit_values": [_HOUR]}}
    answer = api.call(service, "EstimateBatch", _filled(request, hourly))
    if answer.currency.upper() not in ("", CURRENCY):
        raise LivePriceError(f"estimate prices: in {answer.currency}, not in {CURRENCY}")
    rows = [row for row in answer.resource_costs if row.aggregation_unit.unit in _HOURLY]
    if len(rows) != len(asked):
        raise LivePriceError(
            f"estimate prices: {len(rows)} hourly answers to {len(asked)} questions"
        )
    return [row.general.total for row in rows]


def _filled(message: Any, fields: dict[str, Any]) -> Any:
    """The message with these fields; LivePriceError where the API would refuse it."""
    json_format.ParseDict(fields, message)
    found = [f"{path}: {rule}" for path, rule in violations(message) if path not in _NOT_NEEDED]
    if found:
        name = message.DESCRIPTOR.name
        raise LivePriceError(f"estimate prices: {name}: {'; '.join(found)}")
    return message


def cache_file(state: Path, region: str) -> Path:
    """Where the estimates of a region are kept, of the API that the environment names."""
    folder = "cloud" if loopback_target() is None else "emulator"
    return state / "prices" / folder / f"{region}.json"


def save(state: Path, region: str, prices: Sequence[Price]) -> Path:
    """Replaces the kept estimates of these SKUs in one step; the file."""
    path = cache_file(state, region)
    try:
        kept = load(state, region)
    except LivePriceError:
        kept = ()
    document = {
        **_head(region),
        "prices": {
            price.sku: {
                "unit": price.unit.value,
                "usd": f"{price.usd:f}",
                "source": price.source,
                "date": price.date.isoformat(),
            }
            for price in (*kept, *prices)
        },
    }
    files.write(path, json.dumps(document, indent=2, sort_keys=True) + "\n")
    return path


def load(state: Path, region: str) -> tuple[Price, ...]:
    """The kept estimates; none where nothing was asked for yet, LivePriceError where damaged."""
    path = cache_file(state, region)
    decoder = Decoder()
    try:
        document = read_document(path)
        for name, value in _head(region).items():
            if document.get(name) != value:
                decoder.refuse(f"{path}.{name}", f"{document.get(name)!r} is not {value!r}")
        readings = read_prices(decoder, document.get("prices"), f"{path}.prices")
        refuse(decoder)
    except PriceBookError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return ()
        problems = (f"{line}; {_REMEDY}" for line in str(error).splitlines())
        raise LivePriceError("\n".join(problems)) from error
    return tuple(
        _live(price.sku, region, usd=price.usd, source=price.source, date=price.date)
        for rows in readings.values()
        for price in rows
    )


_REMEDY: Final = "run `soperator cost prices --refresh`, or delete the file"


def _head(region: str) -> dict[str, Any]:
    return {"schema_version": 1, "region": region, "currency": CURRENCY}


def price_book(spec: StackSpec, state: Path, book: PriceBook | None = None) -> PriceBook:
    """Book, kept estimates and contract of the stack; the network is not asked."""
    return layered(spec, load(state, spec.nebius.region) if spec.live_prices else (), book)
