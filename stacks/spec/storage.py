"""Filesystems of a stack: jail, submounts, spool, accounting, backups and the logical places.

Sizes are GiB (2^30 bytes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from stacks.spec.decode import Days, SizeGib, SizeGibOrZero

PLACES: Final = ("data", "model", "chkpt", "elastic", "logs", "results", "cache", "scratch")
"""Logical places that recipes name; every stack maps each to a path."""


class DiskType(StrEnum):
    """Nebius disk types, as the API spells them (lower case, dashes)."""

    NETWORK_SSD = "network-ssd"
    NETWORK_SSD_NON_REPLICATED = "network-ssd-non-replicated"
    NETWORK_SSD_IO_M3 = "network-ssd-io-m3"
    NETWORK_HDD = "network-hdd"


class FilesystemType(StrEnum):
    """Types of shared filesystems that the API has, as it spells them."""

    NETWORK_SSD = "network-ssd"
    NETWORK_HDD = "network-hdd"
    WEKA = "weka"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesystemSpec:
    """One shared filesystem without a mount path of its own: `existing_id` or `size_gib`."""

    size_gib: SizeGib | None = None
    """Grows in place and never shrinks."""
    existing_id: str | None = None
    """A filesystem that the stack uses and neither changes nor deletes."""
    type: FilesystemType = FilesystemType.NETWORK_SSD
    """Cannot be changed later."""
    forbid_deletion: bool = False
    """Whether the API refuses to delete it, whoever asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmountSpec:
    """One extra shared filesystem in the jail at `mount_path`: `existing_id` or `size_gib`."""

    name: str
    """Name of the submount; its mount tag is `jail-submount-<name>`."""
    mount_path: str
    """Absolute path in the jail, on login and worker nodes."""
    size_gib: SizeGib | None = None
    """Size in GiB of a filesystem that the stack makes."""
    existing_id: str | None = None
    """Id of a filesystem that exists."""
    type: FilesystemType = FilesystemType.NETWORK_SSD
    """Type of the filesystem."""
    forbid_deletion: bool = False
    """Whether the API refuses to delete the filesystem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMountSpec:
    """A tmpfs on every worker beside Soperator's own at /mnt/memory; jobs share it, and it is lost
    with the node."""

    mount_path: str
    """Absolute path in the jail of every worker."""
    size_gib: SizeGib
    """Most GiB of the node's memory that files there may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupSpec:
    """Daily copies of the jail in object storage."""

    keep_daily: Days
    """Daily copies that are kept."""
    size_gib: SizeGib
    """Size of one copy that is paid for."""
    schedule: str = "@daily-random"
    """When a copy is made: cron, or a word of k8up such as `@daily-random`."""
    prune_schedule: str = "@weekly-random"
    """When copies beyond `keep_daily` are removed."""
    password_version: int = 1
    """Raised to rotate: a new password with a repository of its own; earlier ones are kept."""
    key_version: int = 1
    """Raised to make a new access key at once."""
    key_days: Days = 365
    """Life of an access key; the first `up` in its last quarter makes the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSpec:
    """Every filesystem of the stack and the logical places that recipes name."""

    jail: FilesystemSpec
    controller_spool: FilesystemSpec
    accounting: FilesystemSpec | None = None
    submounts: tuple[SubmountSpec, ...] = ()
    memory: MemoryMountSpec | None = None
    backup: BackupSpec | None = None
    places: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Logical place (PLACES) -> absolute path in the jail."""
    purge_on_destroy: bool = False
    """Whether `pulumi destroy` deletes filesystems and buckets; `up` must have applied it first."""
    config_bucket_gib: SizeGibOrZero | None = None
    """Object storage of versioned configs, whole GiB; 0 means under one GiB; None has no bucket."""
    registry_gib: SizeGibOrZero | None = None
    """Container images that users push, whole GiB; 0 means under one GiB; None has no registry."""
