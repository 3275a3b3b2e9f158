"""Every resource that a Soperator deployment uses goes through its whole life."""

import nebius.api.nebius.common.v1 as common
import nebius.api.nebius.compute.v1 as compute
import nebius.api.nebius.iam.v1 as iam
import nebius.api.nebius.iam.v2 as iam2
import nebius.api.nebius.mk8s.v1 as mk8s
import nebius.api.nebius.registry.v1 as registry
import nebius.api.nebius.storage.v1 as storage
import nebius.api.nebius.vpc.v1 as vpc
import pytest

from tests.unit.nebius_api.resources import (
    PROJECT,
    TENANT,
    make,
    make_cluster,
    make_filesystem,
    make_gpu_cluster,
    make_subnet,
    metadata,
    node_group,
    refused,
)

GIB = 1 << 30
# (module, resource, spec fields, parent, GetByName request where it is not the common one)
PLAIN = [
    (vpc, "Network", {}, PROJECT, "GetNetworkByNameRequest"),
    (compute, "Disk", {"size_gibibytes": 93, "type": 1}, PROJECT, None),
    (compute, "Filesystem", {"size_gibibytes": 10, "type": 1}, PROJECT, None),
    (compute, "GpuCluster", {"infiniband_fabric": "fabric-7"}, PROJECT, None),
    (iam, "ServiceAccount", {"description": "x"}, PROJECT, "GetServiceAccountByNameRequest"),
    (iam, "Group", {}, TENANT, "GetGroupByNameRequest"),
    (storage, "Bucket", {"max_size_bytes": GIB}, PROJECT, "GetBucketByNameRequest"),
    (registry, "Registry", {"description": "images"}, PROJECT, None),
]


@pytest.mark.parametrize(
    ("module", "name", "fields", "parent", "by_name"), PLAIN, ids=[row[1] for row in PLAIN]
)
def test_a_resource_lives_from_create_to_delete(sdk, module, name, fields, parent, by_name):
    client = getattr(module, f"{name}ServiceClient")(sdk)
    spec = getattr(module, f"{name}Spec")(**fields)
    create = getattr(module, f"Create{name}Request")
    get = getattr(module, f"Get{name}Request")
    id_ = make(client, create(metadata=metadata(parent_id=parent), spec=spec))
    found = client.get(get(id=id_)).wait()
    assert found.metadata.resource_version == 1
    request = getattr(module, by_name) if by_name else common.GetByNameRequest
    named = client.get_by_name(request(parent_id=parent, name=found.metadata.name)).wait()
    assert named.metadata.id == id_
    plural = next(n for n in (f"List{name}sRequest", f"List{name}Request",
                              "ListRegistriesRequest") if hasattr(module, n))  # fmt: skip
    listed = client.list(getattr(module, plural)(parent_id=parent)).wait().items
    assert id_ in [one.metadata.id for one in listed]

    found.metadata.labels["env"] = "test"
    update = getattr(module, f"Update{name}Request")(metadata=found.metadata, spec=found.spec)
    client.update(update).wait().sync_wait(interval=0.02)
    found = client.get(get(id=id_)).wait()
    assert found.metadata.resource_version == 2
    assert dict(found.metadata.labels) == {"env": "test"}

    delete = getattr(module, f"Delete{name}Request")(id=id_)
    client.delete(delete).wait().sync_wait(interval=0.02)
    assert refused(client.get(get(id=id_))).code.name == "NOT_FOUND"


def test_status_is_computed_by_the_server(sdk):
    client = compute.FilesystemServiceClient(sdk)
    id_ = make_filesystem(sdk, size_gibibytes=7)
    status = client.get(compute.GetFilesystemRequest(id=id_)).wait().status
    assert (status.state.name, status.size_bytes) == ("READY", 7 * GIB)


def test_an_allocation_is_the_loopback_address(sdk):
    public = vpc.IPv4PublicAllocationSpec(subnet_id=make_subnet(sdk))
    request = vpc.CreateAllocationRequest(
        metadata=metadata(), spec=vpc.AllocationSpec(ipv4_public=public)
    )
    client = vpc.AllocationServiceClient(sdk)
    found = client.get(vpc.GetAllocationRequest(id=make(client, request))).wait()
    assert found.status.details.allocated_cidr == "127.0.0.1/32"


def test_a_project_has_a_default_network_with_a_subnet(sdk):
    subnets = vpc.SubnetServiceClient(sdk).list(vpc.ListSubnetsRequest(parent_id=PROJECT)).wait()
    (default,) = [s for s in subnets.items if s.metadata.name == "default-subnet"]
    assert list(default.status.ipv4_private_cidrs) == ["10.0.0.0/16"]


def test_a_default_network_can_be_created(sdk):
    client = vpc.NetworkServiceClient(sdk)
    request = vpc.CreateDefaultNetworkRequest(metadata=metadata())
    operation = client.create_default(request).wait()
    operation.sync_wait(interval=0.02)
    found = client.get(vpc.GetNetworkRequest(id=operation.resource_id)).wait()
    assert found.status.state.name == "READY"


