"""What a stack has in the cloud: copied, taken over, left behind, destroyed, told to helpers.

`adopt` and each kind's way in are in docs/storage.md. `orphans` deletes only what --purge names;
`destroy` works also where the kube cluster is gone; `restore` writes beside the users' files unless
told otherwise.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cost.report.layout import picked
from infra.cli import context, output
from infra.cli.context import IdentityOption, StackOption, arg, opt
from infra.cli.output import NOT_RUN, Format, note, print_json, print_table
from infra.clients import pulumi
from infra.clients.pulumi import StackOutputs
from infra.clients.slurm import Shell
from infra.local.engine import PROJECT
from infra.operate import restore as jail
from infra.operate.orphans import known_ids, usd_per_month
from infra.operate.preflight.ask import WITHIN_S, credential_problem
from infra.operate.preflight.supply import Cloud
from infra.operate.prices import price_book
from infra.operate.restore import JailSnapshot, Plan
from infra.operate.support_bundle import (
    Redactor,
    known,
    once,
    parts_here,
    parts_of_cluster,
    parts_of_kube,
    write_bundle,
)
from infra.providers.nebius import adoption
from infra.providers.nebius.adoption import Owned
from infra.providers.nebius.api import Api, ApiError
from infra.providers.nebius.provider import remove
from infra.providers.nebius.resource_type import ResourceType
from infra.providers.nebius.sdk import EndpointError
from infra.providers.soperator.teardown import destroy as tear_down
from infra.render.names import filesystems, submount_tag
from infra.render.nodes import filesystem_spec
from infra.state import DEFAULT_STACK, State
from stacks.errors import UserError, visible
from stacks.spec import StackSpec


class Kind(StrEnum):
    """What can be taken over."""

    FILESYSTEM = "filesystem"
    CLUSTER = "cluster"
    NETWORK = "network"
    SUBNET = "subnet"
    STATE = "state"


_TOKENS: Final = {
    Kind.FILESYSTEM: "nebius:compute/v1:Filesystem",
    Kind.CLUSTER: adoption.CLUSTER,
    Kind.NETWORK: "nebius:vpc/v1:Network",
    Kind.SUBNET: "nebius:vpc/v1:Subnet",
}
_BY_ID: Final = {Kind.NETWORK: "nebius.network_id", Kind.SUBNET: "nebius.subnet_id"}
"""Key of the stack file that names it."""


def adopt(
    kind: Annotated[Kind, arg("What it is.")],
    id: Annotated[str, arg("Its id.", "ID")],
    stack: StackOption = DEFAULT_STACK,
    role: Annotated[
        str | None,
        opt("Of a filesystem: jail, controller-spool, accounting or a submount's name.", "--as"),
    ] = None,
) -> None:
    """Make an existing resource the stack's, so that the next `up` takes it over."""
    spec = context.spec(stack)
    if (kind is Kind.FILESYSTEM) != (role is not None):
        raise typer.BadParameter("--as ROLE goes with a filesystem, and only with one")
    api = Api()
    try:
        with api.explained(f"cluster adopt {kind} {id}"):
            if kind is Kind.STATE:
                print(_release(api, spec, id))
            elif kind in _BY_ID:
                print(_name_in_stack_file(api, spec, kind, id))
            else:
                print(_label(api, spec, kind, id, role))
    except adoption.HandoverError as error:
        raise UserError(f"cluster adopt {kind} {error}") from error


def _release(api: Api, spec: StackSpec, state_id: str) -> str:
    if state_id in known_ids(context.environ()):
        raise UserError(
            f"cluster adopt state {state_id}: is a state of this backend; what it has needs no one "
            "to take it over"
        )
    project_id = spec.nebius.project_id
    had = adoption.release(
        api, state_id, project_id=project_id, stack=spec.name, project=PROJECT, ends=False
    )
    if not had:
        raise UserError(
            f"cluster adopt state {state_id}: no resource of {spec.name} in "
            f"{spec.nebius.project_id} names it; `soperator cluster orphans --stack {spec.name}` "
            "has those that are named"
        )
    return (
        f"{len(had)} resources are no longer state {state_id}'s: "
        f"{', '.join(f'{each.type} {each.id}' for each in had)}; "
        f"`pulumi up --stack {spec.name}` takes them over; that of the other backend is refused"
    )


def _label(api: Api, spec: StackSpec, kind: Kind, id_: str, role: str | None) -> str:
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
    found = adoption.get(api, type_, id_, project_id=spec.nebius.project_id)
    labels = found["metadata"].get("labels", {})
    if adoption.is_of(labels, spec.name, PROJECT):
        known = known_ids(context.environ())
        if adoption.is_others(labels.get(adoption.STATE_ID), known):
            raise adoption.HandoverError(f"{id_}: is a {kind} {adoption.other_state(labels, {})}")
    if not adoption.hand_over(api, type_, found, wanted, stack=spec.name, project=PROJECT):
        return f"{id_} is this stack's already; `pulumi up --stack {spec.name}` takes it over"
    name = wanted["metadata"]["name"]
    return f"{id_} is now {name!r} of this stack; `pulumi up --stack {spec.name}` takes it over"


