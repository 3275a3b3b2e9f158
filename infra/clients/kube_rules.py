"""Kubernetes' own rules over plain objects: which node a pod lands on, which volume a claim gets.

Nodes by selectors, required affinity, tolerations and the count of cores, bytes and GPUs; without
priorities: the first node by name that fits takes the pod. Volumes by FindMatchingVolume
(k8s.io/component-helpers v0.36, storage/volume/pv_helpers.go) and the index by access modes before
it (pkg/controller/volume/persistentvolume/index.go).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, Final

GPU_RESOURCE = "nvidia.com/gpu"
_COUNTED = ("cpu", "memory", GPU_RESOURCE)


class Scheduler:
    """Places pods on nodes one after the other and remembers what each node has left."""

    def __init__(self, nodes: Sequence[Object]) -> None:
        self._nodes = [node for node in nodes if holds(node, "Ready")]
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
            selector = sorted((rules.get("nodeSelector") or {}).items())
            words = ",".join(f"{key}={value}" for key, value in selector)
            rule = f"nodeSelector {words}" if words else "the required node affinity"
            return None, f"no node matches {rule}"
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


def _amount(value: Fraction) -> str:
    return f"{float(value):g}"


MANUAL: Final = "kubernetes.io/no-provisioner"
"""The provisioner of a class whose volumes somebody makes beforehand."""
DISK_MODES: Final = frozenset(("ReadWriteOnce", "ReadWriteOncePod"))
"""Of a network disk, which one node mounts."""
_FREE: Final = (
    "to give this one its data: kubectl patch pv {} --type=json "
    '-p \'[{{"op": "remove", "path": "/spec/claimRef/uid"}}]\''
)


def best(
    volumes: Iterable[Object], claim: Object, nodes: Sequence[Object] | None = None
) -> Object | None:
    """The volume that names the claim, else the smallest that fits it."""
    fitting = [each for each in volumes if misfit(each, claim, nodes) is None]
    return min(fitting, key=lambda each: (not is_kept_for(each, claim), _size(each)), default=None)


def misfit(volume: Object, claim: Object, nodes: Sequence[Object] | None = None) -> str | None:
    """Why the claim cannot have the volume: empty where it is not in question, None where it fits.

    Not in question are those of another class, of another claim, or not the one that is named.

    `nodes` are those that take the claim's pods; None where that is not asked.
    """
    offered, wanted = volume["spec"], claim["spec"]
    if (reference := offered.get("claimRef")) and not is_kept_for(volume, claim):
        if not _is_named(reference, claim["metadata"]):
            return ""
        return f"is kept for a claim of this name that is gone ({_FREE.format(name_of(volume))})"
    if offered.get("storageClassName", "") != wanted.get("storageClassName", ""):
        return ""
    if wanted.get("volumeName") not in (None, "", name_of(volume)):
        return ""
    if volume["metadata"].get("deletionTimestamp"):
        return "is being deleted"
    if (phase := (volume.get("status") or {}).get("phase")) in ("Released", "Failed"):
        return f"is {phase}"
    if missing := set(wanted["accessModes"]) - set(offered["accessModes"]):
        return f"is {', '.join(offered['accessModes'])}, not {', '.join(sorted(missing))}"
    if _size(volume) < quantity(wanted["resources"]["requests"]["storage"]):
        return f"has {offered['capacity']['storage']} only"
    modes = [each.get("volumeMode", "Filesystem") for each in (offered, wanted)]
    if modes[0] != modes[1]:
        return f"has volume mode {modes[0]}"
    labels = volume["metadata"].get("labels") or {}
    if not _selects(wanted.get("selector") or {}, labels):
        return "does not match the claim's selector"
    if nodes is not None and not any(is_seen(volume, node) for node in nodes):
        return "is on no node that takes the pods"
    return None


def is_kept_for(volume: Object, claim: Object) -> bool:
    """Whether the volume is kept for this claim, and not for one of its name that is gone."""
    reference, metadata = volume["spec"].get("claimRef") or {}, claim["metadata"]
    own = metadata.get("uid")
    return _is_named(reference, metadata) and reference.get("uid", own) in (None, own)


def is_seen(volume: Object, node: Object) -> bool:
    """Whether pods on the node can mount it."""
    required = (volume["spec"].get("nodeAffinity") or {}).get("required")
    labels = node["metadata"].get("labels") or {}
    return required is None or matches_terms(labels, required["nodeSelectorTerms"])


def _is_named(reference: Object, metadata: Object) -> bool:
    place = (metadata.get("namespace"), metadata["name"])
    return (reference.get("namespace"), reference.get("name")) == place


def _selects(selector: Object, labels: Object) -> bool:
    expressions = selector.get("matchExpressions") or []
    return all(
        labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()
    ) and (not expressions or matches_terms(labels, [{"matchExpressions": expressions}]))


def _size(volume: Object) -> Any:
    return quantity(volume["spec"]["capacity"]["storage"])


def file_sources(volume: Mapping[str, Any]) -> Iterator[tuple[str, Object]]:
    """Kind and reference of every Secret and ConfigMap of a pod's volume, projected ones too."""
    for source in (volume.get("projected") or {}).get("sources") or (volume,):
        for field, kind in (("secret", "Secret"), ("configMap", "ConfigMap")):
            if given := source.get(field):
                yield kind, given


_QUANTITY = re.compile(r"(?P<number>[0-9]*\.?[0-9]+)(?P<suffix>m|[kMGTPE]|[KMGTPE]i)?$")
_DECIMAL = {"m": Fraction(1, 1000), "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}


def quantity(text: str | int | Fraction | None) -> Fraction:
    """The number that a quantity stands for: cores, bytes or devices; nothing is 0."""
    if text is None:
        return Fraction(0)
    if isinstance(text, Fraction):
        return text
    found = _QUANTITY.match(str(text))
    if found is None:
        raise ValueError(f"quantity '{text}': a number, optionally with a suffix such as m or Gi")
    factor = {**_DECIMAL, **_BINARY, "E": 10**18, None: 1}[found["suffix"]]
    return Fraction(found["number"]) * factor


Object = dict[str, Any]


def name_of(item: Object) -> str:
    """The object's name."""
    return item["metadata"]["name"]


def condition(item: Object, type_: str) -> Object:
    """The condition of this type in the object's status; empty where it has none."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == type_), {})


def holds(item: Object, type_: str) -> bool:
    """Whether the object says so of itself, such as Ready."""
    return condition(item, type_).get("status") == "True"


def kubernetes_time(at: datetime | None = None) -> str:
    """A moment, now by default, as the API writes it: UTC in whole seconds."""
    return (at or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


def describe(target: Object) -> str:
    """Kind and name for a person: `NodeSet soperator/worker`."""
    metadata = target.get("metadata", {})
    place = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{target['kind']} {place}{metadata.get('name', '?')}"


def summary(live: Object | None) -> str:
    """What the status of an object says, in one line."""
    if live is None:
        return "it does not exist"
    status = live.get("status", {})
    conditions = [
        f"{c['type']}={c['status']}" + (f" ({c['message']})" if c.get("message") else "")
        for c in (status.get("conditions") or [])
        if c.get("status") != "True"
    ]
    phase = status.get("phase")
    parts = [f"phase {phase!r}" if phase else "no phase yet", *conditions]
    return "; ".join(parts)


def finalizers(live: Object) -> list[str]:
    """What still holds an object, and a namespace."""
    metadata = live["metadata"].get("finalizers", [])
    return metadata + live.get("spec", {}).get("finalizers", [])
