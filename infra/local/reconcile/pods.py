"""Pods of the plan as objects of the API server: made, told of and removed as on the real cluster.

Plays the StatefulSet controllers (sets, claims, pods), the scheduler and the kubelet: what the API
server refuses is not run, and status and events say what keeps a pod. Decides nothing else. A plan
is what should run as plain values, made by planner.py; a condition that is not met says in words
what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from infra.clients.errors import KubeError
from infra.clients.kube import KubeClient
from infra.clients.kube_rules import condition, describe, file_sources, kubernetes_time
from infra.local.process import PORT_IN_USE, tells_of_use
from infra.local.reconcile.pod_specs import KRUISE, MADE, PodSet
from infra.local.reconcile.snapshot import (
    Held,
    Object,
    Snapshot,
    Volume,
    annotation,
    digest,
    is_made_on_demand,
    name_of,
)
from infra.local.slurm.daemons import SlurmSettings, WorkerNode
from infra.local.slurm.pod import Request
from infra.render.names import kube_object


@dataclass(slots=True, kw_only=True)
class PodPlan:
    """One pod: where it runs and what it mounts, or why it waits."""

    name: str
    problem: str = ""
    held: Held = Held.SCHEDULING
    """At which step the problem keeps it; means nothing without one."""
    node: str = ""
    of: PodSet | None = None
    """What makes it, as the API server shows it; None where nothing does."""
    jail: Path | None = None
    mounts: tuple[tuple[str, Volume], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSetPlan:
    """One NodeSet: its workers, or why the operator ignores it."""

    source: Object
    workers: tuple[WorkerNode, ...] = ()
    """Nodes that Slurm knows."""
    pods: tuple[PodPlan, ...] = ()
    """What runs of them: all, or of an elastic set those that are powered up."""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """One SlurmCluster with its NodeSets."""

    source: Object
    settings: SlurmSettings
    pods: Mapping[str, PodPlan]
    """Those of `controller` and `login`, and with a database of `accounting` and `database`."""
    ssh_port: int
    authorized_keys: tuple[str, ...]
    host_keys: tuple[bytes, ...]
    """Private keys of the Secret; empty where the operator makes its own."""
    notes: Mapping[str, str]
    """Condition type -> message of what is declared and does not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that should run on this machine."""

    cluster: ClusterPlan | None = None
    nodesets: tuple[NodeSetPlan, ...] = ()
    refused: tuple[tuple[Object, str], ...] = ()
    """SlurmClusters that do not come up, and why."""
    stopped: bool = False
    """Whether maintenance keeps every pod away, so that none is missed."""


def notes(spec: Mapping[str, Any], nodesets: tuple[NodeSetPlan, ...]) -> dict[str, str]:
    """Type -> message of each condition; none where all that is declared comes up."""
    found: dict[str, str] = {}
    nodes = spec["slurmNodes"]
    accounting = nodes.get("accounting") or {}
    if (nodes.get("rest") or {}).get("enabled") and not accounting.get("enabled"):
        found["RESTAvailable"] = "rest is skipped: it needs accounting.enabled"
    if accounting.get("enabled") and (accounting.get("externalDB") or {}).get("enabled"):
        found["AccountingAvailable"] = "an external database is not reachable from here"
    known = {name_of(item.source) for item in nodesets if not item.problem}
    partitions = (spec.get("partitionConfiguration") or {}).get("partitions") or []
    unresolved = sorted(
        {name for item in partitions for name in item.get("nodeSetRefs") or []} - known
    )
    if unresolved:
        found["NodeSetRefsResolved"] = f"no NodeSet named {', '.join(unresolved)}"
    if not (nodes["login"].get("sshRootPublicKeys") or []):
        found["SSHKeysPresent"] = "login.sshRootPublicKeys is empty: nobody may enter"
    return found


_NEEDED: Final = (
    "CommonAvailable",
    "ControllersAvailable",
    "LoginAvailable",
    "AccountingAvailable",
)


def cluster_status(plan: ClusterPlan, waiting: Mapping[str, str]) -> dict[str, Any]:
    """Status of the SlurmCluster; `waiting` says by pod why it is not ready, empty where it is."""
    told = {role: _pod_problem(pod, waiting) for role, pod in plan.pods.items()}
    problems = {
        "CommonAvailable": "",
        "ControllersAvailable": told["controller"],
        "LoginAvailable": told["login"],
        "PopulateJailMode": "",
    }
    if "database" in told:
        problems["AccountingAvailable"] = told["database"] or told["accounting"]
    problems |= plan.notes
    return {
        "phase": "Reconciling" if any(problems.get(key) for key in _NEEDED) else "Available",
        "conditions": [_told_condition(plan.source, key, text) for key, text in problems.items()],
        "readyLogin": 0 if told["login"] else 1,
    }


def refused_status(source: Object, reason: str) -> dict[str, Any]:
    """Status of a SlurmCluster of which nothing comes up."""
    return {
        "phase": "Not available",
        "conditions": [_told_condition(source, "CommonAvailable", reason)],
        "readyLogin": 0,
    }


def nodeset_status(
    plan: NodeSetPlan, waiting: Mapping[str, str], *, cluster_runs: bool, stopped: bool = False
) -> dict[str, Any]:
    """Status of a NodeSet: ready once every worker of it is; none is wanted of a stopped one."""
    wanted = len(plan.pods) or len(plan.workers) or plan.source["spec"].get("replicas", 1)
    if plan.problem:
        problems = [plan.problem]
    elif stopped:
        problems = []
    elif not cluster_runs:
        problems = ["the SlurmCluster does not come up"]
    else:
        reasons = ((pod.name, _pod_problem(pod, waiting)) for pod in plan.pods)
        problems = [f"{name}: {reason}" for name, reason in reasons if reason]
    ready = 0 if plan.problem or not cluster_runs else len(plan.pods) - len(problems)
    text = "; ".join(problems)
    return {
        "phase": "Pending" if problems else "Ready",
        "replicas": ready,
        "conditions": [
            _told_condition(plan.source, "PodsReady", text and f"{ready} of {wanted} ready; {text}")
        ],
    }


def _pod_problem(pod: PodPlan, waiting: Mapping[str, str]) -> str:
    return pod.problem or waiting.get(pod.name, "not started")


def _told_condition(source: Object, type_: str, problem: str) -> dict[str, Any]:
    """A condition that keeps the time of its last change; a taken port has a reason of its own."""
    reason = PORT_IN_USE if tells_of_use(problem) else "Missing" if problem else "Ready"
    status = "False" if problem else "True"
    made = {"type": type_, "status": status, "reason": reason, "message": problem}
    return kept_time(source, made)


def kept_time(source: Object, made: dict[str, Any]) -> dict[str, Any]:
    """The condition with the time of its last change, by what the live object says."""
    old = condition(source, made["type"])
    is_same = old.get("status") == made["status"]
    changed = old["lastTransitionTime"] if is_same else kubernetes_time()
    return {**made, "lastTransitionTime": changed}


POWER_STATE: Final = ("slurm.nebius.ai/v1alpha1", "NodeSetPowerState")


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
            place = name_of(nodeset), nodeset["metadata"]["namespace"]
            spec = {"nodeSetRef": name_of(nodeset), "activeNodes": sorted(wanted)}
            made.append(kube_object(*POWER_STATE, *place, spec=spec))
    return made


def abandoned(snapshot: Snapshot) -> list[Object]:
    """NodeSetPowerStates whose NodeSet has gone."""
    nodesets = {
        (item["metadata"]["namespace"], name_of(item))
        for item in snapshot.all("NodeSet")
        if is_elastic(item)
    }
    return [
        state
        for state in snapshot.all(POWER_STATE[1])
        if (state["metadata"]["namespace"], state["spec"]["nodeSetRef"]) not in nodesets
    ]


def _state_of(nodeset: Object, snapshot: Snapshot) -> Object | None:
    return snapshot.find(POWER_STATE[1], name_of(nodeset), nodeset["metadata"]["namespace"])


_STATEFUL_SET: Final = ("apps/v1", "StatefulSet")
_SETS: Final = (KRUISE, ("apps/v1", "ReplicaSet"), _STATEFUL_SET)
_TEMPLATES: Final = "volumeClaimTemplates"
_FILES: Final = ("Secret", "ConfigMap")
_PLACEHOLDER: Final = (
    "The operator's own content; the daemons of the local stack read other files.\n"
)
_SHORT: Final = 10
_REFUSED: Final = (403, 422)
"""Answers of an API server that refuses an object for what it is."""
_TEXT: Final = 900
"""An event's message has at most 1024 characters."""


