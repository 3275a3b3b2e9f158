"""Ids that the states of a backend hold, read through the pulumi CLI."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stacks.errors import UserError


def known_ids(*, root: Path, environ: Mapping[str, str]) -> frozenset[str]:
    """Ids of every resource in any state of the backend; `root` holds Pulumi.yaml."""
    stacks = json.loads(_pulumi(["stack", "ls", "--json"], root, environ))
    found: set[str] = set()
    for stack in stacks:
        text = _pulumi(["stack", "export", "--stack", stack["name"]], root, environ)
        found.update(ids_in(json.loads(text)))
    return frozenset(found)


def ids_in(export: Mapping[str, Any]) -> set[str]:
    """Ids in one exported state, those that wait for their deletion too."""
    resources = (export.get("deployment") or {}).get("resources") or []
    return {resource["id"] for resource in resources if resource.get("id")}


def _pulumi(arguments: list[str], root: Path, environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            ["pulumi", *arguments, "--non-interactive"],
            cwd=root,
            env={**environ, "PULUMI_SKIP_UPDATE_CHECK": "true"},
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise UserError(
            'pulumi: not on PATH; run `make setup`, then `eval "$(soperator env)"`'
        ) from error
    if done.returncode != 0:
        reason = " ".join((done.stderr or done.stdout).split())
        raise UserError(
            f"pulumi {' '.join(arguments)}: {reason}; without every state it is not known what "
            "is left over"
        )
    return done.stdout
