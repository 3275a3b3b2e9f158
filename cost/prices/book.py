"""Which price a stack pays: layered(spec, live).find(sku), or PriceBook.load(name) alone.

A price is US dollars for one unit of one SKU, as a source gave it on a day. A SKU is
`<platform>/<gpu|vcpu|ram>`, `disk/<type>`, `filesystem/<type>` or one of a few services; a node
that is not billed on demand adds its kind: `/preemptible`, `/reserved`.

Price files (cost/prices/*.yaml) have every reading of every SKU, with source and date:

    gpu-h100-sxm/gpu:
      unit: GPU-hour
      covers_vm: true
      readings:
        - {usd: 2.95, date: 2026-05-18, source: ...}
        - {usd: 3.85, date: 2026-09-25, source: ...}

A SKU with one reading may hold it without `readings`. `read` stands for `date` where the source
names no day; `region` limits a reading to one region. Every problem is one line with file and key,
all at once.

The shipped book, over it the provider's own estimate (where the stack asks for it), over both the
prices of the user's contract. Of several readings of a SKU that hold in the region, the newest of
the highest layer is used; one whose source is undated only where no dated one is. A price that is
not known is a state of its own, never 0.

Hosted models have their own, from cost/prices/api/*.yaml: ApiPriceBook.load().find(model).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeVar

import yaml

from stacks.catalog import PLATFORMS, REGIONS
from stacks.errors import Level, Problem, UserError
from stacks.files import MAX_BYTES, is_list, is_map, parse_yaml, read_text
from stacks.spec import StackSpec
from stacks.spec.decode import Decoder, any_text, between, one_of
from stacks.spec.nodes import Billing
from stacks.spec.storage import DiskType, FilesystemType

HOURS_PER_MONTH: Final = Decimal(730)
"""Nebius's own month (docs.nebius.com/object-storage/resources/pricing: 730 hours)."""
CURRENCY: Final = "USD"
"""The one currency: an exchange rate would be a price of its own, without a source."""


class Unit(StrEnum):
    """What one price is for."""

    GPU_HOUR = "GPU-hour"
    VCPU_HOUR = "vCPU-hour"
    GIB_HOUR = "GiB-hour"
    GIB_MONTH = "GiB-month"
    ADDRESS_HOUR = "address-hour"
    CLUSTER_HOUR = "cluster-hour"
    NODE_HOUR = "node-hour"


class Layer(StrEnum):
    """Where a price comes from; a later one wins over an earlier one."""

    BOOK = "book"
    LIVE = "live estimate"
    CONTRACT = "contract"


class PriceBookError(UserError):
    """Prices that are missing or cannot be read; one line for each problem found."""


class UnknownBookError(PriceBookError):
    """A book of no such name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars for one unit of one SKU, without tax."""

    sku: str
    """Such as `gpu-h100-sxm/gpu`; a kind of billing other than on demand is its last part."""
    unit: Unit
    usd: Decimal
    source: str
    date: date
    """Day from which the source says it holds, or else the day on which it was read."""
    is_undated: bool = False
    """True where the source names no day; `date` is the day on which it was read."""
    region: str | None = None
    """Region that it holds for; None holds for all."""
    covers_vm: bool = False
    """True where a GPU's price includes the vCPUs and memory of its VM."""
    layer: Layer = Layer.BOOK

    @property
    def dated(self) -> str:
        """The day as printed: `2026-10-05`, or `undated, read on 2026-11-21`."""
        return f"undated, read on {self.date}" if self.is_undated else str(self.date)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownPrice:
    """Why there is no price."""

    reason: str


_NODE_PARTS: Final = {"gpu": Unit.GPU_HOUR, "vcpu": Unit.VCPU_HOUR, "ram": Unit.GIB_HOUR}
_SERVICES: Final[Mapping[str, Unit]] = {
    "object-storage/standard": Unit.GIB_MONTH,
    "object-storage/enhanced-throughput": Unit.GIB_MONTH,
    "container-registry/storage": Unit.GIB_MONTH,
    "public-ip": Unit.ADDRESS_HOUR,
    "public-ip/kubernetes-endpoint": Unit.ADDRESS_HOUR,
    "mk8s/control-plane": Unit.CLUSTER_HOUR,
}


