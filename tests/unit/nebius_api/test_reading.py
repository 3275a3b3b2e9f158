"""Lists, catalogue, capacity, prices and the ways to log in."""

import asyncio
import json

import nebius.api.nebius.billing.v1 as billing
import nebius.api.nebius.capacity.v1 as capacity
import nebius.api.nebius.compute.v1 as compute
import nebius.api.nebius.iam.v1 as iam
import nebius.api.nebius.mk8s.v1 as mk8s
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from nebius.aio.service_error import RequestError
from nebius.aio.token.renewable import OPTION_REPORT_ERROR
from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.base.protos.dynamic import REGISTRY

from infra.providers.nebius.sdk import make_sdk
from stacks.load import load_stack
from tests.unit.nebius_api.resources import (
    PROJECT,
    TENANT,
    filesystem,
    make,
    make_cluster,
    make_filesystem,
    metadata,
    node_group,
)

STACKS = ("local", "l40s-dev", "h100-prod", "h200-elastic")


def test_pages_follow_each_other(sdk):
    client = compute.FilesystemServiceClient(sdk)
    make_filesystem(sdk), make_filesystem(sdk)
    whole = client.list(compute.ListFilesystemsRequest(parent_id=PROJECT)).wait().items
    found, token = [], ""
    while not found or token:
        request = compute.ListFilesystemsRequest(parent_id=PROJECT, page_size=1, page_token=token)
        page = client.list(request).wait()
        assert len(page.items) == 1
        found.append(page.items[0].metadata.id)
        token = page.next_page_token
    assert found == [one.metadata.id for one in whole]


@pytest.mark.parametrize("name", STACKS)
def test_every_preset_of_a_shipped_stack_is_in_the_catalogue(sdk, public_key_file, name):
    spec = load_stack(name)
    request = compute.ListPlatformsRequest(parent_id=spec.nebius.project_id)
    platforms = compute.PlatformServiceClient(sdk).list(request).wait().items
    presets = {(p.metadata.name, preset.name) for p in platforms for preset in p.spec.presets}
    nodes = spec.nodes
    groups = [nodes.system, nodes.controller, nodes.login, *nodes.workers]
    assert {(group.platform, group.preset) for group in groups} <= presets


def test_an_estimate_sums_what_would_be_created(sdk):
    cluster_id = make_cluster(sdk)
    requests = (
        node_group(cluster_id, "gpu-h200-sxm", "8gpu-128vcpu-1600gb", nodes=2),
        filesystem(size_gibibytes=1024),
    )
    specs = [billing.ResourceSpec(spec=REGISTRY.pack_any(one)) for one in requests]
    request = billing.EstimateBatchRequest(resource_specs=specs)
    answer = billing.CalculatorServiceClient(sdk).estimate_batch(request).wait()
    # 16 GPUs x 4.50 + 2 x 128 GiB x 0.000097222 + 1024 GiB x 0.000109589: price_table.yaml.
    assert answer.total_costs[0].general.total.cost_rounded == "72.14"


def test_capacity_is_told_per_fabric(sdk):
    request = capacity.ListCapacityBlockGroupsRequest(parent_id=TENANT)
    groups = capacity.CapacityBlockGroupServiceClient(sdk).list(request).wait().items
    fabrics = {group.status.resource_affinity.compute_v1.fabric for group in groups}
    assert {"fabric-6", "fabric-7"} <= fabrics
    advice = capacity.ListResourceAdviceRequest(parent_id=TENANT)
    items = capacity.ResourceAdviceServiceClient(sdk).list(advice).wait().items
    known = {(one.spec.fabric, one.spec.compute_instance.preset.name): one for one in items}
    assert known["fabric-6", "8gpu-128vcpu-1600gb"].status.on_demand.available == 8
    assert ("", "2gpu-64vcpu-384gb") in known  # no fabric joins it


def test_the_compatibility_matrix_names_drivers_by_kubernetes_version(sdk):
    request = mk8s.GetNodeGroupCompatibilityMatrixRequest(cluster_kubernetes_version="1.33")
    answer = mk8s.NodeGroupServiceClient(sdk).get_compatibility_matrix(request).wait()
    (version,) = answer.versions
    drivers = {(item.os, item.drivers_preset) for item in version.items}
    assert ("ubuntu24.04", "cuda12.8") in drivers


def test_control_plane_versions_are_listed(sdk):
    request = mk8s.ListClusterControlPlaneVersionsRequest()
    answer = mk8s.ClusterServiceClient(sdk).list_control_plane_versions(request).wait()
    assert "1.33" in [item.version for item in answer.items]


def test_whoami_knows_the_owner_of_the_token(sdk):
    assert sdk.whoami().wait().user_profile.id == "useraccount-e00admin"


def test_an_error_carries_a_request_id(sdk):
    client = compute.FilesystemServiceClient(sdk)
    with pytest.raises(RequestError) as caught:
        client.get(compute.GetFilesystemRequest(id="computefilesystem-e00nope")).wait()
    assert len(caught.value.status.request_id) == 36


def test_many_reads_run_at_once_from_another_event_loop(sdk):
    client = compute.FilesystemServiceClient(sdk)
    request = compute.GetFilesystemRequest(id=make_filesystem(sdk))

    async def read():
        return await asyncio.gather(*[client.get(request) for _ in range(50)])

    assert len(asyncio.run(read())) == 50


@pytest.fixture
def credentials_file(sdk, tmp_path):
    """A service account's key, registered through the API, as the nebius CLI would write it."""
    account = iam.CreateServiceAccountRequest(metadata=metadata(), spec=iam.ServiceAccountSpec())
    account_id = make(iam.ServiceAccountServiceClient(sdk), account)
    key = rsa.generate_private_key(65537, 2048)
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    owner = iam.Account(service_account=iam.Account.ServiceAccount(id=account_id))
    spec = iam.AuthPublicKeySpec(account=owner, data=public.decode())
    request = iam.CreateAuthPublicKeyRequest(
        metadata=ResourceMetadata(parent_id=PROJECT), spec=spec
    )
    key_id = make(iam.AuthPublicKeyServiceClient(sdk), request)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file = tmp_path / "credentials.json"
    subject = {"type": "JWT", "alg": "RS256", "private-key": private.decode(), "kid": key_id}
    file.write_text(
        json.dumps({"subject-credentials": {**subject, "iss": account_id, "sub": account_id}})
    )
    return file, account_id


def test_a_service_account_trades_its_signed_token(served, credentials_file, monkeypatch):
    file, account_id = credentials_file
    monkeypatch.setenv("SOPERATOR_NEBIUS_ENDPOINT", served.endpoint)
    monkeypatch.delenv("NEBIUS_IAM_TOKEN", raising=False)
    client = make_sdk(credentials_file_name=str(file))
    profile = client.whoami().wait().service_account_profile
    client.sync_close()
    assert profile.info.metadata.id == account_id


def test_a_token_signed_by_another_key_opens_nothing(served, credentials_file, monkeypatch):
    file, _ = credentials_file
    content = json.loads(file.read_text())
    other = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    content["subject-credentials"]["private-key"] = other.decode()
    file.write_text(json.dumps(content))
    monkeypatch.setenv("SOPERATOR_NEBIUS_ENDPOINT", served.endpoint)
    client = make_sdk(credentials_file_name=str(file))
    with pytest.raises(RequestError, match="bad subject token"):
        client.whoami(auth_options={OPTION_REPORT_ERROR: "true"}, auth_timeout=10).wait()
    client.sync_close()
