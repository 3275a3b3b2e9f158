"""slurm.conf, gres.conf, cgroup.conf, slurmdbd.conf and sshd_config as text; no I/O.

As the operator of Soperator 4.1.7 writes them (nebius/soperator, configmap.go of
internal/render/common and internal/render/login, read 2026-11-22), but for what one machine has
not: the table in docs/conformance.md. Paths are those that a pod sees. Every daemon answers on
127.0.0.1 at a port of its own: on different loopback addresses `srun` hangs, since its I/O port
answers on another address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from infra.files import fill
from infra.local.slurm import pod
from infra.local.slurm.pod import PROGRAMS, STATE_PATH, SlurmSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNode:
    """One slurmd: a pod of a NodeSet."""

    name: str
    nodeset: str
    port: int
    static: str
    """`nodeConfig.static` of the NodeSet: CPUs, topology and Gres of every node."""
    memory_mib: int
    features: tuple[str, ...] = ()
    has_gpus: bool = False
    """`gpu.enabled` of the NodeSet, whatever `static` says."""
    is_elastic: bool = False
    """Whether Slurm powers it up for a job and down when it is idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One queue; without nodesets it has all nodes."""

    name: str
    config: str
    nodesets: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """One cluster, as its custom resources declare it."""

    cluster: str
    namespace: str
    """Of its pods: a part of their names in DNS."""
    slurmctld_port: int
    slurmdbd_port: int
    mariadb_port: int
    workers: tuple[WorkerNode, ...]
    declares_nodes: bool
    """Whether NodeName lines are rendered: only for structured partitions."""
    partitions: tuple[Partition, ...] = ()
    raw_partitions: tuple[str, ...] = ()
    accounting: bool = False
    accounting_config: dict[str, str | int] = field(default_factory=dict)
    """Values of the accounting's `slurmConfig`, by Slurm's name."""
    slurm_config: dict[str, str | int] = field(default_factory=dict)
    """Values of `spec.slurmConfig`, by Slurm's name."""
    health_check: Mapping[str, Any] | None = None
    """`spec.healthCheckConfig`: a program that Slurm runs on every node again and again."""
    credential_s: int = 120
    """How long a job may take to launch; so long Slurm also holds back a job that is requeued."""
    custom: str = ""
    setup: SlurmSetup = field(default_factory=SlurmSetup)


CONTROLLER = "controller-0"
ACCOUNTING = "accounting"
LOGIN = "login-0"
MUNGE_SOCKET = f"{STATE_PATH}/munge/socket"
SLURM_CONF = f"{STATE_PATH}/slurm.conf"
SSHD_CONFIG = f"{STATE_PATH}/sshd_config"
CONTROLLER_SPOOL = "/run/slurmctld"

_GRES = re.compile(r"gpu(?::(?P<type>[^:,\s]+))?:(?P<count>\d+)$")
_STRIPPED = re.compile(r"(?i)^(state|features?|nodename)=")


def render_slurm_conf(settings: SlurmSettings) -> str:
    """slurm.conf of the cluster."""
    sets = groupby(settings.workers, key=lambda worker: worker.nodeset)
    return _fill(
        "slurm.conf.j2",
        settings=settings,
        fixed=[worker.name for worker in settings.workers if not worker.is_elastic],
        node_sets=[(name, [worker.name for worker in members]) for name, members in sets],
        is_stripped=_STRIPPED.match,
        controller=CONTROLLER,
        controller_spool=CONTROLLER_SPOOL,
        resume=pod.program(pod.RESUME),
        suspend=pod.program(pod.SUSPEND),
    )


def render_cgroup_conf(setup: SlurmSetup) -> str:
    """cgroup.conf of one that asks for cgroups before a plugin needs them; 24.05 has the word."""
    return "CgroupPlugin=disabled\n" if setup.version >= "24.05" else ""


def render_gres_conf(workers: Sequence[WorkerNode]) -> str:
    """gres.conf: every declared GPU is a device; a count without files drains the node."""
    lines = []
    for worker in workers:
        kind, count = gpus(worker.static)
        if count:
            name = f"NodeName={worker.name} Name=gpu" + (f" Type={kind}" if kind else "")
            lines.append(f"{name} File={STATE_PATH}/dev/gpu[0-{count - 1}]")
    return "\n".join(["AutoDetect=off", *lines]) + "\n"


def render_slurmdbd_conf(settings: SlurmSettings, password: str) -> str:
    """slurmdbd.conf of the cluster's accounting."""
    return _fill("slurmdbd.conf.j2", settings=settings, password=password, accounting=ACCOUNTING)


def render_sshd_config(port: int, num_host_keys: int, path: str) -> str:
    """sshd_config of the login node: keys only, of root and of users of the jail."""
    named: dict[str, Any] = {"slurm_conf": SLURM_CONF, "programs": PROGRAMS, "path": path}
    return _fill("sshd_config.j2", port=port, num_host_keys=num_host_keys, **named)


def _fill(name: str, **values: Any) -> str:
    path = Path(__file__).with_name(name)
    return fill(path, state=STATE_PATH, munge_socket=MUNGE_SOCKET, **values).rstrip() + "\n"


def render_hosts(settings: SlurmSettings | None = None) -> str:
    """/etc/hosts of every pod: the names that DNS knows on the cloud; all of them this machine's.

    Pods of login and workers search both of their services there, so their names work alone; the
    controller's works with its service only (Soperator 4.1.7, internal/render). A kubelet writes a
    pod's own name in the pod's own file: here CONTROLLER and ACCOUNTING are in everybody's.
    """
    names = ["localhost", CONTROLLER, ACCOUNTING]
    if settings is not None:
        services = [f"{settings.cluster}-{name}-svc" for name in ("controller", "accounting")]
        login, worker = (f"{settings.cluster}-{name}-svc" for name in ("login-headless", "nodeset"))
        pods = {LOGIN: login, **{each.name: worker for each in settings.workers}}
        short = [*services, f"{CONTROLLER}.{services[0]}"]
        short += [f"{pod}.{service}" for pod, service in pods.items()]
        names += [*pods, *short]
        names += [f"{name}.{settings.namespace}.svc.cluster.local" for name in short]
    return f"127.0.0.1 {' '.join(names)}\n"


def gpus(static: str) -> tuple[str | None, int]:
    """GPU type and count of `nodeConfig.static`; 0 without a Gres of GPUs."""
    for word in static.split():
        key, _, value = word.partition("=")
        found = _GRES.match(value) if key.lower() == "gres" else None
        if found:
            return found["type"], int(found["count"])
    return None, 0
