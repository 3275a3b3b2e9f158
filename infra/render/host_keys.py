"""The login node's host key as Soperator's pods mount it. Pure."""

from __future__ import annotations

from typing import Any, Final

# Login and worker pods mount all six names, none of them optional, and sshd_config names the three
# private ones (nebius/soperator 4.1.7, internal/render/common/volume.go RenderVolumeSshdKeys and
# internal/render/login/configmap.go). The operator makes keys only where the Secret is missing, and
# kubelet waits for ever for a key that a Secret lacks (pkg/volume/secret/secret.go, MakePayload:
# "references non-existent secret key").
FILES: Final = ("ssh_host_rsa_key", "ssh_host_ecdsa_key", "ssh_host_ed25519_key")
"""Files of private keys in sshd_config, in its order; each has a .pub beside it."""


def host_key_files(private_key: Any, public_key: Any) -> dict[str, Any]:
    """Content of every file: the one pair under all names, so that sshd offers its type alone.

    sshd goes by what is in a file, not by its name. A pair of another type would be offered too,
    and a client that takes it could not check it against the pinned key.
    """
    files: dict[str, Any] = {}
    for name in FILES:
        files |= {name: private_key, f"{name}.pub": public_key}
    return files
