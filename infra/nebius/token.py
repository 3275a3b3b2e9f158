"""The IAM token as Kubernetes wants it: an ExecCredential for kubeconfig files."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime

from infra.nebius.sdk import TOKEN_VARIABLE, make_sdk

_TIMEOUT_S = 30.0


def iam_token() -> tuple[str, datetime | None]:
    """The bearer token that the environment gives, and when it expires where that is known."""
    # kubectl runs this for each command: a given token must not cost the import of the SDK.
    if token := os.environ.get(TOKEN_VARIABLE):
        return token, None
    client = make_sdk()
    try:
        fetched = client.get_token_sync(timeout=_TIMEOUT_S)
        return fetched.token, fetched.expiration
    finally:
        client.sync_close()


def exec_credential() -> str:
    """ExecCredential JSON (client.authentication.k8s.io/v1) for `soperator kube-token`."""
    token, expires_at = iam_token()
    status = {"token": token}
    if expires_at is not None:
        if expires_at.tzinfo is None:
            expires_at = expires_at.replace(tzinfo=UTC)
        status["expirationTimestamp"] = expires_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": status,
    }
    return json.dumps(credential)
