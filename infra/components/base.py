"""What the components share: how a Nebius resource of a stack is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi

from infra.nebius.resource import Resource


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
