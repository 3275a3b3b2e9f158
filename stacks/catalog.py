"""Hardware facts: platforms, presets, CPU topology, fabrics, regions, disk rules, and what
Soperator's pods may ask of a node.

Every table stands under its source and date. Owns no prices (cost/) and no choices (Pulumi.*.yaml).
The live lists are those of the API (`nebius compute platform list`); these are offline copies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

AMD64: Final = "amd64"


@dataclass(frozen=True, slots=True)
class Preset:
    """One size of a platform."""

    vcpus: int
    memory_gib: int
    gpus: int = 0
    sockets: int = 1
    threads_per_core: int = 2
    allows_gpu_cluster: bool = False
    """Whether its VMs can join an InfiniBand GPU cluster."""

    @property
    def name(self) -> str:
        """As the API spells it: `8gpu-128vcpu-1600gb`."""
        size = f"{self.vcpus}vcpu-{self.memory_gib}gb"
        return f"{self.gpus}gpu-{size}" if self.gpus else size

    @property
    def cores_per_socket(self) -> int:
        """Cores of one socket, each with its threads."""
        return self.vcpus // self.sockets // self.threads_per_core


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """One Nebius hardware type."""

    name: str
    presets: Mapping[str, Preset]
    regions: tuple[str, ...]
    gres_type: str | None = None
    """GRES type of its GPUs in slurm.conf; None on CPU platforms."""
    gpu_memory_gb: int | None = None
    architecture: str = AMD64
    """CPU architecture, as Kubernetes spells it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """One InfiniBand fabric."""

    name: str
    region: str
    platform: str


# CPU platforms. Source: nebius-solutions-library soperator/modules/available_resources
# (platform.tf, preset.tf, region.tf), commit 7b687e5, 2026-04-21. 4 GiB of memory per vCPU.
# cpu-d3 has one socket up to 128 vCPUs, two from 160; cpu-e2 has two from 48.
_CPU_D3: Final = tuple(
    Preset(vcpus, 4 * vcpus, sockets=2 if vcpus >= 160 else 1)
    for vcpus in (2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256)
)
_CPU_E2: Final = tuple(
    Preset(vcpus, 4 * vcpus, sockets=2 if vcpus >= 48 else 1)
    for vcpus in (2, 4, 8, 16, 32, 48, 64, 80)
)

# SXM platforms. Same source; only the 8-GPU presets join a GPU cluster.
_SXM_HOPPER: Final = (
    Preset(16, 200, gpus=1),
    Preset(128, 1600, gpus=8, sockets=2, allows_gpu_cluster=True),
)
_SXM_B200: Final = (
    Preset(20, 224, gpus=1),
    Preset(160, 1792, gpus=8, sockets=2, allows_gpu_cluster=True),
)
_SXM_B300: Final = (
    Preset(24, 346, gpus=1),
    Preset(192, 2768, gpus=8, sockets=2, allows_gpu_cluster=True),
)

# L40S has no InfiniBand. Source: docs.nebius.com/compute/virtual-machines/types, 2026-11, through
# public copies of its table; github.com/sar/nebius ran `2gpu-64vcpu-384gb`. The CPU topology is not
# published: it is taken from the CPU platforms of the same generation (Genoa as cpu-d3, Ice Lake as
# cpu-e2) and must be confirmed with `slurmd -C` on a node.
_L40S_A: Final = (
    Preset(8, 32, gpus=1),
    Preset(16, 64, gpus=1),
    Preset(24, 96, gpus=1),
    Preset(32, 128, gpus=1),
    Preset(40, 160, gpus=1),
)
_L40S_D: Final = (
    Preset(16, 96, gpus=1),
    Preset(32, 192, gpus=1),
    Preset(48, 288, gpus=1),
    Preset(64, 384, gpus=2),
    Preset(96, 576, gpus=2),
    Preset(128, 768, gpus=4),
    Preset(192, 1152, gpus=4, sockets=2),
)

