"""Whether a kube cluster still answers at the end of its stack: gone(state, ...) -> why, or None.

Asked before the engine uninstalls anything. Only silence counts: an API server that answers at all,
with whatever, is there. Owns how long silence must last.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import urllib3

from infra.kube.kubeconfig import Access, KubeconfigError, read_kubeconfig

TEARDOWN: Final = "soperator:kube:Teardown"
PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Between attempts: half a minute, as long as a control plane restarts."""
_TIMEOUT: Final = urllib3.Timeout(connect=5.0, read=10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The kube cluster of a deployed stack."""

    cluster_id: str
    kubeconfig: str


def target(state: Mapping[str, Any]) -> Target | None:
    """The cluster out of `pulumi stack export --show-secrets`; None where none was made."""
    for resource in (state.get("deployment") or {}).get("resources") or []:
        if resource.get("type") == TEARDOWN:
            inputs = resource.get("inputs") or {}
            return Target(
                cluster_id=_plain(inputs.get("cluster_id")),
                kubeconfig=_plain(inputs.get("kubeconfig")),
            )
    return None


def gone(
    found: Target,
    *,
    exists: Callable[[str], bool],
    say: Callable[[str], None],
    pauses_s: tuple[float, ...] = PAUSES_S,
    cancelled: threading.Event | None = None,
) -> str | None:
    """Why the API server counts as gone, in one line; None while it answers.

    `exists` asks the cloud for the cluster: of one that is no longer there, nothing is waited for.
    """
    try:
        access = read_kubeconfig(found.kubeconfig)
    except KubeconfigError:
        # Nothing to ask; the engine will say what is wrong with it.
        return None
    event = cancelled or threading.Event()
    for pause_s in (*pauses_s, None):
        if _answers(access):
            return None
        if not exists(found.cluster_id):
            return f"cluster {found.cluster_id} is gone"
        if pause_s is None or event.wait(pause_s):
            break
        say(f"the Kubernetes API at {access.server} does not answer; asking again")
    return (
        f"the Kubernetes API at {access.server} has not answered for {sum(pauses_s):.0f} s, though "
        f"cluster {found.cluster_id} exists"
    )


def _answers(access: Access) -> bool:
    """Whether anything comes back; without a credential, which would need tools of its own."""
    options = {"ssl_context": access.ssl_context()} if access.server[:6] == "https:" else {}
    with urllib3.connection_from_url(access.server, timeout=_TIMEOUT, **options) as http:
        try:
            http.request("GET", "/version", retries=False)
        except urllib3.exceptions.HTTPError:
            return False
        return True


def _plain(value: Any) -> str:
    """Text of an input; of a secret that was asked for in the open, its own."""
    if isinstance(value, Mapping):
        value = value.get("plaintext", "")
        return str(json.loads(value)) if value[:1] == '"' else str(value)
    return str(value or "")
