"""`soperator init`: set up a project for deployments and write a first stack, once.

Reads and asks first, then makes: what is wrong is told before anything is changed. The token is
taken from NEBIUS_IAM_TOKEN, never from an option, where every user of the machine could read it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from cost.bill.bill import bill
from cost.prices.book import PriceBook, layered
from infra.cli import output
from infra.cli.context import environ, opt, state_root
from infra.cli.machine.env import Target, environment
from infra.cli.machine.env import prepare as prepare_engine
from infra.providers.nebius.sdk import KEY_FILE_VARIABLE, TOKEN_VARIABLE
from infra.setup.project import stack_file
from infra.setup.project.project import (
    Backend,
    Calls,
    find_place,
    make_stack,
    prepare,
    variables_of,
)
from infra.setup.project.stack_file import Options, fill, worker_choices
from infra.state import CHECKOUT
from stacks.errors import UserError
from stacks.load import STACKS_DIR


def init(
    project: Annotated[
        str, opt("Project id, as the console shows it.", envvar="NEBIUS_PROJECT_ID")
    ] = "",
    tenant: Annotated[
        str | None, opt("Tenant id; must be the project's.", envvar="NEBIUS_TENANT_ID")
    ] = None,
    region: Annotated[
        str | None, opt("Region; must be the project's.", envvar="NEBIUS_REGION")
    ] = None,
    name: Annotated[str | None, opt("Name of the stack.")] = None,
    worker: Annotated[str | None, opt("PLATFORM/PRESET of the workers.")] = None,
    nodes: Annotated[int | None, opt("Number of workers.", min=1)] = None,
    fabric: Annotated[str | None, opt("InfiniBand fabric of the workers.")] = None,
    ssh_key: Annotated[list[str] | None, opt("Public key, or its file; may be repeated.")] = None,
    key_file: Annotated[
        Path | None, opt("Key of a service account; else NEBIUS_IAM_TOKEN counts.")
    ] = None,
    backend: Annotated[
        Backend, opt("Where states lie: a bucket of the project, or this machine.")
    ] = Backend.BUCKET,
    stacks_dir: Annotated[Path | None, opt("Folder of the stack files.")] = None,
) -> None:
    """Set up a project for deployments and write a first stack; a second run changes nothing.

    With --project and --name alone, a stack file that is there stays as it was edited, and the
    keys of the project are renewed in their last two weeks.
    """
    ask = _ask if sys.stdin.isatty() and sys.stdout.isatty() else None
    if not project and ask is None:
        raise UserError("--project: not given, and there is no terminal to ask on; give it")
    if key_file is not None:
        os.environ.pop(TOKEN_VARIABLE, None)
        os.environ[KEY_FILE_VARIABLE] = str(key_file)
    project = project or _ask("Project id (project-...)", "")
    folder = STACKS_DIR if stacks_dir is None else stacks_dir
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(
            f"--stacks-dir: '{folder}' is no folder that can be written to; make it, or leave the "
            "option out"
        )
    calls = Calls()
    place = find_place(calls, project, tenant_id=tenant, region=region)
    options = Options(
        name=name, worker=worker, nodes=nodes, fabric=fabric, ssh_keys=tuple(ssh_key or ())
    )
    if options.names_only and stack_file.stack_path(folder, str(name)).is_file():
        answers = None
        spec, problems = stack_file.kept_stack(str(name), folder, project, environ())
    else:
        answers = fill(options, place, worker_choices(place.region, PriceBook.load("nebius")), ask)
        spec, problems = stack_file.check_stack(answers, environ())
        stack_file.refuse_other_file(answers, folder)
    path = stack_file.stack_path(folder, spec.name)
    state, made = prepare(calls, place, state_root() / "cloud", backend)
    passphrase, _ = state.passphrase()
    is_new = stack_file.write_stack(path, answers, passphrase)
    for each in made:
        print(f"made     {each}")
    print(f"{'wrote' if is_new else 'has'}    {path}")
    print(f"states   {str(state.backend()).partition('?')[0]}")
    is_ours = folder.resolve() == STACKS_DIR.resolve()
    is_made = is_ours and make_stack(spec.name, CHECKOUT, engine_environ(state.environment_file))
    if is_made:
        print(f"made     stack {spec.name} in these states, selected")
    if not (made or is_new or is_made):
        print("nothing to do: everything was there")
    output.note(*problems)
    total = bill(spec, layered(spec)).estimate
    print(
        f"costs    ${total.monthly_low_usd:,.2f} to ${total.monthly_high_usd:,.2f} a 730-hour "
        f"month: soperator cost --stack {spec.name}"
    )
    if not is_ours:
        print(f"next: move {path} to {STACKS_DIR}, where the engine looks, and run this again")
        return
    print("next, in this shell:")
    print('  eval "$(soperator env --cloud)"; unset NEBIUS_IAM_TOKEN')
    print(f"  set -a; . {state.environment_file}; set +a")
    print(f"  pulumi up --stack {spec.name}")


def engine_environ(environment_file: Path) -> dict[str, str]:
    """Environment of the engine for a project, as the printed lines set it."""
    prepare_engine(Target.CLOUD)
    return {**os.environ, **environment(Target.CLOUD), **variables_of(environment_file)}


def _ask(question: str, default: str) -> str:
    return str(typer.prompt(question, default=default or None))
