"""Elastic node sets on real daemons: a job brings its worker, idleness takes it away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from infra.local import process
from tests.local.slurm_stand import CLUSTER, NAMESPACE, NODESETS, Stand, Values, running_stand

pytestmark = pytest.mark.local

SUSPEND_AFTER_S = 3
STATE = {
    "apiVersion": "slurm.nebius.ai/v1alpha1",
    "kind": "NodeSetPowerState",
    "metadata": {"name": "worker", "namespace": NAMESPACE},
}


ALL_DOWN = dict.fromkeys(("worker-0", "worker-1"), "IDLE+CLOUD+POWERED_DOWN")


def elastic(stand: Stand, *, initial: int) -> Values:
    """Two workers of which so many are there without a job."""
    values = stand.values()
    values[CLUSTER]["slurmConfig"]["suspendTime"] = SUSPEND_AFTER_S
    (nodeset,) = values[NODESETS]["nodesets"]
    nodeset |= {"ephemeralNodes": True, "initialNumberEphemeralNodes": initial}
    return values


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with running_stand(tmp_path_factory.mktemp("elastic")) as made:
        made.apply(elastic(made, initial=0))
        made.wait(lambda: states(made) == ALL_DOWN, "two nodes that are powered down")
        yield made


def states(stand: Stand) -> dict[str, str]:
    """Node -> its states, as Slurm tells a user."""
    shown = stand.ssh("scontrol --oneliner show node").stdout.splitlines()
    words = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in shown]
    return {one["NodeName"]: one["State"] for one in words if "State" in one}


def powered_up(stand: Stand) -> list[int]:
    """Ordinals of the live NodeSetPowerState."""
    found = stand.client.get(STATE)
    assert found is not None
    return found["spec"].get("activeNodes") or []


def running(stand: Stand, worker: str) -> bool:
    """Whether the worker's daemon lives on this machine."""
    found = process.find(f"slurm-{worker}", stand.cloud.state.run)
    return found is not None and found.alive


def test_a_set_that_begins_empty_is_ready_without_a_worker(stand: Stand) -> None:
    assert powered_up(stand) == []
    assert not running(stand, "worker-0")
    stand.wait(lambda: stand.status("NodeSet", "worker").get("phase") == "Ready", "ready set")


def test_a_job_brings_its_worker_and_idleness_takes_it_away(stand: Stand) -> None:
    job = stand.submit("hostname", "-N1")
    stand.wait(lambda: powered_up(stand) == [0], "a worker that is powered up")
    assert stand.output(job).strip() == "worker-0"
    assert not running(stand, "worker-1")
    stand.wait(lambda: powered_up(stand) == [], "a worker that is powered down")
    stand.wait(lambda: not running(stand, "worker-0"), "the end of its daemon")
    stand.wait(lambda: "POWERED_DOWN" in states(stand)["worker-0"], "Slurm to say so")
    # And again: a node that went comes back for the next job.
    assert stand.output(stand.submit("hostname", "-N2")).strip() == "worker-0"
    stand.wait(lambda: powered_up(stand) == [], "both workers powered down")


def test_a_person_powers_nodes_up_and_down_by_hand(stand: Stand) -> None:
    # Slurm takes no such order of a node that is still on its way down.
    stand.wait(lambda: states(stand) == ALL_DOWN, "two nodes that are powered down")
    assert stand.ssh("scontrol update nodename=worker-1 state=power_up").returncode == 0
    stand.wait(lambda: powered_up(stand) == [1], "worker-1")
    stand.wait(lambda: states(stand)["worker-1"] == "IDLE+CLOUD", "an idle worker-1")
    stand.wait(lambda: powered_up(stand) == [], "no worker")


def test_the_first_nodes_of_a_set_serve_before_any_job(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with running_stand(tmp_path_factory.mktemp("initial")) as stand:
        values = elastic(stand, initial=1)
        values[CLUSTER]["slurmConfig"]["suspendTime"] = 600
        stand.apply(values)
        stand.wait(lambda: running(stand, "worker-0"), "the first worker")
        assert powered_up(stand) == [0]
        stand.wait(lambda: states(stand)["worker-0"] == "IDLE+CLOUD", "an idle worker-0")
        assert stand.output(stand.submit("hostname", "-N1")).strip() == "worker-0"
        assert powered_up(stand) == [0]


def test_a_set_that_becomes_fixed_again_keeps_all_its_workers(stand: Stand) -> None:
    stand.apply(stand.values())
    stand.wait_idle("worker-[0-1]")
    stand.wait(lambda: stand.client.get(STATE) is None, "the end of its power state")
