"""First stacks: `init` sets up a project for deployments, `attach` takes a Slurm that others run.

Reads and asks first, then makes: what is wrong is told before anything is changed. The token is
taken from NEBIUS_IAM_TOKEN, never from an option, where every user of the machine could read it.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Final

import typer

from cost.bill.bill import bill
from cost.prices.book import PriceBook, layered
from infra.cli.context import arg, environ, opt, state_root
from infra.cli.machine.env import Target, environment
from infra.cli.machine.env import prepare as prepare_engine
from infra.cli.output import note
from infra.clients.errors import last_words
from infra.clients.pulumi import attached_outputs
from infra.clients.ssh import Connection, Endpoint, offered_host_key
from infra.clients.ssh_key import fingerprint
from infra.jobs import transfer
from infra.jobs.ledger import own_name
from infra.operate import attach as discovery
from infra.operate.attach import Found, compress
from infra.providers.nebius.sdk import KEY_FILE_VARIABLE, TOKEN_VARIABLE
from infra.render.delivery import code_files
from infra.render.names import shell_file
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
from stacks import load
from stacks.errors import UserError
from stacks.spec import StackSpec
from stacks.spec.cluster import AttachedSpec


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
    folder = load.STACKS_DIR if stacks_dir is None else stacks_dir
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
    is_ours = folder.resolve() == load.STACKS_DIR.resolve()
    is_made = is_ours and make_stack(spec.name, CHECKOUT, engine_environ(state.environment_file))
    if is_made:
        print(f"made     stack {spec.name} in these states, selected")
    if not (made or is_new or is_made):
        print("nothing to do: everything was there")
    note(*problems)
    total = bill(spec, layered(spec)).estimate.total
    print(
        f"costs    ${total.low_usd:,.2f} to ${total.high_usd:,.2f} a 730-hour "
        f"month: soperator cost --stack {spec.name}"
    )
    if not is_ours:
        print(f"next: move {path} to {load.STACKS_DIR}, where the engine looks, and run this again")
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


_LOGIN: Final = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?P<host>[A-Za-z0-9][A-Za-z0-9.:_-]*?)(?::(?P<port>\d{1,5}))?"
)
_FOLDER: Final = re.compile(r"(/[A-Za-z0-9._+-]+)+", re.ASCII)
"""It stands in #SBATCH lines, where nothing is quoted."""
_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,29}")
_KEYS: Final = ("id_ed25519", "id_ecdsa", "id_rsa")


def attach(
    login: Annotated[str, arg("Login node: HOST, USER@HOST or HOST:PORT.")],
    user: Annotated[str | None, opt("User there; this machine's without it.")] = None,
    key: Annotated[Path | None, opt("Private key; the first of ~/.ssh without it.")] = None,
    stack: Annotated[
        str | None, opt("Name of the stack; the host's without it.", "--stack", "-s")
    ] = None,
    host_key: Annotated[
        str | None, opt("Host key as the site publishes it: SHA256:... or the public line.")
    ] = None,
    folder: Annotated[
        str | None, opt("Folder of yours there for all of the stack's files.")
    ] = None,
    partition: Annotated[
        str | None, opt("Partition of the first jobs.", "--partition", "-p")
    ] = None,
    account: Annotated[str | None, opt("Account of Slurm for all jobs.")] = None,
) -> None:
    """Make a stack of a Slurm cluster that others run; again: look what changed there.

    Needs an SSH key that lets in, no root and no cloud. Asks before it trusts a host key that it
    never saw. Writes stacks/Pulumi.NAME.yaml here, and below one folder of yours there.
    """
    found = _LOGIN.fullmatch(login)
    if found is None:
        raise UserError(f"{login}: not a login node; write HOST, USER@HOST or HOST:PORT")
    name = stack or re.sub(r"[^a-z0-9]+", "-", found["host"].split(".")[0].lower()).strip("-")
    if not _NAME.fullmatch(name):
        raise UserError(
            f"--stack {name}: not a name; write a letter, then up to 29 of a-z, 0-9 and -"
        )
    known = _known(name)
    door = Endpoint(
        host=found["host"],
        port=int(found["port"] or 22),
        host_key="",
        identity=_identity(key, known),
        user=user or found["user"] or own_name(),
        is_built=False,
    )
    at = str(door)
    door = replace(door, host_key=_host_key(door, host_key, known))
    began = datetime.now(UTC)
    with Connection(door) as connection:
        seen = discovery.discover(connection, at)
        if seen.user != door.user:
            raise UserError(f"{at}: is entered as {seen.user}; give --user {seen.user}")
        charge = discovery.choose(seen, at, partition=partition, account=account)
        place = _folder(folder, known, seen, name)
        make = f"umask 077\n{shell_file('roots')}\nroots {shlex.quote(place)}"
        made = connection.run(f"bash -c {shlex.quote(make)}")
        if not made.ok:
            raise UserError(
                f"{at}: {last_words(made.stderr)}; name a folder of yours that all nodes see with "
                "--folder"
            )
        path, is_update, spec = stack_file.write_attached(
            load.STACKS_DIR, name, door, place, seen, charge
        )
        files = code_files(CHECKOUT, spec)
        release = transfer.send(connection, attached_outputs(spec), files)
    _say(seen, spec, path, is_update=is_update)
    took_s = (datetime.now(UTC) - began).total_seconds()
    note(f"{name}: attached in {took_s:.1f} s; code {release} is in {spec.code_path} there")
    first = next((job.name for job in spec.jobs), None)
    print(f"next: soperator submit {first or 'JOB'} --stack {name}")


