"""Would these pods run? What the API server, a kubelet, the scheduler and the volume binder decide.

Owns their rules over plain objects, so each is tested without upstream (tests/unit/conformance).
Counts what it looked at: nothing found in nothing is no proof. Resources are not summed up here;
stacks/catalog.py does that before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from infra.clients import kube_rules
from infra.clients.errors import KubeError
from infra.clients.kube import KubeClient
from infra.clients.kube_rules import Object, describe, matches, name_of, untolerated
from infra.providers.soperator.teardown import CSI_DRIVER
from infra.render.names import kube_object

_WORKLOADS: Final = ("StatefulSet", "Deployment", "DaemonSet", "Job", "CronJob")
_CONTAINERS: Final = ("initContainers", "containers")
_CERTIFICATE: Final = re.compile(r"--(?:ca|cert)-secret-name=(.+)")
_CERTIFICATE_KEYS: Final = ("tls.crt", "tls.key", "ca.crt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Why something would not come up."""

    subject: str
    """The object, such as `pods of StatefulSet soperator/login`."""
    cause: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.cause}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """How many were looked at and what was found."""

    count: int
    obstacles: tuple[Obstacle, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """Equal pods that one object makes."""

    owner: Object
    template: Mapping[str, Any]
    claims: tuple[Mapping[str, Any], ...] = ()
    """Templates of claims that each of the pods gets of its own."""
    count: int = 1

    @property
    def subject(self) -> str:
        """The pods in words."""
        return f"pods of {describe(self.owner)}"

    @property
    def namespace(self) -> str:
        return self.owner["metadata"]["namespace"]

    @property
    def spec(self) -> Mapping[str, Any]:
        return self.template["spec"]


def pods_of(objects: Iterable[Object]) -> list[Pods]:
    """The pods of every object that makes some, a MariaDB without its StatefulSet among them."""
    everything = list(objects)
    found: list[Pods] = []
    for each in everything:
        if each["kind"] in _WORKLOADS:
            spec = each["spec"]
            inner = spec["jobTemplate"]["spec"] if each["kind"] == "CronJob" else spec
            counts = each["kind"] in ("StatefulSet", "Deployment")
            found.append(
                Pods(
                    owner=each,
                    template=inner["template"],
                    claims=tuple(spec.get("volumeClaimTemplates") or ()),
                    count=spec.get("replicas", 1) if counts else 1,
                )
            )
    made = {(one.namespace, name_of(one.owner)) for one in found}
    for each in everything:
        place = each["metadata"].get("namespace"), name_of(each)
        if each["kind"] == "MariaDB" and place not in made:
            found.append(_database(each))
    return found


def refused(client: KubeClient, pods: Sequence[Pods]) -> Looked:
    """Pods that the API server would not take, asked by a dry run of each."""
    asked = [one for one in pods if one.spec.get("containers")]
    obstacles: list[Obstacle] = []
    for one in asked:
        try:
            client.create(_pod(one), dry_run=True)
        except KubeError as error:
            obstacles.append(Obstacle(subject=one.subject, cause=str(error)))
    return Looked(count=len(asked), obstacles=tuple(obstacles))


def missing_keys(pods: Sequence[Pods], objects: Sequence[Object]) -> Looked:
    """Secrets, ConfigMaps and keys of theirs that a kubelet would wait for, for ever."""
    have = _contents(objects)
    count = 0
    obstacles: dict[Obstacle, None] = {}
    for one in pods:
        for need in _needs(one.spec):
            count += 1
            keys = have.get((need.kind, one.namespace, need.name))
            what = f"{need.kind} '{need.name}'"
            if keys is None:
                cause = f"{what} does not exist"
            elif need.key and need.key not in keys:
                cause = f"{what} has no key '{need.key}' (has: {', '.join(sorted(keys)) or 'none'})"
            else:
                continue
            obstacles[Obstacle(subject=one.subject, cause=cause)] = None
    return Looked(count=count, obstacles=tuple(obstacles))


def unplaced(pods: Sequence[Pods], nodes: Sequence[Object]) -> Looked:
    """Pods that no declared node takes, by selector, affinity and taints."""
    asked = [one for one in pods if one.count and one.owner["kind"] != "DaemonSet"]
    return Looked(
        count=len(asked),
        obstacles=tuple(
            Obstacle(
                subject=one.subject,
                cause="no declared node takes them: "
                f"{_wish(one.spec) or 'they tolerate none of the taints'}",
            )
            for one in asked
            if not _places(one.spec, nodes)
        ),
    )


def unbound(pods: Sequence[Pods], objects: Sequence[Object], nodes: Sequence[Object]) -> Looked:
    """Claims that find no volume, and pods whose volumes lie on no node that takes the pods."""
    volumes = _Volumes(objects)
    claims = {
        (each["metadata"]["namespace"], name_of(each)): each
        for each in objects
        if each["kind"] == "PersistentVolumeClaim"
    }
    obstacles: dict[Obstacle, None] = {}
    # Those that name their volume, or are named by one, are bound before any pod comes.
    places: dict[tuple[str, str], list[Object]] = {}
    for key, claim in claims.items():
        places[key], problem = volumes.bind(claim, nodes)
        if problem:
            obstacles[Obstacle(subject=describe(claim), cause=problem)] = None
    count = len(claims)
    for one in pods:
        left = _places(one.spec, nodes)
        volumes_of = one.spec.get("volumes") or []
        for each in filter(None, (volume.get("persistentVolumeClaim") for volume in volumes_of)):
            name = each["claimName"]
            found = places.get((one.namespace, name))
            if found is None:
                cause = f"PersistentVolumeClaim '{name}' does not exist"
                obstacles[Obstacle(subject=one.subject, cause=cause)] = None
                continue
            left = [node for node in left if node in found]
        if not left and _places(one.spec, nodes) and one.owner["kind"] != "DaemonSet":
            cause = "no node that takes them has all of their volumes"
            obstacles[Obstacle(subject=one.subject, cause=cause)] = None
        wanted = [(each["metadata"]["name"], each["spec"]) for each in one.claims]
        wanted += [
            (each["name"], template["spec"])
            for each in volumes_of
            if (template := (each.get("ephemeral") or {}).get("volumeClaimTemplate"))
        ]
        for ordinal in range(one.count):
            for name, spec in wanted:
                count += 1
                name = f"{name}-{name_of(one.owner)}-{ordinal}"
                claim = kube_object("v1", "PersistentVolumeClaim", name, one.namespace, spec=spec)
                _, problem = volumes.bind(claim, _places(one.spec, nodes))
                if problem:
                    obstacles[Obstacle(subject=describe(claim), cause=problem)] = None
    return Looked(count=count, obstacles=tuple(obstacles))


@dataclass(slots=True)
class _Volumes:
    """Volumes and classes, and which are taken."""

    objects: Sequence[Object]
    taken: set[str] = field(default_factory=set[str])

    def bind(self, claim: Object, nodes: Sequence[Object]) -> tuple[list[Object], str]:
        """The nodes that see the claim's volume, and why there is none."""
        wanted = claim["spec"]
        class_name = wanted.get("storageClassName")
        if class_name is None:
            # The kube cluster's own default makes a disk where the pod lands.
            return list(nodes), ""
        known = {name_of(each): each for each in self.objects if each["kind"] == "StorageClass"}
        provisioner = known[class_name]["provisioner"] if class_name in known else kube_rules.MANUAL
        more = set(wanted["accessModes"]) - kube_rules.DISK_MODES
        if provisioner == CSI_DRIVER and more:
            return (
                [],
                f"class '{class_name}' makes disks of one node, not {', '.join(sorted(more))}",
            )
        if provisioner != kube_rules.MANUAL:
            return list(nodes), ""
        free = [
            each
            for each in self.objects
            if each["kind"] == "PersistentVolume" and name_of(each) not in self.taken
        ]
        volume = kube_rules.best(free, claim, nodes)
        if volume is None:
            reasons = [
                f"{name_of(each)} {reason}"
                for each in free
                if (reason := kube_rules.misfit(each, claim, nodes))
            ]
            modes = ", ".join(wanted["accessModes"])
            why = f": {'; '.join(reasons)}" if reasons else ""
            return [], f"no volume of class '{class_name}' for {modes}{why}"
        self.taken.add(name_of(volume))
        return [node for node in nodes if kube_rules.is_seen(volume, node)], ""


def _places(spec: Mapping[str, Any], nodes: Sequence[Object]) -> list[Object]:
    return [node for node in nodes if matches(node, spec) and not untolerated(node, spec)]


def _wish(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: spec[key] for key in ("nodeSelector", "affinity", "tolerations") if key in spec}


def _database(one: Object) -> Pods:
    """The pods of a MariaDB, as far as its object says: where they go and what they claim."""
    spec = one["spec"]
    template = (spec.get("storage") or {}).get("volumeClaimTemplate")
    claims = () if template is None else ({"metadata": {"name": "storage"}, "spec": template},)
    return Pods(
        owner=one, template={"spec": _wish(spec)}, claims=claims, count=spec.get("replicas") or 1
    )


def _pod(one: Pods) -> Object:
    metadata = one.template.get("metadata") or {}
    volumes = [
        *(one.spec.get("volumes") or []),
        *({"name": each["metadata"]["name"], "emptyDir": {}} for each in one.claims),
    ]
    name = re.sub(r"[^a-z0-9-]", "-", name_of(one.owner).lower())
    kept = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    spec = {**one.spec, "volumes": volumes}
    return kube_object("v1", "Pod", f"{name}-0", one.namespace, metadata=kept, spec=spec)


class _Need(NamedTuple):
    kind: str
    name: str
    key: str = ""
    """Empty: the object as a whole."""


def _needs(spec: Mapping[str, Any]) -> Iterator[_Need]:
    """What must exist before a container starts (kubelet: pkg/volume/{secret,configmap,projected},
    pkg/kubelet/kubelet_pods.go)."""
    if account := spec.get("serviceAccountName"):
        yield _Need("ServiceAccount", account)
    keyed: dict[str, tuple[str, str]] = {}
    for volume in spec.get("volumes") or []:
        for kind, source in kube_rules.file_sources(volume):
            if source.get("optional"):
                continue
            name = source.get("secretName") or source["name"]
            yield _Need(kind, name)
            for item in source.get("items") or []:
                yield _Need(kind, name, item["key"])
            if not source.get("items") and "projected" not in volume:
                keyed[volume["name"]] = (kind, name)
    for part in _CONTAINERS:
        for container in spec.get(part) or []:
            yield from _of_container(container, keyed)


def _of_container(
    container: Mapping[str, Any], keyed: Mapping[str, tuple[str, str]]
) -> Iterator[_Need]:
    for mount in container.get("volumeMounts") or []:
        if mount.get("subPath") and mount["name"] in keyed:
            yield _Need(*keyed[mount["name"]], mount["subPath"])
    holders = [(each.get("valueFrom") or {}, "KeyRef") for each in container.get("env") or []]
    holders += [(each, "Ref") for each in container.get("envFrom") or []]
    for holder, suffix in holders:
        for name, kind in (("secret", "Secret"), ("configMap", "ConfigMap")):
            reference = holder.get(f"{name}{suffix}")
            if reference and not reference.get("optional"):
                yield _Need(kind, reference["name"], reference.get("key", ""))


def _contents(objects: Iterable[Object]) -> dict[tuple[str, str, str], set[str]]:
    """Keys of every Secret and ConfigMap, those among them that a controller makes of an object."""
    found: dict[tuple[str, str, str], set[str]] = {}

    def add(kind: str, item: Object, name: str, keys: Iterable[str]) -> None:
        found.setdefault((kind, item["metadata"].get("namespace", ""), name), set()).update(keys)

    for each in objects:
        match each["kind"]:
            case "Secret" | "ConfigMap" | "ServiceAccount":
                parts = ("data", "binaryData", "stringData")
                keys = {key for part in parts for key in each.get(part) or {}}
                add(each["kind"], each, name_of(each), keys)
            case "Namespace":
                # Made by the controller-manager in each.
                found["ServiceAccount", name_of(each), "default"] = set()
                found["ConfigMap", name_of(each), "kube-root-ca.crt"] = {"ca.crt"}
            case "Deployment":
                # Of mariadb-operator, which keeps its webhook's certificates by itself.
                for container in each["spec"]["template"]["spec"]["containers"]:
                    for found_ in map(_CERTIFICATE.match, container.get("args") or []):
                        if found_:
                            add("Secret", each, found_[1], _CERTIFICATE_KEYS)
            case "Certificate":
                add("Secret", each, each["spec"]["secretName"], _CERTIFICATE_KEYS)
            case _:
                pass
    return found
