"""Live prices come from the calculator, are kept with their day, and never break what is known."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from cost.prices.book import Layer, Price
from infra.operate import prices
from infra.operate.prices import LivePriceError, price_book
from infra.providers.nebius import sdk
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing
from tests.unit.nebius_api.conftest import Served

TODAY = date(2026, 11, 20)
H100 = "gpu-h100-sxm/gpu"
Stack = Callable[..., StackSpec]


def usd(found: tuple[Price, ...]) -> dict[str, str]:
    return {price.sku: str(price.usd) for price in found}


def test_the_calculator_prices_what_the_stack_uses(emulator: Served, stack: Stack):
    found, not_recognised = prices.estimate(stack("h100-prod"), TODAY)
    assert usd(found) == {
        H100: "3.85",
        "cpu-d3/vcpu": "0.012",
        "cpu-d3/ram": "0.0032",
        "disk/network-ssd": "0.07097206",
        "filesystem/network-ssd": "0.07999997",
    }
    assert not_recognised == []
    price = next(each for each in found if each.sku == H100)
    assert (price.layer, price.date, price.region) == (Layer.LIVE, TODAY, "eu-north1")
    assert price.covers_vm
    assert "emulated" in price.source


def test_one_call_asks_for_everything_and_creates_nothing(emulator: Served, stack: Stack):
    prices.estimate(stack("l40s-dev"), TODAY)
    assert [call["method"].rsplit("/", 1)[1] for call in emulator.emulator.calls] == [
        "EstimateBatch"
    ]
    assert not list(emulator.emulator.store.of_kind("computeinstance"))


def test_a_preemptible_node_has_its_own_price(emulator: Served, stack: Stack):
    found, _ = prices.estimate(stack("h200-elastic", Billing.PREEMPTIBLE), TODAY)
    assert usd(found)["gpu-h200-sxm/gpu/preemptible"] == "2.45"


def test_what_the_calculator_refuses_is_told_and_the_rest_is_taken(emulator: Served, stack: Stack):
    found, (line,) = prices.estimate(stack("l40s-dev", Billing.PREEMPTIBLE), TODAY)
    assert line.startswith("gpu-l40s-d/gpu/preemptible")
    assert "no price for gpu-l40s-d, preemptible" in line
    assert usd(found)["cpu-d3/vcpu"] == "0.012"


def test_a_calculator_that_does_not_answer_is_one_line(
    monkeypatch: pytest.MonkeyPatch, stack: Stack, tmp_path: Path
):
    monkeypatch.setenv(sdk.ENDPOINT_VARIABLE, "http://127.0.0.1:9")
    monkeypatch.setenv(sdk.TOKEN_VARIABLE, "local-token")
    sdk.shared_sdk.cache_clear()
    with pytest.raises(LivePriceError) as refusal:
        prices.estimate(stack("h100-prod"), TODAY)
    sdk.shared_sdk().sync_close()
    sdk.shared_sdk.cache_clear()
    (line,) = str(refusal.value).splitlines()
    assert line.startswith("estimate prices: no answer from the emulated Nebius API on 127.0.0.1:9")


@pytest.mark.parametrize("kind", ["EstimateBatchRequest", "CreateDiskRequest"])
def test_a_request_that_the_api_would_refuse_is_told_with_its_rule(
    emulator: Served, stack: Stack, monkeypatch: pytest.MonkeyPatch, kind: str
):
    def violations(message: Any) -> list[tuple[str, str]]:
        return [("a.b", "too many")] if message.DESCRIPTOR.name == kind else []

    monkeypatch.setattr(prices, "violations", violations)
    with pytest.raises(LivePriceError, match=rf"^estimate prices: {kind}: a\.b: too many$"):
        prices.estimate(stack("h100-prod"), TODAY)


def test_kept_estimates_price_a_stack_that_asks_for_them(
    emulator: Served, stack: Stack, tmp_path: Path
):
    spec = stack("h100-prod")
    prices.save(tmp_path, "eu-north1", prices.estimate(spec, TODAY)[0])
    assert price_book(spec, tmp_path).prices[H100].layer is Layer.BOOK
    price = price_book(replace(spec, live_prices=True), tmp_path).prices[H100]
    assert (price.layer, str(price.usd), price.date) == (Layer.LIVE, "3.85", TODAY)


def test_the_emulator_s_estimates_never_price_the_real_cloud(
    emulator: Served, stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    spec = replace(stack("h100-prod"), live_prices=True)
    path = prices.save(tmp_path, "eu-north1", prices.estimate(spec, TODAY)[0])
    assert path == tmp_path / "prices" / "emulator" / "eu-north1.json"
    monkeypatch.delenv(sdk.ENDPOINT_VARIABLE)
    assert price_book(spec, tmp_path).prices[H100].layer is Layer.BOOK


def test_a_refresh_keeps_what_it_did_not_ask_for(emulator: Served, stack: Stack, tmp_path: Path):
    prices.save(tmp_path, "eu-north1", prices.estimate(stack("l40s-dev"), date(2026, 11, 1))[0])
    prices.save(tmp_path, "eu-north1", prices.estimate(stack("h100-prod"), TODAY)[0])
    kept = prices.load(tmp_path, "eu-north1")
    days = {price.sku: price.date for price in kept}
    assert (days["gpu-l40s-d/gpu"], days[H100]) == (date(2026, 11, 1), TODAY)


def test_without_estimates_nothing_is_kept(tmp_path: Path):
    assert prices.load(tmp_path, "eu-north1") == ()


ROW = {"unit": "GPU-hour", "usd": "3.85", "source": "s", "date": "2026-11-20"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"schema_version": 2}, ".schema_version: 2 is not 1"),
        ({"prices": []}, ".prices: expected a mapping of what is sold to its price"),
        ({"region": "moon"}, ".region: 'moon' is not 'eu-north1'"),
        ({"currency": "EUR"}, ".currency: 'EUR' is not 'USD'"),
        ({"prices": {"gold": {**ROW, "unit": "GiB-month"}}}, ".prices.gold: 'gold' is not sold"),
        ({"prices": {H100: {**ROW, "unit": "GiB-month"}}}, f"'{H100}' is sold by GPU-hour"),
        (
            {"prices": {H100: {**ROW, "usd": "-1"}}},
            f".prices.{H100}.usd: expected a number from 0 to",
        ),
    ],
)
def test_a_damaged_file_is_refused_with_its_key_and_what_to_do(
    tmp_path: Path, change: dict[str, object], problem: str
):
    path = prices.cache_file(tmp_path, "eu-north1")
    path.parent.mkdir(parents=True)
    good: dict[str, object] = {
        "schema_version": 1,
        "region": "eu-north1",
        "currency": "USD",
        "prices": {H100: ROW},
    }
    path.write_text(json.dumps(good | change))
    with pytest.raises(LivePriceError) as refusal:
        prices.load(tmp_path, "eu-north1")
    first = str(refusal.value).splitlines()[0]
    assert first.startswith(str(path))
    assert problem in first
    assert first.endswith("run `soperator cost prices --refresh`, or delete the file")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_not_taken_for_no_estimates(
    tmp_path: Path, make: Callable[[Path], None]
):
    path = prices.cache_file(tmp_path, "eu-north1")
    path.parent.mkdir(parents=True)
    make(path)
    with pytest.raises(LivePriceError, match=r"cannot be read: .*delete the file"):
        prices.load(tmp_path, "eu-north1")


def test_a_folder_that_cannot_be_entered_is_not_taken_for_no_estimates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("stacks.files.os.open", denied)
    with pytest.raises(LivePriceError, match=r"Permission denied.*delete the file"):
        prices.load(tmp_path, "eu-north1")


def test_a_truncated_file_is_refused_in_one_line(tmp_path: Path):
    path = prices.cache_file(tmp_path, "eu-north1")
    path.parent.mkdir(parents=True)
    path.write_text('{"schema_version": 1,')
    with pytest.raises(LivePriceError, match=r"not valid YAML: .*delete the file"):
        prices.load(tmp_path, "eu-north1")