class Pods:
    """The pods of one API server."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    def keep(self, plan: Plan, snapshot: Snapshot) -> None:
        """Makes what is missing and removes the rest; the plan learns which pods are refused."""
        planned = list(planned_pods(plan))
        if plan.cluster is not None:
            namespace = plan.cluster.source["metadata"]["namespace"]
            if snapshot.find("Namespace", namespace) is None:
                return  # it ends, and nothing can be made in it
        wanted_sets = {_key(_set_object(each.of)) for each in planned if each.of is not None}
        live = {_key(pod): pod for pod in _ours(snapshot, "Pod")}
        for each in planned:
            if each.of is not None and (reason := self._keep_one(each, each.of, live, snapshot)):
                each.problem, each.held = reason, Held.CREATING
        for pod in live.values():
            self._client.delete(pod, grace_s=0)
        self._keep_files(planned, snapshot)
        for version, kind in _SETS:
            for each in _ours(snapshot, kind):
                if each["apiVersion"] == version and _key(each) not in wanted_sets:
                    self._client.delete(each)

    def _keep_files(self, planned: Iterable[PodPlan], snapshot: Snapshot) -> None:
        """The Secrets and ConfigMaps that the operator makes: they are there, with their keys."""
        wanted = {
            _key(each): each
            for pod in planned
            if pod.of is not None
            for each in _file_objects(pod.of)
        }
        for kind in _FILES:
            live = {_key(each): each for each in _ours(snapshot, kind)}
            for key in live.keys() - wanted.keys():
                self._client.delete(live[key])
            for key, each in wanted.items():
                if each["kind"] == kind and key not in live:
                    self._client.apply(each, field_manager="soperator")

    def tell(
        self,
        plan: Plan,
        waiting: Mapping[str, str],
        snapshot: Snapshot,
        restarts: Callable[[str], int],
    ) -> None:
        """Writes status and events.

        `waiting` says by planned name what the daemon waits for, `restarts` how often it ended.
        """
        live = {_key(pod): pod for pod in snapshot.by_kind["Pod"]}
        num_nodes = len(snapshot.all("Node"))
        for each in planned_pods(plan):
            if each.of is None or each.held is Held.CREATING:
                continue
            wanted = pod_object(each, each.of)
            pod = live.get(_key(wanted))
            # One of another specification went in this pass, for a new one or for none.
            if pod is None or annotation(pod, MADE) != annotation(wanted, MADE):
                continue
            reason = waiting.get(each.name, "not started")
            status = pod_status(each, reason, pod, num_nodes, restarts(each.name))
            if status != _comparable(pod):
                self._client.merge_patch(pod, {"status": status}, subresource="status")
            if each.problem and each.held is not Held.WAITING:
                self._event(pod, each.held, _words(each, num_nodes))

    def _keep_one(
        self, planned: PodPlan, made: PodSet, live: dict[str, Object], snapshot: Snapshot
    ) -> str:
        wanted = pod_object(planned, made)
        found = live.pop(_key(wanted), None)
        if found is not None and "deletionTimestamp" in found["metadata"]:
            self._client.delete(found, grace_s=0)
            return "the pod is being deleted"
        try:
            owner = self._owner(made, snapshot)
        except KubeError as error:
            if error.status not in _REFUSED:
                raise
            return str(error)
        self._claims(planned, made, owner, snapshot)
        if found is not None and annotation(found, MADE) == annotation(wanted, MADE):
            return ""
        if found is not None:
            self._client.delete(found, grace_s=0)
        wanted["metadata"]["ownerReferences"] = [_reference(owner)]
        try:
            self._client.create(wanted)
        except KubeError as error:
            if error.status not in _REFUSED:
                raise
            kind = owner["kind"]
            # The client names the object in front of the server's own words.
            words = str(error).removeprefix(f"{describe(wanted)}: ")
            text = f"create Pod {name_of(wanted)} in {kind} {made.name} failed error: {words}"
            self._event(owner, Held.CREATING, text)
            return str(error)
        return ""

    def _owner(self, made: PodSet, snapshot: Snapshot) -> Object:
        wanted = _set_object(made)
        for each in snapshot.all(wanted["kind"], wanted["metadata"]["namespace"]):
            if _key(each) != _key(wanted) or each["apiVersion"] != wanted["apiVersion"]:
                continue
            if annotation(each, MADE) == annotation(wanted, MADE):
                return each
            if made.owner == _STATEFUL_SET:
                # Nobody may change them: mariadb-operator 25.10.2 leaves those of a live set alone.
                wanted["spec"][_TEMPLATES] = each["spec"].get(_TEMPLATES, [])
                # One that was deleted since is refused, and made from the cluster's own next time.
                wanted["metadata"]["uid"] = each["metadata"]["uid"]
        return self._client.apply(wanted, field_manager="soperator")

    def _claims(self, planned: PodPlan, made: PodSet, owner: Object, snapshot: Snapshot) -> None:
        """Claims of the set's templates; those of a driver's class are served at once."""
        for template in owner["spec"].get(_TEMPLATES, []):
            namespace = owner["metadata"]["namespace"]
            claim = kube_object(
                "v1",
                "PersistentVolumeClaim",
                f"{name_of(template)}-{shown_name(planned.name, made)}",
                namespace,
                metadata={"labels": _labels(made)},
                spec=template["spec"],
            )
            if snapshot.find("PersistentVolumeClaim", name_of(claim), namespace) is not None:
                continue
            applied = self._client.apply(claim, field_manager="soperator")
            if is_made_on_demand(claim, snapshot):
                bound = {"phase": "Bound", "accessModes": claim["spec"]["accessModes"]}
                self._client.merge_patch(applied, {"status": bound}, subresource="status")

    def _event(self, about: Object, reason: str, text: str) -> None:
        """One event for each thing that is said of an object: it counts no repetition."""
        metadata = about["metadata"]
        mark = digest([metadata["uid"], reason, text])
        now = kubernetes_time()
        event = kube_object(
            "v1",
            "Event",
            f"{metadata['name']}.{mark}",
            metadata["namespace"],
            involvedObject={
                **{key: about[key] for key in ("apiVersion", "kind")},
                **{key: metadata[key] for key in ("name", "namespace", "uid")},
            },
            type="Warning",
            reason=str(reason),
            message=text[:_TEXT],
            source={"component": _COMPONENTS[Held(reason)]},
            count=1,
            firstTimestamp=now,
            lastTimestamp=now,
        )
        try:
            self._client.create(event)
        except KubeError as error:
            if error.status != 409:
                raise
            if reason == Held.CREATING:  # told before: a refusal counts from its last time on
                self._client.merge_patch(event, {"lastTimestamp": now})


_COMPONENTS: Final = {
    Held.SCHEDULING: "default-scheduler",
    Held.MOUNTING: "kubelet",
    Held.STARTING: "kubelet",
    Held.CREATING: "statefulset-controller",
}


def shown_name(planned: str, made: PodSet) -> str:
    """The pod's name in the API server."""
    if made.owner[1] == "ReplicaSet":
        template, own = digest(made.spec), digest([made.name, made.source["metadata"]["uid"]])
        return f"{made.name}-{template[:_SHORT]}-{own[:5]}"
    return f"{made.name}-{planned.rpartition('-')[2]}"


