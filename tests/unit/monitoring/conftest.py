"""One stack with everything that monitors it, and promtool."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from cost.resources.estimate import Estimate, Total
from stacks.load import load_stack
from stacks.spec import LifetimeSpec, StackSpec
from stacks.spec.cluster import Observability
from stacks.spec.cost import BudgetSpec


@dataclass(frozen=True, kw_only=True)
class Burn:
    """An estimate of round numbers."""

    spec: Any
    book: Any
    node_usd_per_hour: dict[str, Decimal | None]
    around_usd_per_hour: Decimal = Decimal("2.60")
    total: Total
    price_date: date = date(2026, 9, 15)
    prices = Estimate.prices
    unpriced_nodesets = Estimate.unpriced_nodesets


BURN: Any = Burn(
    spec=SimpleNamespace(budget=BudgetSpec(usd_per_month=Decimal(5000))),
    book=SimpleNamespace(name="nebius"),
    node_usd_per_hour={"worker": Decimal("36.00")},
    total=Total(low_usd=Decimal(0), high_usd=Decimal(0), is_lower_bound=False),
)


@pytest.fixture
def watched(public_key_file: object) -> StackSpec:
    """h100-prod with metrics, a budget and an end."""
    spec = load_stack("h100-prod")
    return replace(
        spec,
        soperator=replace(spec.soperator, observability=Observability.SMALL, slack_notifier=True),
        budget=BudgetSpec(usd_per_month=Decimal(5000)),
        lifetime=LifetimeSpec(idle_hours=4),
    )


@pytest.fixture(scope="session")
def promtool() -> str:
    """Prometheus' own checker of rules, which set-up of the tests installs."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("needs promtool of the Debian package prometheus (`make test` installs it)")
    return found
