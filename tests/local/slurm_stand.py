"""A cluster of real daemons for the tests: an API server, charts as the program gives them, nodes.

Owns one state folder, its ports and the reconciler's process. A test changes the values, applies
them and looks through the user's door.
"""

from __future__ import annotations

import contextlib
import copy
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from infra.clients.kube import KubeClient
from infra.local import engine, process
from infra.local.cloud import RECONCILER, Cloud, check_machine
from infra.local.kube import api_server
from infra.local.kube.api_server import install_crds
from infra.local.kube.values import Object, Release
from infra.local.plugins.kubernetes_objects import CHART_VERSION, render
from infra.local.process import LocalError, alive
from infra.local.reconcile.__main__ import node_objects, reconcile_nodes
from infra.local.slurm import pod as pods
from infra.providers.nebius.schema import Schema
from infra.render.charts import chart_values
from infra.render.login import host_key_files
from infra.state import Cache, Ports, State
from stacks.spec import StackSpec
from tests.ports import free_base, free_ports

NAMESPACE = "soperator"
NODESET_LABEL = "slurm.nebius.ai/nodeset"
STORAGE, CLUSTER, NODESETS = "helm-slurm-cluster-storage", "helm-slurm-cluster", "helm-nodesets"
TAGS = ("jail", "controller-spool", "accounting", "jail-submount-data", "jail-submount-home")
WAIT_S = 120.0
"""A wait ends when it is met; on a busy machine daemons of two clusters start side by side."""

Values = dict[str, dict[str, Any]]


def shipped_values(ssh_port: int, public_key: str) -> Values:
    """Values of the three charts as they are right: two workers of two GPUs, no accounting."""
    filters = [
        {"name": role, "nodeSelector": {NODESET_LABEL: role}}
        for role in ("system", "controller", "login", "accounting")
    ]
    jail = {"persistentVolumeClaim": {"claimName": "jail-pvc", "readOnly": False}}
    claims = ("jail", "controller-spool", "jail-submount-data", "jail-submount-home")
    matching = [{"key": "slurm.nebius.ai/jail", "operator": "In", "values": ["true"]}]
    place = {"matchExpressions": matching, "tolerations": [{"operator": "Exists"}]}
    submounts = {"data": "/mnt/data", "home": "/home"}
    return {
        STORAGE: {
            "volume": {
                "jail": {"size": "256Gi"},
                "controllerSpool": {"size": "128Gi"},
                "accounting": {"enabled": True, "size": "128Gi"},
                "jailSubMounts": [
                    {"name": n, "size": "256Gi", "filestoreDeviceName": f"jail-submount-{n}"}
                    for n in submounts
                ],
            },
            "storage": dict.fromkeys(("jail", "controllerSpool", "accounting"), place),
        },
        CLUSTER: {
            "clusterName": "soperator",
            "k8sNodeFilters": filters,
            "slurmConfig": {"topologyPlugin": "", "topologyParam": ""},
            "partitionConfiguration": {
                "configType": "structured",
                "partitions": [
                    {"name": "main", "isAll": True, "config": "Default=YES State=UP"},
                    {"name": "hidden", "isAll": True, "config": "Hidden=YES State=UP"},
                ],
            },
            "volumeSources": [
                {
                    "name": name,
                    "persistentVolumeClaim": {"claimName": f"{name}-pvc", "readOnly": False},
                }
                for name in claims
            ],
            "secrets": {"sshdKeysName": "login-host-keys"},
            "populateJail": {"k8sNodeFilterName": "system"},
            "sConfigController": {"node": {"k8sNodeFilterName": "system"}},
            "slurmNodes": {
                "accounting": {"enabled": False, "k8sNodeFilterName": "accounting"},
                "controller": {
                    "k8sNodeFilterName": "controller",
                    "volumes": {
                        "spool": {
                            "volumeSourceName": "controller-spool",
                            "volumeClaimTemplateSpec": None,
                        }
                    },
                },
                "login": {
                    "k8sNodeFilterName": "login",
                    "size": 1,
                    "sshdServiceType": "NodePort",
                    "sshdServiceNodePort": ssh_port,
                    "sshRootPublicKeys": [public_key],
                    "volumes": {
                        "jailSubMounts": [
                            {
                                "name": n,
                                "mountPath": path,
                                "volumeSourceName": f"jail-submount-{n}",
                            }
                            for n, path in submounts.items()
                        ]
                    },
                },
                "exporter": {"enabled": False, "k8sNodeFilterName": "system"},
                "rest": {"enabled": False, "k8sNodeFilterName": "system"},
            },
        },
        NODESETS: {
            "nodesets": [
                {
                    "name": "worker",
                    "annotations": {"slurm.nebius.ai/parental-cluster-ref": "soperator"},
                    "replicas": 2,
                    "gpu": {"enabled": True},
                    "nodeSelector": {"slurm.nebius.ai/nodeset-name": "worker"},
                    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                    "nodeConfig": {
                        "static": "CPUs=64 Boards=1 SocketsPerBoard=1 CoresPerSocket=32 "
                        "ThreadsPerCore=2 Gres=gpu:nvidia_l40s:2"
                    },
                    "munge": {"resources": {"cpu": "500m", "memory": "1Gi"}},
                    "slurmd": {
                        "resources": {"cpu": "60", "memory": "350Gi", "gpu": 2},
                        "volumes": {
                            "spool": {"emptyDir": {}},
                            "jail": jail,
                            "customVolumeMounts": [
                                {
                                    "name": "slurm-scripts-jail",
                                    "mountPath": "/mnt/jail.upper/opt/slurm_scripts/",
                                    "volumeSource": {
                                        "configMap": {"name": "slurm-scripts", "defaultMode": 0o755}
                                    },
                                }
                            ],
                            "sharedMemorySize": "1Gi",
                            "jailSubMounts": [
                                *(
                                    {
                                        "name": n,
                                        "mountPath": path,
                                        "volumeSource": {
                                            "persistentVolumeClaim": {
                                                "claimName": f"jail-submount-{n}-pvc"
                                            }
                                        },
                                    }
                                    for n, path in submounts.items()
                                ),
                                {
                                    "name": "memory",
                                    "mountPath": "/mnt/ram",
                                    "volumeSource": {
                                        "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}
                                    },
                                },
                            ],
                        },
                    },
                }
            ]
        },
    }


