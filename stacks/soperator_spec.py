"""What Soperator installs beside Slurm itself: checks, observability, users, files in the jail.

Owns names, types and defaults; `StackSpec` (spec.py) holds them. Rules are in rules/soperator.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

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
    content: str
    """Text of the file."""
    mode: str = "0644"
    """Permissions in octal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NfsHomeSpec:
    """`/home` from an NFS server inside the cluster, on a network SSD that goes with it."""

    size_gib: int
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSpec:
    """One user of the login and worker nodes."""

    name: str
    """Login name."""
    ssh_public_keys: tuple[str, ...]
    """OpenSSH public key lines. `file:PATH` in the stack file is read by the loader."""


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
    """Users beside root; one that is no longer declared is removed, with its files kept."""
    sssd: SssdSpec | None = None
