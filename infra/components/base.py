"""What the components share: how a Nebius resource of a stack is made and whether it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pulumi
import pulumi_kubernetes as kubernetes

from infra.providers.engine.resources import Resource
from stacks.spec import StackSpec


class Part(pulumi.ComponentResource):
    """A component of a stack, with its class's name as type; makes resources of the project."""

    def __init__(
        self, spec: StackSpec, opts: pulumi.ResourceOptions | None = None, name: str | None = None
    ) -> None:
        super().__init__(f"soperator:infra:{type(self).__name__}", name or spec.name, None, opts)
        self._spec = spec

    def _child(
        self,
        token: str,
        noun: str,
        spec: Mapping[str, Any] | None = None,
        opts: pulumi.ResourceOptions | None = None,
        *,
        parent_id: pulumi.Input[str] | None = None,
    ) -> Resource:
        """A Nebius resource; API and Pulumi know it by the component's name with `noun`."""
        name = f"{self.pulumi_resource_name}-{noun}".removesuffix("-")
        parent_id = self._spec.nebius.project_id if parent_id is None else parent_id
        return Resource(
            token,
            name,
            metadata={"parent_id": parent_id, "name": name},
            spec=spec,
            opts=pulumi.ResourceOptions.merge(pulumi.ResourceOptions(parent=self), opts),
        )

    def _after(
        self, *made: pulumi.Resource | None, provider: Kubernetes | None = None, **more: Any
    ) -> pulumi.ResourceOptions:
        """Options of a part of this one that is made after these, and goes before them."""
        needs = [each for each in made if each is not None]
        return pulumi.ResourceOptions(parent=self, provider=provider, depends_on=needs, **more)

    def _kept(self) -> pulumi.ResourceOptions:
        """Options of a resource with data: destroy leaves it unless the stack purges."""
        purges = self._spec.storage.purge_on_destroy
        return pulumi.ResourceOptions(retain_on_delete=not purges)


class Kubernetes(kubernetes.Provider):
    """The way into the kube cluster."""

    def __init__(
        self,
        name: str,
        kubeconfig: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(
            name,
            kubeconfig=kubeconfig,
            # A changed Secret or ConfigMap is updated in place: a replaced one would restart pods.
            enable_config_map_mutable=True,
            enable_secret_mutable=True,
            # What a killed run or one with a lost state made is taken over, with its fields: since
            # 4.29 the plugin refuses what is there already.
            upsert_existing_objects=True,
            enable_patch_force=True,
            opts=opts,
        )
        self.kubeconfig = kubeconfig


def address_of(allocation: Resource) -> pulumi.Output[str]:
    """The IPv4 address of an allocation; the API gives a /32 CIDR."""
    return allocation.status.apply(lambda status: status["details"]["allocated_cidr"].split("/")[0])


UNLABELLED: Final = (
    "nebius:iam/v1:GroupMembership",
    "nebius:iam/v1:AccessPermit",
    "nebius:applications/v1alpha1:K8sRelease",
)
"""Of no name, and gone with what they join. Nothing of a right or member can be updated, and an
update of a release would install it again."""
