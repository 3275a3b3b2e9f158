"""The stacks of tests/conformance set every optional key of a stack, and each of them is valid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from stacks.check import check
from stacks.errors import Level
from stacks.load import load_stack, stack_names
from stacks.spec import StackSpec
from stacks.spec.cluster import AttachedSpec, NodePriceSpec

HERE = Path(__file__).parents[2] / "conformance"
NEVER = {
    "ClusterSpec.soperator_version": "one version can be deployed",
    "NfsSpec.billing": "a rule refuses any other than the usual one",
    "StackSpec.attached": "others run the cluster, and nothing of it is sent to a chart",
    "StackSpec.node_prices": "of an attached cluster",
}
"""Optional keys that no valid stack sets to anything else, and why."""


def optional(value: Any) -> Iterator[tuple[str, bool]]:
    """Every optional field below the value, and whether it is set to something of its own."""
    if is_dataclass(value):
        for field in fields(value):
            given = getattr(value, field.name)
            usual = field.default
            if field.default_factory is not MISSING:
                usual = field.default_factory()
            if usual is not MISSING:
                yield f"{type(value).__name__}.{field.name}", given != usual
            yield from optional(given)
    elif isinstance(value, tuple):
        for each in value:
            yield from optional(each)


def declared_fields(kind: type, seen: set[type]) -> Iterator[str]:
    """Every optional field of the kind and of what it holds, whether a stack uses it or not."""
    if kind in seen:
        return
    seen.add(kind)
    hints = get_type_hints(kind)
    for field in fields(kind):
        if field.default is not MISSING or field.default_factory is not MISSING:
            yield f"{kind.__name__}.{field.name}"
        for inner in _classes(hints[field.name]):
            yield from declared_fields(inner, seen)


def _classes(hint: Any) -> Iterator[type]:
    if is_dataclass(hint) and isinstance(hint, type):
        yield hint
    for inner in getattr(hint, "__args__", ()):
        yield from _classes(inner)


@pytest.mark.parametrize("stack", stack_names(HERE))
def test_each_is_a_stack_that_could_be_deployed(stack, public_key_file):
    problems = check(load_stack(stack, HERE))
    assert [problem for problem in problems if problem.level is Level.ERROR] == []


def test_together_they_set_every_optional_key(public_key_file):
    on: dict[str, bool] = {}
    for stack in stack_names(HERE):
        for name, is_set in optional(load_stack(stack, HERE)):
            on[name] = on.get(name, False) or is_set
    every = set(declared_fields(StackSpec, {AttachedSpec, NodePriceSpec}))
    missing = sorted(name for name in every if not on.get(name) and name not in NEVER)
    assert missing == [], "set them in tests/conformance/Pulumi.all-keys.yaml"
    assert sorted(name for name in NEVER if on.get(name)) == []
