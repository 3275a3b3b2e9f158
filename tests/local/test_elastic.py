"""Elastic node sets on real daemons: a job brings its worker, idleness takes it away."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from infra.clients.slurm import scontrol_job
from infra.jobs.nodes import not_coming
from infra.local import process
from infra.providers.soperator.blocked_pods import in_one_line
from infra.render.charts import chart_values
from infra.render.login import ready_script
from stacks.load import load_stack
from stacks.spec import StackSpec
from tests.local.slurm_stand import (
    CLUSTER,
    NAMESPACE,
    NODESETS,
    Stand,
    Values,
    node_groups,
    running_stand,
)

pytestmark = pytest.mark.local

SUSPEND_AFTER_S = 3
STATE = {
    "apiVersion": "slurm.nebius.ai/v1alpha1",
    "kind": "NodeSetPowerState",
    "metadata": {"name": "worker", "namespace": NAMESPACE},
}


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
        made.wait(lambda: all_down(made), "two nodes that are powered down")
        yield made


def states(stand: Stand) -> dict[str, str]:
    """Node -> its states, as Slurm tells a user; 22.05 does not tell of one that is down.

    Without POWER_UP: a wish to wake that comes in the second in which the node registers by itself
    stays beside its states until it next powers down (power_save.c clears it there alone).
    """
    shown = stand.ssh("scontrol --oneliner show node").stdout.splitlines()
    words = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in shown]
    return {
        one["NodeName"]: "+".join(each for each in one["State"].split("+") if each != "POWER_UP")
        for one in words
        if "State" in one
    }


def is_down(stand: Stand, node: str) -> bool:
    """Whether the node is powered down, and not on its way."""
    answers = stand.ssh("scontrol ping").returncode == 0
    return answers and states(stand).get(node, "POWERED_DOWN").endswith("POWERED_DOWN")


def all_down(stand: Stand) -> bool:
    return is_down(stand, "worker-0") and is_down(stand, "worker-1")


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


@pytest.mark.feature("S003-41")
def test_a_job_brings_its_worker_and_idleness_takes_it_away(stand: Stand) -> None:
    job = stand.submit("hostname", "-N1")
    # With pack_serial_at_end a job of one CPU takes the last node.
    stand.wait(lambda: powered_up(stand) == [1], "a worker that is powered up")
    assert stand.output(job).strip() == "worker-1"
    assert not running(stand, "worker-0")
    stand.wait(lambda: powered_up(stand) == [], "a worker that is powered down")
    stand.wait(lambda: not running(stand, "worker-1"), "the end of its daemon")
    stand.wait(lambda: is_down(stand, "worker-1"), "Slurm to say so")
    # And again: a node that went comes back for the next job.
    assert stand.output(stand.submit("hostname", "-N2")).strip() == "worker-0"
    stand.wait(lambda: powered_up(stand) == [], "both workers powered down")


def test_a_job_is_told_why_the_node_that_it_wakes_does_not_come(
    stand: Stand, public_key_file: Path
) -> None:
    """`up` saw its pods started before this one was wanted: nobody else would ever say it."""
    stand.wait(lambda: all_down(stand), "two nodes that are powered down")
    values = elastic(stand, initial=0)
    volumes = values[NODESETS]["nodesets"][0]["slurmd"]["volumes"]
    claim = {"persistentVolumeClaim": {"claimName": "gone-pvc"}}
    volumes["jailSubMounts"].append(
        {"name": "gone", "mountPath": "/mnt/gone", "volumeSource": claim}
    )
    stand.apply(values)
    job = stand.submit("hostname", "-N1")
    spec = minimum_spec(public_key_file)

    def told() -> str:
        shown = stand.ssh(f"scontrol show job --oneliner {job}").stdout
        return in_one_line(not_coming(stand.client, spec, [scontrol_job(shown)]), NAMESPACE)

    stand.wait(lambda: bool(told()), "the pod's cause")
    assert "pod soperator/worker-1 cannot start: claim gone-pvc does not exist; make it: " in told()
    stand.apply(elastic(stand, initial=0))
    assert stand.output(job).strip() == "worker-1"
    assert told() == ""


def test_a_person_powers_nodes_up_and_down_by_hand(stand: Stand) -> None:
    # Slurm takes no such order of a node that is still on its way down.
    stand.wait(lambda: all_down(stand), "two nodes that are powered down")
    assert stand.ssh("scontrol update nodename=worker-1 state=power_up").returncode == 0
    stand.wait(lambda: powered_up(stand) == [1], "worker-1")
    stand.wait(lambda: states(stand).get("worker-1") == "IDLE+CLOUD", "an idle worker-1")
    stand.wait(lambda: powered_up(stand) == [], "no worker")


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """A stand for sets that do not begin empty; nothing is applied to it yet."""
    with running_stand(tmp_path_factory.mktemp("serving")) as made:
        yield made


def test_the_first_nodes_of_a_set_serve_before_any_job(serving: Stand) -> None:
    values = elastic(serving, initial=1)
    values[CLUSTER]["slurmConfig"]["suspendTime"] = 600
    serving.apply(values)
    serving.wait(lambda: running(serving, "worker-0"), "the first worker")
    assert powered_up(serving) == [0]
    serving.wait(lambda: states(serving).get("worker-0") == "IDLE+CLOUD", "an idle worker-0")
    assert serving.output(serving.submit("hostname", "-N1")).strip() == "worker-0"
    assert powered_up(serving) == [0]


def test_a_set_that_becomes_fixed_again_keeps_all_its_workers(stand: Stand) -> None:
    stand.apply(stand.values())
    stand.wait_idle("worker-[0-1]")
    stand.wait(lambda: stand.client.get(STATE) is None, "the end of its power state")


def with_minimum(stand: Stand, spec: StackSpec) -> Values:
    """One of the two always, with the lines of the program; and a fixed set beside it."""
    values = elastic(stand, initial=1)
    own = chart_values(spec, "slurm-cluster", {"allocation_id": "a", "ssh_public_keys": []})
    values[CLUSTER]["customSlurmConfig"] = own["customSlurmConfig"]
    nodesets = values[NODESETS]["nodesets"]
    fixed = copy.deepcopy(nodesets[0]) | {"name": "fixed", "replicas": 1, "ephemeralNodes": False}
    nodesets.append(fixed)
    return values


def minimum_spec(public_key_file: Path) -> StackSpec:
    """Its stack: one to two workers, and a fixed one."""
    environ = {"SOPERATOR_SSH_PUBLIC_KEY_FILE": str(public_key_file)}
    spec = load_stack("local", environ=environ)
    (worker,) = spec.nodes.workers
    workers = (
        replace(worker, min_nodes=1, max_nodes=2),
        replace(worker, name="fixed", min_nodes=1, max_nodes=1),
    )
    return replace(spec, nodes=replace(spec.nodes, workers=workers))


@dataclass
class Minimum:
    """A stand of which one worker of the elastic set never sleeps, and its stack."""

    stand: Stand
    spec: StackSpec


@pytest.fixture(scope="module")
def minimum(serving: Stand) -> Minimum:
    spec = minimum_spec(serving.key.with_suffix(".pub"))
    serving.apply(with_minimum(serving, spec), node_groups(num_workers=3))
    return Minimum(serving, spec)


def test_the_least_nodes_of_a_set_never_sleep_and_the_others_do(minimum: Minimum) -> None:
    """Of the operator's line and the program's, Slurm takes the later."""
    stand, spec = minimum.stand, minimum.spec
    excepted = "scontrol show config | sed -n 's/^SuspendExcNodes *= //p'"
    stand.wait(
        lambda: stand.ssh(excepted).stdout.strip() == "worker-0,fixed-0", "the program's line"
    )
    assert stand.ssh(ready_script(spec, timeout_s=60)).returncode == 0
    stand.output(stand.submit("hostname", "-w worker-0,worker-1 -N2"))
    stand.wait(lambda: is_down(stand, "worker-1"), "the end of worker-1")

    def awake() -> bool:
        found = states(stand)
        return {found[name] for name in ("worker-0", "fixed-0")} == {"IDLE+CLOUD"}

    stand.wait(awake, "two idle nodes")
    time.sleep(2 * SUSPEND_AFTER_S)
    assert awake()
    assert powered_up(stand) == [0]


@pytest.mark.feature("S002-27")
def test_ready_wakes_a_node_of_the_minimum_that_sleeps(minimum: Minimum) -> None:
    stand, spec = minimum.stand, minimum.spec
    assert stand.ssh("scontrol update nodename=worker-0 state=power_down").returncode == 0
    # Its daemon, not its state: one that keeps an old wish to wake is down for a moment only.
    stand.wait(lambda: not running(stand, "worker-0"), "the end of worker-0")
    done = stand.ssh(ready_script(spec, timeout_s=60))
    assert done.stdout == "2 nodes ready: worker-0 fixed-0\n", done.stderr
    assert states(stand)["worker-0"] == "IDLE+CLOUD"
