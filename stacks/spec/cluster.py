"""Where a stack lives in Nebius, its mk8s cluster, and what Soperator installs beside Slurm itself:
checks, observability, users, files in the jail. Rules are in rules/cluster.py, rules/soperator.py.

A stack with `attached` has no infrastructure but a Slurm cluster that others run: load.py derives
nodes, partitions and places from what `soperator attach` found of it and its user adds. Nothing
there is a price but `node_prices`: nodes without one are unpriced.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Final

from stacks.spec.decode import AmountOrZero, CountOrZero, FileText, Nodes, SizeGib


class GpuDrivers(StrEnum):
    """Where GPU nodes get their drivers from."""

    PREINSTALLED = "preinstalled"
    """In the node image, as `drivers_preset` names it."""
    OPERATORS = "operators"
    """From NVIDIA's network and GPU operators, installed as applications of the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NebiusSpec:
    """Where in Nebius the stack lives; ids as the console shows them."""

    tenant_id: str
    """Id of the tenant; only tools and messages use it."""
    project_id: str
    """Id of the project that every resource is made in."""
    region: str
    """Region of the project, such as `eu-north1`."""
    company_name: str | None = None
    """Whose the stack is: a label of what in Nebius takes labels, and in the report's heading."""
    network_id: str | None = None
    """Existing network; None makes one."""
    subnet_id: str | None = None
    """Existing subnet; None makes one."""
    discover_network: bool = False
    """Whether the only subnet of the project is used; refused where there are several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The mk8s cluster and the Soperator release on it."""

    kubernetes_version: str = "1.33"
    """MAJOR.MINOR of the control plane and the nodes."""
    etcd_size: int = 3
    """Members of etcd: 1 or 3."""
    audit_logs: bool = False
    """Whether the API server's audit log goes to the service's logs."""
    public_endpoint: bool = True
    """Whether the Kubernetes API has a public address."""
    allowed_cidrs: tuple[str, ...] = ()
    """IPv4 blocks that may reach the public address; empty is everybody."""
    os: str = "ubuntu24.04"
    """System of every node image."""
    gpu_drivers: GpuDrivers = GpuDrivers.PREINSTALLED
    """How the GPU drivers come onto the nodes."""
    drivers_preset: str = "cuda13.0"
    """Drivers in the image of GPU nodes, as the API names the set."""
    soperator_version: str = "4.1.7"
    """Version of every Soperator chart."""
    slurm_cluster_name: str = "soperator"
    """Name of the SlurmCluster object; another needs `soperator.checks: off`."""
    namespace: str = "soperator"
    """Kubernetes namespace of the Slurm cluster; another needs `soperator.checks: off`."""


HOME: Final = "/home"
"""Where an NFS server inside the cluster is mounted."""


class ChecksProfile(StrEnum):
    """How much of Soperator's active checks runs."""

    OFF = "off"
    """None: the release of the checks is not installed."""
    ESSENTIAL = "essential"
    """What the first job needs: users of the checks, the SSH door, a first srun."""
    QUICK = "quick"
    """Also each GPU check that takes minutes, once after creation."""
    FULL = "full"
    """Also the long ones (burn-in, both levels of DCGM), and all of them on their schedules."""


class Observability(StrEnum):
    """How much metrics and logs are kept inside the cluster; none leave it."""

    OFF = "off"
    SMALL = "small"
    """A week of metrics and logs of a few nodes."""
    FULL = "full"
    """What the official recipe gives a cluster of a hundred nodes."""


class Maintenance(StrEnum):
    """Maintenance modes of a SlurmCluster, as the operator spells them."""

    NONE = "none"
    DOWNSCALE = "downscale"
    """Every pod of the Slurm cluster is stopped; filesystems and settings stay."""
    DELETE_JAIL_JOB = "downscaleAndDeletePopulateJail"
    OVERWRITE_JAIL = "downscaleAndOverwritePopulateJail"
    """The jail is written anew over what lies there."""
    SKIP_JAIL_JOB = "skipPopulateJail"


