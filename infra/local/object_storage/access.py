"""Who may do what with which bucket, as the emulated Nebius API says at this moment.

Reads that emulator's file: a key, the account that it is of, the groups of the account, and the
rights of the groups on the bucket or on what holds it. Writes nothing.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from infra.local.nebius_api import access_keys
from infra.nebius.schema import Schema

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
        return None if key is None else access_keys.secret(key.metadata.id)

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
                if access_keys.key_id(found.metadata.id) == key_id:
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
