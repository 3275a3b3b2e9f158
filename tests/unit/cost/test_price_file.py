"""A price file that breaks a rule is refused with file and key, all its problems at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cost.prices.book import UNITS, PriceBookError, Unit, read_price_file

ENTRY = '{unit: GPU-hour, usd: "1.35", source: s, date: "2026-01-02"}'
TWO = (
    "a: {unit: GPU-hour, readings: [{usd: 1, source: s, date: 2026-01-02}, "
    "{usd: 2, source: t, date: 2026-01-03}]}"
)


@pytest.fixture(autouse=True)
def a_is_sold_by_the_gpu_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cost.prices.book.UNITS", {**UNITS, "a": Unit.GPU_HOUR})


def read(tmp_path: Path, prices: str, head: str = "name: b\ncurrency: USD"):
    path = tmp_path / "b.yaml"
    path.write_text(f"{head}\nprices:\n  {prices}\n")
    return read_price_file(path)


def problems(tmp_path: Path, prices: str, head: str = "name: b\ncurrency: USD") -> list[str]:
    with pytest.raises(PriceBookError) as refusal:
        read(tmp_path, prices, head)
    return str(refusal.value).splitlines()


def test_unknown_keys_are_told_in_the_order_in_which_they_stand(tmp_path: Path):
    """By a set they came in another order in every process."""
    keys = ("one", "two", "three", "four", "five", "six")
    more = ", ".join(f"{key}: 1" for key in keys)
    found = problems(tmp_path, "a: " + ENTRY.replace("}", f", {more}}}"))
    assert [line.partition(".a.")[2].partition(":")[0] for line in found] == [*keys]


@pytest.mark.feature("S000-90")
@pytest.mark.parametrize(
    ("prices", "problem"),
    [
        (
            "a: " + ENTRY.replace("1.35", "cheap"),
            "a.usd: expected a number, got text 'cheap'",
        ),
        ("a: " + ENTRY.replace('"1.35"', "true"), "prices.a.usd: expected a number, got true"),
        (
            "a: " + ENTRY.replace("1.35", "-1"),
            "usd: expected a number from 0 to 1,000,000,000",
        ),
        ("a: " + ENTRY.replace('"1.35"', "1e40"), "expected a number from 0 to 1,000,000,000, got"),
        ("a: " + ENTRY.replace("1.35", "NaN"), "prices.a.usd: expected a number, got text 'NaN'"),
        (
            "a: " + ENTRY.replace("GPU-hour", "GPU"),
            "prices.a.unit: 'GPU', but 'a' is sold by GPU-hour",
        ),
        ("a: " + ENTRY.replace("unit: GPU-hour, ", ""), "prices.a.unit: missing"),
        (f"gpu-h100/gpu: {ENTRY}", "'gpu-h100/gpu' is not sold; did you mean 'gpu-h100-sxm/gpu'?"),
        (f"public-ip: {ENTRY}", "unit: 'GPU-hour', but 'public-ip' is sold by address-hour"),
        (
            "a: " + ENTRY.replace("2026-01-02", "January"),
            "expected a day of the form YYYY-MM-DD",
        ),
        ("a: " + ENTRY.replace(', date: "2026-01-02"', ""), "prices.a.date: missing; give `date`"),
        ("a: " + ENTRY.replace("}", ", read: 2026-01-02}"), "has both 'date' and 'read'"),
        (
            "a: " + ENTRY.replace("source: s", 'source: ""'),
            "expected text that is not blank",
        ),
        (
            "a: " + ENTRY.replace("source: s", "source: true"),
            "source: expected text, got true",
        ),
        ("a: " + ENTRY.replace("source: s", "source: [s]"), "source: expected text, got a list"),
        ("a: " + ENTRY.replace("}", ", sauce: s}"), "a.sauce: unknown key; did you mean 'source'?"),
        (
            "a: " + ENTRY.replace("}", ", currency: EUR}"),
            "a.currency: expected one of USD, got",
        ),
        (
            "a: " + ENTRY.replace("}", ", region: moon}"),
            "a.region: expected one of eu-north1",
        ),
        (
            "a: " + ENTRY.replace("}", ", covers_vm: 1}"),
            "covers_vm: expected true or false",
        ),
        ("a: 1.35", "prices.a: expected a mapping"),
        (TWO.replace("-03", "-02"), "prices.a: two readings of 2026-01-02 for all regions"),
        (TWO.replace("source: t, ", ""), "prices.a.readings[1].source: missing"),
        (TWO.replace("unit:", "usd: 3, unit:"), "prices.a.usd: stands beside 'readings'"),
        ("a: {unit: GPU-hour, readings: []}", "prices.a.readings: expected a list of readings"),
        ("a: {unit: GPU-hour, readings: [1]}", "prices.a.readings[0]: expected a mapping"),
        (f"a: {ENTRY}\n  a: {ENTRY}", "key 'a' is written twice"),
        (
            'a: {unit: GPU-hour, usd: "1", source: "s\\e[31m", date: "2026-01-02"}',
            "prices.a.source: expected one line of printable text",
        ),
        (
            '5: {unit: GPU-hour, usd: "1", source: s, date: "2026-01-02"}',
            "sold goes by a text",
        ),
    ],
)
def test_a_bad_price_is_refused_with_its_path(tmp_path: Path, prices: str, problem: str):
    (line,) = problems(tmp_path, prices)
    assert line.startswith(str(tmp_path / "b.yaml"))
    assert problem in line


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        ("name: c\ncurrency: USD", "b.yaml.name: 'c' is not the file's name"),
        ("name: b\ncurrency: EUR", "b.yaml.currency: expected one of USD, got text 'EUR'"),
        ("name: b", "b.yaml.currency: missing"),
        ("name: b\ncurrency: USD\nfx: 1", "b.yaml.fx: unknown key"),
    ],
)
def test_a_bad_head_is_refused(tmp_path: Path, head: str, problem: str):
    (line,) = problems(tmp_path, f"a: {ENTRY}", head)
    assert problem in line


@pytest.mark.feature("S000-90")
def test_a_date_in_the_future_is_refused(tmp_path: Path):
    later = (datetime.now(UTC) + timedelta(days=2)).date()
    (line,) = problems(tmp_path, "a: " + ENTRY.replace("2026-01-02", str(later)))
    assert f"prices.a.date: {later} is in the future" in line


def test_every_problem_of_a_file_is_told_at_once(tmp_path: Path):
    bad = "a: {unit: GPU-hour, usd: -1}\n  public-ip: " + ENTRY.replace("GPU-hour", "mile")
    lines = problems(tmp_path, bad, "name: c\ncurrency: EUR")
    assert [line.removeprefix(f"{tmp_path}/b.yaml.").split(":")[0] for line in lines] == [
        "name",
        "currency",
        "prices.a.source",
        "prices.a.usd",
        "prices.a.date",
        "prices.public-ip.unit",
    ]


def test_a_caveat_is_one_line_of_text(tmp_path: Path):
    (line,) = problems(tmp_path, f"a: {ENTRY}", 'name: b\ncurrency: USD\ncaveat: "x\\e[31m"')
    assert line.endswith(r".caveat: expected one line of printable text, got text 'x\x1b[31m'")


def test_a_file_without_prices_is_refused(tmp_path: Path):
    path = tmp_path / "b.yaml"
    path.write_text("name: b\ncurrency: USD\n")
    with pytest.raises(PriceBookError, match=r"b\.yaml\.prices: expected a mapping"):
        read_price_file(path)


def test_text_that_is_not_yaml_names_the_file_in_one_line(tmp_path: Path):
    (line,) = problems(tmp_path, "[")
    assert "b.yaml: not valid YAML" in line


def test_a_number_needs_no_quotes_to_stay_a_decimal(tmp_path: Path):
    file = read(tmp_path, "a: " + ENTRY.replace('"1.35"', "0.0032"))
    assert str(file.readings["a"][0].usd) == "0.0032"
