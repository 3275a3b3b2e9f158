"""What a cluster declares and does not get, as conditions of its status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.local.reconcile.plan import NodeSetPlan
from infra.local.reconcile.snapshot import name_of


def notes(spec: Mapping[str, Any], nodesets: tuple[NodeSetPlan, ...]) -> list[tuple[str, str]]:
    """Type and message of each condition; none where all that is declared comes up."""
    found: list[tuple[str, str]] = []
    nodes = spec["slurmNodes"]
    accounting = nodes.get("accounting") or {}
    if (nodes.get("rest") or {}).get("enabled") and not accounting.get("enabled"):
        found.append(("RESTAvailable", "rest is skipped: it needs accounting.enabled"))
    if accounting.get("enabled") and (accounting.get("externalDB") or {}).get("enabled"):
        found.append(("AccountingAvailable", "an external database is not reachable from here"))
    known = {name_of(item.source) for item in nodesets if not item.problem}
    partitions = (spec.get("partitionConfiguration") or {}).get("partitions") or []
    unresolved = sorted(
        {name for item in partitions for name in item.get("nodeSetRefs") or []} - known
    )
    if unresolved:
        found.append(("NodeSetRefsResolved", f"no NodeSet named {', '.join(unresolved)}"))
    if not (nodes["login"].get("sshRootPublicKeys") or []):
        found.append(("SSHKeysPresent", "login.sshRootPublicKeys is empty: nobody may enter"))
    return found
