"""Which nodes of elastic NodeSets are powered up: Slurm's requests in, NodeSetPowerState out.

As in Soperator, the NodeSetPowerState is the truth: a request only adds or takes ordinals, and a
person may change them too. One that is missing begins with the first nodes of the set.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from infra.kube.client import KubeClient
from infra.local.reconcile.snapshot import Object, Snapshot, name_of
from infra.local.slurm.power import Request

_MANAGER: Final = "power-manager"
POWER_STATE: Final = ("slurm.nebius.ai/v1alpha1", "NodeSetPowerState")
_VERSION, _KIND = POWER_STATE


def is_elastic(nodeset: Object) -> bool:
    """Whether Slurm powers the nodes of the set."""
    return bool(nodeset["spec"].get("ephemeralNodes"))


def active(nodeset: Object, snapshot: Snapshot) -> tuple[int, ...]:
    """Ordinals whose pods run: all of a fixed set, of an elastic one those that are powered up."""
    spec = nodeset["spec"]
    replicas = spec.get("replicas", 1)
    if not is_elastic(nodeset):
        return tuple(range(replicas))
    state = _state_of(nodeset, snapshot)
    if state is None:
        return tuple(range(min(replicas, spec.get("initialNumberEphemeralNodes", 1))))
    wanted = state["spec"].get("activeNodes") or ()
    return tuple(sorted(ordinal for ordinal in wanted if ordinal < replicas))


def power_states(snapshot: Snapshot, asked: Iterable[Request]) -> list[Object]:
    """The NodeSetPowerStates that must be applied after these requests, in the order given."""
    calls = tuple(asked)
    made: list[Object] = []
    for nodeset in filter(is_elastic, snapshot.all("NodeSet")):
        before = active(nodeset, snapshot)
        wanted = set(before)
        prefix = f"{name_of(nodeset)}-"
        for call in calls:
            ours = {
                int(node.removeprefix(prefix))
                for node in call.nodes
                if node.startswith(prefix) and node.removeprefix(prefix).isdecimal()
            }
            wanted = wanted | ours if call.powers_up else wanted - ours
        if _state_of(nodeset, snapshot) is None or wanted != set(before):
            made.append(_object(nodeset, sorted(wanted)))
    return made


def apply(client: KubeClient, states: Iterable[Object]) -> None:
    """Writes them to the API server."""
    for state in states:
        client.apply(state, field_manager=_MANAGER)


def abandoned(snapshot: Snapshot) -> list[Object]:
    """NodeSetPowerStates whose NodeSet has gone."""
    nodesets = {
        (item["metadata"]["namespace"], name_of(item))
        for item in snapshot.all("NodeSet")
        if is_elastic(item)
    }
    return [
        state
        for state in snapshot.all(_KIND)
        if (state["metadata"]["namespace"], state["spec"]["nodeSetRef"]) not in nodesets
    ]


def _state_of(nodeset: Object, snapshot: Snapshot) -> Object | None:
    return snapshot.find(_KIND, name_of(nodeset), nodeset["metadata"]["namespace"])


def _object(nodeset: Object, ordinals: list[int]) -> dict[str, Any]:
    place = {"name": name_of(nodeset), "namespace": nodeset["metadata"]["namespace"]}
    spec = {"nodeSetRef": name_of(nodeset), "activeNodes": ordinals}
    return {"apiVersion": _VERSION, "kind": _KIND, "metadata": place, "spec": spec}
