"""What should run, worked out from custom resources and nodes alone; no I/O.

Owns the semantics of Soperator 4.1.7 that a program can get wrong: a pod that finds no node or no
volume waits and says why, and what the resources do not declare does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from infra.local.reconcile.configuration import slurm_settings
from infra.local.reconcile.notes import notes
from infra.local.reconcile.plan import (
    DATABASE_POD,
    ClusterPlan,
    NodeSetPlan,
    Plan,
    PodPlan,
    SshPlan,
)
from infra.local.reconcile.power import active, is_elastic
from infra.local.reconcile.quantity import quantity
from infra.local.reconcile.scheduling import Scheduler
from infra.local.reconcile.snapshot import Object, Snapshot, annotation, name_of, secret_data
from infra.local.reconcile.topology import topology_problem
from infra.local.reconcile.volumes import (
    Places,
    UnboundError,
    Volume,
    filesystem_folder,
    own_source,
    resolve,
)
from infra.local.slurm.conf import ACCOUNTING, CONTROLLER, CONTROLLER_SPOOL, LOGIN
from infra.local.slurm.settings import WorkerNode
from infra.local.state import Ports

CLUSTER_REF: Final = "slurm.nebius.ai/parental-cluster-ref"
DATABASE: Final = "/run/mysql"
_JAIL: Final = "jail"
_JAIL_UPPER: Final = "/mnt/jail.upper"
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


class _Maker:
    """The plan of one cluster; the scheduler counts what its pods take."""

    def __init__(
        self,
        snapshot: Snapshot,
        cluster: Object,
        places: Places,
        ports: Ports,
        worker_port: Callable[[str], int],
    ) -> None:
        self._snapshot = snapshot
        self._cluster = cluster
        self._spec = cluster["spec"]
        self._namespace = cluster["metadata"]["namespace"]
        self._places = places
        self._ports = ports
        self._worker_port = worker_port
        self._scheduler = Scheduler(snapshot.all("Node"))
        self._sources = {item["name"]: item for item in self._spec.get("volumeSources") or []}
        self._filters = {item["name"]: item for item in self._spec["k8sNodeFilters"]}

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
        return ClusterPlan(
            source=self._cluster,
            settings=slurm_settings(self._cluster, workers, self._ports, accounting=has_database),
            controller=self._controller(nodes["controller"]),
            accounting=self._accounting(accounting) if has_database else None,
            login=self._login(nodes["login"]),
            ssh=self._ssh(nodes["login"]),
            notes=tuple(notes(self._spec, nodesets)),
        )

    def nodeset(self, item: Object) -> NodeSetPlan:
        reference = annotation(item, CLUSTER_REF)
        same_place = item["metadata"]["namespace"] == self._namespace
        if reference != name_of(self._cluster) or not same_place:
            return NodeSetPlan(source=item, problem=_missing_cluster(item))
        spec = item["spec"]
        # Slurm knows every node of an elastic set; the pods of those that are powered up run.
        pods = tuple(self._worker(item, ordinal) for ordinal in active(item, self._snapshot))
        names = (_worker_name(item, ordinal) for ordinal in range(spec.get("replicas", 1)))
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
                is_elastic=is_elastic(item),
            )
            for name in names
        )
        return NodeSetPlan(source=item, workers=workers, pods=pods)

    def _worker(self, item: Object, ordinal: int) -> PodPlan:
        spec = item["spec"]
        pod = _worker_name(item, ordinal)
        node, problem = self._scheduler.place(spec, spec["slurmd"]["resources"])
        if node is None:
            return PodPlan(name=pod, problem=problem)
        if problem := topology_problem(self._spec, spec, node):
            return PodPlan(name=pod, problem=problem, node=name_of(node))
        volumes = spec["slurmd"]["volumes"]
        wanted = [
            (mount["mountPath"], mount["name"], own_source(mount, item))
            for mount in volumes.get("jailSubMounts") or []
        ]
        for mount in volumes.get("customVolumeMounts") or []:
            # Only what shows in the jail: the container around it does not exist here.
            if mount["mountPath"].startswith(_JAIL_UPPER + "/"):
                inside = mount["mountPath"].removeprefix(_JAIL_UPPER)
                wanted.append((inside, mount["name"], own_source(mount, item)))
        shared_memory = Volume(tmpfs_bytes=int(quantity(volumes.get("sharedMemorySize", "64Gi"))))
        extra = (("/dev/shm", shared_memory),)  # noqa: S108
        return self._pod(pod, node, volumes["jail"], wanted, extra)

    def _controller(self, spec: Mapping[str, Any]) -> PodPlan:
        spool = spec["volumes"]["spool"]
        name = spool.get("volumeSourceName")
        source = self._sources.get(name) if name else {"ephemeral": {}}
        if source is None:
            return PodPlan(name=CONTROLLER, problem=self._no_source(name))
        return self._system_pod(CONTROLLER, spec, [(CONTROLLER_SPOOL, "spool", source)])

    def _accounting(self, spec: Mapping[str, Any]) -> PodPlan:
        node, problem = self._filtered(spec)
        if node is None:
            return PodPlan(name=ACCOUNTING, problem=problem)
        try:
            database = self._database(spec["mariadbOperator"], node)
        except UnboundError as error:
            return PodPlan(name=ACCOUNTING, problem=str(error), node=name_of(node))
        return self._pod(ACCOUNTING, node, self._sources[_JAIL], [], ((DATABASE, database),))

    def _database(self, spec: Mapping[str, Any], node: Object) -> Volume:
        """The unclaimed volume of the template's storage class, else a disk of the node."""
        template = (spec.get("storage") or {}).get("volumeClaimTemplate") or {}
        for volume in self._snapshot.all("PersistentVolume"):
            free = not volume["spec"].get("claimRef")
            wanted = template.get("storageClassName")
            if wanted and free and volume["spec"].get("storageClassName") == wanted:
                folder = filesystem_folder(volume, node, self._places)
                return Volume(folder=folder / "mysql")
        return Volume(folder=self._places.pods / DATABASE_POD / "volumes" / "mysql")

    def _login(self, spec: Mapping[str, Any]) -> PodPlan:
        if spec.get("size", 1) == 0:
            return PodPlan(name=LOGIN, problem="spec.slurmNodes.login.size is 0")
        secret = (self._spec.get("secrets") or {}).get("sshdKeysName")
        if secret and self._snapshot.find("Secret", secret, self._namespace) is None:
            return PodPlan(name=LOGIN, problem=f"secret '{secret}' with the host keys not found")
        wanted = []
        for mount in spec["volumes"].get("jailSubMounts") or []:
            source = self._sources.get(mount.get("volumeSourceName", ""))
            if source is None:
                problem = self._no_source(mount.get("volumeSourceName", ""))
                return PodPlan(name=LOGIN, problem=problem)
            wanted.append((mount["mountPath"], mount["name"], source))
        return self._system_pod(LOGIN, spec, wanted)

    def _ssh(self, spec: Mapping[str, Any]) -> SshPlan:
        name = (self._spec.get("secrets") or {}).get("sshdKeysName")
        secret = self._snapshot.find("Secret", name, self._namespace) if name else None
        keys = secret_data(secret) if secret else {}
        private = [text for key, text in sorted(keys.items()) if not key.endswith(".pub")]
        by_port = spec["sshdServiceType"] == "NodePort"
        return SshPlan(
            port=(spec.get("sshdServiceNodePort") or _DEFAULT_NODE_PORT) if by_port else 22,
            authorized_keys=tuple(spec.get("sshRootPublicKeys") or ()),
            host_keys=tuple(private),
        )

    def _system_pod(
        self, name: str, spec: Mapping[str, Any], wanted: list[tuple[str, str, Mapping[str, Any]]]
    ) -> PodPlan:
        node, problem = self._filtered(spec)
        if node is None:
            return PodPlan(name=name, problem=problem)
        return self._pod(name, node, self._sources[_JAIL], wanted)

    def _filtered(self, spec: Mapping[str, Any]) -> tuple[Object | None, str]:
        name = spec["k8sNodeFilterName"]
        if name not in self._filters:
            return None, f"k8sNodeFilterName '{name}' is not in spec.k8sNodeFilters"
        return self._scheduler.place(self._filters[name])

    def _pod(
        self,
        name: str,
        node: Object,
        jail: Mapping[str, Any],
        wanted: list[tuple[str, str, Mapping[str, Any]]],
        extra: tuple[tuple[str, Volume], ...] = (),
    ) -> PodPlan:
        """The pod with its volumes resolved on its node."""
        mounts: dict[str, Volume] = {}

        def volume(source: Mapping[str, Any], volume_name: str) -> Volume:
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
            root = volume(jail, _JAIL)
            for path, volume_name, source in wanted:
                mounts[path.rstrip("/")] = volume(source, volume_name)
        except UnboundError as error:
            return PodPlan(name=name, problem=str(error), node=name_of(node))
        return PodPlan(
            name=name,
            node=name_of(node),
            jail=root.folder,
            mounts=(*sorted(mounts.items()), *extra),
        )

    def _no_source(self, name: str | None) -> str:
        known = ", ".join(self._sources) or "none"
        return f"volumeSourceName '{name}' is not in spec.volumeSources (has: {known})"


def is_stopped(cluster: Object) -> bool:
    """Whether the maintenance mode of a SlurmCluster has no pods."""
    return cluster["spec"].get("maintenance", "none").startswith("downscale")


def _worker_name(item: Object, ordinal: int) -> str:
    return f"{name_of(item)}-{ordinal}"


def _missing_cluster(item: Object) -> str:
    reference = annotation(item, CLUSTER_REF)
    if not reference:
        return f"annotation {CLUSTER_REF} is missing: the NodeSet belongs to no cluster"
    namespace = item["metadata"]["namespace"]
    return f"no SlurmCluster '{reference}' in namespace '{namespace}' (annotation {CLUSTER_REF})"
