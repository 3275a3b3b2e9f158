"""Objects that the real operator made, shortened: recorded.json, and mistakes planted into them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from pathlib import Path

from infra.clients.kube_rules import Object, name_of

_RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text(encoding="utf-8"))
NODES: list[Object] = _RECORDED["nodes"]
KEYS = [f"ssh_host_{kind}_key{end}" for kind in ("ecdsa", "ed25519", "rsa") for end in ("", ".pub")]


def objects() -> list[Object]:
    """What was recorded, and a host key under every name that is mounted."""
    return [*copy.deepcopy(_RECORDED["objects"]), host_keys(KEYS)]


def host_keys(keys: Iterable[str]) -> Object:
    """The Secret of the login node's host key."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "login-host-keys", "namespace": "soperator"},
        "data": dict.fromkeys(keys, "eA=="),
    }


def one(kind: str, name: str, among: Iterable[Object]) -> Object:
    (found,) = [each for each in among if (each["kind"], name_of(each)) == (kind, name)]
    return found
