"""Laws of the bill and its difference, for any stack, book and quantity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from functools import cache
from types import MappingProxyType

from hypothesis import given
from hypothesis import strategies as st

from cost.bill.bill import Bill
from cost.diff.diff import Snapshot, diff, parse, plain, take
from cost.prices.book import HOURS_PER_MONTH, PriceBook
from cost.resources.estimate import estimate
from cost.resources.lines import Scope
from stacks.catalog import PLATFORMS
from stacks.files import parse_yaml
from stacks.load import STACKS_DIR, load_config
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing, BootDiskSpec, WorkerSpec
from stacks.spec.storage import DiskType, FilesystemSpec, SubmountSpec
from tests.conftest import PUBLIC_KEY
from tests.nightly import law

SETTINGS = law(40)
hardware = st.sampled_from(
    [(platform.name, preset) for platform in PLATFORMS.values() for preset in platform.presets]
)
sizes = st.integers(1, 100_000)


@cache
def shipped() -> StackSpec:
    """l40s-dev with a public key that is written out."""
    text = (STACKS_DIR / "Pulumi.l40s-dev.yaml").read_text(encoding="utf-8")
    config = parse_yaml(text.replace("file:$SOPERATOR_SSH_PUBLIC_KEY_FILE", PUBLIC_KEY))
    assert isinstance(config, dict)
    return load_config(config["config"], "l40s-dev", environ={})


@cache
def book() -> PriceBook:
    """The seed's prices."""
    return PriceBook.load("nebius-2026-09")


@st.composite
def workers(draw: st.DrawFn, name: str) -> WorkerSpec:
    platform, preset = draw(hardware)
    low, high = sorted(draw(st.tuples(st.integers(0, 99), st.integers(1, 99))))
    return WorkerSpec(
        name=name,
        platform=platform,
        preset=preset,
        min_nodes=low,
        max_nodes=high,
        billing=draw(st.sampled_from(Billing)),
        boot_disk=BootDiskSpec(size_gib=draw(sizes), type=draw(st.sampled_from(DiskType))),
    )


@st.composite
def stacks(draw: st.DrawFn) -> StackSpec:
    """Any nodesets and submounts, some of them with prices that the book does not have."""
    names = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True))
    mounts = draw(st.lists(st.sampled_from("efgh"), max_size=3, unique=True))
    spec = shipped()
    storage = replace(
        spec.storage,
        jail=FilesystemSpec(size_gib=draw(sizes), type=draw(st.sampled_from(DiskType))),
        submounts=tuple(
            SubmountSpec(name=name, mount_path=f"/mnt/{name}", size_gib=draw(sizes))
            if draw(st.booleans())
            else SubmountSpec(name=name, mount_path=f"/mnt/{name}", existing_id="fs-1")
            for name in mounts
        ),
    )
    found = tuple(draw(workers(name)) for name in names)
    return replace(spec, storage=storage, nodes=replace(spec.nodes, workers=found))


def snapshot_of(spec: StackSpec, prices: PriceBook | None = None) -> Snapshot:
    """The snapshot of the lines and the unit costs; the laws of other parts are their own."""
    prices = prices or book()
    return take(Bill(estimate=estimate(spec, prices), problems=()))


def amounts_of(snapshot: Snapshot) -> Mapping[str, Decimal | None]:
    return MappingProxyType({amount.name: amount.usd for amount in snapshot.amounts})


@SETTINGS
@given(spec=stacks())
def test_parts_add_up_to_subtotals_and_subtotals_to_the_total(spec: StackSpec):
    found = estimate(spec, book())
    both = [found.subtotal(scope) for scope in Scope]
    assert sum(total.low_usd for total in both) == found.total.low_usd
    assert sum(total.high_usd for total in both) == found.total.high_usd
    known = [line for line in found.components if line.unknown is None]
    assert sum(line.low_usd or 0 for line in known) == found.total.low_usd
    assert sum(line.high_usd or 0 for line in known) == found.total.high_usd
    assert found.total.low_usd <= found.total.high_usd


@SETTINGS
@given(spec=stacks())
def test_an_unpriced_line_makes_every_total_above_it_a_lower_bound(spec: StackSpec):
    found = estimate(spec, book())
    for scope in Scope:
        lines = [line for line in found.components if line.scope is scope]
        assert found.subtotal(scope).is_lower_bound == any(line.unknown for line in lines)
    assert found.total.is_lower_bound == any(
        found.subtotal(scope).is_lower_bound for scope in Scope
    )
    for line in found.components:
        assert (line.unknown is None) == (line.low_usd is not None)


