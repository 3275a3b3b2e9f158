"""Who may do what: AWS Signature Version 4, access keys and the rights of their groups.

docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html and, for a body in chunks that
are signed one after the other, sigv4-streaming.html (2026-11).
"""

from __future__ import annotations

import hashlib
import hmac
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote

from infra.local.nebius_api import store
from infra.providers.nebius.schema import Schema

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
    pairs = (part.strip().partition("=") for part in rest.split(","))
    parts = {name: value for name, _, value in pairs}
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


# What the roles of docs.nebius.com/iam/authorization/roles (2026-11) say about objects; the others
# of the emulator's projects have no right on any.
_READERS: Final = frozenset({"viewer", "storage.viewer"})
_WRITERS: Final = frozenset(
    {"admin", "editor", "storage.admin", "storage.editor", "storage.object-editor"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One bucket of the cloud."""

    id: str
    holders: frozenset[str]
    """Its own id and those of the project and tenant that it is in."""


class Access:
    """Look-ups in the emulated cloud."""

    def __init__(self, cloud: Path, schema: Schema, clock: Callable[[], float] = time.time) -> None:
        """`cloud` is the state folder of the emulated Nebius API."""
        self._file = cloud / "nebius.sqlite"
        self._schema = schema
        self._clock = clock

    def bucket(self, name: str) -> Bucket | None:
        """The bucket of this name; names are unique in the whole cloud."""
        for found in self._all("storagebucket"):
            if found.metadata.name == name:
                holders, parent = {found.metadata.id}, found.metadata.parent_id
                above = self._all(parent.partition("-")[0]) if parent else []
                holders |= {
                    parent,
                    *(x.metadata.parent_id for x in above if x.metadata.id == parent),
                }
                return Bucket(id=found.metadata.id, holders=frozenset(holders - {""}))
        return None

    def secret(self, key_id: str) -> str | None:
        """The secret of a key that exists and has not ended."""
        key = self._key(key_id)
        return None if key is None else store.secret(key.metadata.id)

    def may(self, key_id: str, bucket: Bucket, *, write: bool) -> bool:
        """Whether the account of the key may read, or write, what the bucket holds."""
        key = self._key(key_id)
        if key is None:
            return False
        account = key.spec.account.service_account.id
        allowed = _WRITERS if write else _WRITERS | _READERS
        groups = {
            found.metadata.parent_id
            for found in self._all("groupmembership")
            if found.spec.member_id == account
        }
        return any(
            found.spec.role in allowed
            for found in self._all("accesspermit")
            if found.metadata.parent_id in groups and found.spec.resource_id in bucket.holders
        )

    def _key(self, key_id: str) -> Any | None:
        for found in self._all("accesskey"):
            if store.key_id(found.metadata.id) == key_id:
                ends = found.spec.expires_at
                ended = found.spec.HasField("expires_at") and ends.seconds <= self._clock()
                return None if ended else found
        return None

    def _all(self, kind: str) -> list[Any]:
        """Every resource with this id prefix; none where the cloud never started."""
        if not self._file.exists():
            return []
        query = "SELECT type, body FROM resources WHERE substr(id, 1, ?) = ?"
        with closing(sqlite3.connect(f"file:{self._file}?mode=ro", uri=True)) as database:
            rows = database.execute(query, (len(kind) + 1, f"{kind}-")).fetchall()
        return [self._schema.message(type_).FromString(body) for type_, body in rows]
