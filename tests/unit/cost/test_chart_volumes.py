"""Disks that the charts claim: what observability and an NFS server of /home add to the bill."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from cost.prices.book import PriceBook
from cost.resources.lines import components
from stacks.load import load_stack
from stacks.spec.cluster import NfsHomeSpec, Observability, SoperatorSpec


@pytest.mark.parametrize(
    ("settings", "size", "usd"),
    [
        (SoperatorSpec(), "none claimed", "0"),
        # 60, 768 and 860 GiB at 0.071 USD a GiB and month.
        (
            SoperatorSpec(observability=Observability.SMALL),
            "60 GiB (metrics, logs)",
            "4.26",
        ),
        (SoperatorSpec(observability=Observability.FULL), "768 GiB (metrics, logs)", "54.528"),
        (
            SoperatorSpec(observability=Observability.SMALL, nfs_home=NfsHomeSpec(size_gib=800)),
            "860 GiB (home, metrics, logs)",
            "61.06",
        ),
    ],
)
def test_what_charts_claim_is_paid_by_gib(
    public_key_file: Path, settings: SoperatorSpec, size: str, usd: str
) -> None:
    spec = replace(load_stack("l40s-dev"), soperator=settings)
    lines = components(spec, PriceBook.load(spec.prices))
    line = next(each for each in lines if each.id == "charts.volumes")
    assert line.size == size
    assert line.low_usd == Decimal(usd)
