"""One stack on the real parts, step by step: from its releases to pods that could run.

    for step in ComeUp(Sources(upstream)).steps(spec, server, scratch):
        print(step)

Each step says what it looked at and what would not come up. `soperator doctor --sources` prints
them before anything is paid for, and tests/conformance holds every stack to them.

Whether pods would run, as API server, kubelet, scheduler and volume binder decide it, is asked of
plain objects, so each rule is tested without upstream (tests/unit/conformance). What was looked at
is counted: nothing found in nothing is no proof. Resources are not summed up here:
stacks/catalog.py does that before.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from infra.clients import kube_rules
from infra.clients.errors import AbsentError, KubeError
from infra.clients.kube import KubeClient
from infra.clients.kube_rules import Object, describe, matches, name_of, untolerated
from infra.components.recorder import sent_to_kubernetes
from infra.operate.conformance.cluster import (
    ApiServer,
    Cluster,
    OperatorError,
    last_word,
    reconciled,
    soperator,
)
from infra.operate.conformance.sources import (
    DEPLOYED,
    Helm,
    NotRunError,
    OutsideError,
    RenderError,
    Sources,
    load_all,
)
from infra.providers.soperator.crds import apply_crds
from infra.providers.soperator.teardown import CSI_DRIVER
from infra.render.names import kube_object
from infra.render.nodes import node_group_spec, roles
from stacks.spec import StackSpec

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
class Step:
    """One step of the way: what was looked at, what stops it, what could not be looked at."""

    name: str
    counted: str
    """Such as `13 releases, 202 objects`; empty where nothing was."""
    obstacles: tuple[Obstacle, ...] = ()
    not_run: tuple[str, ...] = ()
    """What the folder lacks."""
    outside: tuple[str, ...] = ()
    """What no folder can give."""
    assumed: tuple[str, ...] = ()
    """What the stack names and its user makes."""

    @property
    def outcome(self) -> str:
        """PASS, FAIL or NOT RUN; a step that lacked something is not run, whatever it counted."""
        if self.obstacles:
            return "FAIL"
        return "PASS" if self.counted and not self.not_run else "NOT RUN"


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


def refused(client: KubeClient, pods: Sequence[Pods]) -> Step:
    """Pods that the API server would not take, asked by a dry run of each."""
    asked = [one for one in pods if one.spec.get("containers")]
    obstacles: list[tuple[str, str]] = []
    for one in asked:
        try:
            client.create(_pod(one), dry_run=True)
        except KubeError as error:
            obstacles.append((one.subject, str(error)))
    return _looked("pods valid", len(asked), "pods", obstacles)


def missing_keys(pods: Sequence[Pods], objects: Sequence[Object]) -> Step:
    """Secrets, ConfigMaps and keys of theirs that a kubelet would wait for, for ever."""
    have = _contents(objects)
    count = 0
    obstacles: list[tuple[str, str]] = []
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
            obstacles.append((one.subject, cause))
    return _looked("keys present", count, "Secrets, ConfigMaps and keys", obstacles)


def unplaced(pods: Sequence[Pods], nodes: Sequence[Object]) -> Step:
    """Pods that no declared node takes, by selector, affinity and taints."""
    asked = [one for one in pods if one.count and one.owner["kind"] != "DaemonSet"]
    obstacles = [
        (
            one.subject,
            f"no declared node takes them: {_wish(one.spec) or 'they tolerate none of the taints'}",
        )
        for one in asked
        if not _places(one.spec, nodes)
    ]
    return _looked("placed", len(asked), "sets of pods", obstacles)


def unbound(pods: Sequence[Pods], objects: Sequence[Object], nodes: Sequence[Object]) -> Step:
    """Claims that find no volume, and pods whose volumes lie on no node that takes the pods."""
    volumes = _Volumes(objects)
    claims = {
        (each["metadata"]["namespace"], name_of(each)): each
        for each in objects
        if each["kind"] == "PersistentVolumeClaim"
    }
    obstacles: list[tuple[str, str]] = []
    # Those that name their volume, or are named by one, are bound before any pod comes.
    places: dict[tuple[str, str], list[Object]] = {}
    for key, claim in claims.items():
        places[key], problem = volumes.bind(claim, nodes)
        if problem:
            obstacles.append((describe(claim), problem))
    count = len(claims)
    for one in pods:
        left = _places(one.spec, nodes)
        volumes_of = one.spec.get("volumes") or []
        for each in filter(None, (volume.get("persistentVolumeClaim") for volume in volumes_of)):
            name = each["claimName"]
            found = places.get((one.namespace, name))
            if found is None:
                obstacles.append((one.subject, f"PersistentVolumeClaim '{name}' does not exist"))
                continue
            left = [node for node in left if node in found]
        if not left and _places(one.spec, nodes) and one.owner["kind"] != "DaemonSet":
            obstacles.append((one.subject, "no node that takes them has all of their volumes"))
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
                    obstacles.append((describe(claim), problem))
    return _looked("claims bound", count, "claims", obstacles)


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


STEPS: Final = (
    "rendered", "accepted", "reconciled", "pods valid", "keys present", "placed", "claims bound"
)  # fmt: skip
"""Every step, in its order."""
_KINDS: Final = (
    ("v1", "Namespace"),
    ("v1", "Secret"),
    ("v1", "ConfigMap"),
    ("v1", "ServiceAccount"),
    ("v1", "PersistentVolume"),
    ("v1", "PersistentVolumeClaim"),
    ("storage.k8s.io/v1", "StorageClass"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "DaemonSet"),
    ("apps.kruise.io/v1beta1", "StatefulSet"),
    ("batch/v1", "Job"),
    ("batch/v1", "CronJob"),
    ("k8s.mariadb.com/v1alpha1", "MariaDB"),
)


@dataclass(slots=True)
class ComeUp:
    """The way of one stack, and what each step leaves for the next."""

    sources: Sources
    declared: Declared | None = None
    renderings: list[Release] = field(default_factory=list["Release"])
    unrendered: dict[str, str] = field(default_factory=dict[str, str])
    """Release -> why its chart could not be rendered."""
    live: list[Object] = field(default_factory=list[Object])
    """What the API server holds at the end, of the kinds that matter."""

    def steps(self, spec: StackSpec, server: ApiServer, folder: Path) -> Iterator[Step]:
        """Every step in turn; a step that stands on a missing one is NOT RUN."""
        count = 0
        try:
            for step in self._steps(spec, server, folder):
                count += 1
                yield step
        except NotRunError as error:
            yield from not_run(STEPS[count:], *error.args)
        except OperatorError as error:
            why = Obstacle(subject="release soperator", cause=str(error))
            yield Step(name=STEPS[count], counted="", obstacles=(why,))
            yield from not_run(STEPS[count + 1 :], "the operator does not run")

    def _steps(self, spec: StackSpec, server: ApiServer, folder: Path) -> Iterator[Step]:
        version = spec.cluster.soperator_version
        checkout = self.sources.soperator(version)
        found = self.declared = declared(spec, folder / "build")
        yield self.rendered(found, folder)
        cluster = Cluster(server)
        with closing(cluster.client):
            crds, missing = definitions(self.sources, version)
            yield self.accepted(found, cluster, crds, tuple(missing.values()))
            if lacking := [why for name, why in missing.items() if name in OPERATED]:
                raise NotRunError(*lacking)
            program = self.sources.program(checkout.replace("soperator", "soperator-operator", 1))
            release, place = self.of_release("soperator"), folder / "operator"
            with soperator(program, release, cluster=cluster, folder=place) as log:
                yield self.reconciled(found, cluster, log)
                yield from self.pods(found, cluster)

    def rendered(self, found: Declared, folder: Path) -> Step:
        """Every release through its real chart."""
        obstacles: list[Obstacle] = []
        outside: list[str] = []
        version = found.spec.cluster.soperator_version
        copies = folder / "charts"
        copies.mkdir(parents=True, exist_ok=True)
        try:
            helm = Helm(self.sources.program("helm"), copies)
        except NotRunError as error:
            self.unrendered = {each.name: str(error) for each in found.releases}
            return Step(name="rendered", counted="", not_run=(str(error),))
        for each in found.releases:
            try:
                chart = self.sources.chart(each.name, each.version, version)
                objects = helm.render(chart, each.name, each.namespace, each.values)
            except OutsideError as error:
                outside.append(str(error))
            except NotRunError as error:
                self.unrendered[each.name] = str(error)
            except RenderError as error:
                obstacles.append(Obstacle(subject=f"release {each.name}", cause=str(error)))
            else:
                self.renderings.append(replace(each, objects=tuple(objects)))
        count = sum(len(each.objects) for each in self.renderings)
        counted = f"{len(self.renderings)} releases, {count} objects" if self.renderings else ""
        return Step(
            name="rendered",
            counted=counted,
            obstacles=tuple(obstacles),
            # One that several releases lack is one.
            not_run=tuple(dict.fromkeys(self.unrendered.values())),
            outside=tuple(outside),
        )

    def accepted(
        self, found: Declared, cluster: Cluster, crds: Sequence[Object], missing: Sequence[str]
    ) -> Step:
        """Every object under strict validation, but those that wait for the operator's webhooks.

        `crds`: definitions; `missing`: reasons why others are not there.
        """
        sent = [*found.own, *(each for one in self.renderings for each in one.objects)]
        apply_crds(cluster.client, needed(crds, sent))
        # A release may bring objects for another's namespace; the engine has both by then.
        for release in found.releases:
            cluster.need_namespace(release.namespace)
        result = cluster.accept([*found.own, *found.given], found.spec.cluster.namespace)
        for each in self.renderings:
            cluster.accept(each.objects, each.namespace, result)
        outside: list[str] = []
        undefined: list[str] = []
        for (version, kind), count in sorted(result.unknown.items()):
            reason = OUTSIDE_GROUPS.get(version.partition("/")[0])
            text = f"{count} {kind} ({version}): {reason or 'no definition here'}"
            (outside if reason else undefined).append(text)
        return Step(
            name="accepted",
            counted=f"{result.count} objects" if result.count else "",
            obstacles=tuple(_refusal(text) for text in result.refused),
            not_run=(*missing, *undefined),
            outside=tuple(outside),
            assumed=tuple(
                f"{describe(each)} with key {', '.join(each.get('stringData') or each['data'])}"
                for each in found.given
            ),
        )

    def reconciled(self, found: Declared, cluster: Cluster, log: Path) -> Step:
        """The operator brings the cluster up, while what does not run here is simulated."""
        namespace = found.spec.cluster.namespace
        obstacles: list[Obstacle] = []
        # Admitted once more, by the webhooks now.
        own = [
            each
            for rendering in self.renderings
            for each in rendering.objects
            if "slurm.nebius.ai" in each["apiVersion"]
        ]
        admitted = cluster.accept(own, namespace)
        obstacles += [_refusal(text) for text in admitted.refused]
        try:
            reconciled(cluster.client, namespace)
        except (OperatorError, KubeError) as error:
            # One that has ended refuses everything, by its webhooks.
            cause = f"{error}; the operator's last word: {last_word(log)}"
            obstacles.append(Obstacle(subject=f"SlurmCluster in {namespace}", cause=cause))
        self.live = self._look(cluster)
        made = len([each for each in self.live if each["metadata"].get("ownerReferences")])
        counted = f"{admitted.count} objects admitted, {made} made of them"
        if not obstacles and not (admitted.count and made):
            return Step(name="reconciled", counted="", not_run=(f"nothing to see: {counted}",))
        return Step(name="reconciled", counted=counted, obstacles=tuple(obstacles))

    def pods(self, found: Declared, cluster: Cluster) -> Iterator[Step]:
        """What API server, kubelet, scheduler and binder say to the pods."""
        everything = [*self.live, *self._unknown()]
        every = pods_of(self.live)
        yield refused(cluster.client, every)
        yield missing_keys(every, everything)
        yield unplaced(every, found.nodes)
        yield unbound(every, self.live, found.nodes)

    def of_release(self, name: str) -> tuple[Object, ...]:
        """The rendered objects of a release."""
        for each in self.renderings:
            if each.name == name:
                return each.objects
        raise NotRunError(self.unrendered.get(name) or f"release {name} is not rendered")

    def _look(self, cluster: Cluster) -> list[Object]:
        found: list[Object] = []
        for version, kind in _KINDS:
            with suppress(AbsentError):
                found += cluster.client.list(version, kind)
        return found

    def _unknown(self) -> Iterator[Object]:
        """Rendered objects of kinds without a definition, of which a controller makes Secrets."""
        for rendering in self.renderings:
            for each in rendering.objects:
                if each["kind"] == "Certificate":
                    metadata = {"namespace": rendering.namespace, **each["metadata"]}
                    yield {**each, "metadata": metadata}


def not_run(names: Sequence[str], *why: str) -> Iterator[Step]:
    """The steps, each for want of the same things."""
    for name in names:
        yield Step(name=name, counted="", not_run=why)


def _refusal(text: str) -> Obstacle:
    subject, _, cause = text.partition(": ")
    return Obstacle(subject=subject, cause=cause)


def _looked(name: str, count: int, what: str, obstacles: Iterable[tuple[str, str]]) -> Step:
    """A step over plain objects; what is said of one subject twice is one obstacle."""
    counted = f"{count} {what}" if count else ""
    found = (Obstacle(subject=each[0], cause=each[1]) for each in dict.fromkeys(obstacles))
    return Step(name=name, counted=counted, obstacles=tuple(found))


_PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "soperator": ("helm/soperator/crds/*.yaml",),
    "kruise": ("config/crd/bases/*.yaml",),
    "mariadb-operator": ("deploy/crds/crds.yaml",),
    "prometheus-operator": ("example/prometheus-operator-crd/*.yaml",),
    "victoria-metrics-operator": ("config/crd/overlay/crd.yaml",),
    "security-profiles-operator": ("deploy/base-crds/crds/*.yaml",),
    "k8up": ("charts/k8up/crds/*.yaml",),
}
_WATCHED: Final = (
    "slurm.nebius.ai",
    "apps.kruise.io",
    "k8s.mariadb.com",
    "security-profiles-operator.x-k8s.io",
)
"""Groups of which an operator reads every kind."""
OUTSIDE_GROUPS: Final[Mapping[str, str]] = {
    "cert-manager.io": "defined by cert-manager's chart, which is finished only by its own release"
}
"""Groups of which no checkout has the definitions, and why."""
OPERATED: Final = _PLACES.keys() - {"victoria-metrics-operator", "k8up"}
"""Checkouts that define what Soperator's operator watches: without one it never comes up."""
_METRICS: Final = frozenset({"ServiceMonitor", "PodMonitor"})
_KIND: Final = "CustomResourceDefinition"


