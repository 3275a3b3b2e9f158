"""Data and models to the cluster, results back, and the jobs' Python environment on it."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cost.runs.ledger import FILE_NAME, Ledger, LedgerError, actuals
from infra.cli import context, output
from infra.cli.context import IdentityOption, StackOption, arg, opt
from infra.cli.output import Format
from infra.clients.errors import JobsError, StackPausedError
from infra.clients.pulumi import StackOutputs
from infra.jobs import transfer
from infra.jobs.follow import find
from infra.jobs.history import run_folder
from infra.jobs.ledger import note_actual, open_ledger
from infra.render.delivery import PackageSource
from infra.reports.runs.run import publish
from infra.state import CHECKOUT, DEFAULT_STACK
from stacks.errors import UserError


def push(
    source: Annotated[
        str,
        arg("A file or folder here, hf://[datasets/]owner/name[@revision], or s3://bucket/prefix."),
    ],
    target: Annotated[str, arg("A declared place, such as data or model.", "PLACE[/PATH]")],
    stack: StackOption = DEFAULT_STACK,
    identity: IdentityOption = None,
    dry_run: Annotated[bool, opt("Print licence and size; bring nothing.")] = False,
) -> None:
    """Bring data or a model to a declared place; no GPU is held meanwhile.

    Local files cross SSH and continue where an earlier try stopped. The login node itself fetches
    hf:// and s3:// sources, with HF_TOKEN and AWS_* of this shell; licence and size come first.
    """
    outputs = context.caller(stack, identity)
    if source.startswith(transfer.SCHEMES):
        path = transfer.destination(outputs.places, target, name=transfer.default_name(source))
        with (
            context.connect(outputs, identity) as connection,
            output.ClusterText(sys.stderr) as shown,
        ):
            transfer.fetch(
                connection,
                code_path=outputs.code_path,
                source=source,
                target=path,
                environ=os.environ,
                write=shown.write,
                only_describe=dry_run,
            )
        print(path)
        return
    if "://" in source:
        raise UserError(f"{source}: give a local path, or one of {', '.join(transfer.SCHEMES)}")
    local = Path(source).expanduser()
    path = transfer.destination(outputs.places, target, name=local.resolve().name)
    with context.connect(outputs, identity) as connection:
        transfer.push(connection, local, path, log=output.note, dry_run=dry_run)
    print(path)


def pull(
    job_id: Annotated[str, arg("Job id.")],
    stack: StackOption = DEFAULT_STACK,
    identity: IdentityOption = None,
) -> None:
    """Bring results, run record and log of a job here; prints the folder, and what it cost."""
    try:
        outputs = context.caller(stack, identity)
    except StackPausedError as error:
        print(context.fetched(stack, job_id, error))
        return
    with context.connect(outputs, identity) as connection:
        state = context.state_root()
        job = find(connection, outputs, job_id, state=state, log=output.note)
        print(transfer.pull(connection, outputs, job.name, job.id, state=state))
        if not job.finished:
            output.note(f"job {job.id} is {job.state}: its cost is written down once it ended")
            return
        try:
            ledger = open_ledger(context.spec(stack), state, output.note)
            output.note(note_actual(ledger, connection, outputs.login_host_key, job.id))
        except UserError as error:
            # The results are here, whatever is wrong with prices or accounting.
            output.note(f"job {job.id}: its cost is not written down: {error}")
    _share(outputs, stack, job.id)


def _share(outputs: StackOutputs, stack: str, job_id: str) -> None:
    """Puts the run's record where others of the stack see it; without a bucket there is no such."""
    state = context.state_root()
    try:
        store = context.run_config_store(outputs)
        if store is None:
            return
        entries = Ledger(state / "runs" / stack / FILE_NAME).read().entries
        publish(
            store,
            run_folder(state, stack, job_id),
            cluster=outputs.login_host_key,
            job_id=job_id,
            actual=actuals(entries).get((outputs.login_host_key, job_id)),
        )
    except (JobsError, LedgerError) as error:
        output.note(f"job {job_id}: others do not see it: {error}")


def venv(
    stack: StackOption = DEFAULT_STACK,
    index: Annotated[str | None, opt("Package index or mirror to take all from.", "URL")] = None,
    extra_index: Annotated[
        str | None, opt("One more index, such as PyTorch's for a CUDA version.", "URL")
    ] = None,
    wheelhouse: Annotated[
        str | None, opt("Folder of wheels on the cluster; no index is asked.", "PATH")
    ] = None,
    lock: Annotated[
        Path | None, opt("Another lock file with hashes, of the same Python.", "FILE")
    ] = None,
    identity: IdentityOption = None,
    format: Annotated[Format, opt("How to print.")] = Format.TABLE,
) -> None:
    """Make the declared `python_env_path` in the jail; one that is there already is kept."""
    source = PackageSource(index=index, extra_index=extra_index, wheelhouse=wheelhouse)
    spec = context.spec(stack)
    files = transfer.lock_files(CHECKOUT, lock)
    # For all users of a cluster that is built it is root's; of an attached one it is the user's.
    outputs = context.caller(stack, identity) if spec.attached else context.read(stack)
    with context.connect(outputs, identity) as connection:
        made = transfer.make(connection, spec, files, source)
    if format is Format.JSON:
        output.print_json(asdict(made))
        return
    if made.seconds is None:
        output.note(f"{made.path} is version {made.version} already")
    else:
        output.note(f"version {made.version}: {made.seconds} s, {made.size_mib:,} MiB")
    print(made.path)
