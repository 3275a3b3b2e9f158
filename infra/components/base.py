"""What the components share: how a Nebius resource of a stack is made and whether it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pulumi

from infra.providers.engine.resources import Resource
from infra.providers.nebius.adoption import STATE_ID
from stacks.spec import StackSpec


def child(
    parent: pulumi.Resource,
    token: str,
    name: str,
    *,
    parent_id: pulumi.Input[str],
    spec: Mapping[str, Any] | None = None,
    opts: pulumi.ResourceOptions | None = None,
) -> Resource:
    """A Nebius resource under `parent`; its API name is its Pulumi name, so it can be found."""
    own = pulumi.ResourceOptions(parent=parent)
    return Resource(
        token,
        name,
        metadata={"parent_id": parent_id, "name": name},
        spec=spec,
        opts=pulumi.ResourceOptions.merge(own, opts),
    )


UNLABELLED: Final = (
    "nebius:iam/v1:GroupMembership",
    "nebius:iam/v1:AccessPermit",
    "nebius:applications/v1alpha1:K8sRelease",
)
"""Of no name, and gone with what they join. Nothing of a right or member can be updated, and an
update of a release would install it again."""


def labelled(
    made: pulumi.ResourceTransformationArgs, state_id: pulumi.Output[str], company: str | None
) -> pulumi.ResourceTransformationResult:
    """A Nebius resource with the labels of the state that has it and of whose it is."""
    props: dict[str, Any] = dict(made.props)
    whose = {} if company is None else {"company": company}
    props["metadata"] = {**props["metadata"], "labels": {STATE_ID: state_id, **whose}}
    return pulumi.ResourceTransformationResult(props, made.opts)


def kept(spec: StackSpec) -> pulumi.ResourceOptions:
    """Options of a resource with data: destroy leaves it in the cloud unless the stack purges."""
    return pulumi.ResourceOptions(retain_on_delete=not spec.storage.purge_on_destroy)
