"""Copies of a stack's jail: one made now, the list of all, one brought back.

Writes beside the users' files unless told otherwise.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import asdict
from typing import Annotated

import typer

from infra.cli import context
from infra.cli.context import StackOption, arg, opt
from infra.cli.output import Format, note, print_json, print_table
from infra.operate import restore as jail
from infra.operate.restore import JailSnapshot, Plan
from infra.state import DEFAULT_STACK
from stacks.errors import UserError
from stacks.spec import StackSpec


def backup(
    stack: StackOption = DEFAULT_STACK,
    format: Annotated[Format, opt("How to print the snapshot.")] = Format.TABLE,
) -> None:
    """Copy the jail to object storage now; returns with the snapshot once the copy has ended."""
    spec = context.spec(stack)
    name = jail.new_name()
    with closing(context.kube_client(stack)) as client:
        try:
            made = jail.copy_now(client, spec.cluster.namespace, name, tell=note)
        except KeyboardInterrupt:
            end = f"kubectl -n {spec.cluster.namespace} delete backups.k8up.io {name}"
            note(f"cluster backup: {name} goes on in the cluster; {end} ends it")
            raise
    if format is Format.JSON:
        rows = [asdict(each) for each in made]
        print_json({"stack": spec.name, "backup": name, "snapshots": rows})
        return
    if not made:
        print(f"{stack}: copied by {name}, but the cluster lists no new snapshot yet")
    for each in made:
        print(f"{stack}: snapshot {each.id[:8]} made by {name}")
        print(
            f"`soperator cluster restore {each.id[:8]} --stack {stack}` brings it back beside the "
            "files."
        )


_SHORT = 8


def restore(
    snapshot: Annotated[
        str | None, arg("`latest` or the first digits of an id; without it the list is shown.")
    ] = None,
    stack: StackOption = DEFAULT_STACK,
    path: Annotated[str | None, opt("Only this file or folder of the jail.")] = None,
    into_jail: Annotated[bool, opt("Write over the jail itself, not into /mnt/restored.")] = False,
    while_running: Annotated[bool, opt("With --into-jail: although Slurm runs.")] = False,
    yes: Annotated[bool, opt("Do not ask.", "--yes", "-y")] = False,
    format: Annotated[Format, opt("How to print the list.")] = Format.TABLE,
) -> None:
    """List the copies of a stack's jail; with one of them, bring it back, whole or a path of it."""
    if snapshot is None and (path or into_jail or while_running):
        raise typer.BadParameter("name a snapshot too: cluster restore latest --path PATH")
    if while_running and not into_jail:
        raise typer.BadParameter("--while-running is for --into-jail only")
    spec = context.spec(stack)
    with closing(context.kube_client(stack)) as client:
        namespace = spec.cluster.namespace
        backend = jail.schedule_spec(client, namespace)["backend"]
        found = jail.list_snapshots(client, namespace)
        if snapshot is None:
            _show(spec, found, format)
            return

        plan = jail.make_plan(
            client,
            namespace,
            jail.choose(found, snapshot),
            backend,
            path=path,
            into_jail=into_jail,
            while_running=while_running,
        )
        note(*explain(spec, plan, jail.longest_backup_s(client, namespace)))
        if not yes:
            _ask()
        try:
            jail.run(client, namespace, plan, tell=note)
        except KeyboardInterrupt:
            end = f"kubectl -n {namespace} delete restores.k8up.io {plan.name}"
            note(f"cluster restore: {plan.name} goes on in the cluster; {end} ends it")
            raise
        what = plan.path or "the whole copy"
        note(f"cluster restore: done; {what} is at {_landed(plan)} of the jail")


def explain(spec: StackSpec, plan: Plan, longest_backup_s: float | None) -> list[str]:
    """What a restore does, how much it writes, how long it takes and what it costs."""
    jail_gib = spec.storage.jail.size_gib
    at = plan.snapshot.at
    made = "not listed by the cluster" if at is None else f"made {at:%Y-%m-%d %H:%M} UTC"
    what = "the whole jail" if plan.path is None else plan.path
    size = "unknown: the jail is an existing filesystem" if jail_gib is None else f"{jail_gib} GiB"
    over = (
        "files of the same name are written over, newer ones too; others stay"
        if plan.into_jail
        else "nothing that is there changes; remove the folder when you are done, as later copies "
        "have it too"
    )
    took = (
        "the cluster remembers no copy that ended"
        if longest_backup_s is None
        else f"the longest copy that the cluster remembers took {longest_backup_s:,.0f} s"
    )
    paid = "the jail is paid by its size; no source has a price for reads of object storage"
    return [
        f"restore: {what} of snapshot {plan.snapshot.id[:_SHORT]} ({made}) to {_landed(plan)}",
        f"  writes: {over}",
        f"  size: at most {size} (storage.jail); the folder needs that much room in the jail",
        f"  time: not known; {took}",
        f"  price: 0.00 USD more for storage: {paid}",
    ]


def _landed(plan: Plan) -> str:
    root = "" if plan.into_jail else plan.target
    return f"{root}{plan.path or ''}" or "/"


def _ask() -> None:
    if not sys.stdin.isatty():
        raise UserError("cluster restore: nobody to ask; read the lines above and give --yes")
    if not typer.confirm("Go on?", err=True):
        raise UserError("cluster restore: nothing was done")


def _show(spec: StackSpec, found: tuple[JailSnapshot, ...], format: Format) -> None:
    if format is Format.JSON:
        print_json({"stack": spec.name, "snapshots": [asdict(each) for each in found]})
    elif not found:
        print(
            f"{spec.name}: the cluster lists no copy of the jail; it does after its next backup. "
            "An older copy is restored by its id."
        )
    else:
        print_table(
            ("Snapshot", "Made (UTC)", "Repository"),
            [
                (
                    each.id[:_SHORT],
                    "-" if each.at is None else f"{each.at:%Y-%m-%d %H:%M:%S}",
                    each.repository.rpartition("/")[2],
                )
                for each in found
            ],
        )
        print(
            f"`soperator cluster restore SNAPSHOT --stack {spec.name}` brings one back beside the "
            "files."
        )
