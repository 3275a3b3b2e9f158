"""`soperator accept-hosts`: the acceptance by torchrun over SSH, where no Slurm is."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from infra.cli import context, output
from infra.cli.context import StackOption
from infra.cli.verdict import exit_code
from infra.reports.acceptance.result import Profile
from infra.reports.acceptance.run import DEFAULT_PORT
from infra.state import DEFAULT_STACK


def command(
    hosts: Annotated[
        list[str],
        typer.Argument(metavar="HOST...", help="As ssh takes them; the first holds rank 0."),
    ],
    stack: StackOption = DEFAULT_STACK,
    profile: Annotated[
        Profile, typer.Option(help="quick: short; full: with a long soak.")
    ] = Profile.QUICK,
    stages: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Only these stages; all by default.")
    ] = None,
    python: Annotated[str, typer.Option(help="Python with torch, on every host.")] = "python3",
    folder: Annotated[
        str, typer.Option(help="Folder on every host for code, scratch files and results.")
    ] = "/var/tmp/soperator-accept",  # noqa: S108
    master_address: Annotated[
        str | None,
        typer.Option(help="The first host's address for the others; by default its name."),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            min=1, max=65535, help="The first host's port, where its ranks wait for the others."
        ),
    ] = DEFAULT_PORT,
    ssh_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="ssh's configuration; by default yours.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a value of the recipe; repeatable."
        ),
    ] = None,
) -> None:
    """Run the stack's acceptance on machines of its worker's kind; prints the result's path.

    Ends as the result does: 0 for PASS, 1 for FAIL, 69 for NOT RUN.
    """
    import sys

    from infra.render.delivery import hash_files, pack
    from infra.render.sbatch import hardware_environment, nodesets_of
    from infra.reports.acceptance import result, run
    from infra.reports.acceptance.result import AcceptError
    from stacks.rules.naming import path_problem

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
    where = run.PlainHosts(
        hosts=tuple(hosts),
        python=python,
        folder=folder,
        master_address=master_address or hosts[0].rpartition("@")[2],
        ssh=("ssh",) if ssh_config is None else ("ssh", "-F", str(ssh_config)),
    )
    files = context.local_code(stack)
    ranks = run.Ranks(
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
        text = run.run(where, ranks, pack(files), write=shown.write, say=output.note)
    path = run.result_file(context.state_root() / "accept" / stack / run_id, text)
    print(path)
    output.note(
        f"certificate: soperator accept --stack {stack} --result {path}; against another route: "
        f"soperator compare-runs {path} OTHER"
    )
    raise typer.Exit(exit_code(result.read(path).outcome))
