"""What commands share: the checkout, the state folder, the outputs, the way in, common options.

Owns which key opens a login node and which code the checkout holds. One SSH connection per command.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra import files
from infra.cli.output import note
from infra.state import CHECKOUT, State
from stacks.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cost.bill.bill import Bill
    from infra.clients.errors import StackPausedError
    from infra.clients.kube import KubeClient
    from infra.clients.pulumi import StackOutputs
    from infra.clients.slurm import Job
    from infra.clients.ssh import Connection, Tunnel
    from infra.jobs.ledger import JobLedger
    from infra.jobs.server import ServerAddress
    from infra.jobs.submit import Submitter
    from infra.operate.sessions import Endpoint
    from stacks.spec import StackSpec


def opt(help: str, *words: str, **more: Any) -> Any:
    """An option of a command; of the words one without a dash is what its value is called.

    Without a word it has its parameter's name; a flag that is off has no --no-FLAG (main.py).
    """
    names = [each for each in words if each.startswith("-")]
    metavar = next((each for each in words if each not in names), None)
    return typer.Option(*names, help=help, metavar=metavar, **more)


def arg(help: str, metavar: str | None = None, **more: Any) -> Any:
    """A word of a command that has no name before it."""
    return typer.Argument(help=help, metavar=metavar, **more)


StackOption = Annotated[str, opt("Stack to use.", "--stack", "-s")]
IdentityOption = Annotated[
    Path | None,
    opt(
        "Private key; by default that of SOPERATOR_SSH_PUBLIC_KEY_FILE, else the state folder's.",
        "--identity",
        "-i",
    ),
]
SetsOption = Annotated[
    list[str] | None, opt("Change a value of the recipe; repeatable.", "--set", "KEY=VALUE")
]
SyncOption = Annotated[bool, opt("Send this checkout's code first if it differs.", "--sync")]
ForceOption = Annotated[bool, opt("Submit over the budget; the ledger records it.", "--force")]
AgainOption = Annotated[bool, opt("Submit what is done or on its way once more.", "--again")]


def state_root() -> Path:
    """The state folder."""
    return State.from_environ().root


def environ() -> dict[str, str]:
    """The environment of `soperator env`, under what the user's own shell says.

    The key pair that it names is made where it is missing, as `soperator env` makes it.
    """
    from infra.cli.machine.env import environment
    from infra.local import engine
    from infra.providers.nebius.sdk import ENDPOINT_VARIABLE, TOKEN_VARIABLE
    from stacks.load import KEY_FILE_VARIABLE

    ours, state = environment(), State.from_environ()
    if KEY_FILE_VARIABLE not in os.environ and KEY_FILE_VARIABLE in ours:
        # Where the folder cannot be written, the stack says what it lacks.
        with contextlib.suppress(OSError):
            engine.make_ssh_key(state)
    # The engine must be found, and its passphrase match, in a shell that never ran `soperator env`.
    forced = ["PATH", "PULUMI_CONFIG_PASSPHRASE"]
    if ENDPOINT_VARIABLE not in os.environ:
        forced.append(TOKEN_VARIABLE)  # an emulator of ours takes its own alone
    return {**ours, **os.environ, **{name: ours[name] for name in forced if name in ours}}


def read(stack: str) -> StackOutputs:
    """Outputs of the deployed stack, read once through pulumi: root's, for what only root may."""
    from infra.clients.pulumi import read_outputs

    refuse_attached(stack, "what only root may do")
    return read_outputs(stack, environ())


def caller(stack: str, identity: Path | None) -> StackOutputs:
    """Outputs of the deployed stack for the user whose key this is: login user and places.

    An attached cluster has one user, whom its stack file names.
    """
    if is_attached(stack):
        from infra.clients.pulumi import attached_outputs

        return attached_outputs(spec(stack))
    return read(stack).as_owner_of(private_key(identity))


_ATTACHED = re.compile(r"^\s*soperator-stack:attached:", re.MULTILINE)


