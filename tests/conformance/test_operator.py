"""The real operator takes every stack, and the pods that it makes could run."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import STACKS, held

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(900)]


@pytest.mark.parametrize("stack", STACKS)
def test_the_operator_brings_it_up(stack, came_up, record_property):
    held(came_up(stack).steps["reconciled"], record_property)


@pytest.mark.parametrize("stack", STACKS)
def test_the_api_server_takes_every_pod(stack, came_up, record_property):
    held(came_up(stack).steps["pods valid"], record_property)


@pytest.mark.parametrize("stack", STACKS)
def test_a_kubelet_finds_every_key(stack, came_up, record_property):
    held(came_up(stack).steps["keys present"], record_property)


@pytest.mark.parametrize("stack", STACKS)
def test_a_declared_node_takes_every_pod(stack, came_up, record_property):
    held(came_up(stack).steps["placed"], record_property)


@pytest.mark.parametrize("stack", STACKS)
def test_every_claim_finds_its_volume(stack, came_up, record_property):
    held(came_up(stack).steps["claims bound"], record_property)
