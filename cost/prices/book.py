"""Which price a stack pays: layered(spec, live).find(sku, unit), or PriceBook.load(name) alone.

The shipped book, over it the provider's own estimate (where the stack asks for it), over both the
prices of the user's contract. Of several readings of a SKU that hold in the region, the newest of
the highest layer is used; one whose source is undated only where no dated one is. A price that is
not known is a state of its own, never 0.

Hosted models have their own, from cost/prices/api/*.yaml: ApiPriceBook.load().find(model).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cost.prices.file import (
    DatedRow,
    Money,
    NoHead,
    read_entries,
    read_head,
    read_price_file,
    refuse,
    unit,
)
from cost.prices.price import (
    Layer,
    Price,
    PriceBookError,
    Unit,
    UnknownBookError,
    UnknownPrice,
    covers_vm,
)
from stacks.errors import Level, Problem
from stacks.spec import StackSpec
from stacks.spec.decode import Decoder
from stacks.spec.nodes import Billing

PRICES_DIR: Final = Path(__file__).parent
_LAYERS: Final = tuple(Layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceBook:
    """Prices by SKU."""

    name: str
    caveat: str
    prices: Mapping[str, Price]
    """The price in use of every SKU."""
    readings: Mapping[str, tuple[Price, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Every reading of every SKU, used or not."""
    region: str | None = None
    """Region whose prices are in use; None: those that hold everywhere."""

    @staticmethod
    def load(name: str, prices_dir: Path = PRICES_DIR) -> PriceBook:
        """The book of `<name>.yaml`."""
        path = prices_dir / f"{name}.yaml"
        if not path.is_file():
            have = ", ".join(sorted(file.stem for file in prices_dir.glob("*.yaml"))) or "none"
            raise UnknownBookError(f"{name}: no such price book in {prices_dir} (have: {have})")
        file = read_price_file(path)
        return PriceBook.of_readings(file.name, file.caveat, file.readings)

    @staticmethod
    def of_readings(
        name: str, caveat: str, readings: Mapping[str, tuple[Price, ...]], region: str | None = None
    ) -> PriceBook:
        """A book that uses the newest reading of every SKU."""
        found = {sku: newest(prices, region) for sku, prices in readings.items()}
        return PriceBook(
            name=name,
            caveat=caveat,
            prices=MappingProxyType({sku: price for sku, price in found.items() if price}),
            readings=MappingProxyType(dict(readings)),
            region=region,
        )

    def in_region(self, region: str) -> PriceBook:
        """The same readings, those in use that hold in the region."""
        if region == self.region:
            return self
        return PriceBook.of_readings(self.name, self.caveat, self.readings, region)

    def find(self, sku: str, unit: Unit) -> Price | UnknownPrice:
        """The price of the SKU, which must be sold by `unit`."""
        price = self.prices.get(sku)
        if price is None:
            return UnknownPrice(sku=sku, reason=self._why_unknown(sku))
        if price.unit is not unit:
            raise PriceBookError(
                f"{self.name}.{sku}.unit: sold by {price.unit}, but needed by {unit}; fix the book"
            )
        return price

    def with_prices(self, prices: Iterable[Price]) -> PriceBook:
        """The book with these readings too; a higher layer wins, whatever its date."""
        readings = dict(self.readings)
        for price in prices:
            known = readings.get(price.sku, ())
            readings[price.sku] = known if price in known else (*known, price)
        return PriceBook.of_readings(self.name, self.caveat, readings, self.region)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePrices:
    """What the provider's calculator estimated for one region on one day."""

    region: str
    date: date
    source: str
    """Who estimated, such as `CalculatorService of Nebius`."""
    prices: tuple[Price, ...]


def layered(
    spec: StackSpec, live: LivePrices | None = None, book: PriceBook | None = None
) -> PriceBook:
    """The prices that the stack pays; PriceBookError names every contract price that is wrong."""
    try:
        shipped = PriceBook.load(spec.prices) if book is None else book
    except UnknownBookError as error:
        raise PriceBookError(f"{spec.name}.prices: {error}") from error
    prices = shipped.in_region(spec.nebius.region)
    if spec.live_prices and live is not None and live.region == spec.nebius.region:
        prices = prices.with_prices(live.prices)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contract:
    """What a contract price says beside its SKU and unit."""

    usd: Money
    source: str
    date: date


def contract_prices(spec: StackSpec) -> tuple[Price, ...]:
    """The contract prices that the stack declares."""
    decoder, seen, found = Decoder(), set[str](), list[Price]()
    for number, declared in enumerate(spec.contract_prices):
        path, sku = f"{spec.name}.contract_prices[{number}]", declared.sku
        if sku in seen:
            decoder.refuse(f"{path}.sku", f"'{sku}' stands here twice; keep one")
        seen.add(sku)
        sold_by = unit(sku, declared.unit, path, decoder, sku_path=f"{path}.sku")
        values = {"usd": declared.usd, "source": declared.source, "date": declared.date}
        said = decoder.record(_Contract, values, path)
        if sold_by is not None and said is not None:
            found.append(
                Price(
                    sku=sku,
                    unit=sold_by,
                    usd=said.usd,
                    source=said.source,
                    date=said.date,
                    covers_vm=covers_vm(sku),
                    layer=Layer.CONTRACT,
                )
            )
    refuse(decoder)
    return tuple(found)


def old_prices(prices: Iterable[Price], today: date, max_age_days: int) -> tuple[Price, ...]:
    """The prices that are more than `max_age_days` old, oldest first, each SKU once."""
    old = {price.sku: price for price in prices if (today - price.date).days > max_age_days}
    return tuple(sorted(old.values(), key=lambda price: (price.date, price.sku)))


def price_age_problems(
    spec: StackSpec, prices: Iterable[Price], today: date
) -> tuple[Problem, ...]:
    """One warning for all prices in use that are older than the stack's policy allows.

    No more than a warning: an age depends on the day, and an unchanged stack previews unchanged.
    """
    limit = spec.policy.max_price_age_days
    old = old_prices(prices, today, limit)
    if not old:
        return ()
    names = ", ".join(f"{price.sku} ({price.dated})" for price in old)
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
    readings: Mapping[str, tuple[ApiPrice, ...]]
    """Every reading of every model, used or not."""

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
        return ApiPriceBook(prices=MappingProxyType(used), readings=MappingProxyType(readings))

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
        return UnknownPrice(sku=model, reason=f"no API price of '{model}' is known; {advice}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ApiRow(DatedRow):
    input: Money
    cached_input: Money | None = None
    output: Money


def _models(path: Path, decoder: Decoder) -> dict[str, tuple[ApiPrice, ...]]:
    _, models = read_head(path, "models", decoder)
    found: dict[str, tuple[ApiPrice, ...]] = {}
    for name, at, _, rows in read_entries(decoder, models, f"{path}.models", NoHead, _ApiRow):
        model = name.lower()
        if "/" not in model:
            decoder.refuse(at, "expected provider/model, such as openai/gpt-4o-mini")
        prices = tuple(_price(model, row) for row in rows)
        if len({(price.date, price.is_undated) for price in prices}) < len(prices):
            decoder.refuse(at, "two readings of one day; keep one")
        if prices:
            found[model] = prices
    return found


def _price(model: str, row: _ApiRow) -> ApiPrice:
    return ApiPrice(
        model=model,
        usd_per_1m_input=row.input,
        usd_per_1m_cached_input=row.cached_input,
        usd_per_1m_output=row.output,
        source=row.source,
        date=row.day,
        is_undated=row.date is None,
    )
