"""Pods as the Soperator operator 4.1.7 renders them: volumes, mounts, init containers, names.

Follows nebius/soperator 4.1.7, internal/render (read 2026-11-22): what a kubelet and the API server
check, in the order of the operator, so that indices in their words are the real ones. Leaves out
what nothing here checks: environment, ports, probes, security contexts. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import yaml

from infra.local.reconcile.snapshot import Object
from infra.providers.soperator.crds import LOADER
from stacks.files import environment
from stacks.machines import JAIL_UPPER, MEMORY

if TYPE_CHECKING:
    import jinja2

MADE: Final = "local.soperator/made-of"
"""Annotation of what the reconciler makes: a digest of what it was made of."""
KRUISE: Final = ("apps.kruise.io/v1beta1", "StatefulSet")
_HOST_KEYS: Final = tuple(
    f"ssh_host_{kind}_key{suffix}"
    for kind in ("ecdsa", "ed25519", "rsa")
    for suffix in ("", ".pub")
)
_IMEX: Final = (
    ("nvidia-imex-cli", "/usr/bin/nvidia-imex-ctl"),
    ("nvidia-imex-config", "/etc/nvidia-imex"),
)
NOT_HERE: Final = frozenset(f"{volume}-jail" for volume, _ in _IMEX)
"""Volumes of a node's own folders that the operator shows in the jail."""

Kind = Literal["controller", "login", "worker", "accounting", "database"]
_OWNERS: Final[Mapping[Kind, tuple[str, str]]] = {
    "accounting": ("apps/v1", "ReplicaSet"),
    "database": ("apps/v1", "StatefulSet"),
}
"""Those that OpenKruise does not make."""
_OF_MOUNT: Final = ("name", "mountPath", "subPath", "readOnly")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSet:
    """What owns equal pods, and their specification."""

    owner: tuple[str, str]
    """apiVersion and kind."""
    name: str
    source: Object
    """The custom resource that it comes from."""
    component: str
    spec: Object
    claims: tuple[tuple[str, Mapping[str, Any]], ...]
    """Templates of claims: volume and specification."""
    own: frozenset[str]
    """Volumes whose Secret or ConfigMap the operator itself makes."""

    @property
    def main(self) -> str:
        """Name of the container that the pod is for."""
        return self.spec["containers"][0]["name"]


def pod_set(
    kind: Kind, cluster: Object, nodeset: Object | None = None, *, has_host_keys: bool = True
) -> PodSet:
    """The pods of one kind; of workers those of a NodeSet.

    `has_host_keys`: whether somebody made the Secret of host keys, else the operator does.
    """
    spec = cluster["spec"]
    filters = {item["name"]: item for item in spec["k8sNodeFilters"]}
    role = spec["slurmNodes"].get("accounting" if kind == "database" else kind) or {}
    text = _template().render(
        kind=kind,
        cluster=cluster,
        nodeset=nodeset,
        # What it is placed by: node selector, affinity and tolerations.
        placed=filters.get(role["k8sNodeFilterName"], {}) if nodeset is None else nodeset["spec"],
        sources={item["name"]: item for item in spec.get("volumeSources") or []},
        has_host_keys=has_host_keys,
        host_keys=_HOST_KEYS,
        imex=_IMEX,
        jail_upper=JAIL_UPPER,
        memory=MEMORY,
    )
    found = yaml.load(text, Loader=LOADER)  # noqa: S506 - a safe one
    rows: list[Object] = found.pop("volumes")
    pod = found["spec"]
    pod["volumes"] = [{**row["source"], "name": row["name"]} for row in rows if "source" in row]
    mounts = [{key: row[key] for key in _OF_MOUNT if key in row} for row in rows]
    pod["containers"][0]["volumeMounts"] = [each for each in mounts if "mountPath" in each]
    return PodSet(
        **found,
        owner=_OWNERS.get(kind, KRUISE),
        source=cluster if nodeset is None else nodeset,
        claims=tuple((row["name"], row["claim"]) for row in rows if "claim" in row),
        own=frozenset(row["name"] for row in rows if row.get("made")),
    )


@cache
def _template() -> jinja2.Template:
    filters = {
        "image": _image,
        "without": lambda values, *keys: {k: v for k, v in values.items() if k not in keys},
    }
    made = environment(Path(__file__).parent, filters, variables=("[[", "]]"))
    return made.get_template("pods.yaml.j2")


def _image(container: Mapping[str, Any], default: str = "unknown") -> str:
    image = container.get("image") or default
    return (
        image if isinstance(image, str) else f"{image['repository']}:{image.get('tag', 'latest')}"
    )