def pod_status(
    planned: PodPlan, waiting: str, pod: Object, num_nodes: int, restarts: int
) -> Object:
    """What a kubelet, or the scheduler, reports of the pod."""
    scheduled = bool(planned.node)
    spec = pod["spec"]
    inits = spec.get("initContainers") or []
    (main,) = spec["containers"]
    held = planned.held if planned.problem else None
    ready = scheduled and held is None and not waiting
    # Then an init container of the real pod would wait: for a port, or for what starts.
    others = waiting.startswith("waits for")
    initialized = scheduled and held in (None, Held.STARTING) and not others
    text = _words(planned, num_nodes) if held is not None else ""
    conditions = [
        _condition(pod, "PodScheduled", scheduled, "Unschedulable", text if not scheduled else ""),
    ]
    if not scheduled:
        return {"phase": "Pending", "conditions": conditions}
    conditions += [
        _condition(pod, "Initialized", initialized, "ContainersNotInitialized", ""),
        _condition(pod, "ContainersReady", ready, "ContainersNotReady", ""),
        _condition(pod, "Ready", ready, "ContainersNotReady", ""),
    ]
    status: Object = {"phase": "Pending", "conditions": conditions}
    states = [_ended(pod, each) for each in inits]
    if initialized:
        state = _main_state(pod, main["name"], planned, waiting)
        # A container that could not be made never ran.
        status["phase"] = "Pending" if held is Held.STARTING else "Running"
    else:
        state = _waiting("PodInitializing" if inits else "ContainerCreating")
        if held not in (None, Held.WAITING):
            states = [_waiting("PodInitializing") for _ in inits]
        elif inits:
            # The last one is what waits for others; those before it have ended, or run beside it.
            states[-1] = _running(pod, inits[-1]["name"])
    status["initContainerStatuses"] = [
        _container(each, its) for each, its in zip(inits, states, strict=True)
    ]
    status["containerStatuses"] = [_container(main, state, ready=ready, restarts=restarts)]
    status["hostIP"] = status["podIP"] = "127.0.0.1"
    return status


