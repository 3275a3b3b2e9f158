"""What a run was configured by: its recipe with every setting in it, beside its record.

Owns the bytes, which are those that the submission stored in the stack's bucket under their hash
(SOPERATOR_RUN_CONFIG: bucket/key), so that the record can name that object as its own.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from workloads.common import atomic
from workloads.common.log import log

FILE_NAME = "recipe.json"
VARIABLE = "SOPERATOR_RUN_CONFIG"


def config_text(recipe: Mapping[str, Any]) -> str:
    """Return the recipe as one JSON file, the same for the same values."""
    return json.dumps(recipe, indent=2, sort_keys=True) + "\n"


def keep(results_dir: Path, recipe: Mapping[str, Any]) -> dict[str, str]:
    """Write the file to `results_dir`; return the artifacts that the record names."""
    path, text = results_dir / FILE_NAME, config_text(recipe)
    atomic.write_text(path, text)
    artifacts = {"recipe": str(path)}
    stored = os.environ.get(VARIABLE)
    if not stored:
        return artifacts
    digest = PurePosixPath(stored).stem
    if digest and hashlib.sha256(text.encode()).hexdigest().startswith(digest):
        artifacts["stored_recipe"] = f"s3://{stored}"
    else:
        log(f"{VARIABLE} {stored} holds other settings than this run has: see {path}")
    return artifacts
