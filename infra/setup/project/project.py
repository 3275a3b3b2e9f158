"""Sets up a project for deployments: prepare(calls, ...) -> what was made and what is there.

Owns the order: account and rights, bucket, keys, files. A second run finds everything and changes
nothing; a run that was killed goes on where it stopped, a key without its secret half apart, which
ends by itself.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.protobuf import json_format
from google.protobuf.descriptor import ServiceDescriptor

from infra import files
from infra.clients import pulumi
from infra.clients.errors import JobsError
from infra.providers.engine.provider import ProviderError
from infra.providers.nebius.api import Api, ApiError
from infra.providers.nebius.resource_type import violations
from stacks.errors import UserError


class Calls:
    """The API that the environment names."""

    def __init__(self) -> None:
        self._api = Api()

    def get(self, service: str, method: str, **fields: Any) -> Any:
        """The answer of one call, such as `iam.v2.ProjectService` `Get`."""
        with self._explained(service, method) as found:
            request = self._api.request(found, method)
            json_format.ParseDict(fields, request, descriptor_pool=self._api.schema.pool)
            problems = [f"{path}: {reason}" for path, reason in violations(request)]
            if problems:
                raise UserError(
                    f"{service}/{method}: the API would refuse it: {'; '.join(problems)}"
                )
            return self._api.call(found, method, request)

    def find(
        self, service: str, method: str, parent: dict[str, Any], fits: Callable[[Any], bool]
    ) -> Any | None:
        """The first resource of a list that fits, or None."""
        with self._explained(service, method) as found:
            return next(filter(fits, self._api.pages(found, method, **parent)), None)

    def create(self, service: str, metadata: dict[str, Any], spec: dict[str, Any]) -> str:
        """Id of the new resource, once it is there."""
        operation = self.get(service, "Create", metadata=metadata, spec=spec)
        with self._explained(service, "Create") as found:
            return self._api.wait(found, operation).resource_id

    @contextmanager
    def _explained(self, service: str, method: str) -> Iterator[ServiceDescriptor]:
        """The service; in the block, what the API refuses is said in one line."""
        with self._api.explained(f"{service}/{method}"):
            yield self._api.schema.services[f"nebius.{service}"]


ACCOUNT: Final = "soperator-deployer"
ROLE: Final = "editor"
_KEY_LIFE: Final = timedelta(days=90)
KEY_LAST: Final = timedelta(days=14)
"""A key that ends sooner is replaced by the next run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of the account: its id at the API and its day of end."""

    id: str
    expires_at: datetime


@dataclass(slots=True)
class Deployer:
    """Finds or makes what a project needs before its first stack; `made` names what was new."""

    calls: Calls
    place: Place
    made: list[str] = field(default_factory=list[str])

    def account(self) -> str:
        """Id of the service account, with its rights."""
        project, about = self.place.project_id, {"description": "deploys soperator-stack"}
        account = self._named("iam.v1.ServiceAccountService", project, ACCOUNT, about)
        group = f"{ACCOUNT}-{project[-8:]}"
        group = self._named("iam.v1.GroupService", self.place.tenant_id, group, {})
        self._child("iam.v1.GroupMembershipService", "ListMembers", group, {"member_id": account})
        permit = {"resource_id": project, "role": ROLE}
        self._child("iam.v1.AccessPermitService", "List", group, permit)
        return account

    def bucket(self) -> Any:
        """The bucket of the state, as the API has it; every version of an object stays."""
        # Bucket names are unique over all tenants.
        owner = hashlib.sha256(
            f"{self.place.tenant_id}/{self.place.project_id}".encode()
        ).hexdigest()[:16]
        name = f"soperator-state-{owner}"
        service = "storage.v1.BucketService"
        id_ = self._named(service, self.place.project_id, name, {"versioning_policy": "ENABLED"})
        return self.calls.get(service, "Get", id=id_)

    def is_good(self, service: str, key: Key | None) -> bool:
        """Whether the API still has the key and it does not end soon."""
        if key is None or key.expires_at - datetime.now(UTC) < KEY_LAST:
            return False
        found = self.calls.find(
            service,
            "List",
            {"parent_id": self.place.project_id},
            lambda one: one.metadata.id == key.id,
        )
        return found is not None

    def access_key(self, account: str) -> tuple[Key, str, str]:
        """A key of the account for object storage: itself, its S3 id and its secret."""
        service = "iam.v2.AccessKeyService"
        key = self.key(service, account, {"secret_delivery_mode": "EXPLICIT"})
        secret = self.calls.get(service, "GetSecret", id=key.id).secret
        s3_id = self.calls.get(service, "Get", id=key.id).status.aws_access_key_id
        return key, s3_id, secret

    def key(self, service: str, account: str, spec: dict[str, Any]) -> Key:
        """A new key of the account, which is told with its day of end."""
        expires_at = (datetime.now(UTC) + _KEY_LIFE).replace(microsecond=0)
        name = f"{ACCOUNT}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        id_ = self.calls.create(
            service,
            {"parent_id": self.place.project_id, "name": name},
            {
                **spec,
                "account": {"service_account": {"id": account}},
                "description": "soperator init",
                "expires_at": expires_at.isoformat().replace("+00:00", "Z"),
            },
        )
        self.made.append(f"{id_} (until {expires_at:%Y-%m-%d})")
        return Key(id=id_, expires_at=expires_at)

    def _named(self, service: str, parent_id: str, name: str, spec: dict[str, Any]) -> str:
        found = self.calls.find(
            service, "List", {"parent_id": parent_id}, lambda one: one.metadata.name == name
        )
        if found is not None:
            return found.metadata.id
        id_ = self.calls.create(service, {"parent_id": parent_id, "name": name}, spec)
        self.made.append(f"{id_} ({name})")
        return id_

    def _child(self, service: str, method: str, group: str, spec: dict[str, str]) -> None:
        def fits(found: Any) -> bool:
            return all(getattr(found.spec, name) == value for name, value in spec.items())

        if self.calls.find(service, method, {"parent_id": group}, fits) is None:
            self.made.append(self.calls.create(service, {"parent_id": group}, spec))


_BACKEND: Final = "PULUMI_BACKEND_URL"


class ProjectState:
    """The files of one project."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key_file = folder / "deployer.json"
        """Key of the service account, as the SDK reads it."""
        self.passphrase_file = folder / "passphrase"
        """Opens the secrets of the project's stacks; nobody else has it."""
        self.environment_file = folder / "environment"
        """Variables that the engine needs for this project."""
        self.stacks_folder = folder / "pulumi"
        """States of the project's stacks where they lie on this machine and not in a bucket."""

    def passphrase(self) -> tuple[str, bool]:
        """The passphrase, and whether it was made now."""
        if self.passphrase_file.is_file():
            return self.passphrase_file.read_text().strip(), False
        made = secrets.token_urlsafe(32)
        self.write(self.passphrase_file, f"{made}\n")
        return made, True

    def keys(self) -> Mapping[str, Key]:
        """Keys that lie here: `auth` and `access`, those whose secret half is here too."""
        needed = {"auth": self.key_file, "access": self.environment_file}
        file = self.folder / "keys.json"
        told: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
        return {
            use: Key(id=key["id"], expires_at=datetime.fromisoformat(key["expires_at"]))
            for use, key in told.items()
            if needed[use].is_file()
        }

    def write_keys(self, keys: Mapping[str, Key]) -> None:
        """Remembers which keys lie here."""
        told = {use: asdict(key) for use, key in keys.items()}
        self.write(
            self.folder / "keys.json", json.dumps(told, indent=1, default=datetime.isoformat) + "\n"
        )

    def write_key_file(self, *, account: str, key: Key, private_pem: str) -> None:
        """The key of the service account."""
        credentials = {
            "type": "JWT",
            "alg": "RS256",
            "private-key": private_pem,
            "kid": key.id,
            "iss": account,
            "sub": account,
        }
        self.write(self.key_file, json.dumps({"subject-credentials": credentials}) + "\n")

    def backend(self) -> str | None:
        """Address of the backend that the environment names; None before there is one."""
        if not self.environment_file.is_file():
            return None
        return variables_of(self.environment_file).get(_BACKEND)

    def write_environment(self, backend: str, keys: Mapping[str, str]) -> None:
        """The backend with the keys that open it, the passphrase and the service account."""
        variables = {
            _BACKEND: backend,
            **keys,
            "PULUMI_CONFIG_PASSPHRASE_FILE": str(self.passphrase_file),
            "SOPERATOR_NEBIUS_KEY_FILE": str(self.key_file),
        }
        lines = [f"{name}={shlex.quote(value)}\n" for name, value in variables.items()]
        self.write(self.environment_file, "".join(lines))

    def write(self, path: Path, text: str) -> None:
        """Writes a file that only its owner can read, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.write(path, text, mode=0o600)


_AGAIN: Final = "; what was made stays, and the same `soperator init` goes on from there"
_NO_STACK: Final = "no stack named"
_WAIT_S: Final = 120
"""Longest wait for the backend; it is asked twice at most."""


class Backend(StrEnum):
    """Where the states of a project's stacks lie."""

    BUCKET = "bucket"
    """A versioned bucket of the project, for everybody who deploys it."""
    FILE = "file"
    """This machine alone."""