def definitions(sources: Sources, soperator: str = DEPLOYED) -> tuple[list[Object], dict[str, str]]:
    """All of them, and checkout -> reason where it is missing; `soperator` is a version."""
    found: list[Object] = []
    missing: dict[str, str] = {}
    for name in _PLACES:
        try:
            checkout = sources.soperator(soperator) if name == "soperator" else name
            found += _of(sources, checkout, _PLACES[name])
        except NotRunError as error:
            missing[name] = str(error)
    return found, missing


def needed(found: Iterable[Object], objects: Iterable[Object]) -> list[Object]:
    """Those of the kinds among the objects and those that the operators watch.

    Half of a minute goes into the rest, which nobody asks for.
    """
    used = {each["kind"] for each in objects}
    return [
        each
        for each in found
        if each["spec"]["group"] in _WATCHED or each["spec"]["names"]["kind"] in used | _METRICS
    ]


def _of(sources: Sources, checkout: str, patterns: tuple[str, ...]) -> Iterator[Object]:
    folder = sources.checkout(checkout)
    for pattern in patterns:
        paths = sorted(folder.glob(pattern))
        if not paths:
            raise NotRunError(f"checkout {folder}: nothing at {pattern}")
        for path in paths:
            for each in load_all(path.read_text(encoding="utf-8")):
                if each.get("kind") == _KIND:
                    yield _alone(each)