def _filesystem(spec: StackSpec, role: str) -> tuple[str, dict[str, Any]]:
    """Name and declaration of the filesystem that the stack has in this role."""
    declared = dict(filesystems(spec))
    tag = role if role in declared else submount_tag(role)
    if tag not in declared:
        roles = ", ".join(each.removeprefix(submount_tag("")) for each in declared)
        raise UserError(
            f"cluster adopt: --as {role}: {spec.name} declares no such filesystem (has: {roles})"
        )
    existing_id = declared[tag].existing_id
    if existing_id is not None:
        raise UserError(
            f"cluster adopt: --as {role}: {spec.name} uses {existing_id} there by existing_id and "
            "does not manage it; declare size_gib instead"
        )
    return f"{spec.name}-{tag}", filesystem_spec(declared[tag])


def _name_in_stack_file(api: Api, spec: StackSpec, kind: Kind, id_: str) -> str:
    type_ = ResourceType.of_token(api.schema, _TOKENS[kind])
    found = adoption.get(api, type_, id_, project_id=spec.nebius.project_id)
    adoption.refuse_other_owner(found, stack=spec.name, project=PROJECT)
    key = _BY_ID[kind]
    words = ["config", "set", "--path", f"{PROJECT}:{key}", id_, "--stack", spec.name]
    done = pulumi.run([*words, "--non-interactive"], environ=context.environ())
    if done.returncode != 0:
        reason = " ".join((done.stderr or done.stdout).split())
        raise UserError(f"pulumi config set {key}: {reason}")
    return f"{spec.name}: {key} is {id_} now; `pulumi up --stack {spec.name}` uses it"


_HEADERS = ("Type", "Name", "Id", "USD a month")


def orphans(
    ids: Annotated[list[str] | None, arg("What --purge deletes.", "[ID]...")] = None,
    stack: StackOption = DEFAULT_STACK,
    purge: Annotated[bool, opt("Delete the given ids, with all data on them.")] = False,
    format: Annotated[Format, opt("How to print.")] = Format.TABLE,
) -> None:
    """List what a stack left in the cloud, with ids and $ a month; delete it only when named."""
    wanted = ids or []
    if purge != bool(wanted):
        raise typer.BadParameter("give --purge and the ids together: cluster orphans --purge ID...")
    spec = context.spec(stack)
    api = Api()
    found, others = _find(api, spec)
    if purge:
        found = _purge(api, spec.name, found, others, wanted)
    _show(spec, found, others, format)


def _find(api: Api, spec: StackSpec) -> tuple[list[Owned], list[Owned]]:
    """What no state has, and what a state of another backend has by its label."""
    project_id = spec.nebius.project_id
    # The cloud first: what an `up` makes meanwhile is then in a state.
    with api.explained(f"list of {project_id}"):
        there = [*adoption.owned(api, project_id=project_id, stack=spec.name, project=PROJECT)]
    known = known_ids(context.environ())
    unknown = [each for each in there if each.id not in known]
    others = [each for each in unknown if adoption.is_others(each.state_id, known)]
    return [each for each in unknown if each not in others], others


def _purge(
    api: Api, stack: str, found: list[Owned], others: list[Owned], wanted: list[str]
) -> list[Owned]:
    """What is left after the named ones are deleted."""
    whose = {each.id: f"{each.type} {each.name} of state {each.state_id}" for each in others}
    ids = {each.id for each in found}
    no_orphans = [f"{id_} is {whose.get(id_, 'no orphan')}" for id_ in wanted if id_ not in ids]
    if no_orphans:
        raise UserError(
            f"cluster orphans: {'; '.join(no_orphans)}, so nothing was deleted; `soperator cluster "
            f"orphans --stack {stack}` lists those of this stack, and the way where a state is lost"
        )
    # In the order of the list: users before what they use.
    for each in [each for each in found if each.id in wanted]:
        with api.explained(f"delete {each.type} {each.id}"):
            remove(api, ResourceType.of_token(api.schema, each.token), each.id)
        note(f"deleted {each.type} {each.name} ({each.id})")
    return [each for each in found if each.id not in wanted]


def _show(spec: StackSpec, found: list[Owned], others: list[Owned], format: Format) -> None:
    book = price_book(spec, context.state_root())
    prices = {each.id: usd_per_month(each, book) for each in [*found, *others]}
    if format is Format.JSON:
        rows = [
            {
                **picked(each, "type name id"),
                "usd_per_month": prices[each.id],
                **picked(each, "state_id"),
            }
            for each in [*found, *others]
        ]
        # "leftovers", as scripts read it since before the command was called orphans.
        known = {"leftovers": rows[: len(found)], "of_other_states": rows[len(found) :]}
        print_json({"stack": spec.name, "project_id": spec.nebius.project_id, **known})
        return
    if not found:
        print(f"{spec.name}: nothing is left over in {spec.nebius.project_id}")
    else:
        _print(found, prices)
        print(
            "`pulumi up` takes them over again; "
            f"`soperator cluster orphans --stack {spec.name} --purge ID...` deletes them with "
            "their data."
        )

    for id_ in dict.fromkeys(each.state_id or "" for each in others):
        print(
            f"\nOf this stack's state {visible(id_)}, which is not in this backend; never purged:"
        )
        _print([each for each in others if each.state_id == id_], prices)
        print(f"Where that state is lost: {visible(adoption.adopt_state(id_, spec.name))}.")


