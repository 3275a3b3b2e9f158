"""A resource of our own plugins in a Pulumi program: its outputs are known once it is made."""

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
