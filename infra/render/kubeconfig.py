"""Access to the kube cluster: endpoint and CA -> kubeconfig whose token is made on demand. Pure.

The user entry runs `soperator kube-token`, so neither the nebius CLI nor kubectl is needed on the
laptop and no token is ever written down.
"""

from __future__ import annotations

import base64
import json
from typing import Final

_EXEC_API: Final = "client.authentication.k8s.io/v1"


def kubeconfig(*, name: str, endpoint: str, ca_certificate: str) -> str:
    """Kubeconfig as JSON text; `ca_certificate` is PEM, as in the mk8s cluster's status."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": name,
                    "cluster": {
                        "server": endpoint,
                        "certificate-authority-data": base64.b64encode(
                            ca_certificate.encode()
                        ).decode(),
                    },
                }
            ],
            "users": [
                {
                    "name": name,
                    "user": {
                        "exec": {
                            "apiVersion": _EXEC_API,
                            "command": "soperator",
                            "args": ["kube-token"],
                            "interactiveMode": "Never",
                            "installHint": "activate the environment: `soperator env`",
                        }
                    },
                }
            ],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        },
        indent=2,
    )