def _print(rows: list[Owned], prices: Mapping[str, Decimal | None]) -> None:
    print_table(_HEADERS, [(each.type, each.name, each.id, _usd(prices[each.id])) for each in rows])
    print(_total([prices[each.id] for each in rows]))


def _total(prices: Collection[Decimal | None]) -> str:
    known = [price for price in prices if price is not None]
    unknown = " and what has no known price" if len(known) < len(prices) else ""
    return f"In all ${sum(known):,.2f} a month{unknown}."


def _usd(price: Decimal | None) -> str:
    return "not known" if price is None else f"{price:,.2f}"


def destroy(
    stack: StackOption = DEFAULT_STACK,
    yes: Annotated[bool, opt("Destroy without a question.", "--yes", "-y")] = False,
) -> None:
    """Destroy a stack; files stay unless it purges them. Works when its kube cluster is gone."""
    if not yes and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError(
            f"cluster destroy: nobody to ask; read `pulumi destroy --preview-only --stack {stack}` "
            "and give --yes"
        )
    _refuse_bad_token()
    status = tear_down(
        stack,
        environ=context.environ(),
        options=["--yes"] if yes else [],
        exists=_exists,
        say=lambda line: output.note(f"{stack}: {line}"),
    )
    raise typer.Exit(status)


def _refuse_bad_token() -> None:
    """UserError where the API does not take the credential: the kube cluster would say as much of
    each object, and no more. An API that is away stops nobody."""
    try:
        problem = credential_problem(Cloud(within_s=WITHIN_S))
    except (ApiError, EndpointError):
        return
    if problem is not None:
        raise UserError(f"cluster destroy: {problem}; nothing was destroyed")


def _exists(cluster_id: str) -> bool:
    """Whether the cloud has the cluster; one that cannot be asked for counts as there."""
    try:
        api = Api()
        service = ResourceType.of_token(api.schema, adoption.CLUSTER).service
        return api.find(service, id=cluster_id) is not None
    except (ApiError, EndpointError):
        return True


def support_bundle(
    stack: StackOption = DEFAULT_STACK,
    file: Annotated[Path | None, opt("Where to write it.", "--output", "-o", "FILE")] = None,
    emails: Annotated[bool, opt("Take addresses of people out too.", "--redact-emails")] = False,
    preview: Annotated[
        bool, opt("Ask the engine what `up` would do.", "--preview/--no-preview")
    ] = True,
    identity: IdentityOption = None,
) -> None:
    """Gather state, logs and findings into one file; exit code 69 when a part is missing."""
    now = datetime.now(UTC)
    path = file or Path(f"support-{stack}-{now:%Y%m%dT%H%M%SZ}.tar.gz")
    if os.path.lexists(path):  # also a link that leads nowhere: the parts take minutes
        raise UserError(f"--output {path}: is there already; name another file")
    if not path.parent.is_dir():
        raise UserError(f"--output {path}: no folder {path.parent}; make it; nothing was written")
    state = State.from_environ()
    with output.never_silent("support bundle"), ExitStack() as closing:
        environ = context.environ()
        redactor = Redactor(known(state, {**os.environ, **environ}), emails=emails)

        def opened() -> tuple[StackOutputs, Shell]:
            outputs = context.caller(stack, identity)
            return outputs, closing.enter_context(context.connect(outputs, identity))

        parts = [
            *parts_here(stack, state, environ, preview=preview),
            *parts_of_cluster(once(opened)),
            *parts_of_kube(lambda: context.spec(stack), lambda: context.kube_client(stack)),
        ]
        try:
            index, is_whole = write_bundle(
                parts, path, stack=stack, redactor=redactor, now=now, say=output.note
            )
        except OSError as error:
            raise UserError(f"--output {path}: {error.strerror}; nothing was written") from error
    print(index, end="")
    print(path)
    raise typer.Exit(0 if is_whole else NOT_RUN)


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
            _show_copies(spec, found, format)
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
            _ask_first()
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


def _ask_first() -> None:
    if not sys.stdin.isatty():
        raise UserError("cluster restore: nobody to ask; read the lines above and give --yes")
    if not typer.confirm("Go on?", err=True):
        raise UserError("cluster restore: nothing was done")


def _show_copies(spec: StackSpec, found: tuple[JailSnapshot, ...], format: Format) -> None:
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