def node_group(
    id_: str, labels: dict[str, str], *, nodes: int = 1, most: int = 0, **template: Any
) -> Any:
    """A node group as the API shows it once it runs; it scales up to `most` nodes."""
    schema = Schema.shared()
    size = {"autoscaling": {"max_node_count": most}} if most else {"fixed_node_count": nodes}
    body = {
        "metadata": {"id": id_},
        "spec": {"template": {"metadata": {"labels": labels}, **template}, **size},
        "status": {"state": "RUNNING", "target_node_count": nodes},
    }
    made = schema.message("nebius.mk8s.v1.NodeGroup")()
    return json_format.ParseDict(body, made, descriptor_pool=schema.pool)


def node_groups(num_workers: int = 2, tags: tuple[str, ...] = TAGS) -> list[Any]:
    """The node groups of the local stack, with these filesystems attached."""
    attached = [
        {"mount_tag": tag, "existing_filesystem": {"id": f"computefilesystem-{tag}"}}
        for tag in tags
    ]
    groups = [
        node_group(
            f"mk8snodegroup-{role}",
            {NODESET_LABEL: role, "slurm.nebius.ai/jail": "true"},
            resources={"platform": "cpu-d3", "preset": "8vcpu-32gb"},
            filesystems=attached,
        )
        for role in ("system", "controller", "login", "accounting")
    ]
    labels = {
        NODESET_LABEL: "worker",
        "slurm.nebius.ai/nodeset-name": "worker",
        "slurm.nebius.ai/jail": "true",
    }
    workers = node_group(
        "mk8snodegroup-worker",
        labels,
        nodes=num_workers,
        resources={"platform": "gpu-l40s-d", "preset": "2gpu-64vcpu-384gb"},
        taints=[{"key": "nvidia.com/gpu", "value": "", "effect": "NO_SCHEDULE"}],
        filesystems=attached,
    )
    return [*groups, workers]


