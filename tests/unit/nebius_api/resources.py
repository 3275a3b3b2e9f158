"""Requests of the official SDK that the emulator's tests share."""

import itertools

import nebius.api.nebius.compute.v1 as compute
import nebius.api.nebius.mk8s.v1 as mk8s
import nebius.api.nebius.vpc.v1 as vpc
import pytest
from nebius.aio.service_error import RequestError
from nebius.api.nebius.common.v1 import ResourceMetadata

PROJECT = "project-e00p"
TENANT = "tenant-e00t"
SSD = compute.FilesystemSpec.FilesystemType.NETWORK_SSD
_numbers = itertools.count()


def metadata(name=None, parent_id=PROJECT, **fields):
    """Metadata with a name that no other test uses."""
    return ResourceMetadata(parent_id=parent_id, name=name or f"thing-{next(_numbers)}", **fields)


def filesystem(name=None, size_gibibytes=1):
    spec = compute.FilesystemSpec(size_gibibytes=size_gibibytes, type=SSD)
    return compute.CreateFilesystemRequest(metadata=metadata(name), spec=spec)


def make(client, request, **options):
    """Creates and waits; the id."""
    operation = client.create(request, **options).wait()
    operation.sync_wait(interval=0.02)
    assert operation.successful()
    return operation.resource_id


def make_filesystem(sdk, **fields):
    return make(compute.FilesystemServiceClient(sdk), filesystem(**fields))


def make_subnet(sdk):
    network = vpc.CreateNetworkRequest(metadata=metadata(), spec=vpc.NetworkSpec())
    network_id = make(vpc.NetworkServiceClient(sdk), network)
    spec = vpc.SubnetSpec(network_id=network_id)
    request = vpc.CreateSubnetRequest(metadata=metadata(), spec=spec)
    return make(vpc.SubnetServiceClient(sdk), request)


def make_cluster(sdk):
    control_plane = mk8s.ControlPlaneSpec(
        version="1.33",
        subnet_id=make_subnet(sdk),
        etcd_cluster_size=3,
        endpoints=mk8s.ControlPlaneEndpointsSpec(public_endpoint=mk8s.PublicEndpointSpec()),
    )
    spec = mk8s.ClusterSpec(
        control_plane=control_plane, kube_network=mk8s.KubeNetworkSpec(service_cidrs=["/16"])
    )
    request = mk8s.CreateClusterRequest(metadata=metadata(), spec=spec)
    return make(mk8s.ClusterServiceClient(sdk), request)


def make_gpu_cluster(sdk, fabric):
    spec = compute.GpuClusterSpec(infiniband_fabric=fabric)
    request = compute.CreateGpuClusterRequest(metadata=metadata(), spec=spec)
    return make(compute.GpuClusterServiceClient(sdk), request)


def node_group(cluster_id, platform="cpu-d3", preset="4vcpu-16gb", nodes=1, **template):
    template.setdefault(
        "boot_disk",
        mk8s.DiskSpec(size_gibibytes=128, type=mk8s.DiskSpec.DiskType.NETWORK_SSD),
    )
    resources = mk8s.ResourcesSpec(platform=platform, preset=preset)
    spec = mk8s.NodeGroupSpec(
        version="1.33",
        fixed_node_count=nodes,
        template=mk8s.NodeTemplate(resources=resources, **template),
    )
    return mk8s.CreateNodeGroupRequest(metadata=metadata(parent_id=cluster_id), spec=spec)


def refused(request):
    """The status of a call that must be refused."""
    with pytest.raises(RequestError) as caught:
        request.wait()
    return caught.value.status


def details(status):
    """(kind, details) of the first ServiceError."""
    found = status.service_errors[0].details
    return found.field, found.value
