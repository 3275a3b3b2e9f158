"""What a stack lacks on this machine and in its project, each with its fix.

With --sources: one stack on the real parts, before anything is paid.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from cost.bill.bill import bill
from cost.prices.book import price_age_problems
from cost.report.layout import picked
from cost.resources.estimate import Estimate
from infra.cli import context, output
from infra.cli.context import StackOption, opt
from infra.cli.machine.env import Target, environment
from infra.cli.output import NOT_RUN, Format
from infra.clients.errors import JobsError, last_words
from infra.clients.passphrase import public_problem
from infra.local.slurm.pod import SlurmSetup
from infra.operate.preflight.ask import ask
from infra.operate.preflight.supply import Finding, Outcome, failed, not_checked, passed, warned
from infra.operate.prices import price_book
from infra.providers.nebius.sdk import (
    CLI_CONFIG,
    ENDPOINT_VARIABLE,
    KEY_FILE_VARIABLE,
    TOKEN_VARIABLE,
    EndpointError,
    key_file,
    loopback_target,
)
from infra.providers.soperator.blocked_pods import blocked, slurm_pods
from infra.render.nodes import node_labels
from infra.state import DEFAULT_STACK, Ports
from stacks.check import check
from stacks.errors import Level, UserError
from stacks.load import PROJECT, STACKS_DIR
from stacks.spec import StackSpec

if TYPE_CHECKING:
    from infra.operate.conformance.come_up import Step


_LOCAL_TOOLS = ("munged", "slurmctld", "slurmd", "slurmdbd", "mariadbd", "sshd", "etcd")


def doctor(
    stack: StackOption = DEFAULT_STACK,
    format: Annotated[Format, opt("How to print.")] = Format.TABLE,
    sources: Annotated[
        Path | None,
        opt(
            "Folder with upstream's charts, operator and tools (docs/conformance.md): "
            "check whether the stack would come up on them, without a cloud."
        ),
    ] = None,
) -> None:
    """Check tools, prices and the project; name each fix. Exit code 1 when something fails.

    With --sources: instead, try each step from Helm releases to pods that could start on the real
    parts; exit code 69 where the folder lacks something that a step needs.
    """
    if sources is not None:
        _come_up(stack, sources, format)
    of_cluster = (login,) if context.is_attached(stack) else (asked, pods)
    findings = [
        *tools(stack, context.environ()["PATH"]),
        *credentials(stack),
        *declared(stack),
        *(finding for look in of_cluster for finding in look(stack)),
    ]
    if format is Format.JSON:
        output.print_json([picked(each, "check outcome seen fix") for each in findings])
    else:
        output.print_table(
            ("CHECK", "OUTCOME", "SEEN", "FIX"),
            [(each.check, each.outcome, each.seen, each.fix or "") for each in findings],
        )
    raise typer.Exit(any(each.outcome is Outcome.FAIL for each in findings))


def _come_up(stack: str, sources: Path, format: Format) -> NoReturn:
    found = []
    for step in steps(stack, sources):
        found.append(step)
        if format is Format.TABLE:
            print(f"{step.outcome:<8} {step.name:<14} {step.counted}".rstrip(), flush=True)
            for obstacle in step.obstacles:
                print(f"         {obstacle}")
            told = {text for each in found[:-1] for text in each.not_run}
            for text in step.not_run:
                print(f"         not run: {'for a reason given above' if text in told else text}")
            for text in step.outside:
                print(f"         not looked at: {text}")
            for text in step.assumed:
                print(f"         assumed: {text}, which you make")
    line, code = verdict(stack, found)
    if format is Format.JSON:
        rows = [{**asdict(each), "outcome": each.outcome} for each in found]
        output.print_json({"stack": stack, "verdict": line, "steps": rows})
    else:
        print(line)
    raise typer.Exit(code)


def tools(stack: str, path: str) -> list[Finding]:
    """Programs that the stack needs on this machine."""
    fixes = {} if context.is_attached(stack) else {"pulumi": "make setup"}
    fixes["ssh"] = "apt-get install openssh-client"
    if stack == DEFAULT_STACK:
        path = os.pathsep.join((SlurmSetup.from_environ().path, path))
        fixes |= dict.fromkeys((*_LOCAL_TOOLS, "kube-apiserver"), "make setup")
    found = {name: shutil.which(name, path=path) for name in fixes}
    findings = [
        passed(place, check=name)
        if (place := found[name])
        else (warned if name == "ssh" else failed)("not on PATH", fix, check=name)
        for name, fix in fixes.items()
    ]
    if stack == DEFAULT_STACK and os.geteuid() != 0:
        findings.append(failed(f"uid {os.geteuid()}", "run as root", check="root"))
    return findings


def credentials(stack: str) -> list[Finding]:
    """The key that opens the login node, and the token of the cloud."""
    attached = context.is_attached(stack)
    key = context.private_key(context.caller(stack, None).attached_key if attached else None)
    fix = "attach again with --key KEY" if attached else "soperator env, or --identity KEY"
    findings = [
        passed(str(key), check="SSH key")
        if key.is_file()
        else failed(f"{key} is missing", fix, check="SSH key")
    ]
    if attached or stack == DEFAULT_STACK:
        return findings
    if loopback_target() is None and (
        reason := public_problem(STACKS_DIR / f"Pulumi.{stack}.yaml")
    ):
        seen, _, fix = reason.partition("; expected ")
        findings.append(failed(seen, fix, check="passphrase"))
    name = "Nebius token"
    if os.environ.get(TOKEN_VARIABLE):
        findings.append(passed(f"{TOKEN_VARIABLE} is set", check=name))
    elif os.environ.get(KEY_FILE_VARIABLE):
        findings.append(_service_account_key())
    elif CLI_CONFIG.is_file():
        findings.append(passed(f"profile of the nebius CLI: {CLI_CONFIG}", check=name))
    else:
        fix = f"export {TOKEN_VARIABLE}=$(nebius iam get-access-token)"
        findings.append(failed(f"{TOKEN_VARIABLE} is not set", fix, check=name))
    return findings


_KEY: Final = "service account key"


def _service_account_key() -> Finding:
    """The file that SOPERATOR_NEBIUS_KEY_FILE names, as the program would take it."""
    try:
        path = key_file()
        assert path is not None, "the caller saw the variable"
        path.read_bytes()
    except EndpointError as error:
        seen, _, fix = str(error).partition("; ")
        return failed(seen, fix, check=_KEY)
    except OSError as error:
        fix = "let your user read it, mode 0600"
        return failed(f"{KEY_FILE_VARIABLE}: {error}", fix, check=_KEY)
    return passed(str(path), check=_KEY)


def declared(stack: str) -> list[Finding]:
    """The stack file by its own rules, and how old the prices are."""
    spec = context.spec(stack)
    found = bill(spec, price_book(spec, context.state_root()))
    file = f"stacks/Pulumi.{stack}.yaml"
    findings = [
        (failed if problem.level is Level.ERROR else warned)(
            str(problem).split(": ", 2)[2], f"edit {file}", check=problem.path
        )
        for problem in found.problems
    ]
    if not findings:
        findings.append(passed("no problem found", check=file))
    total = found.estimate
    fix = f"add it to cost/prices/{total.book.name}.yaml, or declare it in contract_prices"
    findings += [
        warned(str(line.unknown), fix, check=f"price of {line.name}") for line in total.unpriced
    ]
    return [*findings, price_ages(spec, total, datetime.now(UTC).date())]


def asked(stack: str) -> list[Finding]:
    """What the project holds and lacks, as the API tells within seconds."""
    if stack == DEFAULT_STACK:
        # The embedded cloud, also in a shell that never ran `soperator env`.
        ours = environment(Target.LOCAL)
        if ENDPOINT_VARIABLE not in os.environ:
            os.environ.pop(TOKEN_VARIABLE, None)  # another cloud's, which it does not take
        for name in (ENDPOINT_VARIABLE, TOKEN_VARIABLE):
            os.environ.setdefault(name, ours[name])
    found = ask(context.spec(stack), project=PROJECT)
    return [replace(one, seen=_one_line(one.seen)) for one in found]


def login(stack: str) -> list[Finding]:
    """Whether the login node of an attached cluster lets in, and Slurm answers there."""
    try:
        with context.connect(context.caller(stack, None)) as connection:
            done = connection.run("sinfo --version && sinfo --noheader --format=%F")
    except JobsError as error:
        return [failed(str(error), "docs/attach.md: what to ask for", check="login node")]
    if not done.ok:
        return [failed(last_words(done.stderr), "ask its administrators", check="Slurm")]
    version, nodes = done.stdout.split("\n")[:2]
    return [passed(f"{version}, nodes allocated/idle/other/total: {nodes}", check="Slurm")]


def pods(stack: str) -> list[Finding]:
    """What keeps pods of the deployed cluster from starting; nothing where none is deployed."""
    spec = context.spec(stack)
    namespace = spec.cluster.namespace
    try:
        client = context.kube_client(stack)
    except UserError:
        return []
    try:
        found = slurm_pods(client, namespace, spec.cluster.slurm_cluster_name)
        kept = blocked(client, namespace, found, node_labels(spec))
    except UserError as error:
        fix = f"kubectl -n {namespace} get pods,events, where the cluster can be reached"
        return [not_checked(str(error), check="pods", fix=fix)]
    finally:
        client.close()
    if not kept:
        return [passed(f"{len(found)} in {namespace}, none is kept from starting", check="pods")]
    return [
        failed(f"cannot start: {cause.what}", cause.advice, check=f"pod {namespace}/{name}")
        for name, cause in sorted(kept.items())
    ]


def _one_line(seen: str) -> str:
    """A table of a finding as one cell."""
    head, *rows = seen.splitlines()
    return head if not rows else f"{head} " + "; ".join(" ".join(row.split()) for row in rows)


def price_ages(spec: StackSpec, total: Estimate, today: date) -> Finding:
    """Whether a price in use is older than the stack's policy allows."""
    used = [price for line in total.components for price in line.prices]
    problems = price_age_problems(spec, used, today)
    if problems:
        seen, _, fix = problems[0].message.partition("; ")
        return warned(seen, fix, check="price age")
    if total.price_date is None:
        return warned("no price is known", "add prices to cost/prices", check="price age")
    age = (today - total.price_date).days
    return passed(f"the oldest is of {total.price_date}, {age} days old", check="price age")