@dataclass
class Stand:
    """One state folder with its API server and reconciler."""

    cloud: Cloud
    client: KubeClient
    ssh_port: int
    key: Path
    host_key: Path
    applied: list[Object] = field(default_factory=list)

    def values(self, of: StackSpec | None = None) -> Values:
        """Right values, to be spoilt; with accounting and lines of slurm.conf of a stack."""
        public = self.key.with_suffix(".pub").read_text().strip()
        values = copy.deepcopy(shipped_values(self.ssh_port, public))
        if of is not None:
            given = chart_values(of, "slurm-cluster", {"allocation_id": "", "ssh_public_keys": []})
            cluster = values[CLUSTER]
            cluster["slurmNodes"]["accounting"] = given["slurmNodes"]["accounting"]
            cluster["customSlurmConfig"] = given["customSlurmConfig"]
        return values

    def set_nodes(self, groups: list[Any]) -> None:
        """Make the Kubernetes nodes of these groups, as the nodes loop does."""
        reconcile_nodes(self.client, node_objects(groups), self.client.list("v1", "Node"))

    def apply(
        self, values: Values, groups: list[Any] | None = None, *, without_key: str = ""
    ) -> None:
        """Apply what the charts render from the values; the Secret may lack one of its keys."""
        self.set_nodes(node_groups() if groups is None else groups)
        objects: list[Object] = []
        for chart, given in values.items():
            release = Release(
                name=chart.removeprefix("helm-"),
                namespace=NAMESPACE,
                chart=chart,
                version=CHART_VERSION,
            )
            objects += render(release, given).objects
        secret = _secret(self.host_key)
        secret["stringData"].pop(without_key, None)
        self.client.apply(_namespace())
        for item in [secret, *objects]:
            self.client.apply(item)
        self.applied = [secret, *objects]

    def delete(self) -> None:
        """Delete what was applied, last first, and wait for the end of it all."""
        for item in reversed(self.applied):
            self.client.delete(item)
        for item in self.applied:
            self.client.wait_gone(item, timeout_s=WAIT_S)
        self.applied = []
        self.wait(lambda: not pods.processes(self.cloud.runtime.folder), "the end of the pods")

    def status(self, kind: str, name: str) -> dict[str, Any]:
        """Live status of a SlurmCluster or NodeSet."""
        version = "v1" if kind == "SlurmCluster" else "v1alpha1"
        target = {
            "apiVersion": f"slurm.nebius.ai/{version}",
            "kind": kind,
            "metadata": {"name": name, "namespace": NAMESPACE},
        }
        return (self.client.get(target) or {}).get("status") or {}

    def messages(self, kind: str, name: str) -> str:
        """Messages of the conditions that are not met."""
        conditions = self.status(kind, name).get("conditions") or []
        return "; ".join(c["message"] for c in conditions if c["status"] == "False")

    def pod(self, name: str) -> Object:
        """The live Pod, empty without one."""
        target = {"apiVersion": "v1", "kind": "Pod"}
        place = {"name": name, "namespace": NAMESPACE}
        return self.client.get({**target, "metadata": place}) or {}

    def is_ready(self, name: str) -> bool:
        """Whether the Pod says so itself."""
        conditions = self.pod(name).get("status", {}).get("conditions") or []
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def events(self, name: str) -> list[tuple[str, str]]:
        """Reason and message of what is told of an object."""
        return [
            (each["reason"], each["message"])
            for each in self.client.list("v1", "Event", NAMESPACE)
            if each["involvedObject"]["name"] == name
        ]

    def wait_message(self, kind: str, name: str, text: str) -> None:
        """Wait until a condition says `text`."""
        self.wait(lambda: text in self.messages(kind, name), f"'{text}' in {kind} {name}")

    def wait_idle(self, nodes: str) -> None:
        """Wait until exactly these nodes (as Slurm lists them) are idle, seen over SSH."""
        # To 25.11 a node that sleeps, or has not registered yet, is among those of `-t idle`.
        command = "sinfo -h -p main -o '%t %N'"
        self.wait(lambda: f"idle {nodes}" in self.ssh(command).stdout.split("\n"), f"idle {nodes}")

    def wait(self, is_met: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
        """Poll until `is_met`; the failure shows every status."""
        deadline, pause_s = time.monotonic() + timeout_s, 0.1

        def is_over() -> bool:
            with contextlib.suppress(subprocess.TimeoutExpired):  # of one look over SSH
                return is_met()
            return False

        while not is_over():
            if time.monotonic() > deadline:
                cluster = self.messages("SlurmCluster", "soperator")
                nodeset = self.messages("NodeSet", "worker")
                logs = "\n".join(self._last_lines())
                pytest.fail(f"no {what}; cluster: {cluster}; nodeset: {nodeset}\n{logs}")
            time.sleep(pause_s)
            # A look over SSH costs more than this: what takes a minute is not asked 300 times.
            pause_s = min(1.25 * pause_s, 1)

    def ssh(self, command: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node, with the host key of the Secret pinned."""
        public = self.host_key.with_suffix(".pub").read_text().split()
        known_hosts = self.key.parent / "known_hosts"
        known_hosts.write_text(f"[127.0.0.1]:{self.ssh_port} {public[0]} {public[1]}\n")
        argv = ["ssh", "-F", "/dev/null", "-i", str(self.key), "-p", str(self.ssh_port)]
        argv += ["-o", f"UserKnownHostsFile={known_hosts}", "-o", "BatchMode=yes"]
        argv += ["-o", "StrictHostKeyChecking=yes", "-o", "IdentitiesOnly=yes", *options]
        argv += ["root@127.0.0.1", command]
        return subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S, check=False)

    def submit(self, script: str, *options: str) -> str:
        """Submit a batch script in /mnt/data; its job id."""
        quoted = script.replace("'", "'\\''")
        submitted = self.ssh(
            f"cd /mnt/data && sbatch --parsable {' '.join(options)} --wrap '{quoted}'"
        )
        assert submitted.returncode == 0, submitted.stderr
        return submitted.stdout.strip()

    def output(self, job: str) -> str:
        """Output of a job, once it has ended."""
        path = self.cloud.state.local / "filesystems" / "computefilesystem-jail-submount-data"
        self.wait(lambda: self.ssh(f"squeue -h -j {job}").stdout.strip() == "", f"end of {job}")
        return (path / f"slurm-{job}.out").read_text()

    def start_reconciler(self) -> None:
        """Start the reconciler without its loops for nodes and services."""
        argv = [sys.executable, "-m", "infra.local.reconcile", "--state"]
        argv += [str(self.cloud.state.root), "--without-nodes"]
        process.start(
            RECONCILER,
            argv,
            run_dir=self.cloud.state.run,
            log=self.cloud.state.local / "log" / "reconcile.log",
            env=self.cloud.environment(),
        )

    def pid(self, name: str) -> int:
        """Pid of a recorded process that runs."""
        found = process.find(name, self.cloud.state.run)
        assert found is not None, name
        return found.pid if found.alive else 0

    def _last_lines(self) -> Iterator[str]:
        logs = [*(self.cloud.runtime.folder / "log").glob("*.log")]
        for log in [*logs, self.cloud.state.local / "log" / "reconcile.log"]:
            if log.exists():
                lines = log.read_text(errors="replace").splitlines()[-4:]
                yield f"{log.name}: " + " | ".join(lines)


@contextlib.contextmanager
def running_stand(folder: Path) -> Iterator[Stand]:
    """A stand in its own folder and on its own ports; skips where this machine cannot run one."""
    base, ssh_port = free_base(), free_ports(1)[0]
    cloud = Cloud(state=State(folder / "state"), cache=Cache(folder / "cache"), ports=Ports(base))
    try:
        check_machine(_with_real_cache(cloud))
    except LocalError as error:
        pytest.skip(str(error))
    key, host_key = folder / "id", folder / "host_key"
    for path in (key, host_key):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
        subprocess.run(argv, check=True)
    client = None
    try:
        engine.make_folders(cloud.state)
        engine.make_token(cloud.state)
        api_server.start(cloud.kube)
        client = KubeClient(cloud.kube.access())
        install_crds(client)
        stand = Stand(cloud, client, ssh_port, key, host_key)
        stand.start_reconciler()
        yield stand
    finally:
        if client is not None:
            client.close()
        process.stop(RECONCILER, cloud.state.run)
        cloud.runtime.stop_all()
        api_server.stop(cloud.kube)
        left = pods.processes(cloud.runtime.folder)
        running = [
            p.name for p in process.all_processes(cloud.state.run) if alive(p.name, cloud.state.run)
        ]
        shutil.rmtree(folder, ignore_errors=True)
        assert not left
        assert not running


def _with_real_cache(cloud: Cloud) -> Cloud:
    return Cloud(state=cloud.state, cache=Cache.from_environ(), ports=cloud.ports)


def _namespace() -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def _secret(host_key: Path) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "login-host-keys", "namespace": NAMESPACE},
        "stringData": host_key_files(
            host_key.read_text(), host_key.with_suffix(".pub").read_text()
        ),
    }