def _alone(definition: Object) -> Object:
    """Without the webhook of its operator, which may not run: stored and served version agree."""
    definition["spec"].pop("conversion", None)
    definition["metadata"].pop("creationTimestamp", None)
    definition.pop("status", None)
    return definition


_RELEASE: Final = "kubernetes:helm.sh/v3:Release"
_EFFECTS: Final = {"NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute"}
_SSHD_KEY: Final = "sshd_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One Helm release as the engine would get it."""

    name: str
    namespace: str
    version: str
    values: Mapping[str, Any]
    objects: tuple[Object, ...] = ()
    """Once it is rendered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Everything that goes to Kubernetes, in the program's order, and the nodes under it."""

    spec: StackSpec
    releases: tuple[Release, ...]
    own: tuple[Object, ...]
    """Objects that the program makes itself."""
    given: tuple[Object, ...]
    """Secrets and ConfigMaps that the stack names and its user makes."""
    nodes: tuple[Object, ...]
    """One node of each node group."""


def declared(spec: StackSpec, folder: Path) -> Declared:
    """What the program would send for `spec`; `folder` takes its build."""
    inside = sent_to_kubernetes(spec, folder)
    return Declared(
        spec=spec,
        releases=tuple(_release(sent) for type_, sent in inside if type_ == _RELEASE),
        own=tuple(sent for _, sent in inside if "kind" in sent),
        given=tuple(_given(spec)),
        nodes=tuple(_nodes(spec)),
    )


