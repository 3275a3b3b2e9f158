"""Take a stack's workers away and bring them back, also when its declared life is over.

`pause` and `resume` write `nodes.paused`; `NodesSpec.counts` makes it 0 workers at `pulumi up`.
`autostop` is for cron and CI: the engine runs here; whether a stack is due is infra/operate/idle's.
"""

from __future__ import annotations

import subprocess
from contextlib import ExitStack, closing, nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from cost.bill.bill import pause_saving
from cost.run_record import FILE_NAME
from infra import files
from infra.cli import context, interrupts, output
from infra.cli.context import IdentityOption, StackOption, arg, opt
from infra.cli.output import Format
from infra.clients import pulumi
from infra.clients.errors import JobsError, KubeError, NothingThereError
from infra.clients.pulumi import StackOutputs
from infra.clients.slurm import Shell
from infra.clients.ssh import Connection
from infra.jobs import transfer
from infra.jobs.history import Submission, run_folder, submissions
from infra.jobs.nodes import await_idle, listed
from infra.jobs.nodes import drain as drain_nodes
from infra.jobs.nodes import resume as undrain
from infra.operate import idle
from infra.operate.idle import Verdict
from infra.operate.prices import price_book
from infra.render.delivery import placeholders
from infra.state import DEFAULT_STACK
from stacks import load
from stacks.changes import set_paused
from stacks.errors import UserError
from stacks.schedule import why_ended
from stacks.spec import StackSpec


def pause(
    stack: StackOption = DEFAULT_STACK,
    fetch: Annotated[
        bool, opt("First bring the results that are not here: nobody enters meanwhile.")
    ] = True,
    identity: IdentityOption = None,
) -> None:
    """Pause a stack: no workers, and no cost for them, until it is resumed."""
    left = [] if not fetch or context.spec(stack).nodes.paused else _not_pulled(stack)
    if left:
        try:
            outputs = context.caller(stack, identity)
            with context.connect(outputs, identity) as connection:
                problems = bring(stack, outputs, connection)
        except JobsError as error:
            problems = [str(error)]
        if problems:
            jobs = ", ".join(each.job_id for each in left)
            why = (
                f"{stack}: results of jobs {jobs} are not on this machine and cannot be fetched "
                "while it is paused; nothing was changed; --no-fetch pauses all the same"
            )
            raise UserError("\n".join([*problems, why]))
    switch(stack, paused=True)


def bring(stack: str, outputs: StackOutputs, connection: Connection) -> list[str]:
    """Fetch what jobs of this machine left and is not here; returns what went wrong."""
    problems: list[str] = []
    for each in _not_pulled(stack):
        if each.cluster != outputs.login_host_key:
            continue  # of a former cluster of this name
        try:
            folder = transfer.pull(
                connection, outputs, each.job, each.job_id, state=context.state_root()
            )
            output.note(f"{each.job} ({each.job_id}): fetched to {folder}")
        except NothingThereError:
            continue
        except JobsError as error:
            problems.append(str(error))
    return problems


def _not_pulled(stack: str) -> list[Submission]:
    """Jobs that were submitted from here and have no record here."""
    state = context.state_root()
    return [
        each
        for each in submissions(state, stack)
        if not (run_folder(state, stack, each.job_id) / FILE_NAME).is_file()
    ]


def switch(stack: str, *, paused: bool) -> None:
    """Sets the pause switch of a stack file once, and says what that saves or costs."""
    spec = context.spec(stack)
    saving = pause_saving(spec, price_book(spec, context.state_root()))
    path = load.STACKS_DIR / f"Pulumi.{stack}.yaml"
    text = path.read_text(encoding="utf-8")
    changed = set_paused(text, paused=paused)
    state, verb = ("paused", "saves") if paused else ("running", "costs")
    if changed == text:
        output.note(f"{stack}: already declared as {state}; it {verb} {saving}")
    else:
        files.write(path, changed)
        output.note(f"{stack}: declared as {state} in {path.name}; this {verb} {saving}")
    if paused and (left := _not_pulled(stack)):
        output.note(
            f"{stack}: while it is paused nothing can be fetched, and jobs "
            f"{', '.join(each.job_id for each in left)} have no result here: what they write until "
            f"`pulumi up` is fetched by soperator pull ID --stack {stack}"
        )
    output.note(f"{stack}: to make it so: pulumi up --stack {stack}")


def resume(stack: StackOption = DEFAULT_STACK) -> None:
    """Resume a paused stack: the workers that it declares come back."""
    switch(stack, paused=False)


_WAYS = "give --reason TEXT to drain, or --undo"


