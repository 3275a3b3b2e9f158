"""What the program would send to Kubernetes for a stack: releases, objects of its own, nodes.

Read from the program itself without an engine (infra/components/recorder.py), so nothing is
described twice. Ids, keys and addresses, which only a cloud gives, are made up there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from infra.clients.kube_rules import Object
from infra.components.recorder import Registered, declare
from infra.operate.conformance.go_yaml import whole
from infra.render.nodes import node_group_spec, roles
from stacks.spec import StackSpec

_RELEASE: Final = "kubernetes:helm.sh/v3:Release"
_KUBERNETES: Final = "kubernetes:"
_EFFECTS: Final = {"NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute"}
_SSHD_KEY: Final = "sshd_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One Helm release as the engine would get it."""

    name: str
    namespace: str
    version: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Everything that goes to Kubernetes, in the program's order, and the nodes under it."""

    spec: StackSpec
    releases: tuple[Release, ...]
    own: tuple[Object, ...]
    """Objects that the program makes itself."""
    given: tuple[Object, ...]
    """Secrets and ConfigMaps that the stack names and its user makes."""
    nodes: tuple[Object, ...]
    """One node of each node group."""


def declared(spec: StackSpec, folder: Path) -> Declared:
    """What the program would send for `spec`; `folder` takes its build."""
    recorder = declare(spec, folder)
    inside = [each for each in recorder.registered if each.type.startswith(_KUBERNETES)]
    return Declared(
        spec=spec,
        releases=tuple(_release(each) for each in inside if each.type == _RELEASE),
        own=tuple(_object(each) for each in inside if "kind" in each.inputs),
        given=tuple(_given(spec)),
        nodes=tuple(_nodes(spec)),
    )


def _release(one: Registered) -> Release:
    sent = whole(one.inputs)
    return Release(
        name=sent["name"],
        namespace=sent["namespace"],
        version=sent["version"],
        values=sent.get("values", {}),
    )


def _object(one: Registered) -> Object:
    return whole(one.inputs)


def _given(spec: StackSpec) -> list[Object]:
    maps = {worker.sshd_config_map for worker in spec.nodes.workers}
    found = [_config(spec, name, _SSHD_KEY) for name in sorted(filter(None, maps))]
    sssd = spec.soperator.sssd
    if sssd is not None:
        text = _config(spec, sssd.config_secret, "sssd.conf")
        content = text.pop("data")
        found.append({**text, "kind": "Secret", "stringData": content})
        if sssd.ca_config_map is not None:
            found.append(_config(spec, sssd.ca_config_map, "ca.crt"))
    return found


def _config(spec: StackSpec, name: str, key: str) -> Object:
    metadata = {"name": name, "namespace": spec.cluster.namespace}
    data = {key: "# made by the user\n"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _nodes(spec: StackSpec) -> list[Object]:
    ids: Mapping[str, str] = defaultdict(lambda: "filesystem")
    found: list[Object] = []
    for role in roles(spec):
        if role.chunk.max_nodes == 0:
            continue
        group = node_group_spec(spec, role, subnet_id="subnet", filesystem_ids=ids)["template"]
        name = f"{role.name}-node"
        taints = [
            {**taint, "effect": _EFFECTS[taint["effect"]]} for taint in group.get("taints", [])
        ]
        labels = {
            **group["metadata"]["labels"],
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        }
        found.append(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": name,
                    "labels": {
                        **labels,
                        "kubernetes.io/os": "linux",
                        "kubernetes.io/arch": "amd64",
                    },
                },
                "spec": {"taints": taints},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            }
        )
    return found
