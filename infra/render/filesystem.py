"""The API's FilesystemSpec of a declared filesystem: spec -> dict. Pure."""

from __future__ import annotations

from typing import Any

from stacks.storage_spec import FilesystemSpec, SubmountSpec


def filesystem_spec(declared: FilesystemSpec | SubmountSpec) -> dict[str, Any]:
    """Type, GiB and whether the API refuses to delete it; the block size stays the API's own.

    WEKA takes no block size at all (recipe, modules/filestore).
    """
    spec: dict[str, Any] = {"type": declared.type.value, "size_gibibytes": declared.size_gib}
    if declared.forbid_deletion:
        spec["forbid_deletion"] = True
    return spec