def steps(stack: str, sources: Path) -> Iterator[Step]:
    """The way of the stack from its releases to pods that could run, step by step."""
    from infra.local.kube import api_server
    from infra.local.process import LocalError
    from infra.operate.conformance.cluster import ApiServer
    from infra.operate.conformance.come_up import STEPS, ComeUp, not_run
    from infra.operate.conformance.sources import Sources, no_folder

    if not sources.is_dir():
        yield from not_run(
            STEPS, no_folder(sources, f"soperator doctor -s {stack} --sources FOLDER")
        )
        return
    spec = context.spec(stack)
    if errors := [each for each in check(spec) if each.level is Level.ERROR]:
        raise UserError("\n".join(map(str, errors)))
    with ExitStack() as held:
        made = tempfile.TemporaryDirectory(prefix="soperator-come-up-")
        folder = Path(held.enter_context(made))
        running = api_server.running(folder, Ports.from_environ().come_up)
        try:
            config = held.enter_context(running)
        except LocalError as error:
            yield from not_run(STEPS, str(error))
            return
        server = ApiServer(access=config.access(), certificate=config.certificate, key=config.key)
        yield from ComeUp(Sources(sources.resolve())).steps(spec, server, folder)


def verdict(stack: str, found: list[Step]) -> tuple[str, int]:
    """One line for a person, and the exit code."""
    stops = [obstacle for step in found for obstacle in step.obstacles]
    if stops:
        return f"{stack} would not come up: {stops[0]}", 1
    # A step may have looked at a part of what is its own.
    missing = {text for step in found for text in step.not_run}
    lacking = [step.name for step in found if step.not_run or step.outcome == "NOT RUN"]
    if lacking:
        where = f"{len(missing)} missing, in {', '.join(lacking)}"
        return f"{stack}: not known whether it would come up: {where}", NOT_RUN
    outside = len({text for step in found for text in step.outside})
    rest = f"; {outside} not looked at, which no folder can give" if outside else ""
    assumed = sum(len(step.assumed) for step in found)
    rest += f"; {assumed} assumed, which you make" if assumed else ""
    return f"{stack} would come up, as far as its charts, operator and pods decide{rest}", 0
