"""`soperator destroy`: `pulumi destroy`, also of a stack whose kube cluster is gone."""

from __future__ import annotations

import sys
import threading
from typing import Annotated

import typer

from infra.cli import context, output
from infra.cli.context import StackOption
from infra.state import CHECKOUT, DEFAULT_STACK
from stacks.errors import UserError

_CLUSTER = "nebius:mk8s/v1:Cluster"
_ASK_S = 5.0
"""Longest wait for the answer on the credential, as in the pre-flight check."""


def command(
    stack: StackOption = DEFAULT_STACK,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Destroy without a question.")] = False,
) -> None:
    """Destroy a stack; files stay unless it purges them. Works when its kube cluster is gone."""
    from infra.providers.soperator.teardown import destroy

    if not yes and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError(
            f"destroy: nobody to ask; read `pulumi destroy --preview-only --stack {stack}` and "
            "give --yes"
        )
    _refuse_bad_token()
    try:
        status = destroy(
            stack,
            root=CHECKOUT,
            environ=context.environ(),
            options=["--yes"] if yes else [],
            exists=_exists,
            say=lambda line: output.note(f"{stack}: {line}"),
        )
    except FileNotFoundError as error:
        raise UserError("pulumi: not on PATH; run `make setup`") from error
    raise typer.Exit(status)


def _refuse_bad_token() -> None:
    """UserError where the API does not take the credential: the kube cluster would say as much of
    each object, and no more. An API that is away stops nobody."""
    from infra.operate.preflight.access import credential_problem
    from infra.operate.preflight.check import Cloud
    from infra.providers.nebius.api import ApiError
    from infra.providers.nebius.sdk import EndpointError

    try:
        problem = credential_problem(Cloud(within_s=_ASK_S))
    except (ApiError, EndpointError):
        return
    if problem is not None:
        raise UserError(f"destroy: {problem}; nothing was destroyed")


def _exists(cluster_id: str) -> bool:
    """Whether the cloud has the cluster; one that cannot be asked for counts as there."""
    from infra.providers.nebius.api import Api, ApiError
    from infra.providers.nebius.resource_type import ResourceType
    from infra.providers.nebius.schema import Schema
    from infra.providers.nebius.sdk import EndpointError, cache_dir

    try:
        api = Api(Schema(cache_dir()), threading.Event())
        service = ResourceType.of_token(api.schema, _CLUSTER).service
        api.call(service, "Get", api.request(service, "Get", id=cluster_id))
    except ApiError as error:
        return not error.is_not_found
    except EndpointError:
        return True
    return True
