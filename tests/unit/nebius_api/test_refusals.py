"""What the real API would refuse is refused, with the code and the details that the SDK reads."""

import nebius.api.nebius.compute.v1 as compute
import nebius.api.nebius.mk8s.v1 as mk8s
import nebius.api.nebius.quotas.v1 as quotas
import nebius.api.nebius.vpc.v1 as vpc
import pytest
from nebius.api.nebius.common.v1 import ResourceMetadata

from infra.providers.nebius.sdk import make_sdk
from tests.unit.nebius_api.resources import (
    PROJECT,
    details,
    filesystem,
    make,
    make_cluster,
    make_filesystem,
    make_gpu_cluster,
    metadata,
    node_group,
    refused,
)

FILESYSTEM_TYPE = compute.FilesystemSpec.FilesystemType


@pytest.fixture(scope="module")
def filesystems(sdk):
    return compute.FilesystemServiceClient(sdk)


@pytest.fixture(scope="module")
def groups(sdk):
    return mk8s.NodeGroupServiceClient(sdk)


@pytest.fixture(scope="module")
def cluster_id(sdk):
    return make_cluster(sdk)


def test_an_immutable_field_cannot_change(sdk, filesystems):
    spec = compute.FilesystemSpec(type=FILESYSTEM_TYPE.NETWORK_HDD, size_gibibytes=1)
    request = compute.UpdateFilesystemRequest(
        metadata=ResourceMetadata(id=make_filesystem(sdk)), spec=spec
    )
    status = refused(filesystems.update(request))
    kind, value = details(status)
    assert (status.code.name, kind) == ("INVALID_ARGUMENT", "bad_request")
    assert value.violations[0].field == "spec.type"


def test_a_validation_rule_of_the_descriptors_is_enforced(filesystems):
    request = compute.CreateFilesystemRequest(
        metadata=metadata(), spec=compute.FilesystemSpec(type=FILESYSTEM_TYPE.NETWORK_SSD)
    )
    status = refused(filesystems.create(request))
    assert details(status)[1].violations[0].field == "spec.size"


def test_a_reference_to_nothing_is_not_found(sdk):
    request = vpc.CreateSubnetRequest(
        metadata=metadata(), spec=vpc.SubnetSpec(network_id="vpcnetwork-e00nope")
    )
    status = refused(vpc.SubnetServiceClient(sdk).create(request))
    assert status.code.name == "NOT_FOUND"
    assert details(status)[1].resource_id == "vpcnetwork-e00nope"


def test_a_missing_parent_is_not_found(filesystems):
    request = filesystem()
    request.metadata.parent_id = "project-e00nope"
    assert refused(filesystems.create(request)).code.name == "NOT_FOUND"


def test_a_node_group_cannot_live_in_a_project(groups):
    status = refused(groups.create(node_group(PROJECT)))
    assert "must name one of mk8scluster" in status.message


def test_a_name_is_unique_in_its_parent(sdk, filesystems):
    make_filesystem(sdk, name="twin")
    status = refused(filesystems.create(filesystem(name="twin")))
    assert (status.code.name, details(status)[0]) == ("ALREADY_EXISTS", "resource_already_exists")


def test_what_is_in_use_cannot_be_deleted(sdk, filesystems, groups, cluster_id):
    filesystem_id = make_filesystem(sdk)
    attached = mk8s.AttachedFilesystemSpec(
        attach_mode=mk8s.AttachedFilesystemSpec.AttachMode.READ_WRITE,
        mount_tag="jail",
        existing_filesystem=mk8s.ExistingFilesystem(id=filesystem_id),
    )
    make(groups, node_group(cluster_id, filesystems=[attached]))
    status = refused(filesystems.delete(compute.DeleteFilesystemRequest(id=filesystem_id)))
    assert status.code.name == "FAILED_PRECONDITION"
    assert f"{filesystem_id} is in use by" in status.message