def _main_state(pod: Object, main: str, planned: PodPlan, waiting: str) -> Object:
    if planned.problem:
        return _waiting("RunContainerError", planned.problem)
    if tells_of_use(waiting):
        return _waiting("CreateContainerError", waiting)
    if waiting.startswith("ended: "):
        return _waiting("CrashLoopBackOff", waiting)
    return _running(pod, main)


def planned_pods(plan: Plan) -> Iterator[PodPlan]:
    """Every pod of the cluster, whether it runs or waits."""
    if plan.cluster is None:
        return
    yield from plan.cluster.pods.values()
    for nodeset in plan.nodesets:
        yield from nodeset.pods


def _ours(snapshot: Snapshot, kind: str) -> Iterable[Object]:
    return [each for each in snapshot.by_kind[kind] if annotation(each, MADE)]


def pod_object(planned: PodPlan, made: PodSet) -> Object:
    """The pod as it is asked of the API server."""
    name = shown_name(planned.name, made)
    claimed = [
        {"name": volume, "persistentVolumeClaim": {"claimName": f"{volume}-{name}"}}
        for volume, _ in made.claims
    ]
    spec = {**made.spec, "volumes": [*made.spec["volumes"], *claimed]}
    if planned.node:
        spec["nodeName"] = planned.node
    if made.owner[1] == "StatefulSet":
        spec = {"hostname": name, **spec}
    notes = {"kubectl.kubernetes.io/default-container": made.main, MADE: digest(spec)}
    metadata = {"labels": _labels(made), "annotations": notes}
    namespace = made.source["metadata"]["namespace"]
    return kube_object("v1", "Pod", name, namespace, metadata=metadata, spec=spec)


