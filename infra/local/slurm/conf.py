"""slurm.conf, gres.conf, slurmdbd.conf and sshd_config as text; no I/O.

Slurm 22.05 of Debian 12 stands for the 25.11 of Soperator 4.1.7, so what only the newer one knows
is left out. Paths are those that a pod sees. Every daemon answers on 127.0.0.1 at a port of its
own: on different loopback addresses `srun` hangs, since its I/O port answers on another address.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from infra.local.slurm import power
from infra.local.slurm.accounts import PROGRAMS
from infra.local.slurm.pod import STATE_PATH
from infra.local.slurm.settings import Partition, SlurmSettings, WorkerNode

CONTROLLER = "controller-0"
ACCOUNTING = "accounting-0"
LOGIN = "login-0"
MUNGE_SOCKET = f"{STATE_PATH}/munge/socket"
SLURM_CONF = f"{STATE_PATH}/slurm.conf"
SLURMDBD_CONF = f"{STATE_PATH}/slurmdbd.conf"
SSHD_CONFIG = f"{STATE_PATH}/sshd_config"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CONTROLLER_SPOOL = "/run/slurmctld"

_GRES = re.compile(r"gpu(?::(?P<type>[^:,\s]+))?:(?P<count>\d+)$")
_STRIPPED = re.compile(r"(?i)^(state|features?|nodename)=")


def render_slurm_conf(settings: SlurmSettings) -> str:
    """slurm.conf of the cluster."""
    lines = [
        f"ClusterName={settings.cluster}",
        f"SlurmctldHost={CONTROLLER}(127.0.0.1)",
        f"SlurmctldPort={settings.slurmctld_port}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={MUNGE_SOCKET},cred_expire={settings.credential_s}",
        f"StateSaveLocation={CONTROLLER_SPOOL}",
        f"SlurmctldPidFile={STATE_PATH}/pid/slurmctld.pid",
        f"SlurmdPidFile={STATE_PATH}/pid/slurmd-%n.pid",
        f"SlurmdSpoolDir={STATE_PATH}/spool/%n",
        "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SwitchType=switch/none",
        "MpiDefault=none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0,bf_interval=5",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "KillOnBadExit=1",
        "JobRequeue=1",
        "ReturnToService=2",
        # slurmctld asks nodes to register every third of this: by default (300 s) a node whose
        # first answer is lost on a busy machine stays away for 100 s.
        "SlurmdTimeout=30",
        "SlurmdParameters=config_overrides",
        "MailProg=/bin/true",
        "GresTypes=gpu",
        # A cluster whose NodeName lines are missing still starts, as it does with dynamic nodes.
        "MaxNodeCount=1024",
    ]
    lines += [f"{key}={value}" for key, value in sorted(settings.slurm_config.items())]
    lines += _power(settings)
    lines += _accounting(settings)
    if settings.declares_nodes:
        lines += [_node(worker) for worker in settings.workers]
    lines += [_partition(partition, settings) for partition in settings.partitions]
    lines += settings.raw_partitions
    if settings.custom:
        lines += settings.custom.strip().splitlines()
    return "\n".join(lines) + "\n"


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


def render_sshd_config(port: int, num_host_keys: int) -> str:
    """sshd_config of the login node: keys only, of root and of users of the jail."""
    return (
        "\n".join(
            [
                f"Port {port}",
                "ListenAddress 127.0.0.1",
                *(f"HostKey {STATE_PATH}/ssh/host_key_{index}" for index in range(num_host_keys)),
                "AuthorizedKeysFile .ssh/authorized_keys",
                "AuthenticationMethods publickey",
                "PasswordAuthentication no",
                "KbdInteractiveAuthentication no",
                "PermitRootLogin prohibit-password",
                "UsePAM no",
                "UseDNS no",
                # Keys sit in a folder that others may write on a laptop's shared disk.
                "StrictModes no",
                f"PidFile {STATE_PATH}/pid/sshd.pid",
                "Subsystem sftp internal-sftp",
                f"SetEnv SLURM_CONF={SLURM_CONF} PATH={PROGRAMS}:{PATH}",
                "PrintMotd no",
                "PrintLastLog no",
                "MaxSessions 100",
                "MaxStartups 100",
                # To the end of the file: keys that the cluster declares open root's account alone.
                "Match User root",
                f"AuthorizedKeysFile {STATE_PATH}/ssh/authorized_keys /root/.ssh/authorized_keys",
            ]
        )
        + "\n"
    )


def render_hosts(names: Sequence[str]) -> str:
    """/etc/hosts of every pod: all names are this machine."""
    return "127.0.0.1 localhost " + " ".join(names) + "\n"


def gpus(static: str) -> tuple[str | None, int]:
    """GPU type and count of `nodeConfig.static`; 0 without a Gres of GPUs."""
    for word in static.split():
        key, _, value = word.partition("=")
        found = _GRES.match(value) if key.lower() == "gres" else None
        if found:
            return found["type"], int(found["count"])
    return None, 0


def _node(worker: WorkerNode) -> str:
    words = [word for word in worker.static.split() if not _STRIPPED.match(word)]
    features = [f"Feature={','.join(worker.features)}"] if worker.features else []
    return " ".join(
        [
            f"NodeName={worker.name} NodeHostname={worker.name} NodeAddr=127.0.0.1",
            f"Port={worker.port} RealMemory={worker.memory_mib}",
            *words,
            *features,
            "State=CLOUD" if worker.is_elastic else "State=UNKNOWN",
        ]
    )


def _power(settings: SlurmSettings) -> list[str]:
    """How elastic nodes come and go; without one of them Slurm powers nothing."""
    fixed = [worker.name for worker in settings.workers if not worker.is_elastic]
    if len(fixed) == len(settings.workers):
        return []
    lines = [
        f"ResumeProgram={power.program(power.RESUME)}",
        f"SuspendProgram={power.program(power.SUSPEND)}",
        # Soperator gives 1800 s and 90 s: pods wait for machines there, and daemons start here.
        "ResumeTimeout=60",
        "SuspendTimeout=5",
        f"SuspendTime={settings.suspend_after_s}",
        "ResumeRate=0",
        "SuspendRate=0",
        "SlurmctldParameters=cloud_dns,power_save_interval=1",
        "PrivateData=cloud",
    ]
    return [*lines, f"SuspendExcNodes={','.join(fixed)}"] if fixed else lines


def _partition(partition: Partition, settings: SlurmSettings) -> str:
    if partition.nodesets is None:
        nodes = "ALL"
    else:
        wanted = set(partition.nodesets)
        names = [worker.name for worker in settings.workers if worker.nodeset in wanted]
        nodes = ",".join(names) or '""'
    return f"PartitionName={partition.name} Nodes={nodes} {partition.config}".rstrip()


def _accounting(settings: SlurmSettings) -> list[str]:
    if not settings.accounting:
        return ["AccountingStorageType=accounting_storage/none"]
    # The cgroup plugin needs a cgroup of slurmd's own, which systemd gives it on the cloud.
    gather = settings.job_gather.replace("cgroup", "linux")
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={settings.slurmdbd_port}",
        f"AccountingStoragePass={MUNGE_SOCKET}",
        "AccountingStorageTRES=gres/gpu",
        f"JobAcctGatherType={gather}",
    ]
