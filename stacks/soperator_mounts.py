"""What Soperator 4.1.7 itself mounts in login and worker pods, in the jail and beside it.

Owns the paths and where they stand in nebius/soperator at tag 4.1.7 (sources are paths in that
repository, read 2026-11-22). The operator takes a mount of ours at one of them without a word, and
the API server then refuses the pod: "mountPath: Invalid value: must be unique".
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

JAIL_UPPER: Final = "/mnt/jail.upper"
"""Where a pod puts what shall show in the jail, under its path there."""
MEMORY: Final = "/mnt/memory"
"""A tmpfs of each login and worker pod, of at most the memory that slurmd or sshd asks for."""

_COMPLEMENT: Final = "images/common/scripts/complement_jail.sh"
_SLURM: Final = "images/common/scripts/bind_slurm_common.sh"
_VOLUMES: Final = "internal/render/common/volume.go"
_WORKER: Final = "internal/render/worker/volume.go"
_LOGIN: Final = "internal/render/login/volume.go"
_IMEX: Final = "internal/render/common/nvidia_imex.go"
_CHART: Final = "helm/slurm-cluster/templates/slurm-cluster-cr.yaml"
_SLURM_PROGRAMS: Final = (
    "sacct", "sacctmgr", "salloc", "sattach", "sbatch", "sbcast", "scancel", "scontrol", "scrontab",
    "scrun", "sdiag", "sh5util", "sinfo", "sprio", "squeue", "sreport", "srun", "sshare", "sstat",
    "strigger",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class JailMount:
    """One path of the jail that shows something else than the jail's filesystem."""

    path: str
    what: str
    """What lies there, as a message calls it."""
    source: str
    of_one_node: bool = False
    """Whether jobs write there what other nodes do not see."""
    of_sssd: bool = False
    """Whether it is there with soperator.sssd alone."""


IN_JAIL: Final = (
    JailMount(MEMORY, "the memory that Soperator mounts on each node", _VOLUMES, True),
    JailMount("/tmp", "the disk that each node puts at /tmp", _VOLUMES, True),  # noqa: S108
    JailMount("/dev", "each node's own /dev", _COMPLEMENT, True),
    JailMount("/proc", "each node's own /proc", _COMPLEMENT, True),
    JailMount("/run", "each node's own /run", _COMPLEMENT, True),
    JailMount("/sys", "each node's own /sys", _COMPLEMENT, True),
    JailMount("/var/log", "each node's own /var/log", _COMPLEMENT, True),
    JailMount("/var/spool/slurmd", "the spool of slurmd", _COMPLEMENT, True),
    JailMount("/var/lib/sss/pipes", "the sockets of sssd", _COMPLEMENT, of_sssd=True),
    JailMount("/etc/sssd", "the configuration of sssd", _COMPLEMENT, of_sssd=True),
    JailMount("/etc/hosts", "each node's own names", _COMPLEMENT),
    JailMount("/etc/resolv.conf", "each node's own names", _COMPLEMENT),
    JailMount("/etc/enroot", "the configuration of enroot", _COMPLEMENT),
    JailMount("/usr/share/enroot", "enroot", _COMPLEMENT),
    JailMount("/usr/lib/enroot", "enroot", _COMPLEMENT),
    JailMount("/usr/lib/slurm", "plugins of Slurm", _COMPLEMENT),
    JailMount("/usr/sbin/slurmd", "slurmd", _COMPLEMENT),
    JailMount("/usr/sbin/slurmstepd", "slurmstepd", _COMPLEMENT),
    *(JailMount(f"/usr/bin/{name}", "a program of Slurm", _SLURM) for name in _SLURM_PROGRAMS),
    JailMount("/etc/nvidia-imex", "the configuration of IMEX", _IMEX),
    JailMount("/usr/bin/nvidia-imex-ctl", "a program of the driver", _IMEX),
    JailMount("/opt/slurm_scripts", "the prolog, epilog and health checks of Soperator", _CHART),
)
"""Volumes under /mnt/jail.upper of the pods, and what complement_jail.sh binds into the jail.

Beside it: libraries and programs of the driver, of Slurm and of enroot, file by file, in /usr.
"""

KEPT: Final = MappingProxyType(
    {
        "/mnt/jail": "where nodes mount the jail",
        JAIL_UPPER: "where nodes put their mounts into the jail",
        "/opt/soperator-home": "the homes of Soperator's own users",
        "/opt/soperator-outputs": "the logs of Soperator's checks",
        "/root": "the home of root with the keys that let `soperator` in",
    }
)
"""Path in the jail that no mount may cover -> what Soperator or this program keeps there."""

IN_POD: Final = MappingProxyType(
    {
        "/boot": _WORKER,
        "/dev/shm": _WORKER,  # noqa: S108
        "/etc/nvidia-imex": _IMEX,
        "/etc/security/limits.conf": _VOLUMES,
        "/etc/ssh/sshd_keys": _VOLUMES,
        "/etc/sssd": _VOLUMES,
        "/etc/supervisor/conf.d": _WORKER,
        "/etc/sysctl.conf": _WORKER,
        "/mnt/jail": _VOLUMES,
        f"{JAIL_UPPER}/etc/nvidia-imex": _IMEX,
        f"{JAIL_UPPER}{MEMORY}": _VOLUMES,
        f"{JAIL_UPPER}/usr/bin/nvidia-imex-ctl": _IMEX,
        "/mnt/ssh-configs": _LOGIN,
        "/root/.ssh/authorized_keys": _VOLUMES,
        "/run/munge": _VOLUMES,
        "/run/nvidia": _WORKER,
        "/tmp": _VOLUMES,  # noqa: S108
        "/tmp/slurm/topology-node-labels": "internal/consts/volume.go",  # noqa: S108
        "/usr/bin/nvidia-imex-ctl": _IMEX,
        "/var/lib/sss/pipes": _VOLUMES,
        "/var/spool/slurmd": _VOLUMES,
    }
)
"""mountPath of the operator's own volumes in the containers of slurmd and sshd -> source.

helm-slurm-cluster adds /opt/slurm_scripts to login pods, here and in the jail; that of workers is
ours.
"""

VOLUMES: Final = frozenset(
    # internal/consts/volume.go, as internal/render/{worker,login}/volume.go call them.
    {
        "boot", "dev-shm", "in-memory", "jail", "munge-key", "munge-socket", "nvidia",
        "nvidia-imex-cli", "nvidia-imex-cli-jail", "nvidia-imex-config", "nvidia-imex-config-jail",
        "security-limits", "ssh-configs", "ssh-configs-worker", "ssh-root-keys", "sshd-keys",
        "sssd-conf", "sssd-ldap-ca", "sssd-socket", "supervisord-config", "sysctl", "tmp-disk",
        "topology-node-labels", "worker-spool",
    }
    # infra/render/values: of this program.
    | {
        "docker-on-image-storage", "enroot-on-image-storage", "home-dir", "hpc-jobs-dir",
        "image-storage", "local-nvme", "memory", "nfs", "nvidia-driver-root", "slurm-scripts",
        "slurm-scripts-jail",
    }
)  # fmt: skip
"""Names of the other volumes in pods of login and workers: a second of a name makes a pod that the
API server refuses, and a disk of a node by that name takes the other's place."""