def _file_objects(made: PodSet) -> Iterator[Object]:
    namespace = made.source["metadata"]["namespace"]
    paths = {
        each["name"]: each.get("subPath") for each in made.spec["containers"][0]["volumeMounts"]
    }
    for volume in made.spec["volumes"]:
        for kind, given in file_sources(volume) if volume["name"] in made.own else ():
            keys = [each["key"] for each in given.get("items") or ()]
            keys = keys or [paths.get(volume["name"]) or volume["name"]]
            name = given.get("secretName") or given["name"]
            notes = {"annotations": {MADE: digest(keys)}}
            content = "stringData" if kind == "Secret" else "data"
            data = {content: dict.fromkeys(keys, _PLACEHOLDER)}
            yield kube_object("v1", kind, name, namespace, metadata=notes, **data)


def _set_object(made: PodSet) -> Object:
    version, kind = made.owner
    name = made.name
    if kind == "ReplicaSet":
        name = f"{name}-{digest(made.spec)[:_SHORT]}"
    labels = _labels(made)
    template: Object = {"metadata": {"labels": labels}, "spec": made.spec}
    spec: Object = {"selector": {"matchLabels": labels}, "template": template}
    if kind == "StatefulSet":
        spec["serviceName"] = made.spec.get("subdomain", name)
        spec[_TEMPLATES] = [
            {"metadata": {"name": name_}, "spec": dict(claim)} for name_, claim in made.claims
        ]
    metadata = {
        "labels": labels,
        "annotations": {MADE: digest(spec)},
        "ownerReferences": [_reference(made.source)],
    }
    namespace = made.source["metadata"]["namespace"]
    return kube_object(version, kind, name, namespace, metadata=metadata, spec=spec)


