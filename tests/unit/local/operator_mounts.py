"""Where the operator's own volumes are in the pods of Slurm, by its sources."""

from types import MappingProxyType
from typing import Final

from stacks.machines import JAIL_UPPER, MEMORY

_WORKER: Final = "internal/render/worker/volume.go"
_LOGIN: Final = "internal/render/login/volume.go"
_IMEX: Final = "internal/render/common/nvidia_imex.go"
_VOLUMES: Final = "internal/render/common/volume.go"

IN_POD: Final = MappingProxyType(
    {
        "/boot": _WORKER,
        "/dev/shm": _WORKER,
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
        "/tmp": _VOLUMES,
        "/tmp/slurm/topology-node-labels": "internal/consts/volume.go",
        "/usr/bin/nvidia-imex-ctl": _IMEX,
        "/var/lib/sss/pipes": _VOLUMES,
        "/var/spool/slurmd": _VOLUMES,
    }
)
"""mountPath of the operator's own volumes in the containers of slurmd and sshd -> source.

helm-slurm-cluster adds /opt/slurm_scripts to login pods, here and in the jail; that of workers is
ours.
"""
