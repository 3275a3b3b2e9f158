"""What should run, worked out from custom resources and nodes alone; no I/O.

Owns the semantics of Soperator 4.1.7 that a program can get wrong: a pod that finds no node or no
volume waits and says why, and what the resources do not declare does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from infra.clients.kube_rules import Scheduler, quantity
from infra.local.reconcile import pod_specs
from infra.local.reconcile.pod_specs import PodSet
from infra.local.reconcile.pods import (
    ClusterPlan,
    NodeSetPlan,
    Plan,
    PodPlan,
    active,
    is_elastic,
    notes,
    pod_object,
    shown_name,
)
from infra.local.reconcile.snapshot import (
    Held,
    Object,
    Places,
    Snapshot,
    UnboundError,
    Volume,
    annotation,
    check_claim,
    check_files,
    check_subpaths,
    claims,
    name_of,
    own_source,
    resolve,
    secret_data,
    slurm_settings,
    topology_problem,
)
from infra.local.slurm.daemons import (
    ACCOUNTING,
    CONTROLLER,
    CONTROLLER_SPOOL,
    DATABASE,
    DATABASE_FOLDER,
    LOGIN,
    WorkerNode,
)
from infra.state import Ports
from stacks.machines import JAIL_UPPER

CLUSTER_REF: Final = "slurm.nebius.ai/parental-cluster-ref"
_JAIL: Final = "jail"
_HERE: Final = {
    "/dev/shm": ("/dev/shm", "dev-shm"),  # noqa: S108
    "/var/lib/mysql": (DATABASE_FOLDER, "mysql"),
    "/var/spool/slurmctld": (CONTROLLER_SPOOL, "spool"),
}
"""What is here of a container around its jail: its path there -> path and folder here."""
_DEFAULT_NODE_PORT: Final = 30022


def make_plan(
    snapshot: Snapshot, *, places: Places, ports: Ports, worker_port: Callable[[str], int]
) -> Plan:
    """The plan for the first SlurmCluster by namespace and name."""
    clusters = snapshot.all("SlurmCluster")
    if not clusters:
        orphans = tuple(
            NodeSetPlan(source=item, problem=_missing_cluster(item))
            for item in snapshot.all("NodeSet")
        )
        return Plan(nodesets=orphans)
    first, *others = clusters
    refused = [(item, "the local stack runs one SlurmCluster at a time") for item in others]
    maker = _Maker(snapshot, first, places, ports, worker_port)
    nodesets = tuple(maker.nodeset(item) for item in snapshot.all("NodeSet"))
    problem = maker.refusal()
    if problem:
        stopped = tuple(replace(item, pods=()) for item in nodesets)
        return Plan(
            nodesets=stopped, refused=((first, problem), *refused), stopped=is_stopped(first)
        )
    return Plan(cluster=maker.cluster(nodesets), nodesets=nodesets, refused=tuple(refused))


@dataclass(eq=False)
class _Maker:
    """The plan of one cluster; the scheduler counts what its pods take."""

    _snapshot: Snapshot
    _cluster: Object
    _places: Places
    _ports: Ports
    _worker_port: Callable[[str], int]

    def __post_init__(self) -> None:
        self._spec = self._cluster["spec"]
        self._namespace = self._cluster["metadata"]["namespace"]
        self._scheduler = Scheduler(self._snapshot.all("Node"))
        self._sources = {item["name"]: item for item in self._spec.get("volumeSources") or []}
        self._filters = {item["name"]: item for item in self._spec["k8sNodeFilters"]}
        name = (self._spec.get("secrets") or {}).get("sshdKeysName")
        found = self._snapshot.find("Secret", name, self._namespace) if name else None
        # The Secret of host keys that somebody made; the operator makes one that is missing.
        own = found is None or annotation(found, pod_specs.MADE)
        self._host_keys = None if own else found

    def refusal(self) -> str:
        """Why nothing of the cluster comes up; empty if it may."""
        if is_stopped(self._cluster):
            return f"maintenance is '{self._spec['maintenance']}': every pod is stopped"
        if _JAIL not in self._sources:
            known = ", ".join(self._sources) or "none"
            return f"spec.volumeSources has no source named 'jail' (has: {known})"
        nodes = self._spec["slurmNodes"]
        for role in ("controller", "login"):
            wanted = nodes[role]["k8sNodeFilterName"]
            if wanted not in self._filters:
                return (
                    f"spec.slurmNodes.{role}.k8sNodeFilterName: '{wanted}' is not in "
                    f"spec.k8sNodeFilters (has: {', '.join(self._filters)})"
                )
        return ""

    def cluster(self, nodesets: tuple[NodeSetPlan, ...]) -> ClusterPlan:
        nodes = self._spec["slurmNodes"]
        accounting = nodes.get("accounting") or {}
        workers = tuple(worker for item in nodesets for worker in item.workers)
        has_database = bool(
            accounting.get("enabled") and (accounting.get("mariadbOperator") or {}).get("enabled")
        )
        # In this order the scheduler takes them.
        pods = {"controller": self._controller(nodes["controller"])}
        if has_database:
            slurmdbd, mariadb = self._set("accounting"), self._set("database")
            if (wanted := accounting["k8sNodeFilterName"]) in self._filters:
                pods["accounting"] = self._pod(ACCOUNTING, slurmdbd)
                pods["database"] = self._database(mariadb)
            else:
                refused = f"k8sNodeFilterName '{wanted}' is not in spec.k8sNodeFilters"
                pods["accounting"] = PodPlan(name=ACCOUNTING, problem=refused, of=slurmdbd)
                pods["database"] = PodPlan(name=DATABASE, problem=refused, of=mariadb)
        login = nodes["login"]
        pods["login"] = self._login(login)
        by_port = login["sshdServiceType"] == "NodePort"
        keys = secret_data(self._host_keys) if self._host_keys is not None else {}
        return ClusterPlan(
            source=self._cluster,
            settings=slurm_settings(self._cluster, workers, self._ports, accounting=has_database),
            pods=pods,
            ssh_port=(login.get("sshdServiceNodePort") or _DEFAULT_NODE_PORT) if by_port else 22,
            authorized_keys=tuple(login.get("sshRootPublicKeys") or ()),
            host_keys=tuple(keys[key] for key in sorted(keys) if not key.endswith(".pub")),
            notes=notes(self._spec, nodesets),
        )

    def nodeset(self, item: Object) -> NodeSetPlan:
        reference = annotation(item, CLUSTER_REF)
        same_place = item["metadata"]["namespace"] == self._namespace
        if reference != name_of(self._cluster) or not same_place:
            return NodeSetPlan(source=item, problem=_missing_cluster(item))
        spec = item["spec"]
        # Slurm knows every node of an elastic set; the pods of those that are powered up run.
        made = self._set("worker", item)
        pods = tuple(
            self._worker(made, f"{name_of(item)}-{ordinal}")
            for ordinal in active(item, self._snapshot)
        )
        names = (f"{name_of(item)}-{ordinal}" for ordinal in range(spec.get("replicas", 1)))
        memory = quantity(spec["slurmd"]["resources"].get("memory"))
        config = spec.get("nodeConfig") or {}
        workers = tuple(
            WorkerNode(
                name=name,
                nodeset=name_of(item),
                port=self._worker_port(name),
                static=config.get("static", ""),
                memory_mib=max(1, int(memory / 2**20)),
                features=tuple(config.get("features") or ()),
                has_gpus=(spec.get("gpu") or {}).get("enabled", False),
                is_elastic=is_elastic(item),
            )
            for name in names
        )
        return NodeSetPlan(source=item, workers=workers, pods=pods)

    def _set(self, kind: pod_specs.Kind, nodeset: Object | None = None) -> PodSet:
        has_keys = self._host_keys is not None
        return pod_specs.pod_set(kind, self._cluster, nodeset, has_host_keys=has_keys)

    def _worker(self, made: PodSet, pod: str) -> PodPlan:
        planned = self._pod(pod, made)
        node = self._snapshot.find("Node", planned.node)
        if planned.problem or node is None:
            return planned
        problem = topology_problem(self._spec, made.source["spec"], node)
        return replace(planned, problem=problem, held=Held.WAITING) if problem else planned

    def _controller(self, spec: Mapping[str, Any]) -> PodPlan:
        name = spec["volumes"]["spool"].get("volumeSourceName")
        if name and name not in self._sources:
            return PodPlan(name=CONTROLLER, problem=self._no_source(name))
        return self._pod(CONTROLLER, self._set("controller"))

    def _database(self, made: PodSet) -> PodPlan:
        claim = {"persistentVolumeClaim": {"claimName": f"storage-{made.name}-0"}}
        planned = self._pod(DATABASE, made, {"storage": claim} if made.claims else {})
        # In a filesystem it has a folder of its own, beside what others put there.
        mounts = tuple(
            (path, replace(volume, folder=volume.folder / "mysql"))
            if volume.folder is not None and volume.folder.name != "mysql"
            else (path, volume)
            for path, volume in planned.mounts
        )
        return replace(planned, mounts=mounts)

    def _login(self, spec: Mapping[str, Any]) -> PodPlan:
        if spec.get("size", 1) == 0:
            return PodPlan(name=LOGIN, problem="spec.slurmNodes.login.size is 0")
        for mount in spec["volumes"].get("jailSubMounts") or []:
            if (name := mount.get("volumeSourceName", "")) not in self._sources:
                return PodPlan(name=LOGIN, problem=self._no_source(name))
        return self._pod(LOGIN, self._set("login"))

    def _pod(
        self, name: str, made: PodSet, own: Mapping[str, Mapping[str, Any]] | None = None
    ) -> PodPlan:
        """The pod with its volumes resolved on its node: claims first, as the scheduler does.

        `own` has sources of volumes that are no part of its specification, by name.
        """
        node, problem = self._scheduler.place(made.spec, _requests(made))
        if node is None:
            return PodPlan(name=name, problem=problem, of=made)
        mounts: dict[str, Volume] = {}
        started = self._has_started(name, node, made)
        sources: dict[str, Mapping[str, Any]] = {
            each["name"]: {key: value for key, value in each.items() if key != "name"}
            for each in made.spec["volumes"]
        }
        sources |= own or {}

        def volume(source: Mapping[str, Any], volume_name: str) -> Volume:
            if started:  # then its Secret or ConfigMap may have gone
                kinds = ("secret", "configMap")
                source = {
                    k: {**x, "optional": True} if k in kinds else x for k, x in source.items()
                }
            return resolve(
                source,
                volume_name,
                pod=name,
                namespace=self._namespace,
                node=node,
                snapshot=self._snapshot,
                places=self._places,
            )

        try:
            for claim in claims(made.spec["volumes"], dict(made.claims), shown_name(name, made)):
                check_claim(claim, self._namespace, self._snapshot)
            root = volume(sources[_JAIL] if _JAIL in sources else self._sources[_JAIL], _JAIL)
            for mount in made.spec["containers"][0]["volumeMounts"]:
                path, volume_name = mount["mountPath"].rstrip("/"), mount["name"]
                source = sources.get(volume_name) or own_source(volume_name, made.source)
                if path in _HERE:
                    here, own_name = _HERE[path]
                    mounts[here] = volume(source, own_name)
                # Only what shows in the jail: the container around it does not exist here.
                elif path.startswith(f"{JAIL_UPPER}/") and volume_name not in pod_specs.NOT_HERE:
                    mounts[path.removeprefix(JAIL_UPPER)] = volume(source, volume_name)
            # A kubelet mounts once: what goes afterwards holds the next pod.
            given = {
                each["name"]: each
                for each in made.spec["volumes"]
                if not started and each["name"] not in made.own
            }
            for each in given.values():
                check_files(each, self._namespace, self._snapshot)
            for container in made.spec["containers"]:
                check_subpaths(container, given, self._namespace, self._snapshot)
        except UnboundError as error:
            scheduled = error.held is not Held.SCHEDULING
            return PodPlan(
                name=name,
                problem=str(error),
                held=error.held,
                node=name_of(node) if scheduled else "",
                of=made,
            )
        return PodPlan(
            name=name,
            node=name_of(node),
            jail=root.folder,
            mounts=tuple(sorted(mounts.items())),
            of=made,
        )

    def _has_started(self, name: str, node: Object, made: PodSet) -> bool:
        """Whether this very pod runs already; one that has to be made anew does not."""
        wanted = pod_object(PodPlan(name=name, node=name_of(node), of=made), made)
        live = self._snapshot.find("Pod", name_of(wanted), self._namespace)
        return (
            live is not None
            and (live.get("status") or {}).get("phase") == "Running"
            and annotation(live, pod_specs.MADE) == annotation(wanted, pod_specs.MADE)
        )

    def _no_source(self, name: str | None) -> str:
        known = ", ".join(self._sources) or "none"
        return f"volumeSourceName '{name}' is not in spec.volumeSources (has: {known})"


def _requests(made: PodSet) -> dict[str, Fraction]:
    """What the pod asks of a node: its containers, and the sidecars beside them."""
    found: dict[str, Fraction] = {}
    inits = made.spec.get("initContainers") or ()
    sidecars = [each for each in inits if each.get("restartPolicy") == "Always"]
    for each in (*made.spec["containers"], *sidecars):
        for key, amount in ((each.get("resources") or {}).get("requests") or {}).items():
            found[key] = found.get(key, Fraction(0)) + quantity(amount)
    return found


def is_stopped(cluster: Object) -> bool:
    """Whether the maintenance mode of a SlurmCluster has no pods."""
    return cluster["spec"].get("maintenance", "none").startswith("downscale")


def _missing_cluster(item: Object) -> str:
    reference = annotation(item, CLUSTER_REF)
    if not reference:
        return f"annotation {CLUSTER_REF} is missing: the NodeSet belongs to no cluster"
    namespace = item["metadata"]["namespace"]
    return f"no SlurmCluster '{reference}' in namespace '{namespace}' (annotation {CLUSTER_REF})"