def drain(
    nodes: Annotated[list[str], arg("Slurm nodes, such as worker-0.")],
    reason: Annotated[str, opt("Why, as `sinfo -R` shows it.")] = "",
    wait: Annotated[bool, opt("Return once no job runs there.")] = False,
    undo: Annotated[bool, opt("Take jobs on these nodes again.")] = False,
    stack: StackOption = DEFAULT_STACK,
    identity: IdentityOption = None,
) -> None:
    """Keep new jobs off nodes until `--undo`; jobs that run there go on to their end."""
    if undo and (reason or wait):
        raise UserError("cluster drain: --undo excludes --reason and --wait; " + _WAYS)
    if not undo and not reason:
        raise UserError(f"cluster drain: {_WAYS}")
    named = ", ".join(nodes)
    with context.connect(context.read(stack), identity) as shell:
        if undo:
            undrain(shell, nodes)
            output.note(f"{named}: take jobs again")
            return
        jobs = drain_nodes(shell, nodes, reason)
        if wait:
            await_idle(
                shell,
                nodes,
                on_change=lambda rest: output.note(
                    f"{named}: waiting for {len(rest)}:\n{listed(rest)}"
                ),
            )
            jobs = ()
        rest = f"still running there:\n{listed(jobs)}" if jobs else "no job runs there\n"
        output.note(f"{named}: no new job; {rest}".rstrip())


_MARGIN_S = 60
"""For a job's end after it saved."""


def autostop(
    stack: StackOption = DEFAULT_STACK,
    act: Annotated[bool, opt("Pause it when due; else only say so.")] = False,
    end_jobs: Annotated[bool, opt("After its end, also when jobs run or wait.")] = False,
    identity: IdentityOption = None,
    format: Annotated[Format, opt("How to print.")] = Format.TABLE,
) -> None:
    """Pause a stack that was idle for its declared hours, or whose declared end has passed."""
    spec = context.spec(stack)
    if spec.lifetime is None:
        raise UserError(
            f"{stack}: lifetime: not declared, so nothing says when the stack is to end; declare "
            f"lifetime.idle_hours or lifetime.until in stacks/Pulumi.{stack}.yaml"
        )
    # Cron starts the next one while the engine still works. Older checkouts, whose command was
    # `reap`, lock the same file.
    lock = context.state_root() / f"reap-{stack}.lock"
    busy = UserError(f"{stack}: another autostop of it is at work; wait")
    with files.alone(lock, busy) if act else nullcontext():
        _look_and_act(stack, act, end_jobs, identity, format)


def _look_and_act(
    stack: str, act: bool, end_jobs: bool, identity: Path | None, format: Format
) -> None:
    # Read under the lock: the run before may have paused it.
    spec = context.spec(stack)
    if spec.nodes.paused:
        if act and not is_deployed(stack):
            raise UserError(
                f"{stack}: its file says paused, but that is not what is deployed, and machines "
                f"may be paid on; see what runs there, then: pulumi up --stack {stack}"
            )
        output.note(f"{stack}: is paused already")
        return
    outputs, found = _first_look(spec, identity, end_jobs=end_jobs)
    acts = act and found.is_due
    if format is Format.JSON:
        output.print_json({"stack": stack, **asdict(found), "acts": acts})
    else:
        print(f"{stack}: {'due' if found.is_due else 'not due'}: {found.reason}")
    if found.is_due and not act:
        output.note(f"{stack}: nothing was done; --act pauses it")
    if acts:
        if outputs is None:
            raise typer.Exit(pause_silent(spec))
        check_deployed(stack)
        raise typer.Exit(_pause_idle(spec, outputs, identity, end_jobs=end_jobs))


def _first_look(
    spec: StackSpec, identity: Path | None, *, end_jobs: bool
) -> tuple[StackOutputs | None, Verdict]:
    """The verdict, and the outputs of a stack whose login node answers."""
    with ExitStack() as stack:
        try:
            outputs = context.read(spec.name)
            connection = stack.enter_context(context.connect(outputs, identity))
        except JobsError as error:
            if not (end_jobs and _is_over(spec)):
                raise
            reason = f"its end has passed, and nobody can see what runs there: {error}"
            return None, Verdict(is_due=True, reason=reason)
        return outputs, _verdict(spec, outputs, connection, end_jobs=end_jobs)


def _is_over(spec: StackSpec) -> bool:
    return why_ended(spec, datetime.now(UTC)) is not None


def _verdict(spec: StackSpec, outputs: StackOutputs, shell: Shell, *, end_jobs: bool) -> Verdict:
    seen = _seen(spec, outputs, shell)
    return idle.verdict(spec, seen, datetime.now(UTC), ends_jobs=end_jobs)


def _seen(spec: StackSpec, outputs: StackOutputs, shell: Shell) -> idle.Activity:
    """What Slurm and Kubernetes say of the stack now; one that is silent is an error."""
    assert spec.lifetime is not None
    seen = idle.activity(
        shell,
        outputs.login_host_key,
        now=datetime.now(UTC),
        # After the end it no longer matters since when nothing runs.
        hours=None if _is_over(spec) else spec.lifetime.idle_hours,
        stack=spec.name,
        placeholders=placeholders(spec),
    )
    with closing(context.kube_client(spec.name)) as client:
        unfinished, ended = idle.kube_activity(client, spec.cluster.namespace, _workers(spec))
    return replace(
        seen,
        unfinished=(*seen.unfinished, *unfinished),
        idle_since=max([seen.idle_since, *ended]),
    )


def _workers(spec: StackSpec) -> set[str]:
    return {worker.name for worker in spec.nodes.workers}


