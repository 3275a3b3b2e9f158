"""`soperator adopt`: makes an existing filesystem, cluster, network or subnet the stack's.

Owns which way each kind goes: docs/storage.md. What is the stack's own is named and labelled, so
that the next `up` takes it over; what stacks share is named by id in the stack file.
"""

from __future__ import annotations

import subprocess
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from infra.cli import context
from infra.cli.context import StackOption
from infra.state import DEFAULT_STACK
from stacks.errors import UserError

if TYPE_CHECKING:
    from infra.providers.nebius.api import Api
    from stacks.spec import StackSpec


class Kind(StrEnum):
    """What can be taken over."""

    FILESYSTEM = "filesystem"
    CLUSTER = "cluster"
    NETWORK = "network"
    SUBNET = "subnet"


_TOKENS: Final = {
    Kind.FILESYSTEM: "nebius:compute/v1:Filesystem",
    Kind.CLUSTER: "nebius:mk8s/v1:Cluster",
    Kind.NETWORK: "nebius:vpc/v1:Network",
    Kind.SUBNET: "nebius:vpc/v1:Subnet",
}
_BY_ID: Final = {Kind.NETWORK: "nebius.network_id", Kind.SUBNET: "nebius.subnet_id"}
"""Key of the stack file that names it."""


def command(
    kind: Annotated[Kind, typer.Argument(help="What it is.")],
    id: Annotated[str, typer.Argument(metavar="ID", help="Its id.")],
    stack: StackOption = DEFAULT_STACK,
    role: Annotated[
        str | None,
        typer.Option(
            "--as", help="Of a filesystem: jail, controller-spool, accounting or a submount's name."
        ),
    ] = None,
) -> None:
    """Make an existing resource the stack's, so that the next `up` takes it over."""
    from infra.providers.nebius.adoption import HandoverError
    from infra.providers.nebius.api import ApiError, explain

    spec = context.spec(stack)
    if (kind is Kind.FILESYSTEM) != (role is not None):
        raise typer.BadParameter("--as ROLE goes with a filesystem, and only with one")
    api = _api()
    try:
        if kind in _BY_ID:
            print(_name_in_stack_file(api, spec, kind, id))
        else:
            print(_label(api, spec, kind, id, role))
    except HandoverError as error:
        raise UserError(f"adopt {kind} {error}") from error
    except ApiError as error:
        raise UserError(explain(error, f"adopt {kind} {id}", target=api.target)) from error


def _api() -> Api:
    import threading

    from infra.providers.nebius.api import Api
    from infra.providers.nebius.schema import Schema
    from infra.providers.nebius.sdk import cache_dir

    return Api(Schema(cache_dir()), threading.Event())


def _label(api: Api, spec: StackSpec, kind: Kind, id_: str, role: str | None) -> str:
    from infra.local.engine import PROJECT
    from infra.providers.nebius.adoption import get, hand_over
    from infra.providers.nebius.resource_type import ResourceType

    type_ = ResourceType.of_token(api.schema, _TOKENS[kind])
    wanted: dict[str, Any] = {
        "metadata": {"parent_id": spec.nebius.project_id, "name": f"{spec.name}-kube"},
        "spec": {},
    }
    if role is not None:
        name, declared = _filesystem(spec, role)
        wanted["metadata"]["name"] = name
        # As the engine would send it, so that it can be compared.
        wanted = type_.check({**wanted, "spec": declared})[0]
    found = get(api, type_, id_, project_id=spec.nebius.project_id)
    if not hand_over(api, type_, found, wanted, stack=spec.name, project=PROJECT):
        return f"{id_} is this stack's already; `pulumi up --stack {spec.name}` takes it over"
    name = wanted["metadata"]["name"]
    return f"{id_} is now {name!r} of this stack; `pulumi up --stack {spec.name}` takes it over"


def _filesystem(spec: StackSpec, role: str) -> tuple[str, dict[str, Any]]:
    """Name and declaration of the filesystem that the stack has in this role."""
    from infra.render.kube_cluster import filesystem_spec
    from infra.render.names import filesystems, submount_tag

    declared = dict(filesystems(spec))
    tag = role if role in declared else submount_tag(role)
    if tag not in declared:
        roles = ", ".join(each.removeprefix(submount_tag("")) for each in declared)
        raise UserError(
            f"adopt: --as {role}: {spec.name} declares no such filesystem (has: {roles})"
        )
    existing_id = declared[tag].existing_id
    if existing_id is not None:
        raise UserError(
            f"adopt: --as {role}: {spec.name} uses {existing_id} there by existing_id and does not "
            "manage it; declare size_gib instead"
        )
    return f"{spec.name}-{tag}", filesystem_spec(declared[tag])


def _name_in_stack_file(api: Api, spec: StackSpec, kind: Kind, id_: str) -> str:
    from infra.local.engine import PROJECT
    from infra.providers.nebius.adoption import get, refuse_other_owner
    from infra.providers.nebius.resource_type import ResourceType
    from infra.state import CHECKOUT

    type_ = ResourceType.of_token(api.schema, _TOKENS[kind])
    found = get(api, type_, id_, project_id=spec.nebius.project_id)
    refuse_other_owner(found, stack=spec.name, project=PROJECT)
    key = _BY_ID[kind]
    command = ["pulumi", "config", "set", "--path", f"{PROJECT}:{key}", id_]
    done = subprocess.run(
        [*command, "--stack", spec.name, "--non-interactive"],
        cwd=CHECKOUT,
        env={**context.environ(), "PULUMI_SKIP_UPDATE_CHECK": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        reason = " ".join((done.stderr or done.stdout).split())
        raise UserError(f"pulumi config set {key}: {reason}")
    return f"{spec.name}: {key} is {id_} now; `pulumi up --stack {spec.name}` uses it"
