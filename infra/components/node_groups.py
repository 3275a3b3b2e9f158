"""Node groups by role, and one GPU cluster per InfiniBand fabric."""

from __future__ import annotations

from collections.abc import Mapping

import pulumi

from infra.components.base import child
from infra.render.node_group import node_group_spec, roles
from stacks.spec import StackSpec


class NodeGroups(pulumi.ComponentResource):
    """System, controller, login, accounting and worker groups of the kube cluster."""

    gpu_cluster_ids: Mapping[str, pulumi.Output[str]]
    """InfiniBand fabric -> GPU cluster id; empty where no worker declares a fabric."""
    groups: Mapping[str, pulumi.Output[str]]
    """Role or nodeset name -> node group id."""

    def __init__(
        self,
        name: str,
        spec: StackSpec,
        *,
        cluster_id: pulumi.Input[str],
        subnet_id: pulumi.Input[str],
        filesystem_ids: Mapping[str, pulumi.Input[str]],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("soperator:infra:NodeGroups", name, None, opts)
        fabrics = {worker.infiniband_fabric for worker in spec.nodes.workers}
        self.gpu_cluster_ids = {
            fabric: child(
                self,
                "nebius:compute/v1:GpuCluster",
                f"{name}-{fabric}",
                parent_id=spec.nebius.project_id,
                spec={"infiniband_fabric": fabric},
            ).id
            for fabric in sorted(fabric for fabric in fabrics if fabric)
        }
        groups: dict[str, pulumi.Output[str]] = {}
        for role in roles(spec):
            fabric = role.worker.infiniband_fabric if role.worker else None
            groups[role.name] = child(
                self,
                "nebius:mk8s/v1:NodeGroup",
                f"{name}-{role.name}",
                # The parent of a node group is its cluster, not the project.
                parent_id=cluster_id,
                spec=node_group_spec(
                    spec,
                    role,
                    subnet_id=subnet_id,
                    filesystem_ids=filesystem_ids,
                    gpu_cluster_id=self.gpu_cluster_ids[fabric] if fabric else None,
                ),
            ).id
        self.groups = groups
        self.register_outputs({"groups": groups})
