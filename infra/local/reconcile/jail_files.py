"""Files that JailedConfigs put into the jail, as Soperator's sconfigcontroller writes them.

Pods here take `/etc` and the like from this machine, so only files under the folders that come from
the jail (`/root`, `/srv`, `/mnt`) are seen by users; the others lie in the jail all the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from infra.local.reconcile.snapshot import Object, Snapshot

_MODE: Final = 0o644


def write_jail_files(snapshot: Snapshot, cluster: Object, jail: Path) -> None:
    """Write what the JailedConfigs beside the cluster name; equal files are left alone."""
    namespace = cluster["metadata"]["namespace"]
    for config in snapshot.all("JailedConfig", namespace):
        spec: dict[str, Any] = config["spec"]
        texts = snapshot.find("ConfigMap", spec["configMap"]["name"], namespace)
        data = (texts or {}).get("data") or {}
        for item in spec.get("items") or []:
            if item["key"] in data:
                mode = item.get("mode", spec.get("defaultMode", _MODE))
                _write(jail, item["path"], data[item["key"]], mode)


def _write(jail: Path, path: str, text: str, mode: int) -> None:
    target = jail / path.lstrip("/")
    if not target.resolve().is_relative_to(jail.resolve()):
        return  # a link or `..` leads out of the jail
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_file() or target.read_text() != text:
        target.write_text(text)
    target.chmod(mode)
