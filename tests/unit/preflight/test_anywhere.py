"""The emulator of previews refuses no stack for what only an account can tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infra.operate.preflight.ask import ask, refusal
from infra.operate.preflight.supply import Outcome
from infra.providers.nebius.adoption import discovered
from stacks.catalog import PLATFORMS
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing, Reservation, ReservationSpec
from tests.unit.nebius_api.conftest import Served

pytestmark = pytest.mark.parametrize("served", [{"anywhere": True}], indirect=True)


def asked(spec: StackSpec) -> dict[str, Outcome]:
    findings = ask(spec, project="soperator-stack", within_s=30)
    assert refusal(findings) is None
    assert not [str(each) for each in findings if each.outcome is Outcome.FAIL]
    return {each.check: each.outcome for each in findings}


def moved(spec: StackSpec, **nebius: object) -> StackSpec:
    return replace(spec, nebius=replace(spec.nebius, **nebius))


def with_workers(spec: StackSpec, **values: object) -> StackSpec:
    (worker,) = spec.nodes.workers
    return replace(spec, nodes=replace(spec.nodes, workers=(replace(worker, **values),)))


@pytest.mark.parametrize("region", sorted({r for each in PLATFORMS.values() for r in each.regions}))
def test_a_project_of_ones_own_is_there_in_every_region(
    served: Served, h100: StackSpec, region: str
) -> None:
    own = moved(h100, project_id="project-e01mine", tenant_id="tenant-e01mine", region=region)
    found = asked(own)
    assert found["permissions"] is Outcome.PASS
    assert found["quotas"] is Outcome.NOT_CHECKED


def test_a_thousand_nodes_are_not_too_many(served: Served, h100: StackSpec) -> None:
    many = with_workers(h100, min_nodes=1000, max_nodes=1000)
    assert asked(many)["quotas"] is Outcome.NOT_CHECKED


def test_a_capacity_block_of_ones_own_is_not_known_to_be_missing(
    served: Served, h100: StackSpec
) -> None:
    reservation = ReservationSpec(policy=Reservation.STRICT, ids=("capacityblockgroup-e01mine",))
    mine = with_workers(h100, billing=Billing.RESERVED, reservation=reservation)
    assert asked(mine)["capacity"] is Outcome.NOT_CHECKED


def test_the_network_of_a_project_of_ones_own_is_found(served: Served, h100: StackSpec) -> None:
    mine = moved(h100, project_id="project-e01mine", discover_network=True)
    assert discovered(mine).nebius.subnet_id == "vpcsubnet-e01minedefault"