def test_a_cluster_with_node_groups_cannot_be_deleted(sdk, groups, cluster_id):
    make(groups, node_group(cluster_id))
    request = mk8s.DeleteClusterRequest(id=cluster_id)
    status = refused(mk8s.ClusterServiceClient(sdk).delete(request))
    assert status.code.name == "FAILED_PRECONDITION"


def test_forbid_deletion_forbids_deletion(filesystems):
    request = filesystem()
    request.spec.forbid_deletion = True
    id_ = make(filesystems, request)
    status = refused(filesystems.delete(compute.DeleteFilesystemRequest(id=id_)))
    assert "forbid_deletion" in status.message


def test_a_quota_counts_what_exists_and_is_asked_only_once(sdk, served, groups, cluster_id):
    make(groups, node_group(cluster_id, "gpu-h200-sxm", "8gpu-128vcpu-1600gb", nodes=7))
    served.emulator.calls.clear()
    request = node_group(cluster_id, "gpu-h200-sxm", "8gpu-128vcpu-1600gb", nodes=2)
    status = refused(groups.create(request))
    kind, value = details(status)
    assert (status.code.name, kind) == ("RESOURCE_EXHAUSTED", "quota_failure")
    assert value.violations[0].quota == "compute.instance.gpu.h200"
    assert (value.violations[0].limit, value.violations[0].requested) == ("64", "72")
    assert len(served.calls("NodeGroupService/Create")) == 1
    client = quotas.QuotaAllowanceServiceClient(sdk)
    named = quotas.GetByNameRequest(
        parent_id=PROJECT, name="compute.instance.gpu.h200", region="eu-north1"
    )
    assert client.get_by_name(named).wait().status.usage == 56


def test_an_unknown_preset_names_the_known_ones(groups, cluster_id):
    status = refused(groups.create(node_group(cluster_id, "gpu-l40s-d", "8gpu-128vcpu-1600gb")))
    assert "2gpu-64vcpu-384gb" in status.message


def test_a_preset_without_clustering_joins_no_gpu_cluster(sdk, groups, cluster_id):
    gpu_cluster = mk8s.GpuClusterSpec(id=make_gpu_cluster(sdk, "fabric-7"))
    request = node_group(cluster_id, "gpu-h200-sxm", "1gpu-16vcpu-200gb", gpu_cluster=gpu_cluster)
    assert "cannot join a GPU cluster" in refused(groups.create(request)).message


def test_a_fabric_joins_one_platform_only(sdk, groups, cluster_id):
    gpu_cluster = mk8s.GpuClusterSpec(id=make_gpu_cluster(sdk, "fabric-6"))
    request = node_group(cluster_id, "gpu-h200-sxm", "8gpu-128vcpu-1600gb", gpu_cluster=gpu_cluster)
    assert "fabric-6 joins gpu-h100-sxm" in refused(groups.create(request)).message


def test_a_fabric_of_another_region_does_not_exist_here(sdk):
    spec = compute.GpuClusterSpec(infiniband_fabric="fabric-5")
    request = compute.CreateGpuClusterRequest(metadata=metadata(), spec=spec)
    status = refused(compute.GpuClusterServiceClient(sdk).create(request))
    assert "no fabric 'fabric-5' in eu-north1" in status.message


def test_a_striped_disk_comes_in_multiples_of_93_gib(groups, cluster_id):
    type_ = mk8s.DiskSpec.DiskType.NETWORK_SSD_NON_REPLICATED
    disk = mk8s.DiskSpec(size_gibibytes=560, type=type_)
    status = refused(groups.create(node_group(cluster_id, boot_disk=disk)))
    assert "no multiple of 93 GiB" in status.message
    make(groups, node_group(cluster_id, boot_disk=mk8s.DiskSpec(size_gibibytes=558, type=type_)))


def test_a_wrong_token_is_refused(served, monkeypatch):
    monkeypatch.setenv("SOPERATOR_NEBIUS_ENDPOINT", served.endpoint)
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", "wrong")
    client = make_sdk()
    assert refused(client.whoami(retries=1)).code.name == "UNAUTHENTICATED"
    client.sync_close()
