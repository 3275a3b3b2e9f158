"""One pass of the operator's stand-in: read, plan, run, report; the chores of a controller-manager.

The local stack has no controller-manager: binding of claims, the end of deleted claims, volumes and
namespaces are done here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from infra import files
from infra.clients.errors import AbsentError
from infra.clients.kube import KubeClient
from infra.local.reconcile import pods
from infra.local.reconcile.plan import (
    Plan,
    PodPlan,
    cluster_status,
    nodeset_status,
    refused_status,
)
from infra.local.reconcile.planner import DATABASE, make_plan
from infra.local.reconcile.pods import Pods
from infra.local.reconcile.snapshot import (
    Held,
    Places,
    Snapshot,
    Volume,
    bound_volume,
    name_of,
    write_jail_files,
)
from infra.local.slurm import daemons
from infra.local.slurm.cluster import SlurmRuntime
from infra.local.slurm.daemons import Daemon
from infra.local.slurm.pod import Mount, PodSpec, SlurmSetup, forget, is_hidden, requests
from infra.render.names import kube_object
from infra.state import Cache, Ports, State


def bind_claims(client: KubeClient, snapshot: Snapshot) -> None:
    """Mark claims and the volumes that name them as bound, and volumes whose claim is gone.

    The uid is written into every bound volume's claimRef (GetBindVolumeToClaim of
    k8s.io/component-helpers v0.36, storage/volume/pv_helpers.go).
    """
    _release_abandoned(client, snapshot)
    for claim in snapshot.all("PersistentVolumeClaim"):
        if (claim.get("status") or {}).get("phase") == "Bound":
            continue
        volume = bound_volume(claim, snapshot)
        if volume is None:
            continue
        if not (volume["spec"].get("claimRef") or {}).get("uid"):
            reference = {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim["metadata"]["namespace"],
                "name": name_of(claim),
                "uid": claim["metadata"]["uid"],
            }
            client.merge_patch(volume, {"spec": {"claimRef": reference}})
            volume["spec"]["claimRef"] = reference
        client.merge_patch(claim, {"spec": {"volumeName": name_of(volume)}})
        capacity = {"accessModes": volume["spec"]["accessModes"]}
        capacity["capacity"] = volume["spec"]["capacity"]
        client.merge_patch(claim, {"status": {"phase": "Bound", **capacity}}, subresource="status")
        client.merge_patch(volume, {"status": {"phase": "Bound"}}, subresource="status")


def _release_abandoned(client: KubeClient, snapshot: Snapshot) -> None:
    """Tell which volumes lost their claim: one that is made anew has another uid, and waits.

    syncVolume of pkg/controller/volume/persistentvolume/pv_controller.go (Kubernetes v1.36), of
    volumes that are retained; one whose claimRef lost its uid is there for the name again.
    """
    claims = {claim["metadata"]["uid"] for claim in snapshot.by_kind["PersistentVolumeClaim"]}
    for volume in snapshot.all("PersistentVolume"):
        uid = (volume["spec"].get("claimRef") or {}).get("uid")
        phase = (volume.get("status") or {}).get("phase")
        if uid is not None and uid not in claims:
            wanted = "Released"
        elif uid is None and phase == "Released":
            wanted = "Available"
        else:
            continue
        if phase != wanted:
            client.merge_patch(volume, {"status": {"phase": wanted}}, subresource="status")
            volume["status"] = {**(volume.get("status") or {}), "phase": wanted}


def release_deleted(client: KubeClient, snapshot: Snapshot) -> None:
    """Let go of deleted claims and volumes: their pods are gone by now."""
    for kind in ("PersistentVolumeClaim", "PersistentVolume"):
        for item in snapshot.by_kind.get(kind, []):
            if "deletionTimestamp" in item["metadata"] and item["metadata"].get("finalizers"):
                with suppress(AbsentError):  # gone meanwhile
                    client.merge_patch(item, {"metadata": {"finalizers": None}})


def end_namespaces(client: KubeClient, snapshot: Snapshot) -> None:
    """Delete what deleted namespaces hold, then let them end."""
    for namespace in snapshot.by_kind.get("Namespace", []):
        if "deletionTimestamp" not in namespace["metadata"]:
            continue
        held = client.objects_in(name_of(namespace))
        for item in held:
            if "deletionTimestamp" not in item["metadata"] or item["kind"] == "Pod":
                # No kubelet ends a pod's grace.
                client.delete(item, grace_s=0 if item["kind"] == "Pod" else None)
        if not held:
            client.finalize_namespace(namespace)


@dataclass(slots=True)
class Operator:
    """The operator of one state folder."""

    client: KubeClient
    state: State
    cache: Cache
    ports: Ports
    setup: SlurmSetup
    runtime: SlurmRuntime = field(init=False)
    _places: Places = field(init=False)
    _seen: frozenset[str] = field(init=False, default=frozenset())

    def __post_init__(self) -> None:
        folder = self.state.local / "slurm"
        self.runtime = SlurmRuntime(folder, self.state.run)
        self._places = Places(
            filesystems=self.state.local / "filesystems", pods=self.runtime.pods_folder
        )

    def step(self) -> bool:
        """One pass over everything; True while there is something to do."""
        snapshot = Snapshot.read(self.client)
        bind_claims(self.client, snapshot)
        if self._power(snapshot):
            return True
        plan = make_plan(
            snapshot, places=self._places, ports=self.ports, worker_port=self._worker_port
        )
        if plan.cluster is not None and (jail := plan.cluster.pods["controller"].jail) is not None:
            write_jail_files(snapshot, plan.cluster.source, jail)
        pods = Pods(self.client)
        # First the objects: what the API server refuses does not run.
        plan = _without(plan, pods.keep(plan, snapshot))
        waiting = self.runtime.converge(self._daemons(plan))
        pods.tell(plan, waiting, snapshot, self.runtime.restarts)
        self._report(plan, waiting)
        release_deleted(self.client, snapshot)
        end_namespaces(self.client, snapshot)
        seen, self._seen = self._seen, snapshot.versions()
        return self._seen != seen or any(waiting.values())

    def _power(self, snapshot: Snapshot) -> bool:
        """Takes Slurm's requests into the API server; True where that changed anything."""
        asked = requests(self.runtime.shared.folder)
        changed = pods.power_states(snapshot, asked)
        for state in changed:
            self.client.apply(state, field_manager="power-manager")
        forget(asked)
        gone = pods.abandoned(snapshot)
        for state in gone:
            self.client.delete(state)
        return bool(changed or gone)

    def _daemons(self, plan: Plan) -> list[Daemon]:
        if plan.cluster is None:
            return []
        cluster, shared = plan.cluster, self.runtime.shared
        settings = replace(cluster.settings, setup=self.setup)
        shared.prepare()
        shared.write_cluster(settings)
        port = cluster.ssh_port
        shared.write_ssh(port, cluster.authorized_keys, cluster.host_keys, self.setup)
        configuration = shared.read("slurm.conf", "gres.conf")
        made: list[Daemon] = []
        pods = {
            role: self._pod(planned, brings_image=role == "login")
            for role, planned in cluster.pods.items()
        }
        if (pod := pods.get("accounting")) is not None:
            if (own := pods["database"]) is not None:
                made.append(daemons.mariadb(settings, own, DATABASE))
            made.append(daemons.slurmdbd(settings, pod, shared.read("slurmdbd.conf")))
        if (pod := pods["controller"]) is not None:
            made.append(daemons.slurmctld(settings, pod, configuration))
        if (pod := pods["login"]) is not None:
            reads = (*shared.read("sshd_config"), *shared.host_key_texts())
            made.append(daemons.sshd(port, pod, reads, self.setup))
        for nodeset in plan.nodesets:
            workers = {worker.name: worker for worker in nodeset.workers}
            for planned in nodeset.pods:
                if (pod := self._pod(planned, brings_image=True)) is not None:
                    worker = workers[planned.name]
                    made.append(daemons.slurmd(settings, worker, pod, configuration))
        return made

    def _pod(self, plan: PodPlan, *, brings_image: bool = False) -> PodSpec | None:
        """The pod with its volumes made; None while it waits."""
        if plan.problem or plan.jail is None:
            return None
        plan.jail.mkdir(parents=True, exist_ok=True)
        mounts = [_mount(path, volume) for path, volume in plan.mounts]
        if brings_image:
            mounts += _image_mounts(self.cache)
        return PodSpec(name=plan.name, argv=(), jail=plan.jail, mounts=tuple(mounts))

    def _report(self, plan: Plan, waiting: dict[str, str]) -> None:
        reports = [
            (
                item.source,
                nodeset_status(
                    item, waiting, cluster_runs=plan.cluster is not None, stopped=plan.stopped
                ),
            )
            for item in plan.nodesets
        ]
        reports += [(source, refused_status(source, reason)) for source, reason in plan.refused]
        if plan.cluster is not None:
            reports.append((plan.cluster.source, cluster_status(plan.cluster, waiting)))
        for source, status in reports:
            live = source.get("status") or {}
            if any(live.get(key) != value for key, value in status.items()):
                place = name_of(source), source["metadata"]["namespace"]
                new = kube_object(source["apiVersion"], source["kind"], *place, status=status)
                with suppress(AbsentError):  # deleted meanwhile
                    self.client.apply_status(new, field_manager="soperator")

    def _worker_port(self, worker: str) -> int:
        """The worker's port; kept, so that other nodesets come and go without a restart."""
        path = self.runtime.folder / "worker-ports.json"
        known: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
        if worker not in known:
            taken = set(known.values())
            known[worker] = next(index for index in range(len(taken) + 1) if index not in taken)
            files.write(path, json.dumps(known, indent=1) + "\n")
        return self.ports.slurmd(known[worker])