def _units() -> Mapping[str, Unit]:
    units = dict(_SERVICES)
    for kind in DiskType:
        units[f"disk/{kind}"] = Unit.GIB_MONTH
    for kind in FilesystemType:
        units[f"filesystem/{kind}"] = Unit.GIB_MONTH
    for platform, facts in PLATFORMS.items():
        for part, unit in _NODE_PARTS.items():
            if part != "gpu" or facts.gres_type is not None:
                for billing in Billing:
                    units[node_sku(platform, part, billing)] = unit
    return MappingProxyType(units)


def node_sku(platform: str, part: str, billing: Billing) -> str:
    """SKU of one part of a platform's nodes, such as `gpu-h100-sxm/gpu/preemptible`."""
    suffix = "" if billing is Billing.ON_DEMAND else f"/{billing}"
    return f"{platform}/{part}{suffix}"


def covers_vm(sku: str) -> bool:
    """Whether the price of this GPU includes its vCPUs and memory.

    NVLink GPUs do since 2025-10-01 (docs.nebius.com/signup-billing/billing-changes-oct-2025).
    """
    platform, _, part = sku.partition("/")
    return "-sxm" in platform and part.split("/")[0] == "gpu"


UNITS: Final = _units()
"""SKU -> the unit that it is sold by."""


