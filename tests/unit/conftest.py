"""What every unit test has: property tests without a deadline, and an environment of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.another_user import neighbour  # noqa: F401 (a fixture)

# None may fail because the machine is busy.
settings.register_profile("unit", deadline=None)
settings.load_profile("unit")


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """Commands that run in this process may set variables: no test sees those of another."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
