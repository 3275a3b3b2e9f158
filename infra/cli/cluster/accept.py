"""The acceptance of a cluster, in Slurm or over SSH, and the certificate of what it showed."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from infra.cli import context, output
from infra.cli.context import StackOption, arg, opt
from infra.cli.output import Format, exit_code
from infra.files import write
from infra.jobs.history import Submission
from infra.jobs.ledger import open_ledger
from infra.jobs.recipes import Request, prepare
from infra.render.delivery import hash_files, pack
from infra.render.sbatch import hardware_environment, nodesets_of
from infra.reports.acceptance import certificate, run
from infra.reports.acceptance.certificate import HEADERS, rows, summary
from infra.reports.acceptance.run import DEFAULT_PORT, AcceptError, Profile, Result
from infra.state import DEFAULT_STACK
from stacks.files import read_text
from stacks.machines import shared_mounts
from stacks.rules.naming import path_problem
from stacks.spec import StackSpec


def accept(
    stack: StackOption = DEFAULT_STACK,
    profile: Annotated[
        Profile, opt("quick: one job; full: a job for each stage, with a long soak.")
    ] = Profile.FULL,
    stages: Annotated[str | None, opt("Only these stages; all by default.", "NAME,NAME")] = None,
    results: Annotated[
        list[Path] | None,
        opt(
            "Certify these acceptance.json instead of running: torchrun or Kubernetes.",
            "--result",
            "FILE",
        ),
    ] = None,
    folder: Annotated[
        Path | None, opt("New folder of the certificate.", "--output", "-o", "FOLDER")
    ] = None,
    verify: Annotated[
        Path | None, opt("Check a certificate's signature; runs nothing.", "FILE")
    ] = None,
    signer: Annotated[Path | None, opt("With --verify: the signer's public key.", "FILE")] = None,
    sets: context.SetsOption = None,
    sync: context.SyncOption = False,
    dry_run: Annotated[bool, opt("Show what would run and when; queue nothing.")] = False,
    force: context.ForceOption = False,
    identity: context.IdentityOption = None,
    format: Annotated[Format, opt("How to print.")] = Format.TABLE,
) -> None:
    """Hold a cluster against its limits; ends with 0 for PASS, 1 for FAIL, 69 for NOT RUN."""
    if verify is not None:
        own = context.private_key(identity)
        public = certificate.public_key(own) if signer is None else _public(signer)
        values = certificate.verify(verify, public)
        _print(values, format)
        whose = " (your own key)" if signer is None else ""
        proof = f"signed by {values['signed_by']}{whose}; {certificate.proof_text(values)}"
        output.note(f"{verify}: {proof}; made {values['made_at']}")
        raise typer.Exit(exit_code(values["outcome"]))
    spec = context.spec(stack)
    if not results and not dry_run:
        # What could not be certified need not hold nodes for hours first.
        certificate.refuse_unusable(context.private_key(identity))
        if folder is not None:
            certificate.refuse_full(folder)
    doing = f"acceptance of {stack}: its outputs and its login node"
    output.note(doing)
    with output.never_silent(doing), run.given(results or []):
        if results:
            found: Result | None = run.merge([run.read(path) for path in results], {})
        else:
            mounts = sorted(shared_mounts(spec).values())
            batches = run.batches(profile, run.chosen_stages(stages), sets or [], mounts)
            found = _run(spec, batches, sync=sync, dry_run=dry_run, force=force, key=identity)
        if found is None:
            return
        output.at("the certificate")
        values = _content(spec, found)
        ids = [found.finished_at[:10], *(str(run.get("job_id")) for run in found.runs)]
        # A result that others wrote names no folder elsewhere.
        name = re.sub(r"[^\w-]+", "_", "-".join(ids))
        where = folder or context.state_root() / "accept" / stack / name
        page = certificate.write(values, where, context.private_key(identity))
        _print(values, format)
    output.note(
        f"certificate: {page}; {certificate.proof_text(values)}; check it: soperator cluster "
        f"accept --verify {page}"
    )
    raise typer.Exit(exit_code(found.outcome))


def _run(
    spec: StackSpec,
    wanted: run.Batches,
    *,
    sync: bool,
    dry_run: bool,
    force: bool,
    key: Path | None,
) -> Result | None:
    """What the jobs measured; None after a dry run."""
    job = run.accept_job(spec)
    outputs = context.caller(spec.name, key)
    outputs.check_job(job.name)
    ledger = open_ledger(spec, context.state_root(), output.note)
    files = context.local_code(spec.name)

    def request(sets: tuple[str, ...]) -> Request:
        return prepare(ledger, job, files, sets)

    with context.connect(outputs, key) as connection:
        submitter = context.submitter(connection, outputs, ledger, files, sync=sync)
        if dry_run:
            for sets in wanted.values():
                print(submitter.dry_run(request(sets)), end="")
            return None

        def send(sets: tuple[str, ...], nodes: tuple[str, ...]) -> Submission:
            with submitter.alone():
                asked = replace(request(sets), nodes=nodes)
                return submitter.submit(asked, force=force).submission

        with output.ClusterText(sys.stderr) as shown:
            return run.collect(
                connection,
                outputs,
                wanted,
                send,
                state=context.state_root(),
                write=shown.write,
                say=output.note,
                on_look=context.node_watch(spec.name),
            )


def _content(spec: StackSpec, found: Result) -> dict[str, Any]:
    """The certificate with the stack's prices in it."""
    rates = open_ledger(spec, context.state_root(), output.note).rates
    prices = certificate.node_prices(rates, tuple(str(node["name"]) for node in found.nodes))
    note = (
        f"Prices: the book of stack {spec.name} ({spec.prices}), a node with its boot disk, 730 "
        "hours a month."
    )
    return certificate.content(found, stack=spec.name, prices=prices, price_note=note)


