"""A chart is one element that runs nothing, asks for nothing and says what it shows."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.chat.charts import chat_charts
from cost.report.charts import Axis, Mark, Scale, Series, line_chart, spread, ticks
from tests.nightly import law
from tests.unit.cost.conftest import Priced, unit_costs

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text><script>alert('x')</script>"
X = Axis(label="x", scale=Scale.LOG, text=str)
Y = Axis(label="y", scale=Scale.LINEAR, text=str)
POINTS = ((Decimal(1), Decimal(5)), (Decimal(10), Decimal(1)))


def drawn(*series: Series, x: Axis = X, y: Axis = Y) -> ElementTree.Element:
    text = line_chart("k", title=HOSTILE, description="d", x=x, y=y, series=series)
    return ElementTree.fromstring(text)


def test_a_chart_has_a_title_and_a_description_that_it_is_labelled_by():
    chart = drawn(Series(name="s", points=POINTS, style=0))
    assert chart.get("role") == "img"
    ids = (chart.get("aria-labelledby") or "").split()
    assert [element.get("id") for element in chart if element.tag in (f"{SVG}title", f"{SVG}desc")]
    assert ids == ["k-title", "k-desc"]
    assert chart.findtext(f"{SVG}desc") == "d"


def test_no_name_becomes_markup():
    series = Series(
        name=HOSTILE,
        points=POINTS,
        style=0,
        marks=(Mark(x=Decimal(2), y=Decimal(3), name=HOSTILE),),
    )
    chart = drawn(series, x=replace(X, label=HOSTILE))
    assert chart.findtext(f"{SVG}title") == HOSTILE
    assert {element.tag.removeprefix(SVG) for element in chart.iter()} <= {
        "svg",
        "title",
        "desc",
        "text",
        "line",
        "polyline",
        "circle",
    }


def test_a_line_goes_from_corner_to_corner():
    """The larger value is further up, which is a smaller number."""
    chart = drawn(Series(name="s", points=POINTS, style=0))
    points = [
        tuple(map(float, point.split(",")))
        for point in (chart.findall(f"{SVG}polyline")[0].get("points") or "").split()
    ]
    assert points[0] == (72.0, 64.0)
    assert points[1][0] == 492.0
    assert points[1][1] > points[0][1]


def test_lines_of_one_colour_differ_in_their_dash():
    chart = drawn(
        Series(name="a", points=POINTS, style=0), Series(name="b", points=POINTS, style=0, dash=1)
    )
    assert [line.get("stroke-dasharray") for line in chart.findall(f"{SVG}polyline")] == [
        None,
        "7 4",
    ]


def test_names_at_one_height_do_not_cover_each_other():
    marks = tuple(Mark(x=Decimal(x), y=Decimal(3), name="a longer name") for x in ("2", "2.2"))
    chart = drawn(Series(name="s", points=POINTS, style=0, marks=marks))
    heights = [text.get("y") for text in chart.findall(f"{SVG}text") if text.text == marks[0].name]
    assert len(heights) == len(set(heights)) == 2


def test_a_single_place_draws_nothing():
    only = ((Decimal(1), Decimal(1)),)
    assert line_chart(
        "k", title="t", description="d", x=X, y=Y, series=[Series(name="s", points=only, style=0)]
    ) == ""  # fmt: skip


@pytest.mark.parametrize(
    ("low", "high", "scale", "expected"),
    [
        ("3", "40", Scale.LOG, ["2", "5", "10", "20", "50"]),
        ("0.02", "400", Scale.LOG, ["0.01", "0.1", "1", "10", "100", "1000"]),
        ("0.05", "1", Scale.LINEAR, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
    ],
)
def test_ticks_are_round(low: str, high: str, scale: Scale, expected: list[str]):
    found = ticks(Decimal(low), Decimal(high), scale)
    assert list(found) == [Decimal(text) for text in expected]


@law(150)
@given(
    low=st.decimals("0.000001", "1000000", places=6),
    factor=st.decimals("1", "1000000", places=3),
    scale=st.sampled_from(Scale),
)
def test_ticks_cover_what_they_stand_for(low: Decimal, factor: Decimal, scale: Scale):
    high = low * factor
    found = ticks(low, high, scale)
    assert found[0] <= low
    assert found[-1] >= high
    assert list(found) == sorted(set(found))
    assert 2 <= len(found) <= 16


def test_spread_values_are_a_factor_apart():
    values = spread(Decimal(1), Decimal(100), 3)
    assert [value.quantize(Decimal("0.000001")) for value in values] == [1, 10, 100]


def test_a_stack_with_speeds_has_three_charts_that_need_nothing_else(
    priced: Callable[[str], Priced],
):
    spec, bill = priced("l40s-dev")
    charts = chat_charts(unit_costs(spec, bill, []))
    titles = [ElementTree.fromstring(chart).findtext(f"{SVG}title") for chart in charts]
    assert titles == [
        "Cost per chat against throughput",
        "Cost per chat against utilisation",
        "Cost per chat against chats a day",
    ]
    page = "".join(charts)
    assert not re.search(r"<script|<style|href|url\(|@import|\son\w+=", page)
    assert page.isascii()
    ids = re.findall(r'id="([^"]+)"', page)
    assert len(ids) == len(set(ids)) == 6


def test_the_throughput_chart_goes_through_every_scenario(priced: Callable[[str], Priced]):
    """Its dots are the rows of the table; text and picture cannot disagree."""
    spec, bill = priced("l40s-dev")
    chart = ElementTree.fromstring(chat_charts(unit_costs(spec, bill, []))[0])
    line = chart.findall(f"{SVG}polyline")[0]
    points = [tuple(map(float, p.split(","))) for p in (line.get("points") or "").split()]
    for dot in chart.findall(f"{SVG}circle")[:3]:
        x, y = float(dot.get("cx") or 0), float(dot.get("cy") or 0)
        after = next(index for index, point in enumerate(points) if point[0] >= x)
        (x1, y1), (x2, y2) = points[after - 1], points[after]
        assert y == pytest.approx(y1 + (x - x1) / (x2 - x1) * (y2 - y1), abs=0.2)


def test_without_a_speed_there_is_nothing_to_draw(priced: Callable[[str], Priced]):
    spec, bill = priced("h100-prod")
    assert chat_charts(unit_costs(spec, bill, [])) == ()


def test_nodes_that_cost_nothing_have_no_place_on_an_axis_of_powers_of_ten(
    priced: Callable[[str], Priced],
):
    """The page of an attached stack at min_nodes 0 ended in a traceback."""
    spec, bill = priced("l40s-dev")
    free = [
        replace(line, rate=line.rate and replace(line.rate, usd=Decimal(0)))
        for line in bill.components
    ]
    assert chat_charts(unit_costs(spec, replace(bill, components=tuple(free)))) == ()
    pairs = zip(bill.components, free, strict=True)
    given_away = tuple(line if line.nodeset is None else gift for line, gift in pairs)
    charts = chat_charts(unit_costs(spec, replace(bill, components=given_away)))
    assert len(charts) == 3
    assert "".join(charts).count("serving nodes</text>") == 1  # the label of an axis
