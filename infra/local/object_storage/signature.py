"""AWS Signature Version 4 of a request with an Authorization header, as S3 checks it. Pure.

docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html and, for a body in chunks that
are signed one after the other, sigv4-streaming.html (2026-11).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
CONTENT_HASH: Final = "x-amz-content-sha256"
CHUNKED: Final = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
"""What stands for the hash of a body in signed chunks."""
_NOTHING: Final = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What an Authorization header says."""

    key_id: str
    scope: str
    """Day, region, service and a last word, with slashes."""
    signed: tuple[str, ...]
    """Names of the headers that are part of the signature."""
    signature: str


def read_claim(header: str) -> Claim | None:
    """The claim; None for a header that is no such signature."""
    algorithm, _, rest = header.partition(" ")
    parts: dict[str, str] = {}
    for part in rest.split(","):
        name, _, value = part.strip().partition("=")
        parts[name] = value
    if algorithm != _ALGORITHM or not {"Credential", "SignedHeaders", "Signature"} <= set(parts):
        return None
    key_id, _, scope = parts["Credential"].partition("/")
    if len(scope.split("/")) != 4:
        return None
    return Claim(
        key_id=key_id,
        scope=scope,
        signed=tuple(parts["SignedHeaders"].split(";")),
        signature=parts["Signature"],
    )


def is_signed(
    claim: Claim, secret: str, *, method: str, path: str, query: str, headers: Mapping[str, str]
) -> bool:
    """Whether the secret made the signature; `path` and `query` as sent, headers lower case."""
    lines = (
        method,
        path,
        canonical_query(query),
        *(f"{name}:{' '.join(headers.get(name, '').split())}" for name in claim.signed),
        "",
        ";".join(claim.signed),
        headers.get(CONTENT_HASH, ""),
    )
    request = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    made = _sign(claim, secret, _ALGORITHM, headers.get("x-amz-date", ""), claim.scope, request)
    return hmac.compare_digest(made, claim.signature)


def join_chunks(body: bytes, claim: Claim, secret: str, date: str) -> bytes | None:
    """The content of a body in chunks; None where one is cut or not what was signed."""
    content, before = bytearray(), claim.signature
    while True:
        head, found, body = body.partition(b"\r\n")
        size, _, signature = head.decode("ascii", "replace").partition(";chunk-signature=")
        try:
            count = int(size, 16)
        except ValueError:
            return None
        chunk, body = body[:count], body[count:]
        hashed = hashlib.sha256(chunk).hexdigest()
        signed = (f"{_ALGORITHM}-PAYLOAD", date, claim.scope, before, _NOTHING, hashed)
        made = _sign(claim, secret, *signed)
        if not found or len(chunk) != count or not hmac.compare_digest(made, signature):
            return None
        if not count:
            return bytes(content)
        content += chunk
        before, body = signature, body.removeprefix(b"\r\n")


def _sign(claim: Claim, secret: str, *lines: str) -> str:
    key = f"AWS4{secret}".encode()
    for part in claim.scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, "\n".join(lines).encode(), "sha256").hex()


def canonical_query(query: str) -> str:
    """The query with its pairs encoded one way and in order."""
    pairs = (
        (quote(name, safe="-_.~"), quote(value, safe="-_.~"))
        for name, value in parse_qsl(query, keep_blank_values=True)
    )
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))
