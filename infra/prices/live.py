"""Asks the provider's calculator for the prices of a stack: estimate(spec, today) -> Estimated.

Uses `billing.v1 CalculatorService.EstimateBatch` of the API that the environment names: the cloud,
or the emulator behind SOPERATOR_NEBIUS_ENDPOINT. Checks each request against the API's own rules
before it is sent. Reads only: nothing is created. Does not keep the answer (cache.py).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Final

from google.protobuf import json_format

from cost.price import CURRENCY, Layer, Price
from cost.price_layers import LivePrices
from cost.sku import UNITS, covers_vm
from infra.nebius.api import Api
from infra.nebius.errors import ApiError, explain
from infra.nebius.schema import Schema
from infra.nebius.sdk import cache_dir
from infra.nebius.validation import Validator
from infra.prices.answers import NotRecognisedError, unit_prices
from infra.prices.errors import LivePriceError
from infra.prices.requests import Wanted, wanted
from stacks.spec import StackSpec

_SERVICE: Final = "nebius.billing.v1.CalculatorService"
_HOUR: Final = "FILTER_AGGREGATION_UNIT_HOUR"
_HOURLY: Final = frozenset({"", "h", "hour", "hours", "Hour", "HOUR"})
"""How the answer may spell the unit that was asked for."""
_ONE_IS_REFUSED: Final = frozenset({"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"})
# An estimate needs neither: the cloud prices an instance from its platform and preset alone
# (github.com/skypilot-org/skypilot/pull/9829, run against the live API on 2026-08-28).
_NOT_NEEDED: Final = frozenset({"spec.network_interfaces", "spec.boot_disk"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """What the calculator told."""

    prices: LivePrices
    not_recognised: tuple[str, ...]
    """What was asked and could not be read, a line each; the book's prices stay for these."""


def estimate(spec: StackSpec, today: date) -> Estimated:
    """Today's list prices of what the stack uses; LivePriceError where there is none at all."""
    calculator = _Calculator()
    asked = wanted(spec)
    source = source_of(calculator.target)
    found, not_recognised = dict[str, set[Decimal]](), list[str]()
    for one, answer in zip(asked, calculator.ask_all(asked), strict=True):
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
    prices = tuple(
        Price(
            sku=sku,
            unit=UNITS[sku],
            usd=told.pop(),
            source=source,
            date=today,
            region=spec.nebius.region,
            covers_vm=covers_vm(sku),
            layer=Layer.LIVE,
        )
        for sku, told in found.items()
    )
    live = LivePrices(region=spec.nebius.region, date=today, source=source, prices=prices)
    return Estimated(prices=live, not_recognised=tuple(not_recognised))


def source_of(target: str | None) -> str:
    """Who estimates, for people."""
    if target is None:
        return "CalculatorService of Nebius, list prices"
    return "CalculatorService of the emulated cloud, not what Nebius charges"


class _Calculator:
    """The calculator of the API that the environment names."""

    def __init__(self) -> None:
        self._api = Api(Schema(cache_dir()), threading.Event())
        self._service = self._api.schema.services[_SERVICE]
        self._validator = Validator(self._api.schema)

    @property
    def target(self) -> str | None:
        """The emulator's address, or None for the cloud."""
        return self._api.target

    def ask_all(self, asked: Sequence[Wanted]) -> list[Any]:
        """For each resource the costs of an hour, or why there are none.

        One resource without a price makes the calculator refuse a whole batch; then each is asked
        for on its own.
        """
        try:
            return self._ask(asked)
        except ApiError as failure:
            if failure.code not in _ONE_IS_REFUSED or len(asked) < 2:
                raise self._refusal(failure) from failure
        return [self._ask_one(one) for one in asked]

    def _ask_one(self, one: Wanted) -> Any:
        try:
            return self._ask([one])[0]
        except ApiError as failure:
            if failure.code not in _ONE_IS_REFUSED:
                raise self._refusal(failure) from failure
            return explain(failure, "refused", target=self.target)

    def _ask(self, asked: Sequence[Wanted]) -> list[Any]:
        """The costs of an hour for each resource, in the order of the request."""
        request = self._request(asked)
        answer = self._api.call(self._service, "EstimateBatch", request)
        if answer.currency.upper() not in ("", CURRENCY):
            raise LivePriceError(f"estimate prices: in {answer.currency}, not in {CURRENCY}")
        rows = [row for row in answer.resource_costs if row.aggregation_unit.unit in _HOURLY]
        if len(rows) != len(asked):
            raise LivePriceError(
                f"estimate prices: {len(rows)} hourly answers to {len(asked)} questions"
            )
        return [row.general.total for row in rows]

    def _request(self, asked: Sequence[Wanted]) -> Any:
        schema = self._api.schema
        request: Any = self._api.request(self._service, "EstimateBatch", currency=CURRENCY)
        for one in asked:
            message: Any = json_format.ParseDict(one.fields, schema.message(one.message)())
            _refuse_violations(one.message, self._validator, message)
            request.resource_specs.add().spec.Pack(message)
        json_format.ParseDict(
            {"filter_aggregation_unit": {"filter_aggregation_unit_values": [_HOUR]}}, request
        )
        _refuse_violations("EstimateBatchRequest", self._validator, request)
        return request

    def _refusal(self, failure: ApiError) -> LivePriceError:
        return LivePriceError(explain(failure, "estimate prices", target=self.target))


def _refuse_violations(name: str, validator: Validator, message: Any) -> None:
    found = [
        (path, rule) for path, rule in validator.violations(message) if path not in _NOT_NEEDED
    ]
    if found:
        told = "; ".join(f"{path}: {rule}" for path, rule in found)
        raise LivePriceError(f"estimate prices: {name.rsplit('.', 1)[1]}: {told}")
