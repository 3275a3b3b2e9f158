"""Prices of hosted models have sources and dates, and what breaks a rule is refused."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from cost.prices.book import ApiPrice, ApiPriceBook, PriceBookError, UnknownPrice

ENTRY = "{input: 0.1, output: 0.4, date: 2026-01-02, source: s}"


def problems(tmp_path: Path, models: str, head: str = "name: b\ncurrency: USD") -> list[str]:
    (tmp_path / "b.yaml").write_text(f"{head}\nmodels:\n  {models}\n")
    with pytest.raises(PriceBookError) as refusal:
        ApiPriceBook.load(tmp_path)
    return str(refusal.value).splitlines()


def test_every_shipped_price_has_a_source_and_costs_more_to_write_than_to_read():
    for price in ApiPriceBook.load().prices.values():
        assert len(price.source) > 8
        assert price.usd_per_1m_output >= price.usd_per_1m_input > 0
        assert (price.usd_per_1m_cached_input or 0) < price.usd_per_1m_input


def test_a_model_is_found_whatever_the_case_of_its_name():
    found = ApiPriceBook.load().find("DeepInfra/Qwen3-14B")
    assert isinstance(found, ApiPrice)
    assert (found.usd_per_1m_input, found.usd_per_1m_output) == (Decimal("0.12"), Decimal("0.24"))
    assert found.usd_per_1m_cached_input is None


def test_a_model_that_is_not_known_is_answered_with_the_nearest_one():
    found = ApiPriceBook.load().find("openai/gpt4o-mini")
    assert isinstance(found, UnknownPrice)
    assert found.reason.endswith("the nearest name is 'openai/gpt-4o-mini'")


def test_the_newest_reading_of_a_model_is_used_whatever_their_order(tmp_path: Path):
    rows = [ENTRY, ENTRY.replace("0.1", "0.2").replace("-02", "-03")]
    for order in (rows, rows[::-1]):
        text = f"name: b\ncurrency: USD\nmodels: {{a/b: {{readings: [{', '.join(order)}]}}}}"
        (tmp_path / "b.yaml").write_text(text)
        found = ApiPriceBook.load(tmp_path).find("a/b")
        assert isinstance(found, ApiPrice)
        assert found.usd_per_1m_input == Decimal("0.2")


@pytest.mark.parametrize(
    ("models", "problem"),
    [
        (f"b: {ENTRY}", "models.b: expected provider/model"),
        ("a/b: " + ENTRY.replace("0.1", "-0.1"), "a/b.input: expected a number from 0"),
        ("a/b: " + ENTRY.replace("output: 0.4, ", ""), "a/b.output: missing"),
        ("a/b: " + ENTRY.replace("}", ", cached_input: x}"), "a/b.cached_input: expected a number"),
        (f"a/b: {{readings: [{ENTRY}, {ENTRY}]}}", "a/b: two readings of one day"),
    ],
)
def test_a_bad_price_is_refused_with_file_and_key(tmp_path: Path, models: str, problem: str):
    (line,) = problems(tmp_path, models)
    assert line.startswith(f"{tmp_path}/b.yaml.models")
    assert problem in line


def test_a_model_in_two_files_is_refused(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(f"name: a\ncurrency: USD\nmodels:\n  a/b: {ENTRY}\n")
    (line,) = problems(tmp_path, f"a/b: {ENTRY}")
    assert line.endswith("b.yaml.models.a/b: stands in another file already")


def test_every_problem_of_a_folder_is_told_at_once(tmp_path: Path):
    lines = problems(tmp_path, "a/b: {input: -1}", "name: c\ncurrency: EUR")
    assert len(lines) == 6
