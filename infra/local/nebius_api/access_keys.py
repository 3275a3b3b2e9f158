"""Values of access keys in the emulated cloud: worked out from the id, so that nothing is stored.

The emulated object storage lets in by the same two.
"""

from __future__ import annotations


def key_id(resource_id: str) -> str:
    """The public half, as S3 clients send it."""
    return f"NAKI{resource_id.rpartition('-')[2][-12:].upper()}"


def secret(resource_id: str) -> str:
    """The secret half."""
    return f"emulated-secret-{resource_id[-8:]}"
