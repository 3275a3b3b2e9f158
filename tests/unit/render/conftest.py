"""Stacks for the tests of infra/render: the shipped `local` one, and one cut to the least."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from infra.providers.nebius.resource_type import ResourceType
from infra.providers.nebius.schema import Schema
from infra.state import Cache
from stacks.load import load_stack
from stacks.spec import StackSpec


@pytest.fixture
def spec(public_key_file: Path) -> StackSpec:
    """The shipped `local` stack."""
    return load_stack("local")


@pytest.fixture
def bare(spec: StackSpec) -> StackSpec:
    """The `local` stack without submounts, tmpfs and accounting."""
    storage = replace(spec.storage, accounting=None, submounts=(), memory=None)
    return replace(
        spec,
        storage=storage,
        nodes=replace(spec.nodes, accounting=None),
        slurm=replace(spec.slurm, accounting=False),
    )


@pytest.fixture(scope="session")
def node_group_type() -> ResourceType:
    """What the API says of a node group."""
    return ResourceType.of_token(Schema(Cache.from_environ().root), "nebius:mk8s/v1:NodeGroup")


def as_json(value: object) -> str:
    """Text of a golden file."""
    return json.dumps(value, indent=2) + "\n"
