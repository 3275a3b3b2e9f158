"""What every unit test has: an environment of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.another_user import neighbour  # noqa: F401 (a fixture)


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """Commands that run in this process may set variables: no test sees those of another."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
