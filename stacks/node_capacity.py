"""What Soperator's pods may ask of a node: the resource arithmetic of the official recipe, exactly.

Owns the figures; infra/render/values/resources.py writes them as Kubernetes quantities, and the
rules refuse presets that leave nothing. Whole millicores and MiB, so that nothing is rounded twice.

Source: nebius-solutions-library soperator/modules/available_resources and modules/slurm/locals.tf,
commit 7b687e5, 2026-04-21.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stacks.catalog import Preset

GIB: Final = 1024
"""MiB in a GiB."""
_CORE_M: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """CPU, memory and ephemeral storage of a node or a container."""

    cpu_m: int
    """Thousandths of a vCPU."""
    memory_mib: int
    ephemeral_mib: int

    def less(self, *others: Amounts) -> Amounts:
        """What is left beside the others; may be negative."""
        return Amounts(
            cpu_m=self.cpu_m - sum(other.cpu_m for other in others),
            memory_mib=self.memory_mib - sum(other.memory_mib for other in others),
            ephemeral_mib=self.ephemeral_mib - sum(other.ephemeral_mib for other in others),
        )

    @property
    def is_positive(self) -> bool:
        """Whether a container may ask for it: the API server refuses less."""
        return self.cpu_m >= 0 and self.memory_mib > 0 and self.ephemeral_mib > 0


MUNGE: Final = Amounts(cpu_m=100, memory_mib=512, ephemeral_mib=5 * GIB)
SSSD: Final = Amounts(cpu_m=200, memory_mib=512, ephemeral_mib=5 * GIB)
KRUISE_DAEMON: Final = Amounts(cpu_m=50, memory_mib=131, ephemeral_mib=0)
"""0.128 GiB in the recipe, which is 131.072 MiB."""
MARIADB: Final = Amounts(cpu_m=2000, memory_mib=12 * GIB, ephemeral_mib=16 * GIB)
"""Less than the cache of 32,768 MiB that the operator gives it (nebius/soperator 4.1.7,
internal/consts/mariadb.go, innodb_buffer_pool_size), for which no chart has a value: a database
that grows to the limit is killed there and starts again."""
REST: Final = Amounts(cpu_m=2000, memory_mib=8 * GIB, ephemeral_mib=512)
SCONFIG_CONTROLLER: Final = Amounts(cpu_m=250, memory_mib=256, ephemeral_mib=500)


def node_capacity(preset: Preset, boot_disk_gib: int) -> Amounts:
    """What a node offers beside kubelet and the system: a vCPU, a tenth and 2 GiB, and the image.

    Memory and ephemeral storage are whole GiB.
    """
    return Amounts(
        cpu_m=(preset.vcpus - 1) * _CORE_M,
        memory_mib=(preset.memory_gib * 9 // 10 - 2) * GIB,
        ephemeral_mib=(boot_disk_gib * 85 // 100 - 48) * GIB,
    )


def slurmd_amounts(preset: Preset, boot_disk_gib: int, *, sssd: bool = False) -> Amounts:
    """Requests and limits of slurmd, which are Slurm's RealMemory too; `sssd`: beside a sidecar."""
    left = node_capacity(preset, boot_disk_gib).less(*_sidecars(sssd))
    return Amounts(
        cpu_m=left.cpu_m // _CORE_M * _CORE_M - KRUISE_DAEMON.cpu_m,
        # Floored twice, as in the recipe: GiB beside sidecars, then beside the daemon of Kruise.
        memory_mib=(left.memory_mib // GIB * GIB - KRUISE_DAEMON.memory_mib) // GIB * GIB,
        ephemeral_mib=left.ephemeral_mib,
    )


def system_amounts(preset: Preset, boot_disk_gib: int, *, sssd: bool = False) -> Amounts:
    """Requests of slurmctld on the controller node and of sshd on a login node."""
    left = node_capacity(preset, boot_disk_gib).less(*_sidecars(sssd), KRUISE_DAEMON)
    return Amounts(
        cpu_m=left.cpu_m // _CORE_M * _CORE_M,
        memory_mib=left.memory_mib // GIB * GIB,
        ephemeral_mib=left.ephemeral_mib,
    )


def slurmdbd_amounts(preset: Preset, boot_disk_gib: int) -> Amounts:
    """Requests of slurmdbd on the accounting node, beside its database."""
    return node_capacity(preset, boot_disk_gib).less(MUNGE, MARIADB)


def _sidecars(sssd: bool) -> tuple[Amounts, ...]:
    return (MUNGE, SSSD) if sssd else (MUNGE,)
