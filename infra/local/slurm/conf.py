"""slurm.conf, gres.conf, cgroup.conf, slurmdbd.conf and sshd_config as text; no I/O.

As the operator of Soperator 4.1.7 writes them (nebius/soperator, configmap.go of
internal/render/common and internal/render/login, read 2026-11-22), but for what one machine has
not: the table in docs/conformance.md. Paths are those that a pod sees. Every daemon answers on
127.0.0.1 at a port of its own: on different loopback addresses `srun` hangs, since its I/O port
answers on another address.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

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
class HealthCheck:
    """A program that Slurm runs on every node again and again."""

    program: str
    interval_s: int
    states: tuple[str, ...]


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
    health_check: HealthCheck | None = None
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

_NEVER_S: Final = 1_000_000_000
"""The custom resource's own default: thirty years. Without one Slurm powers nothing at all."""
_GRES = re.compile(r"gpu(?::(?P<type>[^:,\s]+))?:(?P<count>\d+)$")
_STRIPPED = re.compile(r"(?i)^(state|features?|nodename)=")
_SCHEDULER: Final = (
    "nohold_on_prolog_fail,extra_constraints,pack_serial_at_end,salloc_wait_nodes,sbatch_wait_nodes"
)


def render_slurm_conf(settings: SlurmSettings) -> str:
    """slurm.conf of the cluster."""
    lines = [
        f"ClusterName={settings.cluster}",
        f"SlurmctldHost={CONTROLLER}(127.0.0.1)",
        "AuthType=auth/munge",
        f"AuthInfo=socket={MUNGE_SOCKET},cred_expire={settings.credential_s}",
        "CredType=cred/munge",
        *_lines({"SuspendTime": _NEVER_S} | settings.slurm_config),
        # The operator has it only in a cluster with GPUs (internal/render/common/configmap.go of
        # nebius/soperator 4.1.7): a Gres line of another one is refused.
        *(["GresTypes=gpu"] if any(worker.has_gpus for worker in settings.workers) else []),
        f"MpiDefault={'pmix' if settings.setup.has_pmix else 'none'}",
        "MailProg=/usr/bin/true",
        "ProctrackType=proctrack/linuxproc",
        "ReturnToService=2",
        f"SlurmctldPidFile={STATE_PATH}/pid/slurmctld.pid",
        f"SlurmctldPort={settings.slurmctld_port}",
        f"SlurmdPidFile={STATE_PATH}/pid/slurmd-%n.pid",
        f"SlurmdSpoolDir={STATE_PATH}/spool/%n",
        "SlurmUser=root",
        f"StateSaveLocation={CONTROLLER_SPOOL}",
        "TaskPlugin=task/none",
        "CliFilterPlugins=cli_filter/user_defaults",
        "LaunchParameters=use_interactive_step",
        "ScronParameters=enable,explicit_scancel",
        "PropagateResourceLimits=NONE",
        *_health_check(settings),
        "InactiveLimit=0",
        "KillOnBadExit=1",
        "UnkillableStepTimeout=600",
        "SlurmctldTimeout=180",
        "TCPTimeout=15",
        "WaitTime=0",
        *_times(settings),
        *_power(settings),
        "SchedulerType=sched/backfill",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory,CR_CORE_DEFAULT_DIST_BLOCK",
        # A cluster whose NodeName lines are missing still starts, as it does with dynamic nodes.
        "MaxNodeCount=1024",
        "MaxArraySize=1024",
        "JobRequeue=1",
        "PreemptMode=REQUEUE",
        "PreemptType=preempt/partition_prio",
        # One machine stands for all nodes: every daemon has its port, and a node what it declares.
        "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",
        "SlurmdParameters=config_overrides",
    ]
    if settings.setup.prefix is not None:  # Debian's 22.05 does not know them
        lines += ["MetricsType=metrics/openmetrics", "ReconfigFlags=KeepPowerSaveSettings"]
    if settings.declares_nodes:
        lines += [_node(worker) for worker in settings.workers]
    lines += [_partition(partition) for partition in settings.partitions]
    lines += settings.raw_partitions
    if settings.declares_nodes:
        lines += [f"NodeSet={name} Nodes={nodes}" for name, nodes in _node_sets(settings.workers)]
    lines += _accounting(settings)
    if settings.custom:
        lines += settings.custom.strip().splitlines()
    return "\n".join(lines) + "\n"


def render_cgroup_conf() -> str:
    """cgroup.conf of a Slurm that would ask for cgroups of its own before any plugin needs them."""
    return "CgroupPlugin=disabled\n"


def render_plugstack_conf(setup: SlurmSetup) -> str:
    """plugstack.conf; without the operator's importer, which caches what a registry sends."""
    options = "runtime_path=/run/pyxis execute_entrypoint=0 container_scope=global sbatch_support=1"
    return f"required spank_pyxis.so {options}\n" if setup.has_pyxis else ""


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
    return (
        "\n".join(
            [
                "AuthType=auth/munge",
                f"AuthInfo=socket={MUNGE_SOCKET}",
                f"DbdHost={ACCOUNTING}",
                "DbdAddr=127.0.0.1",
                f"DbdPort={settings.slurmdbd_port}",
                "SlurmUser=root",
                f"PidFile={STATE_PATH}/pid/slurmdbd.pid",
                "StorageType=accounting_storage/mysql",
                "StorageHost=127.0.0.1",
                f"StoragePort={settings.mariadb_port}",
                "StorageUser=slurm",
                f"StoragePass={password}",
                "StorageLoc=slurm_acct_db",
                "CommunicationParameters=NoInAddrAny",
            ]
        )
        + "\n"
    )