def variables_of(environment_file: Path) -> dict[str, str]:
    """Variables of the project's file, as a shell would read them."""
    words = shlex.split(environment_file.read_text(encoding="utf-8"))
    # People write `export` and comments into it too.
    return dict(word.split("=", 1) for word in words if "=" in word)


def make_stack(name: str, checkout: Path, environ: Mapping[str, str]) -> bool:
    """Selects the stack in the backend of `environ`, made first if needed; whether it was made."""
    verb, done = "select", _pulumi(["stack", "select", name], checkout, environ)
    if done.returncode != 0 and _NO_STACK in done.stderr:
        verb, done = "init", _pulumi(["stack", "init", name], checkout, environ)
    if done.returncode != 0:
        said = " ".join((done.stderr.strip() or done.stdout.strip()).split())
        raise UserError(f"pulumi stack {verb} {name}: {said.removeprefix('error: ')}{_AGAIN}")
    return verb == "init"


def _pulumi(
    words: list[str], checkout: Path, environ: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    plain = ["--non-interactive", "--color=never", *words]
    try:
        return pulumi.run(plain, root=checkout, environ=environ, timeout_s=_WAIT_S)
    except JobsError as error:
        raise UserError(f"{error}{_AGAIN}") from error
    except subprocess.TimeoutExpired as error:
        where = environ.get("PULUMI_BACKEND_URL", "its backend")
        raise UserError(
            f"pulumi {' '.join(words)}: no answer from {where} within {_WAIT_S} s; is it to be "
            f"reached from here?{_AGAIN}"
        ) from error


_RSA_BITS = 4096
_LOOPBACK: Final = "127."


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a stack will live, as the API knows it."""

    tenant_id: str
    project_id: str
    region: str


def find_place(
    calls: Calls, project_id: str, *, tenant_id: str | None, region: str | None
) -> Place:
    """The project at the API; UserError where the given tenant or region is another one."""
    if not project_id.startswith("project-"):
        raise UserError(f"--project: '{project_id}' is no project id; it starts with 'project-'")
    try:
        found = calls.get("iam.v2.ProjectService", "Get", id=project_id)
    except ProviderError as error:
        if not (isinstance(error.__cause__, ApiError) and error.__cause__.is_unseen):
            raise
        raise UserError(
            f"--project or NEBIUS_PROJECT_ID: '{project_id}' is no project that this credential "
            "can see; copy the id from the console (its list of projects) or from `nebius iam "
            "project list --parent-id TENANT`, or give the credential of a member of that project"
        ) from error
    place = Place(
        tenant_id=found.metadata.parent_id, project_id=project_id, region=found.spec.region
    )
    problems = [
        f"{option}: {project_id} is in '{real}', not in '{given}'; give '{real}', or leave it out"
        for option, given, real in (
            ("--tenant or NEBIUS_TENANT_ID", tenant_id, place.tenant_id),
            ("--region or NEBIUS_REGION", region, place.region),
        )
        if given is not None and given != real
    ]
    if problems:
        raise UserError("\n".join(problems))
    return place


def prepare(
    calls: Calls, place: Place, folder: Path, backend: Backend
) -> tuple[ProjectState, list[str]]:
    """Everything that the project's first stack needs, found or made; what was new, a line each."""
    state = ProjectState(folder / place.project_id)
    _refuse_other_backend(state, backend)
    deployer = Deployer(calls, place)
    account = deployer.account()
    if state.passphrase()[1]:
        deployer.made.append(f"{state.passphrase_file}: keep a copy, it opens every secret")
    keys = dict(state.keys())
    signs_in = "iam.v1.AuthPublicKeyService"
    if not deployer.is_good(signs_in, keys.get("auth")):
        public, private = _key_pair()
        keys["auth"] = deployer.key(signs_in, account, {"data": public})
        state.write_key_file(account=account, key=keys["auth"], private_pem=private)
        state.write_keys(keys)
    if backend is Backend.FILE:
        if state.backend() is None:
            state.stacks_folder.mkdir(mode=0o700, exist_ok=True)
            state.write_environment(f"file://{state.stacks_folder}", {})
            deployer.made.append(f"{state.stacks_folder}: keep a copy, it holds the states")
    else:
        bucket = deployer.bucket()
        host = bucket.status.domain_name
        options = f"endpoint={host}&region={place.region}&s3ForcePathStyle=true"
        if host.startswith(_LOOPBACK):  # which speaks no TLS
            options += "&disableSSL=true"
        address = f"s3://{bucket.metadata.name}?{options}"
        if not deployer.is_good("iam.v2.AccessKeyService", keys.get("access")):
            keys["access"], s3_id, secret = deployer.access_key(account)
            opened = {"AWS_ACCESS_KEY_ID": s3_id, "AWS_SECRET_ACCESS_KEY": secret}
            state.write_environment(address, opened)
            state.write_keys(keys)
    return state, deployer.made


def _refuse_other_backend(state: ProjectState, backend: Backend) -> None:
    """The states of earlier stacks would be left behind where nobody looks for them."""
    now = state.backend()
    if now is not None and now.startswith("file://") is not (backend is Backend.FILE):
        raise UserError(
            f"--backend {backend}: the states of this project lie in {now.partition('?')[0]} "
            f"({state.environment_file}); leave the option as it was, or move each stack with "
            "`pulumi stack export` and `import` and remove that file"
        )


def _key_pair() -> tuple[str, str]:
    """Public and private half, as PEM."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=_RSA_BITS)
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return public.decode(), private.decode()
