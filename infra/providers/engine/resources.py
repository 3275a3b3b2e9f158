"""Resources of both plugins in a Pulumi program: those of the Nebius API, and the stack's own.

jail = Resource("nebius:compute/v1:Filesystem", "jail",
                metadata={"parent_id": project_id, "name": "jail"},
                spec={"type": "network-ssd", "size_gibibytes": 1024})
jail.id, jail.status["state"]

The own ones with outputs: key pairs, passwords and ends of credentials.
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
        *secret: str,
    ) -> None:
        # The plugin says which outputs are secret too; this holds whoever serves the type.
        options = pulumi.ResourceOptions(additional_secret_outputs=list(secret) or None)
        super().__init__(token, name, properties, pulumi.ResourceOptions.merge(opts, options))
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


class KeyPair(OwnResource):
    """One ed25519 key pair, kept in the state; a new comment makes a new pair."""

    public_key: pulumi.Output[str]
    """One line, as in authorized_keys."""
    private_key: pulumi.Output[str]
    """OpenSSH PEM, without a passphrase; secret."""

    def __init__(
        self, name: str, *, comment: str, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        properties = {"comment": comment, "public_key": None, "private_key": None}
        super().__init__("soperator:ssh:KeyPair", name, properties, opts, "private_key")


class Password(OwnResource):
    """256 random bits as text, kept in the state; a higher version makes the next one."""

    fingerprint: pulumi.Output[str]
    """Names the password; changes with it."""
    password: pulumi.Output[str]
    """Secret."""
    earlier: pulumi.Output[dict[str, str]]
    """Fingerprint -> password of every earlier version; secret."""

    def __init__(
        self, name: str, *, version: int, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        properties = {"version": version, "fingerprint": None, "password": None, "earlier": None}
        token = "soperator:random:Password"  # noqa: S105 (a type)
        super().__init__(token, name, properties, opts, "password", "earlier")


class Expiry(OwnResource):
    """A moment `days` after it was chosen; chosen anew with a new version, or near its end."""

    at: pulumi.Output[str]
    """RFC 3339, UTC."""

    def __init__(
        self, name: str, *, days: int, version: int, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        properties = {"days": days, "version": version, "at": None}
        super().__init__("soperator:time:Expiry", name, properties, opts)
