"""`pulumi destroy` that does not stop at a kube cluster which is gone: destroy(stack, ...).

Sets the official plugin's switch for such a cluster in this one run, and only where the API server
was silent: set for good, it would also forget objects at a refresh during an outage.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from infra.teardown.reach import PAUSES_S, gone, target

UNREACHABLE: Final = "PULUMI_K8S_DELETE_UNREACHABLE"


def destroy(
    stack: str,
    *,
    root: Path,
    environ: Mapping[str, str],
    options: Sequence[str],
    exists: Callable[[str], bool],
    say: Callable[[str], None],
    pauses_s: tuple[float, ...] = PAUSES_S,
) -> int:
    """Exit status of the engine; `root` holds Pulumi.yaml, `exists` asks for a cluster by id."""
    found = target(_state(stack, root, environ))
    reason = None if found is None else gone(found, exists=exists, say=say, pauses_s=pauses_s)
    switch: dict[str, str] = {}
    if reason is not None:
        switch[UNREACHABLE] = "true"
        say(
            f"{reason}: what runs in it is dropped from the state and ends with the cluster "
            f"({UNREACHABLE}=true, in this run only)"
        )
    command = ["pulumi", "destroy", "--stack", stack, *options]
    return subprocess.run(command, cwd=root, env={**environ, **switch}, check=False).returncode


def _state(stack: str, root: Path, environ: Mapping[str, str]) -> Mapping[str, object]:
    """The state with its secrets in the open, in memory only; empty where the engine has none."""
    done = subprocess.run(
        ["pulumi", "stack", "export", "--show-secrets", "--stack", stack, "--non-interactive"],
        cwd=root,
        env=dict(environ),
        capture_output=True,
        text=True,
        check=False,
    )
    # The engine's own destroy says better what is wrong with a stack that cannot be read.
    return json.loads(done.stdout) if done.returncode == 0 else {}
