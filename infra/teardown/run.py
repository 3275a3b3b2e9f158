"""`pulumi destroy` that does not stop at a kube cluster which is gone: destroy(stack, ...).

Sets the official plugin's switch for such a cluster in this one run, and only where the API server
was silent: set for good, it would also forget objects at a refresh during an outage. The plugin
heeds it at the deletion of an object, but of a Helm release only at a refresh
(https://github.com/pulumi/pulumi-kubernetes/issues/2675, open on 2026-11-22), so the releases are
refreshed out of the state first.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from infra.teardown.reach import PAUSES_S, gone, target

UNREACHABLE: Final = "PULUMI_K8S_DELETE_UNREACHABLE"
_RELEASE: Final = "kubernetes:helm.sh/v3:Release"


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
    state = _state(stack, root, environ)
    found = target(state)
    reason = None if found is None else gone(found, exists=exists, say=say, pauses_s=pauses_s)

    def pulumi(verb: str, *more: str, **switch: str) -> int:
        command = ["pulumi", verb, "--stack", stack, *options, *more]
        return subprocess.run(command, cwd=root, env={**environ, **switch}, check=False).returncode

    if reason is None:
        return pulumi("destroy")
    say(
        f"{reason}: what runs in it is dropped from the state and ends with the cluster "
        f"({UNREACHABLE}=true, in this run only)"
    )
    switch = {UNREACHABLE: "true"}
    if releases := [f"--target={urn}" for urn in _releases(state)]:
        status = pulumi("refresh", *releases, **switch)
        if status != 0:
            return status
    return pulumi("destroy", **switch)


def _releases(state: Mapping[str, Any]) -> list[str]:
    """URNs of the Helm releases of a state."""
    resources = (state.get("deployment") or {}).get("resources") or []
    return [each["urn"] for each in resources if each.get("type") == _RELEASE]


def _state(stack: str, root: Path, environ: Mapping[str, str]) -> Mapping[str, Any]:
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
