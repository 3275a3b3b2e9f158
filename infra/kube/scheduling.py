"""Which Kubernetes node a pod lands on, by the scheduler's rules that Soperator uses.

Owns node selectors, node affinity, tolerations and the count of cores, bytes and GPUs. Has no
priorities: the first node by name that fits takes the pod.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from infra.kube.describe import Object, name_of
from infra.kube.quantity import quantity

GPU_RESOURCE = "nvidia.com/gpu"
_COUNTED = ("cpu", "memory", GPU_RESOURCE)


class Scheduler:
    """Places pods on nodes one after the other and remembers what each node has left."""

    def __init__(self, nodes: Sequence[Object]) -> None:
        self._nodes = [node for node in nodes if _is_ready(node)]
        self._left = {
            name_of(node): {
                key: quantity(node["status"].get("allocatable", {}).get(key)) for key in _COUNTED
            }
            for node in self._nodes
        }

    def place(
        self, rules: Mapping[str, Any], requests: Mapping[str, Any] | None = None
    ) -> tuple[Object | None, str]:
        """The node that takes the pod, or None and the reason in words.

        `rules` holds nodeSelector, affinity and tolerations; without `requests` nothing is counted.
        """
        selected = [node for node in self._nodes if matches(node, rules)]
        if not selected:
            return None, f"no node matches {_selector_text(rules)}"
        tolerated = [node for node in selected if not untolerated(node, rules)]
        if not tolerated:
            taint = untolerated(selected[0], rules)[0]
            return None, f"node {name_of(selected[0])} has the taint {taint}, not tolerated"
        if requests is None:
            return tolerated[0], ""
        wanted = {key: quantity(requests.get(key)) for key in _COUNTED}
        for node in tolerated:
            left = self._left[name_of(node)]
            if all(left[key] >= wanted[key] for key in _COUNTED):
                for key in _COUNTED:
                    left[key] -= wanted[key]
                return node, ""
        return None, self._shortage(tolerated, wanted)

    def _shortage(self, nodes: Sequence[Object], wanted: Mapping[str, Fraction]) -> str:
        for key in _COUNTED:
            if all(self._left[name_of(node)][key] < wanted[key] for node in nodes):
                most = max(self._left[name_of(node)][key] for node in nodes)
                return (
                    f"insufficient {key}: needs {_amount(wanted[key])}, the {len(nodes)} matching "
                    f"node(s) have at most {_amount(most)} left"
                )
        return "no matching node has enough of everything left"


def matches(node: Object, rules: Mapping[str, Any]) -> bool:
    """Whether the node's labels satisfy nodeSelector and required node affinity."""
    labels = node["metadata"].get("labels") or {}
    selector = rules.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    affinity = (rules.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or matches_terms(labels, required["nodeSelectorTerms"])


def matches_terms(labels: Mapping[str, str], terms: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any of the terms holds; a term holds when all its expressions do."""
    return any(
        all(_holds(labels, item) for item in term.get("matchExpressions") or [])
        for term in terms
        if term.get("matchExpressions")
    )


def untolerated(node: Object, rules: Mapping[str, Any]) -> list[str]:
    """The node's taints that keep the pod away."""
    tolerations = rules.get("tolerations") or []
    return [
        f"{taint['key']}={taint.get('value', '')}:{taint['effect']}"
        for taint in (node.get("spec") or {}).get("taints") or []
        if taint["effect"] in ("NoSchedule", "NoExecute")
        and not any(_tolerates(item, taint) for item in tolerations)
    ]


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    same_value = toleration.get("value", "") == taint.get("value", "")
    return toleration.get("key") == taint["key"] and same_value


def _holds(labels: Mapping[str, str], expression: Mapping[str, Any]) -> bool:
    value, wanted = labels.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False


def _is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _selector_text(rules: Mapping[str, Any]) -> str:
    selector = rules.get("nodeSelector") or {}
    words = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    return f"nodeSelector {words}" if words else "the required node affinity"


def _amount(value: Fraction) -> str:
    return f"{float(value):g}"
