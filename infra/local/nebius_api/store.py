"""State of the emulator in one SQLite file: resources, operations, idempotency keys, tokens.

Everything is held in memory and written through; `commit` ends the transaction of one call, so a
killed process loses whole calls only, never halves of one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.providers.nebius.schema import OPERATION, Schema


def key_id(resource_id: str) -> str:
    """The public half, as S3 clients send it."""
    return f"NAKI{resource_id.rpartition('-')[2][-12:].upper()}"


def secret(resource_id: str) -> str:
    """The secret half."""
    return f"emulated-secret-{resource_id[-8:]}"


IDEMPOTENCY_S = 24 * 3600.0
"""How long a key answers with its first operation; the real lifetime is not documented."""

_TABLES = """
CREATE TABLE IF NOT EXISTS resources (id TEXT PRIMARY KEY, type TEXT, body BLOB);
CREATE TABLE IF NOT EXISTS operations (
    id TEXT PRIMARY KEY, verb TEXT, started REAL, due REAL, done INTEGER, failure BLOB, body BLOB);
CREATE TABLE IF NOT EXISTS idempotency (
    method TEXT, key TEXT, operation TEXT, at REAL, PRIMARY KEY (method, key));
CREATE TABLE IF NOT EXISTS tokens (token TEXT PRIMARY KEY, subject TEXT);
"""


@dataclass
class Operation:
    """One long-running operation: what is answered, and when it ends."""

    message: Any
    """nebius.common.v1.Operation."""
    verb: str
    started: float
    due: float
    """Seconds since the epoch at which it finishes."""
    done: bool = False
    failure: Any = None
    """google.rpc.Status that it ends with, or None."""


class Store:
    """Resources and operations by id."""

    def __init__(self, folder: Path, schema: Schema) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.schema = schema
        self._database = sqlite3.connect(folder / "nebius.sqlite", check_same_thread=False)
        # WAL survives kill -9 without a sync for each call; a power cut can lose the last ones.
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=NORMAL")
        self._database.executescript(_TABLES)
        self.resources: dict[str, Any] = {}
        self.operations: dict[str, Operation] = {}
        self.tokens = dict(self._database.execute("SELECT token, subject FROM tokens"))
        """Bearer token -> id of its subject."""
        for id_, type_, body in self._database.execute("SELECT id, type, body FROM resources"):
            self.resources[id_] = schema.message(type_).FromString(body)
        operation = schema.message(OPERATION).FromString
        status = schema.message("google.rpc.Status").FromString
        rows = self._database.execute("SELECT * FROM operations ORDER BY started")
        for id_, verb, started, due, done, failure, body in rows:
            ends = None if failure is None else status(failure)
            kept = Operation(operation(body), verb, started, due, bool(done), ends)
            self.operations[id_] = kept

    def put(self, resource: Any) -> None:
        """Adds or replaces a resource."""
        id_ = resource.metadata.id
        self.resources[id_] = resource
        self._database.execute(
            "INSERT OR REPLACE INTO resources VALUES (?, ?, ?)",
            (id_, resource.DESCRIPTOR.full_name, resource.SerializeToString()),
        )

    def drop(self, id_: str) -> None:
        """Removes a resource that may be gone already."""
        self.resources.pop(id_, None)
        self._database.execute("DELETE FROM resources WHERE id = ?", (id_,))

    def put_operation(self, operation: Operation) -> None:
        """Adds or replaces an operation."""
        one, body = operation, operation.message.SerializeToString()
        self.operations[one.message.id] = one
        failure = None if one.failure is None else one.failure.SerializeToString()
        self._database.execute(
            "INSERT OR REPLACE INTO operations VALUES (?, ?, ?, ?, ?, ?, ?)",
            (one.message.id, one.verb, one.started, one.due, one.done, failure, body),
        )

    def put_token(self, token: str, subject: str, *, alone: bool = False) -> None:
        """Lets a bearer token in as `subject`; `alone`: and none that it had before."""
        if alone:
            self.tokens = {known: of for known, of in self.tokens.items() if of != subject}
            self._database.execute("DELETE FROM tokens WHERE subject = ?", (subject,))
        self.tokens[token] = subject
        self._database.execute("INSERT OR REPLACE INTO tokens VALUES (?, ?)", (token, subject))

    def remember(self, method: str, key: str, operation_id: str, now: float) -> None:
        """Ties an idempotency key to the operation that it made."""
        self._database.execute(
            "INSERT OR REPLACE INTO idempotency VALUES (?, ?, ?, ?)",
            (method, key, operation_id, now),
        )

    def remembered(self, method: str, key: str, now: float) -> Operation | None:
        """The operation that this key made before, if the key is still known."""
        row = self._database.execute(
            "SELECT operation FROM idempotency WHERE method = ? AND key = ? AND at > ?",
            (method, key, now - IDEMPOTENCY_S),
        ).fetchone()
        return None if row is None else self.operations[row[0]]

    def of_kind(self, kind: str) -> Iterator[Any]:
        """Every resource whose type has this id prefix."""
        for resource in list(self.resources.values()):
            if self.schema.kind(resource.DESCRIPTOR) == kind:
                yield resource

    def find(self, kind: str, *, parent_id: str, name: str) -> Any | None:
        """The resource of this kind, parent and name."""
        for resource in self.of_kind(kind):
            if resource.metadata.parent_id == parent_id and resource.metadata.name == name:
                return resource
        return None

    def project_of(self, resource_id: str) -> str:
        """The project that holds the resource; empty where it is in none."""
        while resource_id and not resource_id.startswith("project-"):
            resource = self.resources.get(resource_id)
            resource_id = resource.metadata.parent_id if resource is not None else ""
        return resource_id

    def commit(self) -> None:
        """Makes everything since the last commit permanent, as one."""
        self._database.commit()

    def close(self) -> None:
        """Closes the file."""
        self._database.close()
