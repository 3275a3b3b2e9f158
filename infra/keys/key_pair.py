"""An SSH key pair in a Pulumi program."""

from __future__ import annotations

import pulumi

from infra.plugins.resource import OwnResource


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
        # The plugin says so too; this holds whoever serves the type.
        secret = pulumi.ResourceOptions(additional_secret_outputs=["private_key"])
        merged = pulumi.ResourceOptions.merge(opts, secret)
        super().__init__("soperator:ssh:KeyPair", name, properties, merged)
