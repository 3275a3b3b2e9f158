"""`soperator backup`: a copy of the jail now, besides those of the schedule."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.cli import context
from infra.cli.context import StackOption
from infra.cli.output import Format, note, print_json
from infra.state import DEFAULT_STACK


def command(
    stack: StackOption = DEFAULT_STACK,
    format: Annotated[Format, typer.Option(help="How to print the snapshot.")] = Format.TABLE,
) -> None:
    """Copy the jail to object storage now; returns with the snapshot once the copy has ended."""
    from infra.operate.restore import copy_now, new_name

    spec = context.spec(stack)
    client = context.kube_client(stack)
    name = new_name()
    try:
        made = copy_now(client, spec.cluster.namespace, name, tell=note)
    except KeyboardInterrupt:
        note(f"backup: {name} goes on in the cluster; kubectl delete backups.k8up.io ends it")
        raise
    finally:
        client.close()
    if format is Format.JSON:
        rows = [{"id": each.id, "at": each.at, "repository": each.repository} for each in made]
        print_json({"stack": spec.name, "backup": name, "snapshots": rows})
        return
    if not made:
        print(f"{stack}: copied by {name}, but the cluster lists no new snapshot yet")
    for each in made:
        print(f"{stack}: snapshot {each.id[:8]} made by {name}")
        print(f"`soperator restore {each.id[:8]} --stack {stack}` brings it back beside the files.")
