"""The embedded cloud of this machine, and the demo on it, which runs again after any kill.

Owns what people type and read, and the order of the demo's stages: infra/local/cloud.py starts and
stops, a stage in infra/setup/demo/ does nothing that is already done. `status` exits 1 when a part
is down.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra import files
from infra.cli import context, output
from infra.cli.context import arg, opt
from infra.cli.output import Format, never_silent, note, print_json, print_table
from infra.local import cloud, offline
from infra.state import CHECKOUT
from stacks.errors import UserError

if TYPE_CHECKING:
    from infra.setup.demo.runner import Progress


class Fault(StrEnum):
    """What can go wrong on purpose."""

    QUOTA = "quota"
    LATENCY = "latency"
    OPERATION = "operation"
    UNAVAILABLE = "unavailable"
    LOST_ANSWER = "lost-answer"
    EXPIRED_TOKEN = "expired-token"  # noqa: S105
    KILL = "kill"
    CLEAR = "clear"


def up() -> None:
    """Start every part that does not run; a second run changes nothing."""
    started = time.monotonic()
    embedded = cloud.Cloud.from_environ()
    with never_silent("local up"):
        cloud.up(embedded)
    note(f"local cloud: ready after {time.monotonic() - started:.1f} s, in {embedded.state.local}")
    note(cloud.slurm_setup(embedded).describe())


def down(purge: Annotated[bool, opt("Also remove what the parts stored.")] = False) -> None:
    """Stop every part, job and SSH session, and the emulator of previews; what is stored stays."""
    embedded = cloud.Cloud.from_environ()
    with never_silent("local down"):
        cloud.down(embedded, purge=purge, say=note)
        offline.stop(embedded.state)
    note(f"local cloud: stopped{' and removed' if purge else ''}, {embedded.state.local}")


def status(output: Annotated[Format, opt("How to print.", "--format")] = Format.TABLE) -> None:
    """List the parts; exit 1 if one is down."""
    embedded = cloud.Cloud.from_environ()
    parts = cloud.parts(embedded)
    if output is Format.JSON:
        print_json([asdict(part) for part in parts])
    else:
        rows = [
            (part.name, part.pid, part.port, "yes" if part.ready else "no", part.log)
            for part in parts
        ]
        print_table(("part", "pid", "port", "ready", "log"), rows)
        note(cloud.slurm_setup(embedded).describe())
    if not all(part.ready for part in parts):
        raise typer.Exit(1)


def fault(
    kind: Annotated[Fault, arg("What goes wrong.")],
    part: Annotated[str, arg("For `kill`: a part of `status`.")] = "",
    method: Annotated[str, opt("Regular expression on the API's full method name.")] = "Create$",
    times: Annotated[int, opt("How many calls it meets.", min=1)] = 1,
    seconds: Annotated[
        float, opt("For `latency`: seconds of every operation.", min=0, max=3600)
    ] = 5.0,
) -> None:
    """Plant a fault in the Nebius API, or kill -9 a part."""
    embedded = cloud.Cloud.from_environ()
    if kind is Fault.KILL:
        cloud.kill_part(embedded, part)
        note(f"local cloud: killed {part}; the reconciler starts it again")
    elif kind is Fault.LATENCY:
        cloud.set_latency(embedded, seconds)
        note(f"local cloud: every operation of the Nebius API takes {seconds:g} s now")
    elif kind is Fault.CLEAR:
        cloud.clear_faults(embedded)
        note("local cloud: no fault is planted any more")
    else:
        cloud.plant_fault(embedded, kind.value, method, times)
        note(f"local cloud: {kind.value} for the next {times} call(s) that match {method!r}")


_STACK = "local"
# Small enough for a check of the whole path in about three minutes; the numbers mean little. The
# load test keeps the ends of a curve: one stream, which tells reading from writing, and eight. One
# thread: two on busy cores wait for each other at every layer, and all speeds are of as many.
_REDUCED = {
    "finetune": ("train.max_steps=2", 'train.eval={"every": 2, "rows": 4}'),
    "evaluate": (
        "evaluate.num_rows=2",
        "evaluate.num_perplexity_rows=2",
        "evaluate.num_samples=2",
        "evaluate.max_new_tokens=8",
        "evaluate.batch_size=2",
        "evaluate.num_speed_tokens=4",
        "evaluate.cpu_threads=1",
    ),
    "serve": ("serve.cpu_threads=1",),
    "load": (
        "load.sweep=[1, 8]",
        "load.requests_per_stream=1",
        'load.prompt_tokens={"mean": 32}',
        'load.output_tokens={"mean": 12}',
        'load.open_loop={"shares": []}',
    ),
}


def demo(
    reduced: Annotated[bool, opt("Few steps and rows: checks the path, not the model.")] = False,
    destroy: Annotated[bool, opt("Take everything down at the end and prove it.")] = False,
) -> None:
    """Run the main job on the local stack, end to end, and write report.html."""
    from infra.setup.demo.runner import Progress

    state = context.state_root()
    if os.geteuid() != 0:
        raise UserError("demo: needs root for mount namespaces and Slurm's daemons; run it as root")
    busy = (
        f"demo: another one runs with {state}; wait for it, or give this one its own "
        "SOPERATOR_STATE and SOPERATOR_LOCAL_PORT_BASE"
    )
    with files.alone(state / "demo" / "lock", UserError(busy)):
        progress = Progress()
        progress.say("this checkout and its state folder")
        with output.never_silent("this checkout and its state folder", progress.say):
            _prepare(state)
        _bring_up(state, progress)
        with output.never_silent("the stack's outputs and its login node", progress.say):
            folders = _run_jobs(state, progress, _REDUCED if reduced else {})
        # The measured speed becomes the stack's cost per chat: outputs change, resources do not.
        with progress.stage("pulumi up, measured cost") as remark:
            remark.text = _engine("up", state, progress)
        with output.never_silent("report.html", progress.say):
            _report(state, progress, folders, reduced=reduced, kept=not destroy)
        if destroy:
            _take_down(state, progress)


def _prepare(state: Path) -> None:
    """What has to be there, or free, before anything is priced."""
    from infra.cli.machine import env
    from infra.setup.demo import runner
    from infra.setup.demo.runner import roles

    runner.remember(state / "demo" / "before.json")
    env.prepare()
    declared = context.spec(_STACK)
    roles(declared)
    port = declared.login.ssh_port
    cloud.refuse_taken_login_port(cloud.Cloud.from_environ(), "local.login.ssh_port", port)


def _bring_up(state: Path, progress: Progress) -> None:
    from cost.bill.bill import render
    from infra.reports.page.loop import month

    # What a preview prints: the price comes before anything is made.
    with progress.stage("plan and price") as remark:
        bill = context.bill(_STACK)
        print(render(bill), flush=True)
        remark.text = month(bill.estimate.total)
    with progress.stage("local up", tells_itself=True):
        _local("up")
    with progress.stage("pulumi up") as remark:
        remark.text = _engine("up", state, progress)


def _engine(verb: str, state: Path, progress: Progress) -> str:
    from infra.setup.demo import runner

    return runner.run(
        [verb, "--skip-preview"],
        stack=_STACK,
        environ=_environ(),
        log=state / "demo" / f"{verb}.log",
        say=progress.say,
    )


def _run_jobs(
    state: Path, progress: Progress, settings: dict[str, tuple[str, ...]]
) -> dict[str, Path]:
    """What each job left on this machine, by its name."""
    from infra.clients.pulumi import read_outputs
    from infra.jobs.ledger import open_ledger
    from infra.render.delivery import hash_files
    from infra.setup.demo.runner import Runner, roles, run_chain, serve_and_load
    from stacks.schedule import slurm_seconds

    outputs = read_outputs(_STACK, _environ())
    outputs = outputs.as_owner_of(context.private_key(None))
    with context.connect(outputs) as connection:
        spec, files = context.spec(_STACK), context.local_code(_STACK)
        ledger = open_ledger(spec, state, progress.say)
        runner = Runner(
            connection=connection,
            spec=spec,
            outputs=outputs,
            state=state,
            files=files,
            code_hash=hash_files(files),
            git_revision=context.git_revision(),
            books=lambda: ledger,
            log=progress.say,
        )
        steps = run_chain(runner, settings)
        steps |= serve_and_load(runner, steps[roles(runner.spec).tune.name], settings)
    for name, step in steps.items():
        remark = f"job {step.job.id}" + (", from an earlier run" if step.reused else "")
        progress.note(name, float(slurm_seconds(step.job.elapsed or "") or 0), remark)
    return {name: step.folder for name, step in steps.items()}


def _report(
    state: Path, progress: Progress, folders: dict[str, Path], *, reduced: bool, kept: bool
) -> None:
    from infra.reports.page.page import render
    from infra.reports.page.training import collect
    from infra.setup.demo import summary

    spec, page = context.spec(_STACK), state / "report.html"
    found = summary.outcomes(spec, state, folders)
    files.write(page, render(collect(spec, state)))
    if reduced:
        print("\nReduced: few steps, rows and requests check the path; the figures mean little.")
    print(summary.text(found, progress.stages, progress.elapsed_s, page, kept=kept))


def _take_down(state: Path, progress: Progress) -> None:
    from infra.setup.demo import runner

    with progress.stage("pulumi destroy"):
        _engine("destroy", state, progress)
    _local("down")
    before = state / "demo" / "before.json"
    with progress.stage("what the demo left on this machine"):
        left = runner.find(state, before)
    if left:
        raise UserError("\n".join(["destroy: something is left:", *left]))
    before.unlink(missing_ok=True)
    print(f"Destroyed: no process, mount or file is left outside {state}.")


def _environ() -> dict[str, str]:
    """The demo's own environment: it must not depend on what the shell was told before."""
    from infra.cli.machine.env import Target, environment

    return {**os.environ, **environment(Target.LOCAL)}


def _local(verb: str) -> None:
    command = [sys.executable, "-m", "infra.cli.main", "local", verb]
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(
        command, cwd=CHECKOUT, env=_environ(), stdout=pipe, stderr=both, text=True
    ) as child:
        assert child.stdout is not None
        # Its start is silent, and takes many seconds on a busy machine; then it tells itself.
        with output.never_silent(f"local {verb}"):
            line = child.stdout.readline()
        while line:
            output.note(line.rstrip())
            line = child.stdout.readline()
    if child.returncode != 0:
        raise UserError(f"demo: `soperator local {verb}` ended with {child.returncode}; see above")