# Regions: region.tf of the same commit; L40S from docs.nebius.com/overview/regions, 2026-11.
# GRES types: gres names of the same modules; nvidia_l40s follows the form that NVML reports.
PLATFORMS: Final[Mapping[str, Platform]] = MappingProxyType(
    {
        name: Platform(
            name=name,
            presets=MappingProxyType({preset.name: preset for preset in presets}),
            regions=regions,
            gres_type=gres_type,
            gpu_memory_gb=gpu_memory_gb,
        )
        for name, presets, regions, gres_type, gpu_memory_gb in (
            ("cpu-e2", _CPU_E2, ("eu-north1",), None, None),
            (
                "cpu-d3",
                _CPU_D3,
                ("eu-north1", "eu-north2", "eu-west1", "me-west1", "uk-south1", "us-central1"),
                None,
                None,
            ),
            ("gpu-l40s-a", _L40S_A, ("eu-north1",), "nvidia_l40s", 48),
            ("gpu-l40s-d", _L40S_D, ("eu-north1",), "nvidia_l40s", 48),
            ("gpu-h100-sxm", _SXM_HOPPER, ("eu-north1",), "nvidia_h100_80gb_hbm3", 80),
            (
                "gpu-h200-sxm",
                _SXM_HOPPER,
                ("eu-north1", "eu-north2", "eu-west1", "us-central1"),
                "nvidia_h200",
                141,
            ),
            ("gpu-b200-sxm", _SXM_B200, ("us-central1",), "nvidia_b200", 180),
            ("gpu-b200-sxm-a", _SXM_B200, ("me-west1",), "nvidia_b200", 180),
            ("gpu-b300-sxm", _SXM_B300, ("uk-south1",), "nvidia_b300_sxm6_ac", 288),
        )
    }
)

REGIONS: Final[tuple[str, ...]] = tuple(
    sorted({region for platform in PLATFORMS.values() for region in platform.regions})
)

# Fabrics. Source: nebius-solutions-library k8s-training/locals.tf and skypilot
# provision/nebius/constants.py, 2026-04. Nebius assigns fabrics to tenants and adds new ones, so a
# name that is missing here is doubtful, not wrong; the capacity API is the authority.
FABRICS: Final[Mapping[str, Fabric]] = MappingProxyType(
    {
        name: Fabric(name=name, region=region, platform=platform)
        for name, region, platform in (
            ("fabric-2", "eu-north1", "gpu-h100-sxm"),
            ("fabric-3", "eu-north1", "gpu-h100-sxm"),
            ("fabric-4", "eu-north1", "gpu-h100-sxm"),
            ("fabric-6", "eu-north1", "gpu-h100-sxm"),
            ("fabric-7", "eu-north1", "gpu-h200-sxm"),
            ("fabric-5", "eu-west1", "gpu-h200-sxm"),
            ("eu-north2-a", "eu-north2", "gpu-h200-sxm"),
            ("us-central1-a", "us-central1", "gpu-h200-sxm"),
            ("us-central1-b", "us-central1", "gpu-b200-sxm"),
            ("me-west1-a", "me-west1", "gpu-b200-sxm-a"),
            ("uk-south1-a", "uk-south1", "gpu-b300-sxm"),
        )
    }
)

# Disks and groups. Source: docs.nebius.com/compute/storage/types, 2026-04, and the comments of
# soperator/installations/example/variables.tf, commit 7b687e5.
STRIPED_DISK_STEP_GIB: Final = 93
"""Sizes of network-ssd-non-replicated and network-ssd-io-m3 disks are multiples of this."""
STRIPED_DISK_MAX_GIB: Final = 262_074
BOOT_DISK_MIN_GIB: Final = 64
"""What the mk8s API accepts (nebius.mk8s.v1.NodeTemplate.boot_disk: at least 64 GiB)."""
BOOT_DISK_LARGE_GIB: Final = 10 << 10
"""No document bounds a network-ssd disk. This is twenty times what the recipe wants for a worker,
whose jobs write elsewhere, and less than any advised size in MiB."""
BOOT_DISK_ADVISED_GIB: Final[Mapping[str, int]] = MappingProxyType(
    {"system": 128, "controller": 128, "login": 256, "accounting": 128, "nfs": 128, "worker": 512}
)
"""What the Soperator recipe refuses to go under, per role."""
VCPUS_ADVISED: Final[Mapping[str, int]] = MappingProxyType(
    {"system": 8, "controller": 2, "login": 16, "accounting": 4, "worker": 8}
)
"""Smallest preset that the recipe calls sufficient, per role (preset.tf, commit 7b687e5)."""
PLATFORM_ALIASES: Final[Mapping[str, str]] = MappingProxyType({"gpu-h200": "gpu-h200-sxm"})
"""Names that documents use for a platform of the API (terraform.tfvars of published projects)."""
SYSTEM_MIN_NODES_ADVISED: Final = 3
NODES_PER_GROUP_MAX: Final = 100
"""nebius.mk8s.v1.NodeGroupSpec.fixed_node_count and max_node_count: 0 to 100."""
MAX_PODS: Final = range(8, 257)
"""nebius.mk8s.v1.NodeTemplate.max_pods: 8 to 256, as the SDK's descriptors say (2026-11)."""
ALLOWED_CIDRS_MAX: Final = 100
"""nebius.mk8s.v1.PublicEndpointSpec.allowed_cidrs, as the SDK describes it (2026-11)."""