def _print(values: dict[str, Any], format: Format) -> None:
    if format is Format.JSON:
        output.print_json(values)
        return
    output.print_table(HEADERS, rows(values))
    for line in summary(values):
        print(line)


def _public(path: Path) -> str:
    try:
        return read_text(path.expanduser()).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AcceptError(f"--signer {path}: no public key: {error}") from error


def accept_hosts(
    hosts: Annotated[list[str], arg("As ssh takes them; the first holds rank 0.", "HOST...")],
    stack: StackOption = DEFAULT_STACK,
    profile: Annotated[Profile, opt("quick: short; full: with a long soak.")] = Profile.QUICK,
    stages: Annotated[str | None, opt("Only these stages; all by default.", "NAME,NAME")] = None,
    python: Annotated[str, opt("Python with torch, on every host.")] = "python3",
    folder: Annotated[
        str, opt("Folder on every host for code, scratch files and results.")
    ] = "/var/tmp/soperator-accept",  # noqa: S108
    master_address: Annotated[
        str | None, opt("The first host's address for the others; by default its name.")
    ] = None,
    port: Annotated[
        int, opt("The first host's port, where its ranks wait for the others.", min=1, max=65535)
    ] = DEFAULT_PORT,
    ssh_config: Annotated[
        Path | None, opt("ssh's configuration; by default yours.", "FILE")
    ] = None,
    sets: context.SetsOption = None,
) -> None:
    """Run the stack's acceptance on machines of its worker's kind; prints the result's path.

    Ends as the result does: 0 for PASS, 1 for FAIL, 69 for NOT RUN.
    """
    problems: list[str] = []
    if len(set(hosts)) != len(hosts):
        problems.append(f"HOST: {' '.join(hosts)}: a host is named twice; name each once")
    # The ranks run in another folder of it, where a relative one would be another one.
    if (problem := path_problem(folder)) is not None:
        problems.append(f"--folder: {problem}")
    if problems:
        raise AcceptError("\n".join(problems))
    spec = context.spec(stack)
    job = run.accept_job(spec)
    if job.environment_file is not None:
        raise AcceptError(
            f"jobs.{job.name}.environment_file: {job.environment_file} is a file on the cluster, "
            "which these hosts do not have; remove it from the job for this run and set the "
            "variables in the environment of the hosts' user"
        )
    worker = nodesets_of(spec, job)[0]
    run_id = f"hosts-{datetime.now(UTC):%Y%m%dt%H%M%S}"
    names = ", ".join(f'"{stage}"' for stage in run.chosen_stages(stages))
    own = (f"accept.profile={profile}", f"accept.stages=[{names}]")
    # A host's folders are its own: any other place would be measured as one that is shared.
    changes = (*own, 'accept.storage.places=["scratch"]', *(sets or ()))
    files = context.local_code(stack)
    where = run.PlainHosts(
        hosts=tuple(hosts),
        python=python,
        folder=folder,
        master_address=master_address or hosts[0].rpartition("@")[2],
        ssh=("ssh",) if ssh_config is None else ("ssh", "-F", str(ssh_config)),
        run_id=run_id,
        code=f"code-{hash_files(files)}",
        per_host=max(1, job.gpus_per_node),
        port=port,
        arguments=(
            *("--recipe", job.recipe),
            *(word for change in changes for word in ("--set", change)),
        ),
        environment={
            "SOPERATOR_STACK": spec.name,
            "SOPERATOR_CODE_HASH": hash_files(files),
            "SOPERATOR_GIT_REVISION": context.git_revision() or "",
            **hardware_environment(worker, job),
            **job.environment,
        },
    )

    ranks_run = output.never_silent(f"acceptance on {', '.join(hosts)}")
    with ranks_run, output.ClusterText(sys.stderr) as shown:
        text = run.run(where, pack(files), write=shown.write, say=output.note)
    path = context.state_root() / "accept" / stack / run_id / run.FILE_NAME
    write(path, text)
    print(path)
    output.note(
        f"certificate: soperator cluster accept --stack {stack} --result {path}; against another "
        f"route: soperator runs overhead {path} OTHER"
    )
    raise typer.Exit(exit_code(run.read(path).outcome))