def is_attached(stack: str) -> bool:
    """Whether the stack's file, whatever else it has, says that others run its cluster."""
    from stacks import load

    try:
        text = (load.STACKS_DIR / f"Pulumi.{stack}.yaml").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    return _ATTACHED.search(text) is not None


def refuse_attached(stack: str, what: str) -> None:
    """UserError of a stack without infrastructure, of which nobody can do this from here."""
    if is_attached(stack):
        raise UserError(
            f"{stack}: {what} needs infrastructure that `pulumi up` made, and this stack is "
            "attached to a cluster that others run: ask its administrators"
        )


def fetched(stack: str, job_id: str, error: StackPausedError) -> Path:
    """The folder of what was brought here of a paused stack's job; raises `error` without one."""
    from infra.jobs.history import run_folder
    from infra.jobs.transfer import LOG_NAME

    folder = run_folder(state_root(), stack, job_id)
    if not (folder / LOG_NAME).is_file():
        raise error
    note(f"{stack}: is paused; this is job {job_id} as it was when it was fetched")
    return folder


def first_up(stack: str) -> datetime | None:
    """When the stack was first brought up; None where the engine does not know."""
    from infra.clients.pulumi import read_first_up

    if is_attached(stack):
        return None
    return read_first_up(stack, environ())


def run_config_store(outputs: StackOutputs) -> dict[str, str] | None:
    """What opens the stack's bucket of run configs; None where it has none."""
    from infra.clients.pulumi import read_run_config_store

    return read_run_config_store(outputs, environ())


def kube_client(stack: str) -> KubeClient:
    """A client of the deployed stack's Kubernetes API, also in a shell without `soperator env`."""
    from infra.clients.kube import KubeClient
    from infra.clients.kube import read_kubeconfig as parse
    from infra.clients.pulumi import read_kubeconfig

    refuse_attached(stack, "its Kubernetes API")
    found = environ()
    access = parse(read_kubeconfig(stack, found))
    access.environ = found
    return KubeClient(access)


def node_watch(stack: str) -> Callable[[Job], None]:
    """What tells of a job that waits why its nodes do not come; nothing without a stack file."""
    from infra.jobs.nodes import NodeWatch

    declared = spec_here(stack)
    if declared is None or declared.attached is not None:
        return lambda _job: None
    return NodeWatch(declared, cache(lambda: kube_client(stack)), note).look


def submitter(
    connection: Connection,
    outputs: StackOutputs,
    ledger: JobLedger | None = None,
    code: Mapping[str, bytes] | None = None,
    *,
    sync: bool = False,
) -> Submitter:
    """What submits `code` of this checkout; without, it writes down what a killed command sent.

    The code is sent first with `sync`, and to an attached cluster, where nobody else delivers.
    """
    from infra.jobs.ledger import open_ledger
    from infra.jobs.submit import Submitter
    from infra.render.delivery import hash_files

    sends = sync or outputs.attached_key is not None
    return Submitter(
        connection=connection,
        outputs=outputs,
        state=state_root(),
        log=note,
        books=lambda: ledger or open_ledger(spec(outputs.stack), state_root(), note),
        code_hash="" if code is None else hash_files(code),
        git_revision=None if code is None else git_revision(),
        store=lambda: run_config_store(outputs),
        sent_code=code if sends else None,
    )


def connect(outputs: StackOutputs, identity: Path | None = None) -> Connection:
    """A connection to the stack's login node; jobs of submissions cut off are put back first.

    Not as root, who waits for no submission: the lock is the user's.
    """
    from infra.clients.ssh import ROOT, Connection

    connection = Connection(outputs.endpoint(key_of(outputs, identity)))
    if outputs.user != ROOT or not outputs.users:
        submitter(connection, outputs).recover()
    return connection