def _without(plan: Plan, refused: Mapping[str, str]) -> Plan:
    """The plan in which the refused pods, given with the reason by name, do not run."""

    def held(pod: PodPlan) -> PodPlan:
        if pod.name not in refused:
            return pod
        return replace(pod, problem=refused[pod.name], held=Held.CREATING)

    if plan.cluster is None or not refused:
        return plan
    pods = {role: held(pod) for role, pod in plan.cluster.pods.items()}
    return replace(
        plan,
        cluster=replace(plan.cluster, pods=pods),
        nodesets=tuple(
            replace(each, pods=tuple(held(pod) for pod in each.pods)) for each in plan.nodesets
        ),
    )


def _mount(path: str, volume: Volume) -> Mount:
    """The mount of a volume, with its folder and files made."""
    if volume.folder is None:
        return Mount(path=path, tmpfs_bytes=volume.tmpfs_bytes)
    volume.folder.mkdir(parents=True, exist_ok=True)
    for name in volume.made_folders:
        made = volume.folder / name
        made.mkdir(parents=True, exist_ok=True)
        made.chmod(0o1777)
    for name, content in volume.files:
        file = volume.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_bytes() != content:
            file.write_bytes(content)
            file.chmod(volume.file_mode)
    return Mount(path=path, source=volume.folder)


def _image_mounts(cache: Cache) -> Sequence[Mount]:
    """What the jail image brings: Python environment, model and data of the cache, read-only."""
    mounts: list[Mount] = []
    try:
        environment = cache.workloads_venv
    except FileNotFoundError:  # no lock file: this checkout has no workloads
        environment = None
    if environment is not None and environment.is_dir():
        mounts.append(Mount(path="/opt/soperator/venv", source=environment, read_only=True))
        python = environment / "bin" / "python"
        prefix = python.resolve().parents[1]  # of the Python that the environment was made with
        if python.exists() and is_hidden(prefix):
            mounts.append(Mount(path=str(prefix), source=prefix, read_only=True))
    for name, folder in (("models", cache.models), ("data", cache.data)):
        if folder.is_dir():
            mounts.append(Mount(path=f"/opt/soperator/{name}", source=folder, read_only=True))
    return mounts


def log(text: str) -> None:
    """One line in the reconciler's log."""
    print(text, file=sys.stderr, flush=True)
