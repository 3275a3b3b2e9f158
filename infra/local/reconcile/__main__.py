"""Runs the reconciler until it is told to stop.

    python -m infra.local.reconcile --state DIR

Four loops: nodes (Nebius API -> Kubernetes nodes), operator (custom resources -> daemons), k8up
(backups and restores -> restic) and the end of deleted namespaces. Also starts the services again
when they end. Daemons outlive it on purpose. A loop that finds nothing to do comes back later and
later, up to two seconds: an idle stack costs little. The local stack has no controller-manager:
claims are bound, and namespaces emptied, here. No kubelet stands behind the nodes.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from infra import files
from infra.clients.errors import AbsentError
from infra.clients.kube import KubeClient
from infra.clients.kube_rules import GPU_RESOURCE, condition
from infra.local.cloud import Cloud, start_services
from infra.local.k8up import K8up
from infra.local.reconcile import pods
from infra.local.reconcile.planner import make_plan
from infra.local.reconcile.pods import (
    POWER_STATE,
    Plan,
    Pods,
    cluster_status,
    nodeset_status,
    planned_pods,
    refused_status,
)
from infra.local.reconcile.snapshot import (
    FILESYSTEMS,
    TOPOLOGY_LABELS,
    Object,
    Places,
    Snapshot,
    Volume,
    annotation,
    bound_volume,
    digest,
    name_of,
    write_jail_files,
)
from infra.local.slurm.daemons import (
    ACCOUNTING,
    CONTROLLER,
    DATABASE,
    Daemon,
    SlurmRuntime,
    daemons_of,
)
from infra.local.slurm.pod import Mount, PodSpec, SlurmSetup, forget, is_hidden, requests
from infra.providers.nebius.api import Api
from infra.providers.nebius.schema import enum_word
from infra.render.names import NODESET_NAME_LABEL, kube_object
from infra.state import Cache, Ports, State
from stacks.catalog import PLATFORMS

GROUP_LABEL: Final = "local.soperator/node-group"
_APPLIED: Final = "local.soperator/applied"
_MANAGER: Final = "mk8s"
_MAX_PODS: Final = 110


def node_objects(groups: Iterable[Any], power_states: Iterable[Object] = ()) -> list[Object]:
    """The nodes of the node groups, named after their group.

    One that scales grows for the pods that are powered up, as the cloud's autoscaler makes it.
    """
    powered = {
        state["spec"]["nodeSetRef"]: len(state["spec"].get("activeNodes") or ())
        for state in power_states
    }
    made: list[Object] = []
    for group in groups:
        nodeset = group.spec.template.metadata.labels.get(NODESET_NAME_LABEL, "")
        # Without autoscaling its maximum is 0.
        wanted = min(group.spec.autoscaling.max_node_count, powered.get(nodeset, 0))
        count = max(group.status.target_node_count, wanted)
        made += [_node(group, index) for index in range(count)]
    return made


def reconcile_nodes(client: KubeClient, wanted: Iterable[Object], nodes: list[Object]) -> bool:
    """Apply the wanted nodes that differ from `nodes`, the live ones; remove those not wanted.

    True if anything was to do.
    """
    ours = [each for each in nodes if GROUP_LABEL in (each["metadata"].get("labels") or {})]
    live = {name_of(node): node for node in ours}
    changed = False
    for node in wanted:
        found = live.pop(name_of(node), None)
        if found is None or not _is_current(found, node):
            changed = True
            status = node.pop("status")
            client.apply(node, field_manager=_MANAGER)
            # Admission puts a not-ready taint on every new node; a second apply takes it off.
            client.apply(node, field_manager=_MANAGER)
            named = kube_object("v1", "Node", name_of(node), status=status)
            client.apply_status(named, field_manager=_MANAGER)
    for node in live.values():
        client.delete(node)
    return changed or bool(live)


def read_groups(api: Api, projects: Iterable[str]) -> tuple[list[Any], bool]:
    """The node groups that run in every mk8s cluster of the projects, and whether more will.

    A group is on its way then, or a cluster waits for its first one.
    """
    clusters = api.schema.services["nebius.mk8s.v1.ClusterService"]
    groups = api.schema.services["nebius.mk8s.v1.NodeGroupService"]
    found: list[Any] = []
    in_motion = False
    for project in projects:
        for cluster in api.pages(clusters, parent_id=project):
            items = list(api.pages(groups, parent_id=cluster.metadata.id))
            running = [each for each in items if enum_word(each.status, "state") == "RUNNING"]
            in_motion = in_motion or not items or len(running) < len(items)
            found += running
    return sorted(found, key=lambda group: group.metadata.id), in_motion


def read_projects(api: Api) -> list[str]:
    """Ids of every project that the emulator has."""
    tenants = api.schema.services["nebius.iam.v2.TenantService"]
    projects = api.schema.services["nebius.iam.v2.ProjectService"]
    return [
        project.metadata.id
        for tenant in api.pages(tenants)
        for project in api.pages(projects, parent_id=tenant.metadata.id)
    ]


def _node(group: Any, index: int) -> Object:
    template = group.spec.template
    preset = PLATFORMS[template.resources.platform].presets[template.resources.preset]
    capacity = {
        "cpu": str(preset.vcpus),
        "memory": f"{preset.memory_gib}Gi",
        "pods": str(_MAX_PODS),
    }
    if preset.gpus:
        capacity[GPU_RESOURCE] = str(preset.gpus)
    name = f"{group.metadata.id}-{index}"
    labels = {
        **template.metadata.labels,
        GROUP_LABEL: group.metadata.id,
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    if template.gpu_cluster.id:
        labels |= dict.fromkeys(TOPOLOGY_LABELS, template.gpu_cluster.id)
    attached = (f"{each.mount_tag}={each.existing_filesystem.id}" for each in template.filesystems)
    status = {
        "capacity": capacity,
        "allocatable": capacity,
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "True", "reason": "NodeGroupRunning"}],
    }
    metadata = {"labels": labels, "annotations": {FILESYSTEMS: ",".join(attached)}}
    taints = [
        # NO_SCHEDULE is NoSchedule to Kubernetes.
        {
            "key": taint.key,
            "value": taint.value,
            "effect": enum_word(taint, "effect").title().replace("_", ""),
        }
        for taint in template.taints
    ]
    node = kube_object(
        "v1", "Node", name, metadata=metadata, spec={"taints": taints}, status=status
    )
    node["metadata"]["annotations"][_APPLIED] = digest(node)
    return node


def _is_current(found: Object, wanted: Object) -> bool:
    taints = (found.get("spec") or {}).get("taints") or []
    return (
        annotation(found, _APPLIED) == annotation(wanted, _APPLIED)
        and len(taints) == len(wanted["spec"]["taints"])
        and bool(condition(found, "Ready"))
    )


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


def end_namespaces(client: KubeClient) -> bool:
    """Delete what deleted namespaces hold, then let them end; True while there is one."""
    found = client.list("v1", "Namespace")
    ending = [each for each in found if "deletionTimestamp" in each["metadata"]]
    for namespace in ending:
        held = client.objects_in(name_of(namespace))
        for item in held:
            if "deletionTimestamp" not in item["metadata"] or item["kind"] == "Pod":
                # No kubelet ends a pod's grace.
                client.delete(item, grace_s=0 if item["kind"] == "Pod" else None)
        if not held:
            client.finalize_namespace(namespace)
    return bool(ending)


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
    _last: Snapshot = field(init=False, default_factory=Snapshot)

    def __post_init__(self) -> None:
        folder = self.state.local / "slurm"
        self.runtime = SlurmRuntime(folder, self.state.run)
        self._places = Places(
            filesystems=self.state.local / "filesystems", pods=self.runtime.pods_folder
        )

    def step(self) -> bool:
        """One pass over everything; True while there is something to do."""
        last = self._last
        snapshot = self._last = Snapshot.read(self.client, last)
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
        pods.keep(plan, snapshot)
        waiting = self.runtime.converge(self._daemons(plan))
        pods.tell(plan, waiting, snapshot, self.runtime.restarts)
        self._report(plan, waiting)
        return snapshot is not last or any(waiting.values())

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
        made: list[PodSpec] = []
        for pod in planned_pods(plan):
            if pod.problem or pod.jail is None:
                continue
            pod.jail.mkdir(parents=True, exist_ok=True)
            mounts = [_mount(path, volume) for path, volume in pod.mounts]
            if pod.name not in (CONTROLLER, ACCOUNTING, DATABASE):
                mounts += _image_mounts(self.cache)
            made.append(PodSpec(name=pod.name, argv=(), jail=pod.jail, mounts=tuple(mounts)))
        return daemons_of(settings, made, shared, port)

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


_BUSY_INTERVAL_S: Final = 0.3
_IDLE_INTERVAL_S: Final = 2.0
_SLOWER: Final = 1.5
"""Each pass with nothing to do makes the next pause this much longer."""
_AFTER_ERROR_S: Final = 1.0


def main() -> int:
    """Loop until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m infra.local.reconcile")
    parser.add_argument("--state", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--without-nodes",
        action="store_true",
        help="leave the nodes and the services alone (for tests that make nodes of their own)",
    )
    options = parser.parse_args()
    cloud = Cloud(
        state=State(options.state), cache=Cache.from_environ(), ports=Ports.from_environ()
    )
    # A second reconciler waits for the end of the first.
    lock = (options.state / "local" / "reconcile.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    # Each loop has a client of its own.
    client, setup = KubeClient(cloud.kube.access()), SlurmSetup.from_environ()
    steps: list[Callable[[], object]] = [
        Operator(client, cloud.state, cloud.cache, cloud.ports, setup).step,
        K8up(KubeClient(cloud.kube.access()), cloud.state).step,
        partial(end_namespaces, KubeClient(cloud.kube.access())),
    ]
    if not options.without_nodes:
        steps += [_mirror_nodes(cloud), partial(start_services, cloud)]
    loops = [threading.Thread(target=_repeat, args=(step, stopped)) for step in steps]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()
    return 0


def _mirror_nodes(cloud: Cloud) -> Callable[[], bool]:
    client, api = KubeClient(cloud.kube.access()), Api()
    projects: list[str] = []

    def step() -> bool:
        if not projects:
            projects.extend(read_projects(api))
        running, in_motion = read_groups(api, projects)
        wanted = node_objects(running, client.list(*POWER_STATE))
        return reconcile_nodes(client, wanted, client.list("v1", "Node")) or in_motion

    return step


def _repeat(step: Callable[[], object], stopped: threading.Event) -> None:
    """Call `step` again and again, rarely while it is idle; an error is logged until it changes."""
    last, pause = "", _BUSY_INTERVAL_S
    while not stopped.is_set():
        try:
            busy = step()
            last = ""
            pause = _BUSY_INTERVAL_S if busy else min(pause * _SLOWER, _IDLE_INTERVAL_S)
        except Exception as error:  # a loop that ends heals nothing any more
            text = f"{type(error).__name__}: {error}"
            if text != last:
                print(text, file=sys.stderr, flush=True)
            last, pause = text, _AFTER_ERROR_S
        stopped.wait(pause)


if __name__ == "__main__":
    sys.exit(main())