def _labels(made: PodSet) -> dict[str, str]:
    labels = {
        "app.kubernetes.io/name": "slurmcluster",
        "app.kubernetes.io/component": made.component,
    }
    if made.source["kind"] == "SlurmCluster":
        return {**labels, "app.kubernetes.io/instance": name_of(made.source)}
    return {**labels, "slurm.nebius.ai/nodeset": made.name, "slurm.nebius.ai/worker": "true"}


def _reference(owner: Object) -> Object:
    head = {key: owner[key] for key in ("apiVersion", "kind")}
    return {**head, "name": name_of(owner), "uid": owner["metadata"]["uid"], "controller": True}


def _words(planned: PodPlan, num_nodes: int) -> str:
    if planned.held is Held.SCHEDULING:
        return f"0/{num_nodes} nodes are available: {planned.problem}."
    return planned.problem


def _comparable(pod: Object) -> Object:
    """What of a live status a pass writes, as it writes it."""
    keys = ("phase", "conditions", "initContainerStatuses", "containerStatuses", "hostIP", "podIP")
    status = pod.get("status") or {}
    return _filled({key: status[key] for key in keys if key in status})


def _filled(value: Any) -> Any:
    """Without the fields that the API server adds as null, or as an empty state."""
    if isinstance(value, dict):
        return {
            key: _filled(each) for key, each in value.items() if each is not None and each != {}
        }
    return [_filled(each) for each in value] if isinstance(value, list) else value


def _condition(pod: Object, type_: str, met: bool, reason: str, message: str) -> Object:
    """A condition that keeps the time of its last change."""
    made: Object = {"type": type_, "status": "True" if met else "False"}
    if not met:
        made["reason"] = reason
        if message:
            made["message"] = message
    return kept_time(pod, made)


def _container(
    container: Object, state: Object, *, ready: bool = True, restarts: int = 0
) -> Object:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": ready and "waiting" not in state,
        "restartCount": restarts,
        "state": state,
    }


def _waiting(reason: str, message: str = "") -> Object:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def _running(pod: Object, name: str) -> Object:
    return {"running": {"startedAt": _since(pod, name, "running", "startedAt")}}


def _ended(pod: Object, container: Object) -> Object:
    if container.get("restartPolicy") == "Always":  # a sidecar
        return _running(pod, container["name"])
    at = _since(pod, container["name"], "terminated", "finishedAt")
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": at, "finishedAt": at}
    return {"terminated": ended}


def _since(pod: Object, name: str, state: str, key: str) -> str:
    """When the container came into that state; now, if it was in another."""
    for field in ("containerStatuses", "initContainerStatuses"):
        for old in (pod.get("status") or {}).get(field) or ():
            if old["name"] == name and state in old["state"]:
                return old["state"][state][key]
    return kubernetes_time()


def _key(item: Object) -> str:
    return f"{item['kind']} {item['metadata'].get('namespace', '')}/{name_of(item)}"