@dataclass(frozen=True, slots=True, kw_only=True)
class JailFileSpec:
    """One text file that every login and worker node sees."""

    path: str
    """Absolute path in the jail."""
    content: FileText
    """Text of the file."""
    mode: str = "0644"
    """Permissions in octal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NfsHomeSpec:
    """`/home` from an NFS server inside the cluster, on a network SSD that goes with it."""

    size_gib: SizeGib
    """Size in GiB of the disk."""
    threads: int = 8
    """Threads of the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SssdSpec:
    """Users of a directory (LDAP) on controller, login and worker nodes, through a sidecar."""

    config_secret: str
    """Secret with `sssd.conf` in the namespace of the cluster, made by you before it is declared:
    it holds a password that no stack file should."""
    ca_config_map: str | None = None
    """ConfigMap beside it with certificates of the directory's authority, for one of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsSpec:
    """When an alert of a stack with observability fires."""

    min_gpu_utilization_percent: int = 20
    """Least mean use of the GPUs of one job over half an hour."""
    stalled_step_minutes: int = 15
    """Longest time of a training job from one step to the next, saves included."""
    checkpoint_minutes: int = 120
    """Oldest that the newest checkpoint of a training job may be."""
    drained_minutes: int = 10
    """Longest time that a node may be drained before it is told."""


DEPLOYER: Final = "deployer"
"""User that `up` makes on the login node for `login.ssh_public_keys`: root runs no job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSpec:
    """One user of the login and worker nodes."""

    name: str
    """Login name."""
    ssh_public_keys: tuple[str, ...]
    """OpenSSH public key lines, such as `file:PATH`. Whose jobs one submits is told by the key: the
    deployer's before those of users, an earlier user's before a later one's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoperatorSpec:
    """Settings of the Soperator release that a stack may declare."""

    cuda_version: str = "12.9.0"
    """CUDA in the jail; the image of the jail and the check of its state agree on it."""
    checks: ChecksProfile = ChecksProfile.ESSENTIAL
    """How much of the active checks runs."""
    delete_unready_nodes: bool = True
    """Whether Kubernetes nodes that are not ready for 15 minutes are deleted; the node group then
    makes new ones."""
    observability: Observability = Observability.OFF
    """Metrics, logs, dashboards and alerts inside the cluster."""
    alerts: AlertsSpec | None = None
    """When alerts fire; without it at the values that its keys have by default."""
    slack_notifier: bool = False
    """Whether ended jobs and alerts are told to the Slack webhook of the secret configuration."""
    apparmor: bool = False
    """Whether pods of Slurm run under Soperator's AppArmor profile."""
    maintenance: Maintenance = Maintenance.NONE
    """Mode of the SlurmCluster; a paused stack is always at `downscale`."""
    nfs_home: NfsHomeSpec | None = None
    jail_files: tuple[JailFileSpec, ...] = ()
    """Files that the program keeps in the jail."""
    users: tuple[UserSpec, ...] = ()
    """Users beside root and deployer; one that is gone from here is removed, its files are kept."""
    sssd: SssdSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedNodesetSpec:
    """Equal nodes in the same partitions."""

    name: str
    """Name by which prices and the bill know them."""
    nodes: str
    """Their names as Slurm writes them, such as `gpu[01-16]`."""
    count: Nodes
    """How many they are."""
    cpus: int
    """CPUs of a node, as Slurm counts them."""
    memory_mib: CountOrZero = 0
    """MiB of a node that Slurm gives to jobs; 0: Slurm does not count memory there."""
    gpus: CountOrZero = 0
    """GPUs of a node."""
    gpu_type: str | None = None
    """Type of the GPUs as the cluster's GRES calls it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedPartitionSpec:
    """One partition that the user may see."""

    name: str
    """Name of the partition."""
    nodesets: tuple[str, ...]
    """Nodesets that it has."""
    default: bool = False
    """Whether Slurm takes it where a job names none."""
    max_time: str = "UNLIMITED"
    """Longest time of a job, as Slurm writes it."""
    whole_nodes: bool = False
    """Whether Slurm gives, and so charges, whole nodes, whatever a job asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedSpec:
    """What `soperator attach` found; it writes these lines anew, so edits belong elsewhere."""

    host: str
    """Name or address of the login node."""
    user: str
    """Whom it is entered as, and whose jobs they are."""
    host_key: str
    """Public key of the login node, which every connection is held against."""
    identity: str
    """Private key file on this machine that opens the login node."""
    folder: str
    """Folder of the user there, below which everything of the stack lies."""
    python: str
    """Python of the login node, 3.10 or later; jobs that need no packages run with it."""
    slurm: str
    """Version of Slurm."""
    nodesets: tuple[AttachedNodesetSpec, ...]
    """The nodes."""
    partitions: tuple[AttachedPartitionSpec, ...]
    """The partitions."""
    port: int = 22
    """Port of its SSH server."""
    accounting: bool = True
    """Whether Slurm keeps the history of jobs there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePriceSpec:
    """What a node of one attached nodeset costs: as a preset, or by a contract."""

    nodeset: str
    """Name of the nodeset."""
    platform: str | None = None
    """Nebius platform that the nodes are: the price book has its price."""
    preset: str | None = None
    """Preset of that platform, with as many GPUs as a node has."""
    usd_per_node_hour: AmountOrZero | None = None
    """US dollars for one node for an hour."""
    usd_per_gpu_hour: AmountOrZero | None = None
    """US dollars for one GPU, with its share of the node, for an hour."""
    source: str | None = None
    """Contract or offer that says so; needed with US dollars."""
    date: date | None = None
    """YYYY-MM-DD of the contract or offer; needed with US dollars."""

    @property
    def usd(self) -> Decimal | None:
        """US dollars of the contract, for a node or a GPU; None where a preset is declared."""
        per_node = self.usd_per_node_hour
        return self.usd_per_gpu_hour if per_node is None else per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeSpec:
    """Which account and QOS of Slurm the stack's jobs and sessions are submitted with."""

    account: str | None = None
    """Account; without it Slurm takes the user's default one."""
    qos: str | None = None
    """QOS; without it Slurm takes that of the account or the partition."""

    @property
    def options(self) -> tuple[str, ...]:
        """Options of sbatch and srun."""
        asked = (("--account", self.account), ("--qos", self.qos))
        return tuple(f"{name}={value}" for name, value in asked if value is not None)
