"""One stack on the real parts, step by step: from its releases to pods that could run.

    for step in ComeUp(Sources(upstream)).steps(spec, server, scratch):
        print(step)

Each step says what it looked at and what would not come up. `soperator doctor --sources` prints
them before anything is paid for, and tests/conformance holds every stack to them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from infra.clients.errors import AbsentError, KubeError
from infra.clients.kube_rules import Object, describe
from infra.components.recorder import Registered, declare
from infra.operate.conformance import pod_checks
from infra.operate.conformance.cluster import (
    ApiServer,
    Cluster,
    NotReconciledError,
    OperatorError,
    last_word,
    reconciled,
    soperator,
)
from infra.operate.conformance.pod_checks import Looked, Obstacle
from infra.operate.conformance.sources import (
    DEPLOYED,
    Helm,
    NotRunError,
    OutsideError,
    RenderError,
    Sources,
    load_all,
    whole,
)
from infra.providers.soperator.crds import apply_crds
from infra.render.names import kube_object
from infra.render.nodes import node_group_spec, roles
from stacks.spec import StackSpec

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
        try:
            checkout = self.sources.soperator(spec.cluster.soperator_version)
        except NotRunError as error:
            yield from not_run(STEPS, str(error))
            return
        found = self.declared = declared(spec, folder / "build")
        yield self.rendered(found, folder)
        with ExitStack() as stack:
            cluster = Cluster(server)
            stack.callback(cluster.client.close)
            crds, missing = definitions(self.sources, spec.cluster.soperator_version)
            yield self.accepted(found, cluster, crds, tuple(missing.values()))
            if lacking := [why for name, why in missing.items() if name in OPERATED]:
                yield from not_run(STEPS[2:], *lacking)
                return
            try:
                program = self.sources.program(
                    checkout.replace("soperator", "soperator-operator", 1)
                )
                log = stack.enter_context(
                    soperator(
                        program,
                        self.of_release("soperator"),
                        cluster=cluster,
                        folder=folder / "operator",
                    )
                )
            except NotRunError as error:
                yield from not_run(STEPS[2:], str(error))
                return
            except OperatorError as error:
                why = Obstacle(subject="release soperator", cause=str(error))
                yield Step(name="reconciled", counted="", obstacles=(why,))
                yield from not_run(STEPS[3:], "the operator does not run")
                return
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
            result += cluster.accept(each.objects, each.namespace)
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
        except (NotReconciledError, KubeError) as error:
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
        every = pod_checks.pods_of(self.live)
        yield _looked("pods valid", "pods", pod_checks.refused(cluster.client, every))
        yield _looked(
            "keys present",
            "Secrets, ConfigMaps and keys",
            pod_checks.missing_keys(every, everything),
        )
        yield _looked("placed", "sets of pods", pod_checks.unplaced(every, found.nodes))
        yield _looked("claims bound", "claims", pod_checks.unbound(every, self.live, found.nodes))

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


def _looked(name: str, what: str, looked: Looked) -> Step:
    counted = f"{looked.count} {what}" if looked.count else ""
    return Step(name=name, counted=counted, obstacles=looked.obstacles)


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
_KUBERNETES: Final = "kubernetes:"
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
    recorder = declare(spec, folder)
    inside = [each for each in recorder.registered if each.type.startswith(_KUBERNETES)]
    return Declared(
        spec=spec,
        releases=tuple(_release(each) for each in inside if each.type == _RELEASE),
        own=tuple(whole(each.inputs) for each in inside if "kind" in each.inputs),
        given=tuple(_given(spec)),
        nodes=tuple(_nodes(spec)),
    )


def _release(one: Registered) -> Release:
    sent = {"values": {}, **whole(one.inputs)}
    return Release(**{name: sent[name] for name in ("name", "namespace", "version", "values")})


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
        if role.chunk.max_nodes == 0:
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