@SETTINGS
@given(spec=stacks())
def test_a_bill_does_not_differ_from_itself(spec: StackSpec):
    snapshot = snapshot_of(spec)
    assert diff(snapshot, snapshot).is_empty
    assert parse(plain(snapshot)) == snapshot


@SETTINGS
@given(before=stacks(), after=stacks())
def test_the_way_back_is_the_way_there_with_the_other_sign(before: StackSpec, after: StackSpec):
    old, new = snapshot_of(before), snapshot_of(after)
    there, back = diff(old, new), diff(new, old)
    assert there.change_low_usd == -back.change_low_usd
    assert there.change_high_usd == -back.change_high_usd
    assert there.num_unchanged == back.num_unchanged
    returned = {change.line.id: change for change in back.changes}
    assert returned.keys() == {change.line.id for change in there.changes}
    for change in there.changes:
        other = returned[change.line.id]
        assert (change.before, change.after) == (other.after, other.before)
        assert change.change_low_usd == _negated(other.change_low_usd)
        assert change.change_high_usd == _negated(other.change_high_usd)


@SETTINGS
@given(before=stacks(), after=stacks())
def test_changes_add_up_and_each_has_a_cause(before: StackSpec, after: StackSpec):
    change = diff(snapshot_of(before), snapshot_of(after))
    known = [line.change_low_usd for line in change.changes if line.change_low_usd is not None]
    if not change.is_incomplete:
        assert sum(known) == change.change_low_usd
    declared = {*change.before.values, *change.after.values}
    for line in change.changes:
        assert line.causes
        for cause in line.causes:
            subject = cause.partition(": ")[0]
            assert subject != "no config key", "a program of another version"
            assert any(key.startswith(subject) for key in declared), cause


@SETTINGS
@given(spec=stacks(), more=st.integers(1, 50), kind=st.sampled_from(["nodes", "disk", "jail"]))
def test_more_of_anything_never_costs_less(spec: StackSpec, more: int, kind: str):
    first, *rest = spec.nodes.workers
    if kind == "nodes":
        first = replace(first, min_nodes=first.min_nodes + more, max_nodes=first.max_nodes + more)
    elif kind == "disk":
        disk = replace(first.boot_disk, size_gib=first.boot_disk.size_gib + more)
        first = replace(first, boot_disk=disk)
    grown = replace(spec, nodes=replace(spec.nodes, workers=(first, *rest)))
    if kind == "jail":
        jail = replace(spec.storage.jail, size_gib=spec.storage.jail.size_gib + more)
        grown = replace(spec, storage=replace(spec.storage, jail=jail))
    before, after = snapshot_of(spec), snapshot_of(grown)
    assert after.total.low_usd >= before.total.low_usd
    assert after.total.high_usd >= before.total.high_usd


@SETTINGS
@given(factor=st.integers(1, 1000))
def test_prices_that_all_grow_by_a_factor_make_the_bill_grow_by_it(factor: int):
    dearer = {
        sku: (replace(price, usd=price.usd * factor),) for sku, price in book().prices.items()
    }
    grown = snapshot_of(shipped(), replace(book(), readings=dearer))
    before = snapshot_of(shipped())
    assert grown.total.low_usd == before.total.low_usd * factor
    assert grown.total.high_usd == before.total.high_usd * factor


@SETTINGS
@given(spec=stacks())
def test_a_month_is_730_of_its_hours(spec: StackSpec):
    snapshot = snapshot_of(spec)
    step = Decimal("1e-12")
    for hourly, monthly in (
        (snapshot.total.hourly_low_usd, snapshot.total.low_usd),
        (snapshot.total.hourly_high_usd, snapshot.total.high_usd),
    ):
        assert (hourly * HOURS_PER_MONTH).quantize(step) == monthly.quantize(step)


@SETTINGS
@given(spec=stacks())
def test_a_million_tokens_cost_what_their_chats_do(spec: StackSpec):
    amounts = amounts_of(snapshot_of(spec))
    per_chat, per_million = amounts["per_chat_usd"], amounts["per_1m_tokens_usd"]
    assert per_chat is not None
    assert per_million is not None
    chats = Decimal(1_000_000) / spec.chat.output_tokens
    assert abs(per_chat * chats - per_million) < Decimal("1e-5")


def _negated(usd: Decimal | None) -> Decimal | None:
    return None if usd is None else -usd
