"""Sets up a project for deployments: prepare(calls, ...) -> what was made and what is there.

Owns the order: account and rights, bucket, keys, files. A second run finds everything and changes
nothing; a run that was killed goes on where it stopped, a key without its secret half apart, which
ends by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from infra.init.backend import Backend
from infra.init.calls import Calls
from infra.init.deployer import Bucket, Deployer
from infra.init.errors import UnseenError
from infra.init.state import ProjectState
from stacks.errors import UserError

_RSA_BITS = 4096
_LOOPBACK: Final = "127."


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a stack will live, as the API knows it."""

    tenant_id: str
    project_id: str
    region: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A project that stacks can be deployed to."""

    made: tuple[str, ...]
    """What was new, a line each; empty where nothing changed."""
    backend: str
    """Where states lie, as the engine takes it."""
    state: ProjectState
    passphrase: str


def find_place(
    calls: Calls, project_id: str, *, tenant_id: str | None, region: str | None
) -> Place:
    """The project at the API; UserError where the given tenant or region is another one."""
    if not project_id.startswith("project-"):
        raise UserError(f"--project: '{project_id}' is no project id; it starts with 'project-'")
    try:
        found = calls.get("iam.v2.ProjectService", "Get", id=project_id)
    except UnseenError as error:
        raise UserError(
            f"--project: '{project_id}' is no project that this credential can see; copy the id "
            "from the console (its list of projects) or from `nebius iam project list --parent-id "
            "TENANT`, or give the credential of a member of that project"
        ) from error
    place = Place(
        tenant_id=found.metadata.parent_id, project_id=project_id, region=found.spec.region
    )
    problems = [
        f"{option}: {project_id} is in '{real}', not in '{given}'; give '{real}', or leave it out"
        for option, given, real in (
            ("--tenant", tenant_id, place.tenant_id),
            ("--region", region, place.region),
        )
        if given is not None and given != real
    ]
    if problems:
        raise UserError("\n".join(problems))
    return place


def prepare(calls: Calls, place: Place, folder: Path, backend: Backend) -> Prepared:
    """Everything that the project's first stack needs, found or made."""
    state = ProjectState(folder=folder / place.project_id)
    _refuse_other_backend(state, backend)
    deployer = Deployer(
        calls=calls, tenant_id=place.tenant_id, project_id=place.project_id, made=[]
    )
    account = deployer.account()
    passphrase, is_new = state.passphrase()
    if is_new:
        deployer.made.append(f"{state.passphrase_file}: keep a copy, it opens every secret")
    keys = dict(state.keys())
    if not deployer.is_good("iam.v1.AuthPublicKeyService", keys.get("auth")):
        public, private = _key_pair()
        keys["auth"] = deployer.public_key(account, public)
        state.write_key_file(account=account, key=keys["auth"], private_pem=private)
        state.write_keys(keys)
    if backend is Backend.FILE:
        if state.backend() is None:
            state.stacks_folder.mkdir(mode=0o700, exist_ok=True)
            state.write_environment(f"file://{state.stacks_folder}", {})
            deployer.made.append(f"{state.stacks_folder}: keep a copy, it holds the states")
    else:
        address = _bucket_address(deployer.bucket(), place.region)
        if not deployer.is_good("iam.v2.AccessKeyService", keys.get("access")):
            keys["access"], s3_id, secret = deployer.access_key(account)
            opened = {"AWS_ACCESS_KEY_ID": s3_id, "AWS_SECRET_ACCESS_KEY": secret}
            state.write_environment(address, opened)
            state.write_keys(keys)
    return Prepared(
        made=tuple(deployer.made),
        backend=str(state.backend()),
        state=state,
        passphrase=passphrase,
    )


def _bucket_address(bucket: Bucket, region: str) -> str:
    """As the engine takes it; an object storage on the loopback speaks no TLS."""
    options = f"endpoint={bucket.domain_name}&region={region}&s3ForcePathStyle=true"
    plain = "&disableSSL=true" if bucket.domain_name.startswith(_LOOPBACK) else ""
    return f"s3://{bucket.name}?{options}{plain}"


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
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return public.decode(), private.decode()