# Machines with drives of their own. Source: local_nvme_supported of the same module, 7b687e5.
LOCAL_NVME: Final = frozenset({("uk-south1", "gpu-b300-sxm", "8gpu-192vcpu-2768gb")})
"""Region, platform and preset of nodes whose NVMe drives can be passed through."""
DISK_LARGE_GIB: Final = 64 << 10
"""As BOOT_DISK_LARGE_GIB, of a disk for data: 64 GiB given in MiB, and a hundred times the recipe's
image disk of 930 GiB, rounded down."""
LARGE_FILESYSTEM_GIB: Final = 2048
"""Filesystems over 2 TiB need Nebius support (README of the recipe)."""


def find_preset(platform: str, preset: str) -> Preset | None:
    """The preset, or None where the platform or the preset is not known."""
    known = PLATFORMS.get(platform)
    if known is None and platform.startswith(ATTACHED):
        found = _SIZE.fullmatch(preset)
        return found and Preset(int(found[2]), int(found[3]), gpus=int(found[1] or 0))
    return None if known is None else known.presets.get(preset)


ATTACHED: Final = "slurm-"
"""What a platform begins with that is no product of Nebius: nodes of an attached cluster."""
_SIZE: Final = re.compile(r"(?:(\d{1,4})gpu-)?(\d{1,6})vcpu-(\d{1,7})gb", re.ASCII)


def attached_hardware(
    gpu_type: str | None, gpus: int, cpus: int, memory_mib: int
) -> tuple[str, str]:
    """Platform and preset by which run records and prices know nodes of an attached cluster.

    The preset is spelled as those of Nebius are, so that its name says all that is asked of it.
    """
    kind = re.sub(r"[^a-z0-9]+", "-", (gpu_type or "gpu").lower()).strip("-") if gpus else "cpu"
    size = f"{cpus}vcpu-{max(1, memory_mib // GIB)}gb"
    return f"{ATTACHED}{kind or 'gpu'}", f"{gpus}gpu-{size}" if gpus else size


class Alias(str):
    """A name of the API that was written in another way; equal to the name itself."""

    __slots__ = ("written",)

    written: str

    def __new__(cls, name: str, *, written: str) -> Alias:
        """The name, remembering what was written."""
        made = super().__new__(cls, name)
        made.written = written
        return made


def canonical_platform(written: str) -> str:
    """The API's name of a platform; an Alias where another name was written."""
    name = PLATFORM_ALIASES.get(written)
    return written if name is None else Alias(name, written=written)


# What Soperator's pods may ask of a node: the resource arithmetic of the official recipe, exactly.
# Whole millicores and MiB, so that nothing is rounded twice. Source: nebius-solutions-library
# soperator/modules/available_resources and modules/slurm/locals.tf, commit 7b687e5, 2026-04-21.
# infra/render/charts.py writes them as Kubernetes quantities, and the rules refuse
# presets that leave nothing.
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

    def __str__(self) -> str:
        return (
            f"{self.cpu_m / _CORE_M:g} vCPUs, {self.memory_mib / GIB:g} GiB of memory and "
            f"{self.ephemeral_mib / GIB:g} GiB of disk"
        )

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
