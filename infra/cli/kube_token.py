"""`soperator kube-token`: what kubeconfig files run to get a token; no nebius CLI is needed."""

from __future__ import annotations


def command() -> None:
    """Print a Kubernetes exec credential."""
    from infra.providers.nebius.sdk import exec_credential

    print(exec_credential())
