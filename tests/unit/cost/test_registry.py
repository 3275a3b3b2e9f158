"""The bill of a container registry: what is declared is an amount, what is not stays beyond it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cost.prices.book import PriceBook
from cost.resources.lines import CostComponent, Scope, components
from stacks.load import load_stack
from stacks.spec import StackSpec

BOOK = PriceBook.load("nebius")


def registry_line(spec: StackSpec) -> CostComponent:
    return next(each for each in components(spec, BOOK) if each.id == "registry")


def test_declared_images_are_gib_of_the_stack_by_their_key(public_key_file: Path) -> None:
    spec = load_stack("h100-prod")
    line = registry_line(replace(spec, storage=replace(spec.storage, registry_gib=40)))
    assert line.rate is not None
    assert (line.quantity_low, line.rate.per) == (40, "GiB/mo")
    assert line.keys == ("storage.registry_gib",)
    assert line.scope is not Scope.ALSO


def test_images_that_nobody_declared_are_told_as_such(public_key_file: Path) -> None:
    line = registry_line(load_stack("h100-prod"))
    assert (line.size, line.scope) == ("not declared", Scope.ALSO)