def tunnel(
    closing: contextlib.ExitStack,
    outputs: StackOutputs,
    identity: Path | None,
    to: Endpoint | ServerAddress,
    node: str | None = None,
) -> Tunnel:
    """A way from this machine to there, as the login node or `node` sees it, until `closing`."""
    from infra.clients.ssh import Tunnel

    way = replace(outputs.endpoint(key_of(outputs, identity)), node=node)
    made = Tunnel(way, to.host, to.port, log=note)
    closing.callback(made.close)
    return made


def key_of(outputs: StackOutputs, identity: Path | None) -> Path:
    """The given key, else that of an attached cluster's stack file, else this machine's own."""
    return private_key(identity or outputs.attached_key)


def private_key(identity: Path | None) -> Path:
    """The given key, else that of SOPERATOR_SSH_PUBLIC_KEY_FILE, else the state folder's own."""
    return State.from_environ().user_key if identity is None else identity.expanduser()


def spec(stack: str) -> StackSpec:
    """The declared stack."""
    from stacks.load import load_stack

    return load_stack(stack, environ=environ())


def spec_here(stack: str) -> StackSpec | None:
    """The declared stack; None without its file, or where it declares what cannot be."""
    from stacks.load import StackError

    try:
        return spec(stack)
    except StackError:
        return None


def bill(stack: str) -> Bill:
    """The stack's bill with the runs that were pulled here; a stack with errors has none."""
    from cost.bill.bill import bill as make_bill
    from infra.jobs.records import load_records, with_history
    from infra.operate.prices import price_book

    declared = spec(stack)
    state = state_root()
    records = load_records(state, stack, note)
    found = make_bill(with_history(declared, state, note), price_book(declared, state), records)
    if found.errors:
        raise UserError("\n".join(str(problem) for problem in found.problems))
    return found


def local_code(stack: str) -> dict[str, bytes]:
    """What this checkout would deliver to the stack."""
    from infra.render.delivery import code_files

    return code_files(CHECKOUT, spec(stack))


def git_revision() -> str | None:
    """Commit of the checkout; None outside git."""
    from infra.render.delivery import git

    return git(CHECKOUT, "rev-parse", "HEAD")


def given(ctx: typer.Context) -> list[Any]:
    """The parameters that the command line gives, of the command or of its group."""
    sources = [(each, ctx.get_parameter_source(each.name or "")) for each in ctx.command.params]
    named = ("COMMANDLINE", "DEFAULT_MAP")
    return [each for each, source in sources if source is not None and source.name in named]


OutputOption = Annotated[
    Path | None, opt("Write to this file, whole or not at all.", "--output", "-o", "FILE")
]


def put(text: str, file: Path | None) -> None:
    """Prints the text, or replaces the file by it in one step and prints the file's name.

    A file that is standard output itself, such as /dev/stdout, gets the text alone.
    """
    if file is None or _is_stdout(file):
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UserError(
                f"standard output: {error.strerror}; not all of it was written"
            ) from error
        return
    try:
        if not file.parent.is_dir():
            # A mistyped folder is not made.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        files.write(file, text)
    except OSError as error:
        raise UserError(
            f"{file}: {error.strerror}; nothing was written: give a file in a folder that is "
            "there and yours"
        ) from error
    print(file)


def _is_stdout(file: Path) -> bool:
    try:
        return os.path.samestat(file.stat(), os.fstat(1))
    except OSError:
        return False


def share(option: str, percent: float) -> Decimal:
    """The percentage as a part; one within which anything agrees is refused."""
    if not 0 <= percent < 100:
        raise UserError(f"{option} {percent:g}: not from 0 to below 100, where anything agrees")
    return Decimal(str(percent)) / 100


def moment(option: str, text: str, now: datetime) -> datetime:
    """The time in UTC; one that is no time, or in the future, is refused."""
    try:
        found = datetime.fromisoformat(text)
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UserError(
            f"{option} {text}: not a time; write 2026-11-01 or 2026-11-01T08:00"
        ) from error
    if found > now:
        raise UserError(
            f"{option} {text}: in the future (now is {now:%Y-%m-%dT%H:%M} UTC); spend is what ran, "
            "`soperator cost -s STACK` is what is declared"
        )
    return found
