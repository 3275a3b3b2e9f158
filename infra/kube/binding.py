"""Which volume a claim gets, by Kubernetes' own rules over plain objects.

FindMatchingVolume (k8s.io/component-helpers v0.36, storage/volume/pv_helpers.go) and the index by
access modes before it (pkg/controller/volume/persistentvolume/index.go).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from infra.kube.describe import Object, name_of
from infra.kube.quantity import quantity
from infra.kube.scheduling import matches_terms

MANUAL: Final = "kubernetes.io/no-provisioner"
"""The provisioner of a class whose volumes somebody makes beforehand."""
DISK_MODES: Final = frozenset(("ReadWriteOnce", "ReadWriteOncePod"))
"""Of a network disk, which one node mounts."""


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
    if offered.get("claimRef") and not is_kept_for(volume, claim):
        return ""
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
    reference = volume["spec"].get("claimRef") or {}
    metadata = claim["metadata"]
    place = (metadata.get("namespace"), metadata["name"])
    if (reference.get("namespace"), reference.get("name")) != place:
        return False
    return reference.get("uid", metadata.get("uid")) in (None, metadata.get("uid"))


def is_seen(volume: Object, node: Object) -> bool:
    """Whether pods on the node can mount it."""
    required = (volume["spec"].get("nodeAffinity") or {}).get("required")
    labels = node["metadata"].get("labels") or {}
    return required is None or matches_terms(labels, required["nodeSelectorTerms"])


def _selects(selector: Object, labels: Object) -> bool:
    expressions = selector.get("matchExpressions") or []
    return all(
        labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()
    ) and (not expressions or matches_terms(labels, [{"matchExpressions": expressions}]))


def _size(volume: Object) -> Any:
    return quantity(volume["spec"]["capacity"]["storage"])
