"""The end of a job of k8up: await_end(client, target, ...) -> what went wrong, or None."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from infra.kube.client import KubeClient
from infra.kube.errors import WaitTimeoutError
from stacks.errors import UserError

_LONGEST_S: Final = 48 * 3600.0


def await_end(
    client: KubeClient,
    target: dict[str, Any],
    *,
    tell: Callable[[str], None],
    cancelled: threading.Event | None = None,
) -> str | None:
    """Why a Backup or Restore that was made has failed, with where its log is; None where it has
    succeeded."""
    kind = target["kind"].lower()
    try:
        done = client.wait_for(
            target,
            f"the end of the {kind}",
            lambda live: _completed(live) is not None,
            timeout_s=_LONGEST_S,
            tell=tell,
            cancelled=cancelled,
        )
    except WaitTimeoutError as error:
        raise UserError(str(error)) from error
    ended = _completed(done)
    if ended is not None and ended["reason"] == "Succeeded":
        return None
    name, namespace = target["metadata"]["name"], target["metadata"]["namespace"]
    return (
        f"{name}: {'' if ended is None else ended['message']}; its log: "
        f"kubectl -n {namespace} logs job/{kind}-{name}"
    )


def _completed(live: Mapping[str, Any]) -> Mapping[str, Any] | None:
    conditions = (live.get("status") or {}).get("conditions") or []
    found = (each for each in conditions if each["type"] == "Completed")
    return next((each for each in found if each["status"] == "True"), None)