def render_sshd_config(port: int, num_host_keys: int, path: str) -> str:
    """sshd_config of the login node: keys only, of root and of users of the jail."""
    return (
        "\n".join(
            [
                f"Port {port}",
                "ListenAddress 127.0.0.1",
                "PermitRootLogin yes",
                "PasswordAuthentication no",
                "KbdInteractiveAuthentication no",
                # The rules of /etc/pam.d are those of this machine, not of the login image.
                "UsePAM no",
                "AcceptEnv LANG LC_*",
                "X11Forwarding no",
                "AllowTcpForwarding yes",
                "Subsystem sftp internal-sftp",
                *(f"HostKey {STATE_PATH}/ssh/host_key_{index}" for index in range(num_host_keys)),
                "ClientAliveInterval 3600",
                "ClientAliveCountMax 5",
                "MaxStartups 100:50:300",
                "LoginGraceTime 120",
                "MaxAuthTries 4",
                "UseDNS no",
                f"PidFile {STATE_PATH}/pid/sshd.pid",
                f"SetEnv SLURM_CONF={SLURM_CONF} PATH={PROGRAMS}:{path}",
                "PrintMotd no",
                "PrintLastLog no",
                # To the end of the file: keys that the cluster declares open root's account alone.
                "Match User root",
                f"AuthorizedKeysFile {STATE_PATH}/ssh/authorized_keys /root/.ssh/authorized_keys",
            ]
        )
        + "\n"
    )


def render_profile(text: str, setup: SlurmSetup) -> str:
    """/etc/profile, `text` as the system has it, that leaves the commands of this Slurm first."""
    return f"{text.rstrip()}\nexport PATH={PROGRAMS}:{setup.path}\n"


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


def _lines(values: dict[str, str | int]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def _times(settings: SlurmSettings) -> list[str]:
    """How long Slurm waits and how often it looks."""
    values = {"KillWait": 180, "SlurmdTimeout": 180, "ResumeTimeout": 1800, "SuspendTimeout": 90}
    scheduler = _SCHEDULER
    if settings.setup.fast_times:
        values = {"KillWait": 30, "SlurmdTimeout": 30, "ResumeTimeout": 60, "SuspendTimeout": 5}
        scheduler += ",sched_min_interval=100000,batch_sched_delay=0,bf_interval=5"
    return [*_lines({**values}), f"SchedulerParameters={scheduler}"]


def _health_check(settings: SlurmSettings) -> list[str]:
    check = settings.health_check
    if check is None:
        return []
    return [
        f"HealthCheckInterval={check.interval_s}",
        f"HealthCheckProgram={check.program}",
        f"HealthCheckNodeState={','.join(check.states)}",
    ]


def _node(worker: WorkerNode) -> str:
    words = [word for word in worker.static.split() if not _STRIPPED.match(word)]
    features = [f"Feature={','.join(worker.features)}"] if worker.features else []
    return " ".join(
        [
            f"NodeName={worker.name} State=CLOUD NodeHostname={worker.name} NodeAddr=127.0.0.1",
            f"RealMemory={worker.memory_mib} Port={worker.port}",
            *features,
            *words,
        ]
    )


def _node_sets(workers: Sequence[WorkerNode]) -> list[tuple[str, str]]:
    """Name and nodes of every set, in order."""
    sets = groupby(workers, key=lambda worker: worker.nodeset)
    return [(name, ",".join(worker.name for worker in members)) for name, members in sets]


def _power(settings: SlurmSettings) -> list[str]:
    """How nodes come and go: those of fixed sets never do by themselves."""
    fixed = [worker.name for worker in settings.workers if not worker.is_elastic]
    # The operator's conmgr_threads=32 makes slurmctld warn of hangs where there are few cores.
    parameters: list[str] = []
    if len(fixed) < len(settings.workers):
        parameters += ["cloud_dns", "idle_on_node_suspend"]
    if settings.setup.fast_times:
        parameters.append("power_save_interval=1")
    lines = [
        *([f"SlurmctldParameters={','.join(parameters)}"] if parameters else []),
        f"ResumeProgram={pod.program(pod.RESUME)}",
        f"SuspendProgram={pod.program(pod.SUSPEND)}",
        "ResumeRate=100",
        "SuspendRate=100",
    ]
    return [*lines, f"SuspendExcNodes={','.join(fixed)}"] if fixed else lines


def _partition(partition: Partition) -> str:
    nodes = "ALL" if partition.nodesets is None else ",".join(partition.nodesets)
    return f"PartitionName={partition.name} Nodes={nodes} {partition.config}".rstrip()


def _accounting(settings: SlurmSettings) -> list[str]:
    if not settings.accounting:
        return []
    own = dict(settings.accounting_config)
    # The cgroup plugin needs a cgroup of slurmd's own, which it has in its container on the cloud.
    gather = str(own.pop("JobAcctGatherType", "jobacct_gather/linux"))
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={settings.slurmdbd_port}",
        f"AccountingStoragePass={MUNGE_SOCKET}",
        "JobCompType=jobcomp/none",
        f"JobAcctGatherType={gather.replace('cgroup', 'linux')}",
        *_lines(own),
    ]
