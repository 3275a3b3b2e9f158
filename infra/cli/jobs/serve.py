"""`serve`: the declared server as a job, and the chat page before it; `load`: its load test."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from infra.cli import context, interrupts, output
from infra.cli.context import CHECKOUT, arg, opt
from infra.cli.jobs.submit import prepare, submit
from infra.cli.output import Format
from infra.clients import slurm
from infra.clients.errors import JobsError
from infra.clients.pulumi import StackOutputs
from infra.clients.ssh import Connection, ConnectionLostError
from infra.jobs import recipes, server
from infra.jobs.follow import outcome
from infra.jobs.recipes import job_args
from infra.jobs.server import DEFAULT_PORT, ChatPage
from infra.render.sbatch import chat_profile
from infra.state import DEFAULT_STACK, Cache
from stacks.errors import UserError
from stacks.spec import StackSpec

_LOOK_EVERY_S = 0.5
_ASK_EVERY_S = 5.0


def serve(
    stack: context.StackOption = DEFAULT_STACK,
    open_: Annotated[bool, opt("Open the chat page; Ctrl-C closes everything.", "--open")] = False,
    job: Annotated[str | None, opt("Declared server; the only one by default.", "NAME")] = None,
    port: Annotated[int, opt("Port of the page on this machine; 0: any free one.")] = DEFAULT_PORT,
    keep: Annotated[bool, opt("Leave the server running, whatever ends this command.")] = False,
    share: Annotated[bool, opt("With --open: public link, with a password.")] = False,
    sets: context.SetsOption = None,
    sync: context.SyncOption = False,
    force: context.ForceOption = False,
    identity: context.IdentityOption = None,
) -> None:
    """Serve a model as a job; with --open talk to it in the browser."""
    if share and not open_:
        raise UserError("--share: only with --open, which opens the page")
    spec = context.spec(stack)
    wanted = server.server_job(spec, job)
    job_args(sets or ())
    page_port = server.free_port(port) if open_ else None
    outputs = context.caller(stack, identity)
    outputs.check_job(wanted.name)
    with interrupts.closed_whole() as closing:
        connection = closing.enter_context(context.connect(outputs, identity))
        own = _OwnJob(connection, stack, is_kept=keep)
        closing.callback(own.end)
        with context.submitter(connection, outputs).alone():
            job_id = _found(connection, wanted.name, sets or (), stack)
            if job_id is None:
                ledger, code, requests = prepare(spec, [wanted], {wanted.name: sets or ()})
                submitter = context.submitter(connection, outputs, ledger, code, sync=sync)
                with interrupts.held():
                    sent = submitter.submit(
                        requests[wanted.name], force=force, once=True, queued=own.take
                    )
                job_id = sent.submission.job_id
                output.note(f"{wanted.name} is job {job_id}")
        results = outputs.results_path(job_id)
        opened = closing.enter_context(contextlib.ExitStack())
        token = secrets.token_urlsafe()
        watch = context.node_watch(stack)
        while True:
            with output.never_silent(f"job {job_id}"):
                address = server.wait_until_up(
                    connection, outputs, job_id, log=output.note, on_look=watch
                )
            output.note(f"job {job_id} serves {' and '.join(address.models)} at {address}")
            if page_port is None:
                own.is_kept = True
                output.note(f"it stays: soperator cancel {job_id} -s {stack} ends it")
                print(address)
                return
            file = server.key_file(CHECKOUT, outputs, wanted, sets or (), results=results)
            # A server that is started anew makes a new key.
            key = server.read_key(
                connection, address, file, results=results, environment=os.environ
            )
            page = ChatPage(
                context.tunnel(opened, outputs, identity, address).url,
                port=page_port,
                key=key,
                token=token,
                record=_record(outputs, job_id),
                checkout=CHECKOUT,
                options=[
                    f"--server=job {job_id} on {address.host}",
                    *(["--share"] if share else []),
                ],
            )
            opened.callback(page.close)
            page.wait_until_up()
            print(page.address, flush=True)
            output.note(f"Ctrl-C closes page and tunnel{own.also}")
            _watch(page, connection, job_id, stack)
            output.note(f"job {job_id} was taken from {address.host} and comes back by itself")
            opened.close()


class _OwnJob:
    """The job that this command submitted; nothing before it did."""

    def __init__(self, connection: Connection, stack: str, *, is_kept: bool) -> None:
        self._connection, self._stack, self.is_kept = connection, stack, is_kept
        self.job_id: str | None = None

    @property
    def also(self) -> str:
        """What ends with the page."""
        if self.job_id is None or self.is_kept:
            return "; the job stays"
        return f", and ends job {self.job_id}"

    def take(self, job_id: str) -> None:
        """From now on the job is this command's to end."""
        self.job_id = job_id

    def end(self) -> None:
        """Ends it, unless it is kept; where nobody answers says how to end it later."""
        if self.job_id is None or self.is_kept:
            return
        try:
            if not self._connection.is_open:
                self._connection.reopen()
            if slurm.find(self._connection, self.job_id).finished:
                return
            slurm.cancel(self._connection, [self.job_id])
        except JobsError as error:
            output.note(f"{error}")
            output.note(
                f"job {self.job_id} still runs: soperator cancel {self.job_id} -s {self._stack}"
            )
            return
        output.note(f"job {self.job_id} is told to end")


