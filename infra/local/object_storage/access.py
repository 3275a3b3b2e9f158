"""Who may do what: AWS Signature Version 4, access keys and the rights of their groups.

docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html and, for a body in chunks that
are signed one after the other, sigv4-streaming.html (2026-11).
"""

from __future__ import annotations

import hashlib
import hmac
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
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
        with self._connected() as database:
            for found in self._of(database, "storagebucket"):
                if found.metadata.name == name:
                    return Bucket(
                        id=found.metadata.id, holders=frozenset(self._chain(database, found))
                    )
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
        with self._connected() as database:
            groups = {
                found.metadata.parent_id
                for found in self._of(database, "groupmembership")
                if found.spec.member_id == account
            }
            return any(
                found.spec.role in allowed
                for found in self._of(database, "accesspermit")
                if found.metadata.parent_id in groups and found.spec.resource_id in bucket.holders
            )

    def _key(self, key_id: str) -> Any | None:
        with self._connected() as database:
            for found in self._of(database, "accesskey"):
                if store.key_id(found.metadata.id) == key_id:
                    ends = found.spec.expires_at
                    ended = found.spec.HasField("expires_at") and ends.seconds <= self._clock()
                    return None if ended else found
        return None

    def _chain(self, database: sqlite3.Connection, resource: Any) -> Iterator[str]:
        yield resource.metadata.id
        parent = resource.metadata.parent_id
        if parent:
            yield parent
            for found in self._of(database, parent.partition("-")[0]):
                if found.metadata.id == parent:
                    yield found.metadata.parent_id

    def _of(self, database: sqlite3.Connection, kind: str) -> Iterator[Any]:
        rows = database.execute(
            "SELECT type, body FROM resources WHERE substr(id, 1, ?) = ?",
            (len(kind) + 1, f"{kind}-"),
        )
        for type_, body in rows:
            yield self._schema.message(type_).FromString(body)

    def _connected(self) -> _Database:
        return _Database(self._file)


class _Database:
    """A connection for the length of a block; an empty one where the cloud never started."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> sqlite3.Connection:
        if self._file.exists():
            self._connection = sqlite3.connect(f"file:{self._file}?mode=ro", uri=True)
        else:
            self._connection = sqlite3.connect(":memory:")
            self._connection.execute("CREATE TABLE resources (id TEXT, type TEXT, body BLOB)")
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._connection.close()