_Row = TypeVar("_Row", bound="DatedRow")
Money = Annotated[Decimal, between(0, 10**9)]
"""US dollars for one unit."""
_Currency = Annotated[str, one_of(CURRENCY)]
"""Whatever else a price is in must be converted at its source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatedRow:
    """What every reading of a price has: who says so, and since when."""

    source: str
    date: date | None = None
    read: date | None = None
    """Day of reading, where the source names none."""
    currency: _Currency = CURRENCY

    @property
    def day(self) -> date:
        """Either of the two; `entries` lets none through without one."""
        found = self.date or self.read
        assert found is not None
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _PriceRow(DatedRow):
    usd: Money
    region: Annotated[str, one_of(*REGIONS)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SkuHead:
    """What all readings of a SKU share."""

    unit: Annotated[str, any_text] | None = None
    covers_vm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _BookHead:
    name: str
    currency: _Currency
    caveat: str = ""


def refuse(decoder: Decoder) -> None:
    """Raises what was found, if anything was."""
    if decoder.problems:
        raise PriceBookError("\n".join(decoder.problems))


def read_price_file(path: Path) -> PriceBook:
    """The book of the file; PriceBookError names everything that is wrong with it."""
    decoder = Decoder()
    head, entries = read_head(path, "prices", decoder)
    readings = read_prices(decoder, entries, f"{path}.prices")
    refuse(decoder)
    return PriceBook(name=path.stem, caveat=head.caveat if head else "", readings=readings)


def read_prices(decoder: Decoder, entries: object, path: str) -> dict[str, tuple[Price, ...]]:
    """SKU -> its readings, of what a file has under `prices`."""
    readings: dict[str, tuple[Price, ...]] = {}
    shared = [each.name for each in fields(SkuHead)]
    for sku, at, values, rows in read_entries(decoder, entries, path, _PriceRow, shared):
        entry = decoder.record(SkuHead, values, at)
        sold_by = None if entry is None else unit(sku, entry.unit, at, decoder)
        if sold_by is not None and entry is not None:
            readings[sku] = tuple(
                Price(
                    sku=sku,
                    unit=sold_by,
                    usd=row.usd,
                    source=row.source,
                    date=row.day,
                    is_undated=row.date is None,
                    region=row.region,
                    covers_vm=entry.covers_vm,
                )
                for row in rows
            )
            _refuse_duplicates(readings[sku], at, decoder)
    return readings


def read_head(path: Path, key: str, decoder: Decoder) -> tuple[_BookHead | None, object]:
    """The head of a price file, and what it has under the key."""
    document = read_document(path)
    rest = {name: value for name, value in document.items() if name != key}
    if document.get("name") != path.stem:
        decoder.refuse(f"{path}.name", f"{document.get('name')!r} is not the file's name")
    head = decoder.record(_BookHead, rest, str(path))
    return head, document.get(key)


def read_document(path: Path) -> Mapping[str, object]:
    """The mapping that a YAML file holds; a key written twice is refused."""
    try:
        document = parse_yaml(read_text(path, at_most_bytes=MAX_BYTES))
    except (OSError, UnicodeDecodeError) as error:
        raise PriceBookError(f"{path}: cannot be read: {error}") from error
    except (yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise PriceBookError(f"{path}: not valid YAML: {reason}") from error
    if not is_map(document):
        raise PriceBookError(f"{path}: expected a mapping with name, currency and prices")
    return document


def read_entries(
    decoder: Decoder, entries: object, path: str, row: type[_Row], shared: Sequence[str] = ()
) -> Iterator[tuple[str, str, Mapping[str, object], list[_Row]]]:
    """Name, path, `shared` values and readings of an entry, which is one or lists `readings`."""
    if not is_map(entries) or not entries:
        decoder.refuse(path, "expected a mapping of what is sold to its price")
        return
    keys = [each.name for each in fields(row)]
    allowed = (*shared, "readings", *keys)
    for name, entry in entries.items():
        at = f"{path}.{name}"
        if any_text(name)[1]:  # YAML has keys that are numbers, whatever their type says
            decoder.refuse(at, "what is sold goes by a text; docs/prices.md lists the SKUs")
        elif not is_map(entry):
            decoder.refuse(at, f"expected a mapping of {', '.join(allowed)}")
        else:
            own = {key: entry[key] for key in keys if key in entry}
            for key in [key for key in entry if key not in allowed]:
                decoder.unknown(str(key), allowed, at)
            listed: list[tuple[str, Any]] = [(at, own)]
            if "readings" in entry:
                for key in own:
                    decoder.refuse(f"{at}.{key}", "stands beside 'readings'; move it into one")
                listed = _listed(decoder, entry["readings"], f"{at}.readings")
            found = [_dated(decoder, row, each, place) for place, each in listed]
            rows = [each for each in found if each is not None]
            yield name, at, {key: entry[key] for key in shared if key in entry}, rows


def _listed(decoder: Decoder, rows: object, path: str) -> list[tuple[str, object]]:
    if is_list(rows) and rows:
        return [(f"{path}[{number}]", each) for number, each in enumerate(rows)]
    decoder.refuse(path, "expected a list of readings")
    return []


def _dated(decoder: Decoder, row: type[_Row], value: object, path: str) -> _Row | None:
    """The reading, which has one of `date` and `read`."""
    found = decoder.record(row, value, path)
    if is_map(value) and ("date" in value) == ("read" in value):
        both = "has both 'date' and 'read'" if "date" in value else "missing"
        problem = f"{both}; give `date`, or `read` (the day of reading) where the source has none"
        decoder.refuse(f"{path}.date", problem)
        return None
    return found


def _refuse_duplicates(readings: Sequence[Price], path: str, decoder: Decoder) -> None:
    """Two readings of one day cannot be put in order, so neither is the newest."""
    seen: set[tuple[date, bool, str | None]] = set()
    for price in readings:
        key = (price.date, price.is_undated, price.region)
        if key in seen:
            where = "all regions" if price.region is None else price.region
            decoder.refuse(path, f"two readings of {price.dated} for {where}; keep one")
        seen.add(key)


def unit(
    sku: str, value: str | None, path: str, decoder: Decoder, *, sku_path: str = ""
) -> Unit | None:
    """The unit of a SKU that is sold, which its price must be for."""
    sold_by = UNITS.get(sku)
    if sold_by is None:
        near = difflib.get_close_matches(sku, UNITS, n=1)
        advice = f"; did you mean '{near[0]}'?" if near else " (docs/prices.md lists them)"
        decoder.refuse(sku_path or path, f"'{sku}' is not sold{advice}")
    elif value != sold_by:
        given = "missing" if value is None else f"'{value}'"
        problem = f"{given}, but '{sku}' is sold by {sold_by}; convert the price"
        decoder.refuse(f"{path}.unit", problem)
    else:
        return sold_by
    return None


PRICES_DIR: Final = Path(__file__).parent
_LAYERS: Final = tuple(Layer)


@dataclass(frozen=True, kw_only=True)
class PriceBook:
    """Prices by SKU. Without slots, which a cached property cannot have."""

    name: str
    caveat: str
    readings: Mapping[str, tuple[Price, ...]]
    """Every reading of every SKU, used or not."""
    region: str | None = None
    """Region whose prices are in use; None: those that hold everywhere."""

    @cached_property
    def prices(self) -> Mapping[str, Price]:
        """The price in use of every SKU: its newest reading."""
        found = {sku: newest(prices, self.region) for sku, prices in self.readings.items()}
        return MappingProxyType({sku: price for sku, price in found.items() if price})

    @staticmethod
    def load(name: str, prices_dir: Path = PRICES_DIR) -> PriceBook:
        """The book of `<name>.yaml`."""
        path = prices_dir / f"{name}.yaml"
        if not path.is_file():
            have = ", ".join(sorted(file.stem for file in prices_dir.glob("*.yaml"))) or "none"
            raise UnknownBookError(f"{name}: no such price book in {prices_dir} (have: {have})")
        return read_price_file(path)

    def in_region(self, region: str) -> PriceBook:
        """The same readings, those in use that hold in the region."""
        return self if region == self.region else replace(self, region=region)

    def find(self, sku: str) -> Price | UnknownPrice:
        """The price of the SKU, for one of the unit that UNITS says."""
        return self.prices.get(sku) or UnknownPrice(reason=self._why_unknown(sku))

    def with_prices(self, prices: Iterable[Price]) -> PriceBook:
        """The book with these readings too; a higher layer wins, whatever its date."""
        readings = dict(self.readings)
        for price in prices:
            known = readings.get(price.sku, ())
            readings[price.sku] = known if price in known else (*known, price)
        return replace(self, readings=readings)

    def unused(self, sku: str) -> tuple[Price, ...]:
        """Readings of the SKU that are not in use, newest first."""
        used = self.prices.get(sku)
        others = [price for price in self.readings.get(sku, ()) if price != used]
        return tuple(sorted(others, key=_order, reverse=True))

    def _why_unknown(self, sku: str) -> str:
        regions = sorted({str(price.region) for price in self.readings.get(sku, ())})
        if regions:
            where = self.region or "all regions"
            return f"price book '{self.name}' has '{sku}' for {', '.join(regions)}, not for {where}"
        if sku.endswith(f"/{Billing.RESERVED}"):
            return (
                f"price book '{self.name}' has no '{sku}': reserved prices are agreed in a "
                "contract; declare it under contract_prices"
            )
        return f"price book '{self.name}' has no '{sku}'"


def newest(readings: Iterable[Price], region: str | None) -> Price | None:
    """The reading to use in a region; None where none holds there."""
    here = [price for price in readings if price.region in (None, region)]
    return max(here, key=_order, default=None)


def _order(price: Price) -> tuple[int, bool, date, bool]:
    """By layer, then dated before undated, then the newer, then the one that names its region."""
    layer = _LAYERS.index(price.layer)
    return (layer, not price.is_undated, price.date, price.region is not None)


def layered(
    spec: StackSpec, live: Iterable[Price] = (), book: PriceBook | None = None
) -> PriceBook:
    """The prices that the stack pays; PriceBookError names every contract price that is wrong."""
    try:
        shipped = PriceBook.load(spec.prices) if book is None else book
    except UnknownBookError as error:
        raise PriceBookError(f"{spec.name}.prices: {error}") from error
    prices = shipped.in_region(spec.nebius.region)
    if spec.live_prices:
        prices = prices.with_prices(each for each in live if each.region == spec.nebius.region)
    return prices.with_prices((*contract_prices(spec), *node_prices(spec)))


def nodeset_sku(nodeset: str) -> str:
    """SKU of a node of an attached cluster, which only a contract of the stack has a price of."""
    return f"node/{nodeset}"


def node_prices(spec: StackSpec) -> tuple[Price, ...]:
    """What the stack declares that nodes of its attached cluster cost."""
    return tuple(
        Price(
            sku=nodeset_sku(declared.nodeset),
            unit=Unit.GPU_HOUR if declared.usd_per_node_hour is None else Unit.NODE_HOUR,
            usd=declared.usd,
            source=declared.source or "",
            date=declared.date,
            covers_vm=True,
            layer=Layer.CONTRACT,
        )
        for declared in spec.node_prices
        if declared.usd is not None and declared.date is not None
    )


def contract_prices(spec: StackSpec) -> tuple[Price, ...]:
    """The contract prices that the stack declares."""
    decoder, seen, found = Decoder(), set[str](), list[Price]()
    for number, declared in enumerate(spec.contract_prices):
        path, sku = f"{spec.name}.contract_prices[{number}]", declared.sku
        if sku in seen:
            decoder.refuse(f"{path}.sku", f"'{sku}' stands here twice; keep one")
        seen.add(sku)
        sold_by = unit(sku, declared.unit, path, decoder, sku_path=f"{path}.sku")
        if sold_by is not None:
            found.append(
                Price(
                    sku=sku,
                    unit=sold_by,
                    usd=declared.usd,
                    source=declared.source,
                    date=declared.date,
                    covers_vm=covers_vm(sku),
                    layer=Layer.CONTRACT,
                )
            )
    refuse(decoder)
    return tuple(found)


def price_age_problems(
    spec: StackSpec, prices: Iterable[Price], today: date
) -> tuple[Problem, ...]:
    """One warning for all prices in use that are older than the stack's policy allows.

    Oldest first, each SKU once. No more than a warning: an age depends on the day, and an unchanged
    stack previews unchanged.
    """
    limit = spec.policy.max_price_age_days
    old = {price.sku: price for price in prices if (today - price.date).days > limit}
    if not old:
        return ()
    oldest_first = sorted(old.values(), key=lambda price: (price.date, price.sku))
    names = ", ".join(f"{price.sku} ({price.dated})" for price in oldest_first)
    return (
        Problem(
            level=Level.WARNING,
            path=f"{spec.name}.policy.max_price_age_days",
            message=(
                f"{len(old)} prices in use are older than {limit} days: {names}; "
                "confirm them, refresh with `soperator cost prices --refresh` and live_prices: "
                "true, or declare yours under contract_prices"
            ),
        ),
    )


API_PRICES_DIR: Final = Path(__file__).parent / "api"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPrice:
    """US dollars for a million tokens of one hosted model, without tax."""

    model: str
    """Provider and model, such as `openai/gpt-4o-mini`."""
    usd_per_1m_input: Decimal
    usd_per_1m_cached_input: Decimal | None
    """None where the provider has no price of its own for prompt tokens that it has cached."""
    usd_per_1m_output: Decimal
    source: str
    date: date
    """Day from which the source says it holds, or else the day on which it was read."""
    is_undated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPriceBook:
    """The price in use of every hosted model."""

    prices: Mapping[str, ApiPrice]

    @staticmethod
    def load(folder: Path = API_PRICES_DIR) -> ApiPriceBook:
        """Every model of the folder's files; a model stands in one file."""
        decoder = Decoder()
        readings: dict[str, tuple[ApiPrice, ...]] = {}
        for path in sorted(folder.glob("*.yaml")):
            for model, found in _models(path, decoder).items():
                if model in readings:
                    decoder.refuse(f"{path}.models.{model}", "stands in another file already")
                readings[model] = found
        refuse(decoder)
        used = {  # dated before undated, then the newer
            model: max(found, key=lambda price: (not price.is_undated, price.date))
            for model, found in readings.items()
        }
        return ApiPriceBook(prices=MappingProxyType(used))

    def find(self, model: str) -> ApiPrice | UnknownPrice:
        """The price of the model, whatever the case of its name."""
        name = model.lower()
        if name in self.prices:
            return self.prices[name]
        near = difflib.get_close_matches(name, self.prices, n=1)
        advice = (
            f"the nearest name is '{near[0]}'"
            if near
            else f"have: {', '.join(sorted(self.prices))}"
        )
        return UnknownPrice(reason=f"no API price of '{model}' is known; {advice}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ApiRow(DatedRow):
    input: Money
    cached_input: Money | None = None
    output: Money


def _models(path: Path, decoder: Decoder) -> dict[str, tuple[ApiPrice, ...]]:
    _, models = read_head(path, "models", decoder)
    found: dict[str, tuple[ApiPrice, ...]] = {}
    for name, at, _, rows in read_entries(decoder, models, f"{path}.models", _ApiRow):
        model = name.lower()
        if "/" not in model:
            decoder.refuse(at, "expected provider/model, such as openai/gpt-4o-mini")
        prices = tuple(
            ApiPrice(
                model=model,
                usd_per_1m_input=row.input,
                usd_per_1m_cached_input=row.cached_input,
                usd_per_1m_output=row.output,
                source=row.source,
                date=row.day,
                is_undated=row.date is None,
            )
            for row in rows
        )
        if len({(price.date, price.is_undated) for price in prices}) < len(prices):
            decoder.refuse(at, "two readings of one day; keep one")
        if prices:
            found[model] = prices
    return found
