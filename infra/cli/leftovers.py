"""`soperator leftovers`: what a stack has in the cloud and no state knows, with $ a month.

Owns what people type and read. Deletes only what --purge names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import context
from infra.cli.context import StackOption
from infra.cli.output import Format, note, print_json, print_table
from infra.state import DEFAULT_STACK
from stacks.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Collection
    from decimal import Decimal

    from infra.operate.orphans import Owned
    from infra.providers.nebius.api import Api
    from stacks.spec import StackSpec

_HEADERS = ("Type", "Name", "Id", "USD a month")


def command(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="What --purge deletes.")
    ] = None,
    stack: StackOption = DEFAULT_STACK,
    purge: Annotated[
        bool, typer.Option("--purge", help="Delete the given ids, with all data on them.")
    ] = False,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
) -> None:
    """List what a stack left in the cloud, with ids and $ a month; delete it only when named."""
    wanted = ids or []
    if purge != bool(wanted):
        raise typer.BadParameter("give --purge and the ids together: leftovers --purge ID...")
    spec = context.spec(stack)
    api = _api()
    found = _find(api, spec)
    if purge:
        found = _purge(api, found, wanted)
    _show(spec, found, format)


def _api() -> Api:
    import threading

    from infra.providers.nebius.api import Api
    from infra.providers.nebius.schema import Schema
    from infra.providers.nebius.sdk import cache_dir

    return Api(Schema(cache_dir()), threading.Event())


def _find(api: Api, spec: StackSpec) -> list[Owned]:
    from infra.local.engine import PROJECT
    from infra.operate.orphans import known_ids, owned
    from infra.providers.nebius.api import ApiError, explain
    from infra.state import CHECKOUT

    project_id = spec.nebius.project_id
    # The cloud first: what an `up` makes meanwhile is then in a state.
    try:
        there = [*owned(api, project_id=project_id, stack=spec.name, project=PROJECT)]
    except ApiError as error:
        raise UserError(explain(error, f"list of {project_id}", target=api.target)) from error
    known = known_ids(root=CHECKOUT, environ=context.environ())
    return [each for each in there if each.id not in known]


def _purge(api: Api, found: list[Owned], wanted: list[str]) -> list[Owned]:
    """What is left after the named ones are deleted."""
    from infra.providers.nebius.api import ApiError, explain
    from infra.providers.nebius.provider import remove
    from infra.providers.nebius.resource_type import ResourceType

    by_id = {each.id: each for each in found}
    unknown = [id_ for id_ in wanted if id_ not in by_id]
    if unknown:
        raise UserError(
            f"leftovers: {', '.join(unknown)}: not among the leftovers of this stack, so nothing "
            "was deleted; `soperator leftovers` lists them"
        )
    # In the order of the list: users before what they use.
    for each in [each for each in found if each.id in wanted]:
        try:
            remove(api, ResourceType.of_token(api.schema, each.token), each.id)
        except ApiError as error:
            what = f"delete {each.type} {each.id}"
            raise UserError(explain(error, what, target=api.target)) from error
        note(f"deleted {each.type} {each.name} ({each.id})")
    return [each for each in found if each.id not in wanted]


def _show(spec: StackSpec, found: list[Owned], format: Format) -> None:
    from infra.operate.orphans import usd_per_month
    from infra.operate.prices import price_book

    book = price_book(spec, context.state_root())
    prices = {each.id: usd_per_month(each, book) for each in found}
    if format is Format.JSON:
        rows = [
            {"type": each.type, "name": each.name, "id": each.id, "usd_per_month": prices[each.id]}
            for each in found
        ]
        print_json({"stack": spec.name, "project_id": spec.nebius.project_id, "leftovers": rows})
    elif not found:
        print(f"{spec.name}: nothing is left over in {spec.nebius.project_id}")
    else:
        print_table(
            _HEADERS,
            [(each.type, each.name, each.id, _usd(prices[each.id])) for each in found],
        )
        print(_total(prices.values()))
        print(
            "`pulumi up` takes them over again; "
            f"`soperator leftovers --stack {spec.name} --purge ID...` deletes them with their data."
        )


def _total(prices: Collection[Decimal | None]) -> str:
    known = [price for price in prices if price is not None]
    unknown = " and what has no known price" if len(known) < len(prices) else ""
    return f"In all ${sum(known):,.2f} a month{unknown}."


def _usd(price: Decimal | None) -> str:
    return "not known" if price is None else f"{price:,.2f}"
