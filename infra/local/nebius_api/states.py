"""What the emulator holds: a fresh one's tenants, projects and quotas; states and what is used.

It lies in one SQLite file: resources, operations, idempotency keys, tokens. Everything is held in
memory and written through; `commit` ends the transaction of one call, so a killed process loses
whole calls only, never halves of one.

Platforms and fabrics come from stacks/catalog.py; what a project begins with is project.yaml.j2.
An emulator for previews knows no project's region, limits or capacity, and says so: it holds every
project that it is asked of.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

from google.protobuf import json_format

from infra.local.nebius_api.errors import refusal
from infra.providers.nebius.quota_use import used_by
from infra.providers.nebius.resource_type import size_bytes
from infra.providers.nebius.schema import OPERATION, Schema, enum_word
from stacks.catalog import FABRICS, PLATFORMS
from stacks.files import fill, parse_yaml
from stacks.rules.quotas import gpu_quota


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


def num_nodes(group: Any) -> int:
    """Nodes that a node group starts with."""
    if group.spec.WhichOneof("size") == "fixed_node_count":
        return group.spec.fixed_node_count
    return group.spec.autoscaling.min_node_count


def used_in(store: Store, project: str) -> Counter[str]:
    """Everything that a project uses."""
    total: Counter[str] = Counter()
    for resource in list(store.resources.values()):
        if store.project_of(resource.metadata.id) == project:
            total += used_by(store.schema, resource, num_nodes)
    return total


def check_quota(store: Store, new: Any, old: Any | None = None) -> None:
    """Refuses a resource, or its growth, beyond a quota of its project."""
    wanted = used_by(store.schema, new, num_nodes)
    had = Counter() if old is None else used_by(store.schema, old, num_nodes)
    if not wanted:
        return
    project = store.project_of(new.metadata.parent_id)
    total = used_in(store, project)
    violations = []
    for quota, amount in wanted.items():
        allowance = store.find("quotaallowance", parent_id=project, name=quota)
        requested = total[quota] - had[quota] + amount
        if allowance is None or not allowance.spec.HasField("limit"):
            continue
        if amount > had[quota] and requested > allowance.spec.limit:
            told = {"limit": str(allowance.spec.limit), "requested": str(requested)}
            violations.append({"quota": quota, **told, "message": f"quota {quota} exceeded"})
    if violations:
        raise refusal("quota_failure", "Quota limit exceeded", violations=violations)


Phase = Literal["creating", "updating", "deleting", "ready", "error"]

_STATES: Final[Mapping[Phase, tuple[str, ...]]] = {
    "creating": ("CREATING", "PROVISIONING", "ACTIVE"),
    "updating": ("UPDATING", "READY", "RUNNING", "ACTIVE"),
    "deleting": ("DELETING", "SCHEDULED_FOR_DELETION"),
    "ready": ("READY", "RUNNING", "ACTIVE", "ALLOCATED"),
    "error": ("ERROR", "PROVISIONING", "CREATING"),
}
_NOT_LIFE: Final = ("usage_state", "suspension_state")


def set_state(schema: Schema, resource: Any, phase: Phase) -> None:
    """Fills the status as the service would in this phase."""
    field = resource.DESCRIPTOR.fields_by_name.get("status")
    if field is None or field.message_type is None:
        return
    status = resource.status
    status.SetInParent()
    for own in field.message_type.fields:
        enum = own.enum_type if own.name.endswith("state") else None
        if enum is not None and own.name not in _NOT_LIFE:
            # The first word that the enum has: READY or STATE_READY.
            names = ((value.name, value.number) for value in enum.values)
            known = {name.rpartition("STATE_")[2]: number for name, number in names}
            if word := next((word for word in _STATES[phase] if word in known), None):
                setattr(status, own.name, known[word])
        elif own.name == "reconciling":
            status.reconciling = phase in ("creating", "updating", "deleting")
        elif own.name == "active":
            status.active = phase != "deleting"
    _mirror_spec(resource)
    _fill(schema.kind(resource.DESCRIPTOR), resource, phase)


def _mirror_spec(resource: Any) -> None:
    """Copies scalar fields that spec and status share."""
    spec = resource.DESCRIPTOR.fields_by_name.get("spec")
    if spec is None or spec.message_type is None:
        return
    for field in resource.status.DESCRIPTOR.fields:
        own = spec.message_type.fields_by_name.get(field.name)
        if own is None or own.type != field.type or field.is_repeated:
            continue
        if own.message_type is None and own.enum_type is None:
            setattr(resource.status, field.name, getattr(resource.spec, field.name))


def _fill(kind: str, resource: Any, phase: Phase) -> None:
    """Fills what single services say beside a state."""
    spec, status = resource.spec, resource.status
    match kind:
        case "accesskey":
            status.aws_access_key_id = key_id(resource.metadata.id)
            # In the first version of the API a call of its own hands the secret out.
            if enum_word(spec, "secret_delivery_mode") == "INLINE":
                status.secret = secret(resource.metadata.id)
        case "computedisk" | "computefilesystem":
            status.size_bytes = size_bytes(spec)
            status.block_size_bytes = spec.block_size_bytes or 4096
        case "mk8scluster":
            status.control_plane.version = f"{spec.control_plane.version or '1.33'}.0-nebius-cp.1"
            status.control_plane.etcd_cluster_size = spec.control_plane.etcd_cluster_size or 3
            status.control_plane.endpoints.private_endpoint = "https://10.0.0.1:443"
        case "mk8snodegroup":
            status.target_node_count = num_nodes(resource)
            status.version = spec.version
            if phase == "ready":
                status.node_count = status.ready_node_count = num_nodes(resource)
        case "registry":
            own = resource.metadata.id.rpartition("-")[2]
            status.registry_fqdn = f"cr.eu-north1.nebius.cloud/{own}"
        case "storagebucket":
            status.domain_name = "storage.eu-north1.nebius.cloud"
        case "vpcallocation" if phase == "ready":
            status.details.allocated_cidr = "127.0.0.1/32"
        case "vpcsubnet" if phase == "ready" and not status.ipv4_private_cidrs:
            status.ipv4_private_cidrs.append("10.0.0.0/16")
        case _:
            pass


_ADMIN: Final = "useraccount-e00admin"
_REGION: Final = "eu-north1"
# (tenant, project): the one of the local stack, and the placeholders of the cloud stacks.
_PROJECTS: Final = (
    ("tenant-e00t", "project-e00p"),
    ("tenant-e00replaceme", "project-e00replaceme"),
)


def seed(store: Store, token: str, *, anywhere: bool = False) -> None:
    """Lets the owner's token in, and no earlier one; fills an empty store."""
    store.put_token(token, _ADMIN, alone=True)
    for tenant, project in () if store.resources else _PROJECTS:
        plant_project(store, tenant, project, anywhere=anywhere)
    store.commit()


def plant_project(store: Store, tenant: str, project: str, *, anywhere: bool) -> None:
    """One tenant with one project; `anywhere`: of no region, with every platform and no limit."""
    text = fill(
        Path(__file__).with_name("project.yaml.j2"),
        {"gpu_quota": gpu_quota},
        tenant=tenant,
        project=project,
        region="" if anywhere else _REGION,
        platforms=tuple(PLATFORMS.values()),
        fabrics=tuple(FABRICS.values()),
    )
    for body in cast("list[dict[str, Any]]", parse_yaml(text)):
        resource: Any = store.schema.message(f"nebius.{body.pop('type')}")()
        json_format.ParseDict(body, resource, descriptor_pool=store.schema.pool)
        set_state(store.schema, resource, "ready")
        store.put(resource)
