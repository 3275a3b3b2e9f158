"""Why pods of a Slurm cluster cannot start: blocked(pods), from objects of the API server alone.

Reports only what no waiting cures: a Secret, ConfigMap or claim that is not what the pod asks for,
a pod that the API server refuses, an image that cannot be had, a node that cannot be, a container
that ends again and again. Does not report what takes time: nodes, disks and images on their way,
init containers that wait for another pod. Looks once; the caller decides for how long a cause must
be seen before it counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from infra.clients import kube_rules
from infra.clients.kube_rules import Object, matches, quantity, untolerated

if TYPE_CHECKING:
    from infra.clients.kube import KubeClient

PATIENCE_S: Final = 60.0
"""A cause counts once it has been seen at every look for so long: what is made at the same time,
and what is mended by hand, is no cause."""
_NAME_LABEL: Final = "app.kubernetes.io/name"
_COMPONENTS: Final = ("slurmcluster", "slurm-exporter")
_KRUISE: Final = "apps.kruise.io/"
_WAITERS: Final = ("wait-for-accounting", "wait-for-database", "worker-init")
"""Init containers of Soperator 4.1.7 that end, and start anew, until another pod answers."""
_LOOPS: Final = 4
"""Restarts, after 150 s of pauses, from which on an end is no start-up: a guard of a filesystem
ends until the DaemonSet beside it has mounted it."""
_REFUSED: Final = re.compile(r'[Pp]ods? "(?P<pod>[^"]+)" is (?:invalid|forbidden): (?P<why>.*)')
_NOT_MADE: Final = re.compile(
    r"create (?:Pod|Claim \S+ for Pod) (?P<pod>\S+) in StatefulSet \S+ failed error: (?P<why>.*)"
)
"""By a webhook, or for a claim of the pod: whatever else keeps a set from making it."""
_PULLS: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_BROKEN: Final = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_PASSING: Final = re.compile(
    r"(?i)timeout|timed out|deadline|connection (?:refused|reset|closed)|toomanyrequests"
    r"|\b(?:429|50\d)\b|temporar|unavailable|\bEOF$"
)
"""Words of a registry, or of a maker of disks, that does not answer now."""
_SYSTEM_TAINTS: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Of a node that is not ready yet."""
_SIZES: Final = ("cpu", "memory")
"""Not GPUs: a node gets them minutes after it is there, with its device plugin."""
_SECONDS: Final = len("2026-11-22T10:00:00")
_AGAIN: Final = "then run the command again"
_OF_THE_STACK: Final = "if the stack makes it: pulumi refresh, pulumi up; if not: "
_IMAGE: Final = (
    "check tag and registry in the stack file; a registry of your own needs a pull secret; "
    f"{_AGAIN}"
)
_WORDS: Final = {
    "Secret": ("secret", "secret generic"),
    "ConfigMap": ("config map", "configmap"),
}
"""A kind for a person, and for `kubectl create`."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What keeps pods from starting, for a person, and what to do."""

    what: str
    advice: str
    blamed: str
    """Kind and name of what is wrong: the same as long as it is, whatever `what` says of it."""


class Patience:
    """Since when each pod is kept from starting by the same thing."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.patience_s = patience_s
        self._since_s: dict[tuple[str, str], float] = {}

    def lasting(self, found: Mapping[str, Cause], now_s: float) -> dict[str, Cause]:
        """The causes, by pod, that were seen at every look for so long."""
        keys = {name: (name, cause.blamed) for name, cause in found.items()}
        self._since_s = {key: self._since_s.get(key, now_s) for key in keys.values()}
        is_old = {name: now_s - self._since_s[keys[name]] >= self.patience_s for name in found}
        return {name: cause for name, cause in found.items() if is_old[name]}


def slurm_pods(client: KubeClient, namespace: str, cluster: str) -> list[Object]:
    """Pods of the Slurm cluster, of its database and of the job that fills the jail."""
    return [pod for pod in client.list("v1", "Pod", namespace) if _is_slurms(pod, cluster)]


def is_ready(pod: Object) -> bool:
    """Whether the pod says that it answers, and stays."""
    return not pod["metadata"].get("deletionTimestamp") and kube_rules.holds(pod, "Ready")


def blocked(
    client: KubeClient,
    namespace: str,
    pods: Sequence[Object],
    node_labels: Sequence[Mapping[str, str]] = (),
) -> dict[str, Cause]:
    """By pod, why it cannot start; `node_labels` are of the nodes that the stack's groups make."""
    look = _Look(client, namespace, node_labels)
    found: dict[str, Cause] = {}
    for pod in pods:
        if pod["metadata"].get("deletionTimestamp") or is_ready(pod):
            continue
        if (cause := next(look.causes(pod), None)) is not None:
            found[pod["metadata"]["name"]] = cause
    names = {pod["metadata"]["name"] for pod in pods}
    for name, cause in look.refused():
        if name not in names:
            found.setdefault(name, cause)
    return found