def _found(connection: Connection, name: str, sets: Sequence[str], stack: str) -> str | None:
    """Id of the server that runs or waits already; refused where settings could not reach it."""
    job = server.open_job(slurm.recent(connection, days=server.DAYS, mine=True), name)
    if job is None:
        return None
    if sets:
        raise UserError(
            f"--set: job {job.id} {name} is {job.state} already and was started without it; leave "
            f"--set out, or run: soperator cancel {job.id} -s {stack}"
        )
    output.note(f"job {job.id} {name} is {job.state} already and is used; it stays at the end")
    return job.id


def _record(outputs: StackOutputs, job_id: str) -> Path:
    """Where votes and times of this job's page are kept; ids start again on a new cluster."""
    cluster = hashlib.sha256(outputs.login_host_key.encode()).hexdigest()[:8]
    return context.state_root() / "chats" / outputs.stack / f"{cluster}-{job_id}.jsonl"


def _watch(page: ChatPage, connection: Connection, job_id: str, stack: str) -> None:
    """Returns when the job was queued again; a page or a job that ends is an error."""
    asked_s = time.monotonic()
    while True:
        time.sleep(_LOOK_EVERY_S)
        if not page.is_running:
            raise UserError("the chat page ended by itself; its last line says why")
        if time.monotonic() - asked_s < _ASK_EVERY_S:
            continue
        asked_s = time.monotonic()
        # The tunnel tells that the login node is gone; the page says so.
        with contextlib.suppress(ConnectionLostError):
            if not connection.is_open:
                connection.reopen()
            found = slurm.find(connection, job_id)
            if found.finished:
                raise UserError(f"job {job_id} ended: {outcome(found, stack, is_server=True)}")
            if found.waits:
                return


def load(
    serve_job: Annotated[
        str | None, arg("Id of the serve job; the newest that runs by default.")
    ] = None,
    stack: context.StackOption = DEFAULT_STACK,
    url: Annotated[str | None, opt("Any server up to /v1 instead, asked from here.", "URL")] = None,
    rows: Annotated[Path | None, opt("With --url: .jsonl file of chats to send.")] = None,
    tokenizer: Annotated[
        Path | None, opt("With --url: model folder whose tokenizer makes prompts.")
    ] = None,
    preset: Annotated[
        str | None, opt("With --url: what the server runs on.", "PLATFORM/PRESET")
    ] = None,
    sets: context.SetsOption = None,
    sync: context.SyncOption = False,
    dry_run: Annotated[bool, opt("Show what would run; ask and queue nothing.")] = False,
    force: context.ForceOption = False,
    identity: context.IdentityOption = None,
    format: Annotated[Format, opt("How to print.")] = Format.TABLE,
) -> None:
    """Measure a server under load: by the job `load`, or from here with --url.

    The job is submitted and not waited for, unlike by `serve` and `cluster accept`:
    `soperator logs ID` follows it. While others use the server nothing is measured: NOT RUN, 69.
    """
    chosen = sets or []
    declared = context.spec(stack)
    if url is not None:
        if serve_job is not None:
            raise UserError("runs load: give a job id or --url, not both")
        hardware = [] if preset is None else server.preset_settings(preset)
        words = _words(url, rows, tokenizer, [*hardware, *chosen], declared)
        if dry_run:
            print(shlex.join(words))
            return
        raise typer.Exit(_run(words, stack, declared))
    given = {"--rows": rows, "--tokenizer": tokenizer, "--preset": preset}
    if wrong := [name for name, value in given.items() if value is not None]:
        raise UserError(f"{' and '.join(wrong)}: only with --url; for a job use --set load.prompts")
    name = server.load_job(declared).name
    outputs = context.caller(stack, identity)
    with context.connect(outputs, identity) as connection:
        jobs = (
            slurm.recent(connection, days=server.DAYS, mine=True)
            if serve_job is None
            else (slurm.find(connection, serve_job),)
        )
    target = server.choose(declared, jobs, serve_job)
    output.note(f"load test of {target.name}, job {target.id}, on {target.where}")
    submit(
        name,
        stack,
        sets=[*server.job_settings(declared, target), *chosen],
        sync=sync,
        dry_run=dry_run,
        force=force,
        identity=identity,
        format=format,
    )


def _words(
    url: str, rows: Path | None, tokenizer: Path | None, sets: list[str], spec: StackSpec
) -> list[str]:
    words = [sys.executable, "-m", "workloads.load", "--url", url, "--model", spec.chat.model]
    problems: list[str] = []
    if not re.match(r"https?://[^/]", url):
        problems.append(
            f"--url {url}: not an address; give that of the server up to /v1, such as "
            "http://127.0.0.1:8000/v1"
        )
    if rows is not None:
        if not rows.is_file():
            problems.append(f"--rows {rows}: no such file; give a .jsonl file of chats")
        words += ["--rows", str(rows.absolute())]
    if tokenizer is not None:
        if not tokenizer.is_dir():
            problems.append(f"--tokenizer {tokenizer}: no such folder; give a model's")
        words += ["--tokenizer", str(tokenizer.absolute())]
    if problems:
        raise UserError("\n".join(problems))
    for job in spec.jobs:
        if job.is_load_test:
            recipes.refuse_wrong(CHECKOUT, job, sets)
            words += ["--recipe", job.recipe]
            break
    return words + job_args(sets)


def _run(words: list[str], stack: str, spec: StackSpec) -> int:
    """The test here; its record comes to lie where pulled ones do, so cost/ reads it."""
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
