"""Nebius resources in a Pulumi program.

jail = Resource("nebius:compute/v1:Filesystem", "jail",
                metadata={"parent_id": project_id, "name": "jail"},
                spec={"type": "network-ssd", "size_gibibytes": 1024})
jail.id, jail.status["state"]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi


class OwnResource(pulumi.CustomResource):
    """One whose outputs, the properties given as None, are unknown until it has an id.

    `pulumi up --target` leaves others out. A new one then has no id and no outputs in the answer of
    engine 3.190, and the SDK (3.272) takes an output that is missing in an update for None.
    """

    def __init__(
        self,
        token: str,
        name: str,
        properties: Mapping[str, Any],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(token, name, properties, opts)
        for key in [key for key, value in properties.items() if value is None]:
            made = pulumi.Output.all(self.id, getattr(self, key))
            setattr(self, key, made.apply(lambda found: found[1]))


class Resource(OwnResource):
    """Any resource of the Nebius API, with the fields of its proto message."""

    metadata: pulumi.Output[dict[str, Any]]
    spec: pulumi.Output[dict[str, Any]]
    status: pulumi.Output[dict[str, Any]]

    def __init__(
        self,
        token: str,
        name: str,
        *,
        metadata: Mapping[str, Any],
        spec: Mapping[str, Any] | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        properties = {"metadata": metadata, "spec": spec or {}, "status": None}
        # Names are unique in the API: the old one must go first, even for `up --replace`.
        first = pulumi.ResourceOptions(delete_before_replace=True)
        super().__init__(token, name, properties, pulumi.ResourceOptions.merge(first, opts))
