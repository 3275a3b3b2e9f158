"""`soperator load`: the declared load test against a running server, or from here against any."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import context, output
from infra.cli.context import CHECKOUT, IdentityOption, StackOption
from infra.cli.output import Format
from infra.state import DEFAULT_STACK
from stacks.errors import UserError

if TYPE_CHECKING:
    from stacks.spec import StackSpec


def command(
    serve_job: Annotated[
        str | None, typer.Argument(help="Id of the serve job; the newest that runs by default.")
    ] = None,
    stack: StackOption = DEFAULT_STACK,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Any server up to /v1 instead, asked from here."),
    ] = None,
    concurrency: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="Streams of the sweep, rising from 1.")
    ] = None,
    rates: Annotated[
        str | None, typer.Option(metavar="R,R,...", help="Poisson rates in requests a second.")
    ] = None,
    rows: Annotated[
        Path | None, typer.Option(help="With --url: .jsonl file of chats to send.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="With --url: model folder whose tokenizer makes prompts.")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(metavar="PLATFORM/PRESET", help="With --url: what the server runs on."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a value of the recipe; repeatable."
        ),
    ] = None,
    sync: Annotated[
        bool, typer.Option("--sync", help="Send this checkout's code first if it differs.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run; ask and queue nothing.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Submit over the budget; the ledger records it.")
    ] = False,
    identity: IdentityOption = None,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
) -> None:
    """Measure a server under load: by the job `load`, or from here with --url.

    The job is submitted and not waited for, unlike by `serve` and `accept`: `soperator logs ID`
    follows it. While others use the server nothing is measured: NOT RUN, 69.
    """
    from infra.jobs import server as targets

    chosen = targets.settings(concurrency, rates, sets or ())
    declared = context.spec(stack)
    if url is not None:
        if serve_job is not None:
            raise UserError("load: give a job id or --url, not both")
        hardware = [] if preset is None else targets.preset_settings(preset)
        words = _words(url, rows, tokenizer, [*hardware, *chosen], declared)
        if dry_run:
            print(" ".join(words))
            return
        raise typer.Exit(_run(words, stack, declared))
    given = {"--rows": rows, "--tokenizer": tokenizer, "--preset": preset}
    if wrong := [name for name, value in given.items() if value is not None]:
        raise UserError(f"{' and '.join(wrong)}: only with --url; for a job use --set load.prompts")
    from infra.cli import submit
    from infra.clients import slurm
    from infra.jobs.server import DAYS

    name = targets.load_job(declared).name
    outputs = context.read(stack)
    with context.connect(outputs, identity) as connection:
        jobs = (
            slurm.recent(connection, days=DAYS)
            if serve_job is None
            else (slurm.find(connection, serve_job),)
        )
    server = targets.choose(declared, jobs, serve_job)
    output.note(f"load test of {server.name}, job {server.id}, on {server.where}")
    submit.command(
        name,
        stack,
        sets=[*targets.job_settings(declared, server), *chosen],
        sync=sync,
        dry_run=dry_run,
        force=force,
        identity=identity,
        format=format,
    )


def _words(
    url: str, rows: Path | None, tokenizer: Path | None, sets: list[str], spec: StackSpec
) -> list[str]:
    from infra.jobs import server as targets

    words = [sys.executable, "-m", "workloads.load", "--url", url, "--model", spec.chat.model]
    for job in spec.jobs:
        if job.is_load_test:
            words += ["--recipe", job.recipe]
            break
    if rows is not None:
        words += ["--rows", str(rows.resolve())]
    if tokenizer is not None:
        words += ["--tokenizer", str(tokenizer.resolve())]
    return words + targets.as_words(sets)


def _run(words: list[str], stack: str, spec: StackSpec) -> int:
    """The test here; its record comes to lie where pulled ones do, so cost/ reads it."""
    from infra.render.sbatch import chat_profile
    from infra.state import Cache

    environment = {
        "SOPERATOR_PLACE_MODEL": str(Cache.from_environ().models),
        **os.environ,
        "SOPERATOR_PLACE_RESULTS": str(context.state_root() / "runs" / stack),
        "SOPERATOR_CHAT_PROFILE": json.dumps(chat_profile(spec)),
        "SOPERATOR_STACK": stack,
        "SOPERATOR_JOB": "load",
    }
    environment.pop("SLURM_JOB_ID", None)
    return subprocess.run(words, cwd=CHECKOUT, env=environment, check=False).returncode
