"""The bill and the chat table of seed 000, row by row.

Expected figures are recomputed by hand from its unit prices over 730 hours; the seed's own rows
round the hourly node prices to cents first, which is why its totals say $18,124 to $19,054.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal

import pytest

from cost.bill.bill import bill as make_bill
from cost.bill.bill import render
from cost.chat.speeds import Basis
from cost.chat.unit_costs import NotKnown
from cost.prices.book import PriceBook
from cost.resources.estimate import estimate
from cost.resources.lines import Scope, Section
from stacks.load import STACKS_DIR
from stacks.spec.storage import FilesystemType
from tests.unit.cost.conftest import Priced, unit_costs

CENT = Decimal("0.01")

ROWS = [
    # The seed's row of five workers is two: partitions go by nodeset, four train and one serves.
    (Section.COMPUTE, "worker (gpu-l40s-d)", "4 x 2gpu-64vcpu-384gb", "13340.90", "13340.90"),
    (Section.COMPUTE, "worker-serve (gpu-l40s-d)", "1 x 2gpu-64vcpu-384gb", "3335.22", "3335.22"),
    (Section.COMPUTE, "system (cpu-d3)", "3..9 x 8vcpu-32gb", "434.50", "1303.49"),
    (Section.COMPUTE, "controller (cpu-d3)", "2 x 4vcpu-16gb", "144.83", "144.83"),
    (Section.COMPUTE, "login (cpu-d3)", "1 x 4vcpu-16gb", "72.42", "72.42"),
    (Section.COMPUTE, "accounting (cpu-d3)", "1 x 8vcpu-32gb", "144.83", "144.83"),
    (Section.BOOT_DISKS, "worker (non-replicated)", "4 x 558 GiB", "118.30", "118.30"),
    (Section.BOOT_DISKS, "worker-serve (non-replicated)", "1 x 558 GiB", "29.57", "29.57"),
    (Section.BOOT_DISKS, "system (ssd)", "3..9 x 128 GiB", "27.26", "81.79"),
    (Section.BOOT_DISKS, "controller (ssd)", "2 x 128 GiB", "18.18", "18.18"),
    (Section.BOOT_DISKS, "login (ssd)", "1 x 256 GiB", "18.18", "18.18"),
    (Section.BOOT_DISKS, "accounting (ssd)", "1 x 128 GiB", "9.09", "9.09"),
    (Section.FILESYSTEMS, "jail", "256 GiB", "20.48", "20.48"),
    (Section.FILESYSTEMS, "data (submount)", "1024 GiB", "81.92", "81.92"),
    (Section.FILESYSTEMS, "chkpt (submount)", "1024 GiB", "81.92", "81.92"),
    (Section.FILESYSTEMS, "model (submount)", "1024 GiB", "81.92", "81.92"),
    (Section.FILESYSTEMS, "home (submount)", "256 GiB", "20.48", "20.48"),
    (Section.FILESYSTEMS, "accounting", "256 GiB", "20.48", "20.48"),
    (Section.FILESYSTEMS, "controller_spool", "128 GiB", "10.24", "10.24"),
    (Section.OBJECT_STORAGE, "daily jail backups", "7 x 1024 GiB", "105.37", "105.37"),
    (Section.OBJECT_STORAGE, "versioned JSON configs", "< 1 GiB", "0.00", "0.00"),
    (Section.NETWORK, "public IP (login)", "1", "0.00", "0.00"),
]


def cents(usd: Decimal | None) -> str:
    assert usd is not None
    return str(usd.quantize(CENT, ROUND_HALF_UP))


@pytest.mark.feature(
    "S000-100",
    "S000-101",
    "S000-102",
    "S000-103",
    "S000-104",
    "S000-105",
    "S000-106",
    "S000-107",
    "S000-108",
    "S000-109",
    "S000-110",
    "S000-123",
    "S000-74",
    "S000-82",
    "S000-83",
    "S000-84",
    "S000-85",
    "S000-86",
    "S000-87",
    "S000-88",
    "S000-89",
    "S000-91",
    "S000-92",
    "S000-93",
    "S000-94",
    "S000-95",
    "S000-96",
    "S000-97",
    "S000-98",
    "S000-99",
)
def test_every_row_of_the_bill_is_the_seed_s_to_the_cent(priced: Callable[[str], Priced]):
    _, bill = priced("l40s-dev")
    assert [
        (
            line.section,
            line.name,
            line.size,
            cents(line.low_usd),
            cents(line.high_usd),
        )
        for line in bill.components
        if line.scope is Scope.MAIN
    ] == ROWS


@pytest.mark.feature("S000-91", "S000-96")
def test_the_two_nodesets_together_are_the_seed_s_row_of_five_workers(
    priced: Callable[[str], Priced],
):
    """5 x 4.5688 x 730 and 5 x 558 x 0.053."""
    _, bill = priced("l40s-dev")
    for section, usd in ((Section.COMPUTE, "16676.12"), (Section.BOOT_DISKS, "147.87")):
        workers = [
            line.low_usd or Decimal(0)
            for line in bill.components
            if line.section is section and line.nodeset is not None
        ]
        assert len(workers) == 2
        assert sum(workers) == Decimal(usd)


@pytest.mark.feature("S000-111", "S000-113")
def test_the_subtotal_of_what_the_seed_lists_is_exact(priced: Callable[[str], Priced]):
    _, bill = priced("l40s-dev")
    listed = bill.subtotal(Scope.MAIN)
    assert listed.low_usd == Decimal("18116.0796")
    assert listed.high_usd == Decimal("19039.5996")
    assert not listed.is_lower_bound


def test_what_the_seed_leaves_out_has_a_subtotal_of_its_own(priced: Callable[[str], Priced]):
    """Free where a source says so; at most a GiB of state at 0.0147."""
    _, bill = priced("l40s-dev")
    beyond = [line for line in bill.components if line.scope is Scope.ALSO]
    assert {line.id for line in beyond} == {
        "cluster.control_plane",
        "charts.volumes",
        "state_bucket",
        "registry",
        "cluster.endpoint_address",
    }
    total = bill.subtotal(Scope.ALSO)
    assert (total.low_usd, total.high_usd) == (Decimal(0), Decimal("0.0147"))
    for line in beyond:
        assert line.prices
        assert line.prices[0].source


def test_without_a_source_that_says_free_the_line_is_unpriced(priced: Callable[[str], Priced]):
    spec, _ = priced("l40s-dev")
    book = PriceBook.load(spec.prices)
    readings = {sku: found for sku, found in book.readings.items() if sku != "mk8s/control-plane"}
    bill = estimate(spec, replace(book, readings=readings))
    assert bill.subtotal(Scope.ALSO).is_lower_bound
    assert bill.total.is_lower_bound
    assert not bill.subtotal(Scope.MAIN).is_lower_bound


@pytest.mark.feature(
    "S000-82", "S000-83", "S000-84", "S000-85", "S000-86", "S000-87", "S000-88", "S000-89"
)
@pytest.mark.parametrize(
    ("name", "usd", "per"),
    [
        ("worker (gpu-l40s-d)", "4.5688", "node/h"),
        ("system (cpu-d3)", "0.1984", "node/h"),
        ("login (cpu-d3)", "0.0992", "node/h"),
        ("system (ssd)", "0.071", "GiB/mo"),
        ("worker (non-replicated)", "0.053", "GiB/mo"),
        ("jail", "0.08", "GiB/mo"),
        ("daily jail backups", "0.0147", "GiB/mo"),
    ],
)
def test_a_unit_costs_what_the_seed_says_and_a_node_hour_what_its_parts_do(
    priced: Callable[[str], Priced], name: str, usd: str, per: str
):
    """4.5688 = 2 x 1.35 + 64 x 0.01 + 384 x 0.0032."""
    _, bill = priced("l40s-dev")
    (rate,) = [line.rate for line in bill.components if line.name == name]
    assert rate is not None
    assert (rate.usd, rate.per) == (Decimal(usd), per)


@pytest.mark.feature("S000-82", "S000-83", "S000-85")
def test_the_page_of_the_reconciliation_counts_the_node_hour_from_the_prices(
    priced: Callable[[str], Priced],
):
    spec, bill = priced("l40s-dev")
    (worker,) = [line for line in bill.components if line.name == "worker (gpu-l40s-d)"]
    node = spec.nodes.workers[0].hardware
    assert worker.rate is not None
    assert node is not None
    pieces = zip((node.gpus, node.vcpus, node.memory_gib), worker.prices, strict=True)
    parts = " + ".join(f"{count} x {price.usd}" for count, price in pieces)
    page = (STACKS_DIR.parent / "docs" / "reconciliation.md").read_text(encoding="utf-8")
    assert f"4.57 for {worker.rate.usd.normalize()} ({parts})" in page


# Scenario, tokens a day, chats a day (seed 000); dollars a chat over 730 hours: cluster, one node.
CHATS = [
    ("Single Batch Finetuned", 328_320, 164, ("3.628", "3.813"), "0.668"),
    ("Batch Size 16 Finetuned", 5_184_000, 2_592, ("0.230", "0.241"), "0.0423"),
    ("Optimized Target", 17_280_000, 8_640, ("0.0689", "0.0724"), "0.0127"),
]


@pytest.mark.feature("S000-114", "S000-115", "S000-117", "S000-118", "S000-119", "S000-120")
def test_the_chat_table_has_the_seed_s_speeds_and_volumes(priced: Callable[[str], Priced]):
    spec, bill = priced("l40s-dev")
    chats = unit_costs(spec, bill, []).chats
    assert not isinstance(chats, NotKnown)
    assert spec.chat is not None
    assert (spec.chat.context_tokens, spec.chat.output_tokens) == (8_000, 2_000)
    for chat, (scenario, tokens, per_day, cluster, node) in zip(chats, CHATS, strict=True):
        assert chat.speed.scenario == scenario
        assert chat.speed.basis is Basis.ASSUMED
        assert "published run (sar/nebius)" in chat.speed.source
        assert (int(chat.tokens_per_day), int(chat.chats_per_day)) == (tokens, per_day)
        for usd, expected in zip(
            (chat.cluster_low_usd, chat.cluster_high_usd), cluster, strict=True
        ):
            assert usd.quantize(Decimal(expected), ROUND_HALF_UP) == Decimal(expected)
        assert chat.serving_usd is not None
        assert chat.serving_usd.quantize(Decimal(node), ROUND_HALF_UP) == Decimal(node)


def test_the_seed_s_own_figures_come_from_nineteen_thousand_over_thirty_days(
    priced: Callable[[str], Priced],
):
    """$3.86, $0.24 and $0.07: the same volumes, but $19,000 over 30 days."""
    spec, bill = priced("l40s-dev")
    chats = unit_costs(spec, bill, []).chats
    assert not isinstance(chats, NotKnown)
    assert [cents(Decimal(19_000) / 30 / chat.chats_per_day) for chat in chats] == [
        "3.86",
        "0.24",
        "0.07",
    ]


def test_the_difference_to_the_seed_s_month_is_printed(priced: Callable[[str], Priced]):
    spec, _ = priced("l40s-dev")
    text = " ".join(render(make_bill(spec, PriceBook.load(spec.prices))).split())
    assert "730 hours gives $3.68..$3.87 for Single Batch Finetuned" in text


@pytest.mark.feature("S000-86", "S000-94", "S000-111")
@pytest.mark.parametrize(
    ("role", "one_node_usd"),
    # 0.0992 x 730 + 256 x 0.071; 4.5688 x 730 + 558 x 0.053
    [("login", "90.592"), ("worker", "3364.798")],
)
def test_two_nodes_more_at_most_are_at_the_high_end_alone(
    priced: Callable[[str], Priced], role: str, one_node_usd: str
):
    """Not the system nodes alone may grow: several logins and elastic workers are paid too."""
    spec, before = priced("l40s-dev")
    nodes = spec.nodes
    group = nodes.login if role == "login" else nodes.workers[0]
    key = "nodes.login" if role == "login" else f"nodes.workers[{nodes.workers[0].name}]"
    grown = replace(group, max_nodes=group.max_nodes + 2)
    changes = {"login": grown} if role == "login" else {"workers": (grown, *nodes.workers[1:])}
    book = PriceBook.load(spec.prices)
    after = estimate(replace(spec, nodes=replace(nodes, **changes)), book)
    assert after.node_month_usd(key) == Decimal(one_node_usd)
    assert after.total.high_usd - before.total.high_usd == 2 * Decimal(one_node_usd)
    assert after.total.low_usd == before.total.low_usd


@pytest.mark.feature("S000-101", "S000-106", "S000-107")
@pytest.mark.parametrize("name", ["jail", "accounting", "controller_spool"])
def test_a_filesystem_has_the_price_of_its_own_type(priced: Callable[[str], Priced], name: str):
    """The seed names no price of another type: the line is unknown, the others stay."""
    spec, _ = priced("l40s-dev")
    own = replace(getattr(spec.storage, name), type=FilesystemType.NETWORK_HDD)
    changed = replace(spec, storage=replace(spec.storage, **{name: own}))
    (line,) = estimate(changed, PriceBook.load(spec.prices)).unpriced
    assert line.id == f"storage.{name}"