def _release(sent: Mapping[str, Any]) -> Release:
    found = {"values": {}, **sent}
    return Release(**{name: found[name] for name in ("name", "namespace", "version", "values")})


def _given(spec: StackSpec) -> Iterator[Object]:
    def made(kind: str, name: str, key: str) -> Object:
        content = {"stringData" if kind == "Secret" else "data": {key: "# made by the user\n"}}
        return kube_object("v1", kind, name, spec.cluster.namespace, **content)

    maps = {worker.sshd_config_map for worker in spec.nodes.workers}
    for name in sorted(filter(None, maps)):
        yield made("ConfigMap", name, _SSHD_KEY)
    if (sssd := spec.soperator.sssd) is not None:
        yield made("Secret", sssd.config_secret, "sssd.conf")
        if sssd.ca_config_map is not None:
            yield made("ConfigMap", sssd.ca_config_map, "ca.crt")


def _nodes(spec: StackSpec) -> Iterator[Object]:
    ids: Mapping[str, str] = defaultdict(lambda: "filesystem")
    for role in roles(spec):
        if role.max_nodes == 0:
            continue
        group = node_group_spec(spec, role, subnet_id="subnet", filesystem_ids=ids)["template"]
        name = f"{role.name}-node"
        taints = [
            {**taint, "effect": _EFFECTS[taint["effect"]]} for taint in group.get("taints", [])
        ]
        labels = {
            **group["metadata"]["labels"],
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        }
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        about: Object = {"metadata": {"labels": labels}, "spec": {"taints": taints}}
        yield kube_object("v1", "Node", name, **about, status=ready)
