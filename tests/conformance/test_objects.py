"""Every object, rendered and our own, is accepted by a real API server with real definitions."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import STACKS, held

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(900)]


@pytest.mark.parametrize("stack", STACKS)
def test_every_object_is_accepted(stack, came_up, record_property):
    held(came_up(stack).steps["accepted"], record_property)
