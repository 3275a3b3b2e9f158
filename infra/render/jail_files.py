"""Files of the jail as a ConfigMap and the JailedConfig that says where they go. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from stacks.soperator_spec import JailFileSpec

NAME: Final = "jail-files"
"""Name of the ConfigMap and of the JailedConfig."""
API_VERSION: Final = "slurm.nebius.ai/v1alpha1"
KIND: Final = "JailedConfig"


def texts(files: Sequence[JailFileSpec]) -> dict[str, str]:
    """Data of the ConfigMap: one key for each file, since a path is no key."""
    return {_key(index): file.content for index, file in enumerate(files)}


def jailed_config(files: Sequence[JailFileSpec]) -> dict[str, Any]:
    """Specification of the JailedConfig; a changed file makes Slurm read nothing again."""
    return {
        "configMap": {"name": NAME},
        "items": [
            {"key": _key(index), "path": file.path, "mode": int(file.mode, 8)}
            for index, file in enumerate(files)
        ],
    }


def _key(index: int) -> str:
    return f"file-{index}"
