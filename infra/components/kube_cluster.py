"""The network and the mk8s cluster on it: access, nodes, NVIDIA operators, clean-up at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pulumi

from infra.components.base import Part, address_of
from infra.providers.engine.resources import Resource
from infra.render.backup import namespaces
from infra.render.nodes import (
    declared_fabrics,
    kube_cluster_spec,
    kubeconfig,
    login_allocation,
    node_group_spec,
    nvidia_operators,
    roles,
)
from stacks.changes import stage_of
from stacks.spec import StackSpec
from stacks.spec.nodes import WorkerSpec

_SUBNET: Final = "nebius:vpc/v1:Subnet"


class Network(Part):
    """Makes what the stack does not bring: network, subnet; always the login allocation."""

    subnet_id: pulumi.Input[str]
    allocation: pulumi.Resource
    allocation_id: pulumi.Output[str]
    login_ip: pulumi.Output[str]
    """IPv4 address of the login node."""

    def __init__(self, spec: StackSpec, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(spec, opts)
        nebius = spec.nebius
        self._subnet: Resource | None = None
        if nebius.subnet_id is not None:
            self.subnet_id = nebius.subnet_id
        else:
            wanted = {
                "network_id": nebius.network_id
                or self._child("nebius:vpc/v1:Network", "network").id,
                "ipv4_private_pools": {"use_network_pools": True},
                "ipv4_public_pools": {"use_network_pools": True},
            }
            self._subnet = self._child(_SUBNET, "subnet", wanted)
            self.subnet_id = self._subnet.id
        noun, wanted = login_allocation(spec, subnet_id=self.subnet_id)
        allocation = self._child("nebius:vpc/v1:Allocation", noun, wanted)
        self.allocation = allocation
        self.allocation_id = allocation.id
        self.login_ip = address_of(allocation)
        self.register_outputs({"subnet_id": self.subnet_id, "login_ip": self.login_ip})

    def private_cidrs(self) -> pulumi.Output[list[str]]:
        """IPv4 blocks that addresses of nodes come from; a subnet that exists is read."""
        there = pulumi.ResourceOptions(id=self.subnet_id)
        subnet = self._subnet or self._child(_SUBNET, "existing-subnet", opts=there)
        return subnet.status.apply(lambda status: list(status["ipv4_private_cidrs"]))


class KubeCluster(Part):
    """Managed Kubernetes control plane, reached over its public or its private endpoint."""

    cluster_id: pulumi.Output[str]
    kubeconfig: pulumi.Output[str]
    """Secret; its token is made on demand by `soperator kube-token`."""

    def __init__(
        self,
        spec: StackSpec,
        network: Network,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, opts)
        cluster = self._child(
            "nebius:mk8s/v1:Cluster",
            "kube",
            kube_cluster_spec(spec, subnet_id=network.subnet_id),
            # While it lives, its balancer holds the address of the login service, or takes it anew.
            opts=pulumi.ResourceOptions(depends_on=[network.allocation]),
        )
        self.cluster_id = cluster.id
        endpoint = "public_endpoint" if spec.cluster.public_endpoint else "private_endpoint"
        self.kubeconfig = pulumi.Output.secret(
            cluster.status.apply(
                lambda status: kubeconfig(
                    name=f"{spec.name}-kube",
                    endpoint=status["control_plane"]["endpoints"][endpoint],
                    ca_certificate=status["control_plane"]["auth"]["cluster_ca_certificate"],
                )
            )
        )
        self.register_outputs({"cluster_id": self.cluster_id, "kubeconfig": self.kubeconfig})


class NodeGroups(Part):
    """System, controller, login, accounting, NFS and worker groups of the kube cluster."""

    gpu_cluster_ids: Mapping[str, pulumi.Output[str]]
    """InfiniBand fabric -> id of the GPU cluster made for it; empty where none is declared."""
    groups: Mapping[str, pulumi.Output[str]]
    """Role, or nodeset with the number of the group, -> node group id."""

    def __init__(
        self,
        spec: StackSpec,
        kube: KubeCluster,
        network: Network,
        filesystem_ids: Mapping[str, pulumi.Input[str]],
        *,
        in_stages: bool = False,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, opts)
        self.gpu_cluster_ids = {
            fabric: self._child(
                "nebius:compute/v1:GpuCluster", fabric, {"infiniband_fabric": fabric}
            ).id
            for fabric in declared_fabrics(spec)
        }
        groups: dict[str, pulumi.Output[str]] = {}
        made: dict[int, list[pulumi.Resource]] = {}
        for role in roles(spec):
            stage = stage_of(None if role.worker else role.label)
            earlier = [each for place in made if place < stage for each in made[place]]
            wanted = node_group_spec(
                spec,
                role,
                subnet_id=network.subnet_id,
                filesystem_ids=filesystem_ids,
                gpu_cluster_id=self._gpu_cluster_id(role.worker),
            )
            # What the API calls sensitive is hidden from state and output.
            if (user_data := wanted["template"].get("cloud_init_user_data")) is not None:
                wanted["template"]["cloud_init_user_data"] = pulumi.Output.secret(user_data)
            group = self._child(
                "nebius:mk8s/v1:NodeGroup",
                role.name,
                wanted,
                # The parent of a node group is its cluster, not the project.
                parent_id=kube.cluster_id,
                # One after the other only where nodes are replaced: a creation would take thrice as
                # long for nothing.
                opts=pulumi.ResourceOptions(depends_on=earlier if in_stages else []),
            )
            made.setdefault(stage, []).append(group)
            groups[role.name] = group.id
        self.groups = groups
        self.register_outputs({"groups": groups})

    def _gpu_cluster_id(self, worker: WorkerSpec | None) -> pulumi.Input[str] | None:
        if worker is None or worker.gpu_cluster_id is not None:
            return None if worker is None else worker.gpu_cluster_id
        fabric = worker.infiniband_fabric
        return None if fabric is None else self.gpu_cluster_ids[fabric]


class NvidiaOperators(Part):
    """One application after the other: drivers of the network first, then those of the GPUs."""

    releases: tuple[pulumi.Resource, ...]
    """In the order of their installation; empty where the image brings the drivers."""

    def __init__(
        self, spec: StackSpec, kube: KubeCluster, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(spec, opts)
        releases: list[pulumi.Resource] = []
        for application, wanted in nvidia_operators(spec, kube.cluster_id).items():
            after = pulumi.ResourceOptions(depends_on=releases[-1:])
            token = "nebius:applications/v1alpha1:K8sRelease"  # noqa: S105
            releases.append(self._child(token, application, wanted, after))
        self.releases = tuple(releases)
        self.register_outputs({})


class Teardown(pulumi.CustomResource):
    """Deleted after every release and before the nodes; removes what no resource owns."""

    def __init__(
        self, spec: StackSpec, kube: KubeCluster, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        properties = {
            "cluster_id": kube.cluster_id,
            "project_id": spec.nebius.project_id,
            "kubeconfig": kube.kubeconfig,
            "namespaces": list(namespaces(spec)),
        }
        # Two at once would clean the same cluster.
        own = pulumi.ResourceOptions(delete_before_replace=True)
        merged = pulumi.ResourceOptions.merge(own, opts)
        super().__init__("soperator:kube:Teardown", f"{spec.name}-teardown", properties, merged)