def test_a_cluster_says_where_its_api_server_is(sdk, served, tmp_path):
    ca_file = tmp_path / "ca.crt"
    served.emulator.kube_endpoint = "https://127.0.0.1:17803"
    served.emulator.kube_ca = ca_file
    client = mk8s.ClusterServiceClient(sdk)
    id_ = make_cluster(sdk)
    ca_file.write_text("PEM")
    status = client.get(mk8s.GetClusterRequest(id=id_)).wait().status
    assert status.state.name == "RUNNING"
    assert status.control_plane.endpoints.public_endpoint == "https://127.0.0.1:17803"
    assert status.control_plane.auth.cluster_ca_certificate == "PEM"


def test_a_node_group_keeps_every_field(sdk):
    cluster_id, filesystem_id = make_cluster(sdk), make_filesystem(sdk)
    request = node_group(
        cluster_id,
        "gpu-h100-sxm",
        "8gpu-128vcpu-1600gb",
        nodes=2,
        metadata=mk8s.NodeMetadataTemplate(labels={"slurm.nebius.ai/nodeset": "worker"}),
        taints=[
            mk8s.NodeTaint(
                key="nvidia.com/gpu", value="true", effect=mk8s.NodeTaint.Effect.NO_SCHEDULE
            )
        ],
        gpu_cluster=mk8s.GpuClusterSpec(id=make_gpu_cluster(sdk, "fabric-6")),
        filesystems=[
            mk8s.AttachedFilesystemSpec(
                attach_mode=mk8s.AttachedFilesystemSpec.AttachMode.READ_WRITE,
                mount_tag="jail",
                existing_filesystem=mk8s.ExistingFilesystem(id=filesystem_id),
            )
        ],
        preemptible=mk8s.PreemptibleSpec(),
    )
    client = mk8s.NodeGroupServiceClient(sdk)
    found = client.get(mk8s.GetNodeGroupRequest(id=make(client, request))).wait()
    template = found.spec.template
    assert template.filesystems[0].existing_filesystem.id == filesystem_id
    assert template.taints[0].effect.name == "NO_SCHEDULE"
    assert template.check_presence("preemptible")
    assert (found.status.state.name, found.status.ready_node_count) == ("RUNNING", 2)


def test_group_members_and_permits_live_in_their_group(sdk):
    account = iam.CreateServiceAccountRequest(metadata=metadata(), spec=iam.ServiceAccountSpec())
    account_id = make(iam.ServiceAccountServiceClient(sdk), account)
    group = iam.CreateGroupRequest(metadata=metadata(parent_id=TENANT), spec=iam.GroupSpec())
    group_id = make(iam.GroupServiceClient(sdk), group)
    members = iam.GroupMembershipServiceClient(sdk)
    inside = common.ResourceMetadata(parent_id=group_id)
    spec = iam.GroupMembershipSpec(member_id=account_id)
    make(members, iam.CreateGroupMembershipRequest(metadata=inside, spec=spec))
    listed = members.list_members(iam.ListGroupMembershipsRequest(parent_id=group_id)).wait()
    assert [one.spec.member_id for one in listed.memberships] == [account_id]
    permits = iam.AccessPermitServiceClient(sdk)
    permit = iam.AccessPermitSpec(resource_id=PROJECT, role="editor")
    id_ = make(permits, iam.CreateAccessPermitRequest(metadata=inside, spec=permit))
    assert permits.get(iam.GetAccessPermitRequest(id=id_)).wait().spec.role == "editor"


def test_a_project_looks_the_same_through_both_iam_versions(sdk):
    old = iam.ProjectServiceClient(sdk).get(iam.GetProjectRequest(id=PROJECT)).wait()
    new = iam2.ProjectServiceClient(sdk).get(iam2.GetProjectRequest(id=PROJECT)).wait()
    assert old.metadata.name == new.metadata.name == "default"


def test_an_access_key_hands_out_its_secret(sdk):
    account = iam.CreateServiceAccountRequest(metadata=metadata(), spec=iam.ServiceAccountSpec())
    account_id = make(iam.ServiceAccountServiceClient(sdk), account)
    owner = iam.Account(service_account=iam.Account.ServiceAccount(id=account_id))
    keys = iam2.AccessKeyServiceClient(sdk)
    request = iam2.CreateAccessKeyRequest(
        metadata=metadata(), spec=iam2.AccessKeySpec(account=owner)
    )
    id_ = make(keys, request)
    assert keys.get_secret(iam2.GetAccessKeySecretRequest(id=id_)).wait().secret
    old = iam.AccessKeyServiceClient(sdk).get_by_id(iam.GetAccessKeyByIdRequest(id=id_)).wait()
    assert old.spec.account.service_account.id == account_id
