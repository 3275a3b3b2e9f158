"""Filesystems of a stack: jail, submounts, spool, accounting, backups and the logical places.

Owns names, types, units and defaults; `StackSpec` (spec.py) holds them. Sizes are GiB (2^30 bytes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

PLACES: Final = ("data", "model", "chkpt", "elastic", "logs", "results", "cache", "scratch")
"""Logical places that recipes name; every stack maps each to a path."""


class DiskType(StrEnum):
    """Nebius disk and filesystem types, as the API spells them (lower case, dashes)."""

    NETWORK_SSD = "network-ssd"
    NETWORK_SSD_NON_REPLICATED = "network-ssd-non-replicated"
    NETWORK_SSD_IO_M3 = "network-ssd-io-m3"
    NETWORK_HDD = "network-hdd"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesystemSpec:
    """One shared filesystem without a mount path of its own (controller spool, accounting)."""

    size_gib: int
    type: DiskType = DiskType.NETWORK_SSD


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmountSpec:
    """One extra shared filesystem in the jail at `mount_path`: `existing_id` or `size_gib`."""

    name: str
    mount_path: str
    size_gib: int | None = None
    existing_id: str | None = None
    type: DiskType = DiskType.NETWORK_SSD


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMountSpec:
    """A tmpfs on every worker; lost with the node."""

    mount_path: str
    size_gib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupSpec:
    """Daily copies of the jail in object storage."""

    keep_daily: int
    size_gib: int
    """Size of one copy that is paid for."""


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
    config_bucket_gib: int | None = None
    """Object storage of versioned configs, whole GiB; 0 means under one GiB; None has no bucket."""