def _known(name: str) -> AttachedSpec | None:
    """What an earlier attach found; a file of another kind is refused before any question."""
    path = load.STACKS_DIR / f"Pulumi.{name}.yaml"
    if not path.is_file():
        return None
    stack_file.part_of(path, path.read_text(encoding="utf-8", errors="replace"))
    return load.load_stack(name, load.STACKS_DIR).attached


def _identity(key: Path | None, known: AttachedSpec | None) -> Path:
    if key is not None:
        return key.expanduser().absolute()
    if known is not None:
        return Path(known.identity)
    home = Path.home() / ".ssh"
    found = next((home / name for name in _KEYS if (home / name).is_file()), None)
    if found is None:
        raise UserError(f"--key: none of {', '.join(_KEYS)} is in {home}; give a private key")
    return found


def _host_key(door: Endpoint, given: str | None, known: AttachedSpec | None) -> str:
    """The public line that every connection is held against; never one that nobody looked at."""
    if given is None and known and (known.host, known.port) == (door.host, door.port):
        return known.host_key
    words = (given or "").split()
    is_line = len(words) > 1
    offered = offered_host_key(door.host, door.port, words[0] if is_line else None)
    at, shown = f"{door.host}:{door.port}", fingerprint(offered)
    if given is not None:
        if given != shown and not (is_line and words[:2] == offered.split()):
            raise UserError(
                f"{at}: shows the host key {shown} ({offered.split()[0]}), which is not the one "
                "that --host-key gives, so nothing was sent; ask the administrators for the right "
                "one: if it is yours, someone is in between"
            )
        return offered
    note(f"{at}: host key {shown} ({offered.split()[0]})")
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UserError(
            f"{at}: nobody here can say whether that host key is right; compare it with what the "
            f"site publishes, then give --host-key {shown}"
        )
    if not typer.confirm("Is it what the site publishes?", default=False, err=True):
        raise UserError(f"{at}: the host key was not confirmed, so nothing was sent")
    return offered


def _folder(given: str | None, known: AttachedSpec | None, found: Found, name: str) -> str:
    """Where everything of the stack lies; that of an earlier attach stays, as runs are in it."""
    before = known and known.folder
    if given is not None and before is not None and given != before:
        raise UserError(
            f"--folder {given}: runs of this stack lie in {before}; leave the option out, or "
            "attach under another name with --stack"
        )
    roomy = discovery.roomy_folder(found)
    chosen = given or before or str(PurePosixPath(roomy.path) / "soperator" / name)
    if not _FOLDER.fullmatch(chosen) or "/../" in f"{chosen}/":
        raise UserError(
            f"--folder {chosen}: not an absolute path of letters, digits and . _ + -, which sbatch "
            "needs"
        )
    return chosen


def _say(found: Found, spec: StackSpec, path: Path, *, is_update: bool) -> None:
    assert spec.attached is not None
    names = stack_file.nodeset_names(found.nodesets)
    for name, each in zip(names, found.nodesets, strict=True):
        gpus = f", {each.gpus} GPUs ({each.gpu_type or 'no type'})" if each.gpus else ""
        memory = f"{each.memory_mib / 1024:,.0f} GiB" if each.memory_mib else "memory not counted"
        note(
            f"{name}: {len(each.nodes)} nodes {compress(each.nodes)}: {each.cpus} CPUs, {memory}"
            f"{gpus}; partitions {', '.join(each.partitions)}"
        )
    note(
        f"Slurm {found.version}, accounting {'kept' if found.has_accounting else 'not kept'}; "
        f"Python {found.python_version} at {found.python}; files below {spec.attached.folder}"
    )
    if found.hides_jobs:
        note("Slurm hides others' jobs (PrivateData=jobs): a budget counts those of budget.ledger")
    priced = {each.nodeset for each in spec.node_prices}
    if unpriced := [name for name in names if name not in priced]:
        note(f"{', '.join(unpriced)}: UNPRICED until node_prices of {path} says what a node costs")
    print(f"{'updated' if is_update else 'wrote'} {path}")
