"""The kube cluster: what is switched on is sent, what is not is left out, access stays secret."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from infra.providers.nebius.resource_type import ResourceType
from infra.providers.nebius.schema import Schema
from infra.render.nodes import kube_cluster_spec
from infra.state import Cache
from stacks.spec import StackSpec
from tests import SHIPPED
from tests.components.conftest import Deploy
from tests.components.recorder import plain
from tests.components.texts import open_texts

CLUSTER = "nebius:mk8s/v1:Cluster"
Load = Callable[[str], StackSpec]


def control_plane(deployed: Deploy, spec: StackSpec, **changes: Any) -> dict[str, Any]:
    changed = replace(spec, cluster=replace(spec.cluster, **changes))
    return deployed(changed).one(CLUSTER).inputs["spec"]["control_plane"]


@pytest.mark.parametrize("stack", SHIPPED)
def test_a_shipped_stack_has_a_highly_available_public_api(deployed: Deploy, stack: str) -> None:
    sent = deployed(stack).one(CLUSTER).inputs["spec"]["control_plane"]
    assert sent["etcd_cluster_size"] == 3
    assert sent["endpoints"] == {"public_endpoint": {}}
    assert "audit_logs" not in sent


def test_declared_blocks_guard_the_public_endpoint(deployed: Deploy, load: Load) -> None:
    sent = control_plane(deployed, load("local"), allowed_cidrs=("203.0.113.0/24",))
    assert sent["endpoints"] == {"public_endpoint": {"allowed_cidrs": ["203.0.113.0/24"]}}


def test_a_private_api_has_no_public_endpoint(deployed: Deploy, load: Load) -> None:
    assert "endpoints" not in control_plane(deployed, load("local"), public_endpoint=False)


def test_the_kubeconfig_names_the_endpoint_that_the_stack_has(deployed: Deploy, load: Load) -> None:
    spec = load("local")
    servers = []
    for public in (True, False):
        cluster = replace(spec.cluster, public_endpoint=public)
        outputs = plain(deployed(replace(spec, cluster=cluster)).outputs)
        servers.append(json.loads(outputs["kubeconfig"])["clusters"][0]["cluster"]["server"])
    assert servers == ["https://kube.test:443", "https://10.0.0.1:443"]


def test_the_kubeconfig_is_no_open_output(deployed: Deploy) -> None:
    assert not any(
        "certificate-authority-data" in text for text in open_texts(deployed("local").outputs)
    )


def test_audit_logs_and_one_etcd_member_are_sent_when_asked(deployed: Deploy, load: Load) -> None:
    sent = control_plane(deployed, load("local"), audit_logs=True, etcd_size=1)
    assert sent["audit_logs"] == {}
    assert sent["etcd_cluster_size"] == 1


def test_the_api_accepts_every_kind_of_cluster(load: Load) -> None:
    """Nebius's own rules, from the descriptors of the SDK."""
    kind = ResourceType.of_token(Schema(Cache.from_environ().root), CLUSTER)
    spec = load("local")
    for changes in (
        {"audit_logs": True, "etcd_size": 1},
        {"allowed_cidrs": ("203.0.113.0/24",)},
        {"public_endpoint": False},
    ):
        changed = replace(spec, cluster=replace(spec.cluster, **changes))
        metadata = {"parent_id": "project-e00p", "name": "kube"}
        sent = kube_cluster_spec(changed, subnet_id="vpcsubnet-e00s")
        assert kind.check({"metadata": metadata, "spec": sent})[1] == []
