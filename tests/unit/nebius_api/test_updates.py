"""Updates follow the reset mask, resource versions and the operation that still runs."""

import time

import nebius.api.nebius.compute.v1 as compute
import nebius.api.nebius.mk8s.v1 as mk8s
import pytest
from nebius.api.nebius.common.v1 import (
    GetOperationRequest,
    ListOperationsRequest,
    ResourceMetadata,
)

from tests.unit.nebius_api.resources import (
    SSD,
    details,
    filesystem,
    make,
    make_cluster,
    make_filesystem,
    node_group,
    refused,
)


@pytest.fixture
def client(sdk):
    return compute.FilesystemServiceClient(sdk)


def update(client, resource):
    request = compute.UpdateFilesystemRequest(metadata=resource.metadata, spec=resource.spec)
    client.update(request).wait().sync_wait(interval=0.02)


def get(client, id_):
    return client.get(compute.GetFilesystemRequest(id=id_)).wait()


def test_a_stale_resource_version_is_refused(sdk, client):
    id_ = make_filesystem(sdk)
    first, second = get(client, id_), get(client, id_)
    first.metadata.labels["who"] = "first"
    update(client, first)
    second.metadata.labels["who"] = "second"
    request = compute.UpdateFilesystemRequest(metadata=second.metadata, spec=second.spec)
    status = refused(client.update(request))
    assert (status.code.name, details(status)[0]) == ("ABORTED", "resource_conflict")


def test_resource_version_0_skips_the_check(sdk, client):
    id_ = make_filesystem(sdk)
    first, second = get(client, id_), get(client, id_)
    first.metadata.labels["who"] = "first"
    update(client, first)
    second.metadata.labels["who"] = "second"
    second.metadata.resource_version = 0
    update(client, second)
    found = get(client, id_)
    assert (found.metadata.labels["who"], found.metadata.resource_version) == ("second", 3)


def test_the_reset_mask_clears_a_map(sdk, client):
    resource = get(client, make_filesystem(sdk))
    resource.metadata.labels["a"] = "b"
    update(client, resource)
    resource = get(client, resource.metadata.id)
    resource.metadata.labels.clear()
    update(client, resource)
    assert not get(client, resource.metadata.id).metadata.labels


def test_lists_grow_and_meaningful_empty_messages_go(sdk):
    client = mk8s.NodeGroupServiceClient(sdk)
    effect = mk8s.NodeTaint.Effect
    taints = [mk8s.NodeTaint(key="a", value="1", effect=effect.NO_SCHEDULE)]
    request = node_group(make_cluster(sdk), taints=taints, preemptible=mk8s.PreemptibleSpec())
    id_ = make(client, request)
    group = client.get(mk8s.GetNodeGroupRequest(id=id_)).wait()
    group.spec.template.taints.append(mk8s.NodeTaint(key="b", value="2", effect=effect.NO_EXECUTE))
    group.spec.template.preemptible = None
    changed = mk8s.UpdateNodeGroupRequest(metadata=group.metadata, spec=group.spec)
    client.update(changed).wait().sync_wait(interval=0.02)
    group = client.get(mk8s.GetNodeGroupRequest(id=id_)).wait()
    assert [taint.key for taint in group.spec.template.taints] == ["a", "b"]
    assert not group.spec.template.check_presence("preemptible")


def test_an_operation_runs_on_and_blocks_other_changes(client, served, monkeypatch):
    now = time.time()
    monkeypatch.setattr(served.emulator, "clock", lambda: now)  # else it is over by the next line
    operation = client.create(filesystem()).wait()
    assert not operation.done()
    assert operation.progress_tracker() is not None
    spec = compute.FilesystemSpec(size_gibibytes=2, type=SSD)
    request = compute.UpdateFilesystemRequest(
        metadata=ResourceMetadata(id=operation.resource_id), spec=spec
    )
    status = refused(client.update(request, retries=1))
    assert details(status)[0] == "operation_conflict"
    monkeypatch.undo()
    operation.sync_wait(interval=0.02)
    listing = ListOperationsRequest(resource_id=operation.resource_id)
    (listed,) = client.operation_service().list(listing).wait().operations
    request = GetOperationRequest(id=listed.id)
    assert client.operation_service().get(request).wait().successful()


def test_an_update_beyond_a_quota_is_refused(sdk, client):
    resource = get(client, make_filesystem(sdk))
    resource.spec.size_gibibytes = 30_000
    request = compute.UpdateFilesystemRequest(metadata=resource.metadata, spec=resource.spec)
    assert details(refused(client.update(request)))[0] == "quota_failure"
