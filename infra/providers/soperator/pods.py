"""The resource `soperator:kube:PodsStarted`: made once the pods of the Slurm cluster answer.

Stands between the releases of the cluster, which wait for no pod, and what waits long for pods: the
checks and the commands of the login node. Deleting it changes nothing in the cluster. Owns the
waits; blocked.py says what keeps a pod from starting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, ClassVar, Final

from infra.clients.errors import KubeError
from infra.clients.kube import KubeClient, read_kubeconfig
from infra.clients.kube_rules import Object
from infra.providers.engine.provider import (
    FULL_LIST,
    LIST,
    TEXT,
    Diff,
    Provider,
    ProviderError,
    Values,
    compare,
)
from infra.providers.soperator.blocked_pods import (
    PATIENCE_S,
    Cause,
    Patience,
    blocked,
    in_one_line,
    is_ready,
    slurm_pods,
)

TYPE: Final = "soperator:kube:PodsStarted"
_MAY_SLEEP: Final = "may_sleep"
"""Pods that are waited for while they are there: Slurm takes them away, and a node later wakes."""
_TIMEOUT_S: Final = 3600.0
_POLL_S: Final = 0.5
_SLOW_POLL_S: Final = 2.0
_SLOW_AFTER_S: Final = 30.0
"""A local stack starts within it; GPU nodes take minutes, and each look lists every pod."""
_LOOK_S: Final = 5.0
"""Between two looks for causes, which ask for more than pods."""
_QUIET_S: Final = 10.0
_ELSEWHERE_AFTER_S: Final = 300.0
"""Then an operator that the pods need runs, or does not: what it lacks is told too."""
SETTLE_S: Final = 10.0
"""After a change the pods of before answer until the operator has seen it."""


class PodsStartedProvider(Provider):
    """Waits at creation, and again for other pods or for what they are made of."""

    rules: ClassVar = {
        **dict.fromkeys(("cluster", "namespace", "made_of", "kubeconfig"), TEXT),
        **dict.fromkeys(("pods", "node_labels"), FULL_LIST),
        _MAY_SLEEP: replace(LIST, optional=True),
    }

    def __init__(
        self,
        *,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
        connect: Callable[[str], Any] = lambda text: KubeClient(read_kubeconfig(text)),
    ) -> None:
        super().__init__()
        self._patience_s = patience_s
        self._clock = clock
        self._connect = connect

    def diff(self, id: str, old_inputs: Values, old_state: Values, new: Values) -> Diff:
        """Return what makes it wait again: no kubeconfig, labels of nodes, pods that may sleep."""
        waited = ("cluster", "namespace", "pods", "made_of")
        return Diff(
            detailed={
                path: kind
                for path, kind in compare(old_inputs, new).items()
                if path.startswith(waited)
            }
        )

    def create(self, urn: str, inputs: Values) -> tuple[str, Values]:
        """Return once all pods are ready; the id is NAMESPACE/CLUSTER."""
        self._wait(urn, inputs)
        return f"{inputs['namespace']}/{inputs['cluster']}", dict(inputs)

    def update(self, urn: str, id: str, old_state: Values, new: Values) -> Values:
        """Return the new state once the pods that are now named, or start anew, are ready."""
        self._wait(urn, new, settle_s=SETTLE_S)
        return dict(new)

    def _wait(self, urn: str, inputs: Values, *, settle_s: float = 0.0) -> None:
        try:
            with closing(self._connect(inputs["kubeconfig"])) as client:
                self._watch(urn, client, inputs, settle_s)
        except KubeError as error:
            raise ProviderError(f"pods of {inputs['cluster']}: {error}") from error

    def _watch(self, urn: str, client: KubeClient, inputs: Values, settle_s: float) -> None:
        wanted, cluster = inputs["pods"], inputs["cluster"]
        began = answered = self._clock()
        seen = _Seen(self._patience_s, began + _ELSEWHERE_AFTER_S)
        said = ""
        while True:
            now = self._clock()
            try:
                text = seen.look(client, inputs, now)
            except KubeError as error:
                if not error.passes or now - answered >= self._patience_s:
                    raise
                text = said or "the API server does not answer"
            else:
                answered = now
            if not text and now - began >= settle_s:
                return
            if now - began >= _TIMEOUT_S:
                raise ProviderError(
                    f"pods of {cluster}: waited {_TIMEOUT_S:g} s for {', '.join(wanted)}; {text}"
                )
            if text and now - began > _QUIET_S and text != said:
                said = text
                self.engine.info(urn, text)
            if self.cancelled.wait(_POLL_S if now - began < _SLOW_AFTER_S else _SLOW_POLL_S):
                raise ProviderError(f"pods of {cluster}: interrupted while waiting")


class _Seen:
    """What the looks have seen so far."""

    def __init__(self, patience_s: float, elsewhere_at: float) -> None:
        self._patience = Patience(patience_s)
        self._elsewhere_at = elsewhere_at
        self._elsewhere = ""
        self._found: Mapping[str, Cause] = {}
        self._next = 0.0

    def look(self, client: KubeClient, inputs: Values, now: float) -> str:
        """What is waited for, empty where all is there; raises for a cause that has lasted."""
        namespace, wanted = inputs["namespace"], inputs["pods"]
        pods = slurm_pods(client, namespace, inputs["cluster"])
        ready = {pod["metadata"]["name"] for pod in pods if is_ready(pod)}
        missing = [name for name in wanted if name not in ready]
        stay = {
            pod["metadata"]["name"] for pod in pods if not pod["metadata"].get("deletionTimestamp")
        }
        missing += [name for name in inputs.get(_MAY_SLEEP, ()) if name in stay - ready]
        if not missing or now >= self._next:
            self._next = now + _LOOK_S
            self._found = blocked(client, namespace, pods, inputs["node_labels"])
            if lasting := self._patience.lasting(self._found, now):
                raise ProviderError(in_one_line(lasting, namespace))
            if missing and now >= self._elsewhere_at:
                self._elsewhere = _elsewhere(client, namespace, pods)
        if self._found:
            limit = f"this run ends if that is still so after {self._patience.patience_s:g} s"
            return f"{in_one_line(self._found, namespace)} ({limit})"
        live: Mapping[str, Object] = {pod["metadata"]["name"]: pod for pod in pods}
        summary = "; ".join(f"{name}: {_state(live.get(name))}" for name in missing)
        return summary + (self._elsewhere if missing else "")


def _elsewhere(client: KubeClient, namespace: str, own: Sequence[Object]) -> str:
    """Other pods that do not run, such as an operator's, each with what is seen of it."""
    known = {(namespace, pod["metadata"]["name"]) for pod in own}
    stuck: dict[str, list[Object]] = {}
    for pod in client.list("v1", "Pod"):
        place = pod["metadata"]["namespace"]
        is_over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if not is_over and not is_ready(pod) and (place, pod["metadata"]["name"]) not in known:
            stuck.setdefault(place, []).append(pod)
    told = ""
    for place, pods in sorted(stuck.items()):
        causes = blocked(client, place, pods)
        if causes:
            told += f"; {in_one_line(causes, place)}"
        for pod in pods:
            if (name := pod["metadata"]["name"]) not in causes:
                told += f"; {place}/{name}: {_state(pod)}"
    return told


def _state(pod: Object | None) -> str:
    if pod is None:
        return "not made yet"
    status = pod.get("status", {})
    if not pod["spec"].get("nodeName"):
        return "waits for a node"
    for each in status.get("initContainerStatuses") or ():
        state = each.get("state", {})
        if "running" in state and each["name"].startswith("wait"):
            return f"{each['name']} runs"
    return str(status.get("phase", "Pending"))
