"""ed25519 key pairs as ssh-keygen writes them; kept by whoever asks, by nobody here."""

from __future__ import annotations

import base64
import hashlib

# cryptography is imported inside: a preview of existing keys does not need it.


def make_key_pair(comment: str) -> tuple[str, str]:
    """Public key line and private key PEM of a new pair, without a passphrase."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate().private_bytes(
        form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption()
    )
    return public_half(private, comment), private.decode()


def public_half(private: bytes, comment: str) -> str:
    """Public key line of a private key without a passphrase."""
    from cryptography.hazmat.primitives import serialization as form

    key = form.load_ssh_private_key(private, None)
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return f"{public.decode()} {comment}".rstrip()


def fingerprint(public: str) -> str:
    """`SHA256:...` of a public key line, as ssh-keygen -l prints it."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"