def in_one_line(found: Mapping[str, Cause], namespace: str) -> str:
    """Each cause once, with the pods that it keeps from starting and what to do."""
    pods: dict[Cause, list[str]] = {}
    for name, cause in sorted(found.items()):
        pods.setdefault(cause, []).append(name)
    return "; ".join(
        f"pod {namespace}/{names[0]}{_others(names[1:])} cannot start: {cause.what}; {cause.advice}"
        for cause, names in pods.items()
    )


class _Look:
    """One look at the cluster; each kind is read at most once."""

    def __init__(
        self, client: KubeClient, namespace: str, node_labels: Sequence[Mapping[str, str]]
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._node_labels = node_labels
        self._list, self._get = cache(client.list), cache(self._read)

    def causes(self, pod: Object) -> Iterator[Cause]:
        """Every cause that is seen in the pod's specification and status."""
        if pod.get("status", {}).get("phase") == "Pending":
            yield from self._files(pod["spec"])
            yield from self._claims(pod)
            yield from self._placement(pod)
        yield from self._containers(pod)

    def refused(self) -> Iterator[tuple[str, Cause]]:
        """Pods that a set wants and the API server refuses."""
        for event in self._list("v1", "Event", self._namespace):
            told = event.get("message", "")
            match = _REFUSED.search(told) or _NOT_MADE.search(told)
            if event.get("reason") != "FailedCreate" or match is None:
                continue
            if _PASSING.search(match["why"]):
                continue
            about = event["involvedObject"]
            owner = self._get(about["apiVersion"], about["kind"], about["name"], self._namespace)
            if owner is None or owner["metadata"]["uid"] != about.get("uid") or _is_full(owner):
                continue
            if _told_at(event) < _changed_at(owner):
                continue  # the event is of a time that is over
            what = f"the API server refuses it: {match['why']}"
            advice = f"the message names the field: correct it in the stack file, {_AGAIN}"
            yield match["pod"], Cause(what, advice, "declaration")

    def _files(self, spec: Object) -> Iterator[Cause]:
        for volume in spec.get("volumes") or ():
            for kind, given in kube_rules.file_sources(volume):
                if not given.get("optional"):
                    yield from self._keys(kind, given)

    def _keys(self, kind: str, given: Mapping[str, Any]) -> Iterator[Cause]:
        name = given.get("secretName") or given.get("name", "")
        found = self._get("v1", kind, name, self._namespace)
        word, argument = _WORDS[kind]
        kubectl = f"kubectl -n {self._namespace}"
        if found is None:
            make = f"{kubectl} create {argument} {name} --from-file=KEY=FILE, {_AGAIN}"
            what = f'{word} "{name}" does not exist'
            yield Cause(what, f"{_OF_THE_STACK}{make}", f"{kind} {name}")
            return
        keys = {*(found.get("data") or ()), *(found.get("binaryData") or ())}
        missing = [item["key"] for item in given.get("items") or () if item["key"] not in keys]
        if missing:
            what = f'{word} "{name}" has no key {", ".join(missing)}'
            add = f"{kubectl} edit {kind.lower()} {name}, {_AGAIN}"
            yield Cause(what, f"{_OF_THE_STACK}{add}", f"{kind} {name}")

    def _claims(self, pod: Object) -> Iterator[Cause]:
        for volume in pod["spec"].get("volumes") or ():
            own = "ephemeral" in volume  # made with the pod, by the pod's template
            name = f"{pod['metadata']['name']}-{volume['name']}" if own else None
            name = (volume.get("persistentVolumeClaim") or {}).get("claimName", name)
            if name is None:
                continue
            claim = self._get("v1", "PersistentVolumeClaim", name, self._namespace)
            if claim is not None:
                if claim.get("status", {}).get("phase") != "Bound":
                    yield from self._unbound(claim, self._anew(pod, name))
            elif not own:
                make = f"make it: kubectl -n {self._namespace} create -f FILE"
                shows = f"helm -n {self._namespace} get manifest RELEASE shows that of a chart"
                advice = f"{make} ({shows}), {_AGAIN}"
                yield Cause(f"claim {name} does not exist", advice, f"claim {name}")

    def _anew(self, pod: Object, claim: str) -> str:
        """How an unbound claim of the pod gets another specification."""
        delete = f"kubectl -n {self._namespace} delete"
        commands = [
            f"{delete} {_argument(each)} {each['name']}"
            for each in pod["metadata"].get("ownerReferences", ())
            if each["kind"] == "StatefulSet"
        ]
        commands.append(f"{delete} pvc {claim}")
        return (
            "correct what declares it in the stack file, run the command again and, while it "
            f"waits: {'; '.join(commands)} (nothing of these changes in place; an unbound claim "
            "holds no data)"
        )

    def _unbound(self, claim: Object, anew: str) -> Iterator[Cause]:
        wanted, name = claim["spec"], claim["metadata"]["name"]
        blamed = f"claim {name}"
        class_name = wanted.get("storageClassName", "")
        asks = f"{'+'.join(wanted['accessModes'])} of class {class_name or 'none'}"
        for event in self._list("v1", "Event", self._namespace):
            about = event["involvedObject"]
            failed = event.get("reason") == "ProvisioningFailed" and about.get("name") == name
            if failed and not _PASSING.search(event["message"]):
                what = f"claim {name} ({asks}) gets no disk: {event['message']}"
                correct = "correct what the message names: a quota in the project; what the claim"
                yield Cause(what, f"{correct} asks for: {anew}", blamed)
        known = self._get("storage.k8s.io/v1", "StorageClass", class_name, None)
        if class_name and known is None:
            what = f"claim {name} asks for storage class {class_name}, which does not exist"
            yield Cause(what, f"kubectl get storageclass lists those there are; {anew}", blamed)
        if known is None or known["provisioner"] != kube_rules.MANUAL:
            return  # its disk is on its way
        size = wanted["resources"]["requests"]["storage"]
        misfits = [
            (each, kube_rules.misfit(each, claim))
            for each in self._list("v1", "PersistentVolume", None)
        ]
        if any(reason is None for _, reason in misfits):
            return
        free = "; ".join(
            f"{each['metadata']['name']} {reason}" for each, reason in misfits if reason
        )
        what = f"claim {name} ({asks}, {size}) fits no volume; free of this class: {free or 'none'}"
        yield Cause(what, anew, blamed)

    def _placement(self, pod: Object) -> Iterator[Cause]:
        scheduled = kube_rules.condition(pod, "PodScheduled")
        if scheduled.get("reason") != "Unschedulable":
            return
        spec = pod["spec"]
        matching = [each for each in self._list("v1", "Node", None) if matches(each, spec)]
        selector: Mapping[str, str] = spec.get("nodeSelector") or {}
        if not matching:
            if self._node_labels and not any(
                selector.items() <= labels.items() for labels in self._node_labels
            ):
                words = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
                what = f"no node group of the stack makes nodes with {words}"
                advice = f"correct names and labels of `nodes` in the stack file, {_AGAIN}"
                yield Cause(what, advice, f"nodes {words}")
            return  # a node is on its way
        kept = [untolerated(each, spec) for each in matching]
        if all(each and not any(one.startswith(_SYSTEM_TAINTS) for one in each) for each in kept):
            what = f"it does not tolerate {kept[0][0]} of node {matching[0]['metadata']['name']}"
            advice = f"correct `taints` of `nodes` in the stack file, {_AGAIN}"
            yield Cause(what, advice, f"taint {kept[0][0]}")
        for key in _SIZES:
            asked = sum((_asked(each, key) for each in spec["containers"]), quantity(None))
            most = max(quantity(each["status"]["allocatable"].get(key)) for each in matching)
            if asked > most:
                what = f"it asks for {float(asked):g} of {key}, its nodes have {float(most):g}"
                advice = f"declare a larger preset in the stack file, {_AGAIN}"
                yield Cause(what, advice, f"size {key}")

    def _containers(self, pod: Object) -> Iterator[Cause]:
        status, name = pod.get("status", {}), pod["metadata"]["name"]
        for key in ("initContainerStatuses", "containerStatuses"):
            for each in status.get(key) or ():
                waiting = each.get("state", {}).get("waiting") or {}
                reason, message = waiting.get("reason", ""), waiting.get("message", "")
                if reason in _PULLS and not _PASSING.search(message):
                    what = f"image {each['image']} cannot be pulled: {message or reason}"
                    yield Cause(what, _IMAGE, f"image {each['image']}")
                elif reason in _BROKEN:
                    what = f"container {each['name']} cannot be made: {message or reason}"
                    shows = f"kubectl -n {self._namespace} describe pod {name} shows why"
                    advice = f"{shows}; correct that, {_AGAIN}"
                    yield Cause(what, advice, f"container {each['name']}")
                elif (
                    reason == "CrashLoopBackOff"
                    and each.get("restartCount", 0) >= _LOOPS
                    and each["name"] not in _WAITERS
                ):
                    ended = (each.get("lastState") or {}).get("terminated") or {}
                    code = f" with exit code {ended['exitCode']}" if "exitCode" in ended else ""
                    logs = f"kubectl -n {self._namespace} logs {name} -c {each['name']} --previous"
                    what = f"container {each['name']} ends again and again{code}"
                    yield Cause(what, f"see {logs}", f"end of {each['name']}")

    def _read(self, version: str, kind: str, name: str, namespace: str | None) -> Object | None:
        place = {"name": name, **({} if namespace is None else {"namespace": namespace})}
        return self._client.get({"apiVersion": version, "kind": kind, "metadata": place})


def _is_slurms(pod: Object, cluster: str) -> bool:
    meta = pod["metadata"]
    owned = any(each["apiVersion"].startswith(_KRUISE) for each in meta.get("ownerReferences", ()))
    component = (meta.get("labels") or {}).get(_NAME_LABEL)
    return owned or component in _COMPONENTS or meta["name"].startswith(f"{cluster}-acct-db-")


def _is_full(owner: Object) -> bool:
    """Whether a set has all the pods that it wants."""
    wanted = owner["spec"].get("replicas")
    return wanted is not None and owner.get("status", {}).get("replicas", 0) >= wanted


def _changed_at(owner: Object) -> str:
    """When what the object declares changed last: its controller tries anew from then on."""
    meta = owner["metadata"]
    times = [
        each.get("time", "")
        for each in meta.get("managedFields") or ()
        if each.get("subresource") != "status"
    ]
    return max([meta.get("creationTimestamp", ""), *times])[:_SECONDS]


def _told_at(event: Object) -> str:
    """The last time that an event was told; RFC 3339 in UTC, which sorts as text."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((each for each in times if each), "")[:_SECONDS]


def _asked(container: Mapping[str, Any], key: str) -> Any:
    return quantity(((container.get("resources") or {}).get("requests") or {}).get(key))


def _argument(owner: Mapping[str, str]) -> str:
    """The kind of an owner for kubectl, with its group where it is not Kubernetes's own."""
    group = owner["apiVersion"].partition("/")[0]
    kind = owner["kind"].lower()
    return kind if group == "apps" else f"{kind}.{group}"


def _others(names: Sequence[str]) -> str:
    return f" (and {', '.join(names)})" if names else ""