def _pause_idle(
    spec: StackSpec, outputs: StackOutputs, identity: Path | None, *, end_jobs: bool
) -> int:
    """Exit status; new work is kept off, and what came since the verdict keeps the stack."""
    mine = outputs.as_owner_of(context.private_key(identity))
    with context.connect(outputs, identity) as connection, interrupts.closed_whole() as undo:
        partitions = idle.open_partitions(connection)
        undo.callback(_release, spec.name, outputs, identity, partitions)
        idle.set_partitions(connection, partitions, "DRAIN")
        with closing(context.kube_client(spec.name)) as client:
            nodes = idle.open_nodes(client, _workers(spec))
            undo.callback(_uncordon, spec.name, nodes)
            idle.set_nodes(client, nodes, unschedulable=True)
        again = _verdict(spec, outputs, connection, end_jobs=end_jobs)
        if not again.is_due:
            output.note(f"{spec.name}: no longer due, so not paused: {again.reason}")
            return 0
        if end_jobs and _is_over(spec):
            _end_jobs(spec, outputs, connection)
        for problem in bring(spec.name, mine, connection):
            output.note(f"{spec.name}: not fetched, it stays there: {problem}")
        code = pause_by_engine(spec.name)
        if code == 0:
            undo.pop_all()
        return code


def _end_jobs(spec: StackSpec, outputs: StackOutputs, shell: Shell) -> None:
    idle.end_jobs(
        shell,
        lambda: _seen(spec, outputs, shell).job_ids,
        stack=spec.name,
        save_s=max((job.save_s for job in spec.jobs), default=0) + _MARGIN_S,
        say=lambda text: output.note(f"{spec.name}: {text}"),
    )


def _uncordon(stack: str, nodes: tuple[str, ...]) -> None:
    if not nodes:
        return
    try:
        with closing(context.kube_client(stack)) as client:
            idle.set_nodes(client, nodes, unschedulable=False)
    except (JobsError, KubeError) as error:
        output.note(
            f"{stack}: nodes {', '.join(nodes)} still take no pods ({error}); let them: "
            f"kubectl uncordon {' '.join(nodes)}"
        )


def _release(
    stack: str, outputs: StackOutputs, identity: Path | None, held: tuple[str, ...]
) -> None:
    """On a connection of its own: the engine may have run for long."""
    try:
        with context.connect(outputs, identity) as connection:
            idle.set_partitions(connection, held, "UP")
    except JobsError as error:
        output.note(
            f"{stack}: partitions {', '.join(held)} still take no jobs ({error}); let them: "
            f"{idle.how_to_release(stack, held)}"
        )


def pause_silent(spec: StackSpec) -> int:
    """Exit status; after the end, of what nobody can look into: never made to its end, or cut off.

    Of the first only the worker groups: the engine would make what is missing.
    """
    preview = _pulumi("preview", "--json", "--non-interactive", stack=spec.name, quiet=True)
    if preview.returncode or not idle.is_half_made(preview.stdout):
        check_deployed(spec.name)
        return pause_by_engine(spec.name)
    export = _pulumi("stack", "export", stack=spec.name, quiet=True)
    if export.returncode:
        raise UserError(f"{spec.name}: pulumi stack export: {export.stderr.strip()}")
    groups = idle.worker_groups(export.stdout, _workers(spec))
    code = 1
    if groups:
        output.note(f"{spec.name}: was never made to its end; takes its workers and makes nothing")
        code = pause_by_engine(spec.name, *(word for urn in groups for word in ("--target", urn)))
    if code == 0 or not groups:
        output.note(
            f"{spec.name}: was never made to its end and has no workers; its other machines are "
            f"paid on: soperator cluster destroy --stack {spec.name}"
        )
    return code


def check_deployed(stack: str) -> None:
    """Refuses a checkout whose `pulumi up` would do more than pause: nobody looks at it."""
    if not is_deployed(stack):
        raise UserError(
            f"{stack}: nothing was paused: this checkout is not what is deployed, and `pulumi up` "
            "would apply all of it; bring the checkout up to date, or deploy it, then run this "
            f"again: pulumi preview --stack {stack}"
        )


def is_deployed(stack: str) -> bool:
    """Whether `pulumi up` would change nothing; what it would change is told."""
    done = _pulumi("preview", "--expect-no-changes", "--non-interactive", stack=stack, quiet=True)
    if done.returncode:
        output.note(f"{done.stdout}{done.stderr}".strip())
    return done.returncode == 0


def pause_by_engine(stack: str, *options: str) -> int:
    """Exit status of the engine; when it fails, the file says again what it said before."""
    code = 1
    switch(stack, paused=True)
    try:
        code = _pulumi("up", "--yes", "--non-interactive", *options, stack=stack).returncode
    finally:
        if code:
            # Else the next run would take the stack for paused, and its nodes were paid on.
            switch(stack, paused=False)
            output.note(f"{stack}: pulumi up failed, so the file says running again; see above why")
    return code


def _pulumi(*words: str, stack: str, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    words = (*words, "--stack", stack)
    return pulumi.run(words, environ=context.environ(), quiet=quiet)
