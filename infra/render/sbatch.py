"""A declared job, or a search as an array of it, as the text of an sbatch script.

The text is job.sh.j2, and job_checks.sh.j2 in it; here is what it is filled in with. It has
the environment that a workload sees (places, ranks), the checks before launch, pyxis' options
(https://github.com/NVIDIA/pyxis/wiki/Usage, 2026-11-21) and the launch line. It does not know the
code's hash: the release folder's name is it.

Three traps shape the text. A rank variable outside single quotes is expanded once, on the batch
host, and gives every node rank 0: `$SLURM_NODEID` is read inside the task. srun of Slurm 22.05 and
later no longer takes --cpus-per-task from the job: it is passed again. And Slurm's task is the
launcher, one a node: its CPUs are those of all ranks that it starts.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from infra.render.charts import METRICS_IMPORT
from infra.render.templates import shell
from stacks.catalog import slurmd_amounts
from stacks.errors import UserError
from stacks.machines import (
    MEMORY,
    cpus_per_rank,
    expand_nodes,
    paths_of_one_node,
    shared_mounts,
    workers_of,
)
from stacks.spec import StackSpec
from stacks.spec.cluster import HOME, Observability
from stacks.spec.nodes import Billing, WorkerSpec
from stacks.spec.slurm import LOOK_MODULE, JobSpec, SearchSpec


class RenderError(UserError):
    """A job that this stack cannot run, with the path of the value and what is allowed."""


def nodesets_of(spec: StackSpec, job: JobSpec) -> tuple[WorkerSpec, ...]:
    """Nodesets of the job's partition whose nodes have the GPUs it asks for, in declared order."""
    names = [each.name for each in spec.slurm.partitions]
    if job.partition not in names:
        raise RenderError(
            f"{spec.name}: jobs.{job.name}.partition: {job.partition!r} is not a partition "
            f"(has: {', '.join(names)}); name one of these or declare it in slurm.partitions"
        )
    members = workers_of(spec, job.partition)
    fitting = tuple(worker for worker in members if worker.gpus >= job.gpus_per_node)
    if not fitting:
        have = ", ".join(f"{each.name} has {each.gpus}" for each in members) or "no nodeset"
        raise RenderError(
            f"{spec.name}: jobs.{job.name}.gpus_per_node: {job.gpus_per_node} is more than a node "
            f"has in partition {job.partition!r} ({have}); lower it or change the preset"
        )
    return fitting


def hardware_environment(
    worker: WorkerSpec, job: JobSpec, *, is_attached: bool = False
) -> dict[str, str]:
    """Platform and preset of a node, and what NCCL must be told of its interconnect.

    Of a cluster that others run only they know that: its modules or /etc/nccl.conf say it.
    """
    environment = {"SOPERATOR_PLATFORM": worker.platform, "SOPERATOR_PRESET": worker.preset}
    if job.gpus_per_node and job.nodes > 1 and not is_attached:
        # NCCL reads NCCL_*; the TORCH_NCCL_ spellings in circulation have no effect. It finds
        # InfiniBand by itself; without a fabric the search costs time and can pick a dead port.
        environment["NCCL_SOCKET_IFNAME"] = "^docker0,lo"
        if not worker.has_fabric:
            environment["NCCL_IB_DISABLE"] = "1"
    return environment


def memory_mib(spec: StackSpec, nodesets: Sequence[WorkerSpec], job: JobSpec) -> int:
    """MiB that go with the GPUs that the job asks for, on the node that has the least."""
    return min(_memory_mib(spec, worker, job) for worker in nodesets)


def _memory_mib(spec: StackSpec, worker: WorkerSpec, job: JobSpec) -> int:
    preset = worker.hardware
    assert preset is not None
    if spec.attached is not None:
        found = next(each for each in spec.attached.nodesets if each.name == worker.name)
        return found.memory_mib * job.gpus_per_node // max(1, found.gpus)
    amounts = slurmd_amounts(
        preset, worker.boot_disk.size_gib, sssd=spec.soperator.sssd is not None
    )
    return amounts.memory_mib * job.gpus_per_node // preset.gpus


CONTAINER_PYTHON: Final = "python3"
"""Of the image: an environment of the jail does not run on another image's libraries."""


def mounts_of(spec: StackSpec, nodesets: Sequence[WorkerSpec]) -> list[str]:
    """Mount points that hold the places: what must be mounted on every node of the job."""
    if spec.attached is not None:
        return []  # what is mounted there, nobody declares
    own = [{disk.mount_path for disk in worker.local_disks} for worker in nodesets]
    declared = [*shared_mounts(spec).values(), MEMORY, *set.intersection(*own)]
    if spec.storage.memory is not None:
        declared.append(spec.storage.memory.mount_path)
    return sorted(
        mount
        for mount in declared
        if any(PurePosixPath(path).is_relative_to(mount) for path in _paths(spec))
    )


def in_memory(path: str) -> bool:
    """Whether a place lies in the memory that Soperator mounts on each node."""
    return PurePosixPath(path).is_relative_to(MEMORY)


def own_code(stack: str, user: str) -> str:
    """Folder of what a user sends: releases and plans, and the lock of what submits them."""
    return f"/home/{user}/.soperator/{stack}"


def is_of_one_node(spec: StackSpec, path: str) -> bool:
    """Whether a place lies in what each node has for itself: memory, a disk, its drives."""
    return any(PurePosixPath(path).is_relative_to(mount) for mount in paths_of_one_node(spec))


def own_place(path: str, user: str) -> str:
    """Where a user's files of a shared place lie; what lies beside `users` is there for all."""
    return f"{path}/users/{user}"


def place_word(spec: StackSpec, path: str) -> str:
    """The user's own folder of a place as a word of a shell in which `user` is the user's name.

    `up` makes it where all nodes see it; on what a node has for itself the job does. In memory it
    is in the job's folder, which Soperator's prolog makes, for everybody to write to, and its
    epilog removes. What lies beside it is never removed, and counts as used when the prolog asks
    whether the next job's memory is there: too little drains the node (4.1.7,
    helm/slurm-cluster/slurm_scripts: job_tmpfs_*, alloc_mem_used).
    """
    if in_memory(path) and spec.attached is None:
        return f"{MEMORY}/job_$SLURM_JOB_ID{path.removeprefix(MEMORY)}/$user"
    for mount in paths_of_one_node(spec) if spec.attached is None else ():
        if PurePosixPath(path).is_relative_to(mount):
            below = path.removeprefix(mount)
            return f"{shlex.quote(mount)}/$user{below and shlex.quote(below)}"
    return own_place(shlex.quote(path), "$user")


WHO: Final = "user=$(id -un)"
"""What a shell needs before it reads a place_word."""


def place_words(spec: StackSpec) -> dict[str, str]:
    """Variable -> word of a shell, for every place; what is there for all of data and models."""
    places = sorted(spec.storage.places.items())
    words = {f"SOPERATOR_PLACE_{name.upper()}": place_word(spec, path) for name, path in places}
    shared = {
        f"SOPERATOR_SHARED_{name.upper()}": shlex.quote(path)
        for name, path in places
        if name in ("data", "model")
    }
    return {**words, **shared}


def container_options(spec: StackSpec, job: JobSpec, mounts: Sequence[str]) -> str:
    """Options of srun that run `job` in its image, with the places and the code where they are."""
    if job.container is None:
        return ""
    # A place without a mount of its own is a folder of the jail.
    folders = {
        path
        for path in _paths(spec)
        if not any(PurePosixPath(path).is_relative_to(mount) for mount in mounts)
    }
    bound = shlex.quote(",".join(f"{path}:{path}" for path in sorted({*mounts, *folders})))
    if not any(PurePosixPath(HOME).is_relative_to(mount) for mount in mounts):
        bound += ',"$own_code:$own_code"'
    options = [
        f"--container-image={shlex.quote(job.container)}",
        f"--container-mounts={bound}",
        '--container-workdir="$code"',
        # The image's own values of these would win over the job's.
        "--container-env=PYTHONPATH,OMP_NUM_THREADS",
        # An image of a server starts it by itself; here the module does, with its own flags.
        "--no-container-entrypoint",
        "--no-container-mount-home",
    ]
    return " ".join(options)


def _paths(spec: StackSpec) -> list[str]:
    return [*spec.storage.places.values(), spec.code_path]


def metrics_environment(spec: StackSpec) -> dict[str, str]:
    """The address of the metrics store; nothing where the stack has none."""
    if spec.soperator.observability is Observability.OFF:
        return {}
    return {"SOPERATOR_METRICS_URL": METRICS_IMPORT}


def check_script(job: JobSpec, *, made_on_nodes: Sequence[str] = ()) -> str:
    """The checks of a node.

    `made_on_nodes`: places of which each node has its own, whose folder the user's first job makes.
    """
    same = _compares_inputs(job)
    return shell("job_checks.sh.j2", job=job, made_on_nodes=made_on_nodes, compares_inputs=same)


def _compares_inputs(job: JobSpec) -> bool:
    """Whether nodes are asked what they read; in an image its ranks compare their rows only."""
    return job.module == "workloads.train" and job.nodes > 1 and job.container is None


RELEASE_VARIABLE: Final = "SOPERATOR_RELEASE"
"""Release that a job was submitted with; without it: the live one when it starts."""


def render_sbatch(spec: StackSpec, job: JobSpec, search: SearchSpec | None = None) -> str:
    """The sbatch script of `job`; what follows its path on the sbatch line goes to the module.

    Of a `search` it is an array; the settings of a task follow those of the sbatch line.
    """
    places = spec.storage.places
    nodesets = nodesets_of(spec, job)
    ranks_per_node = max(1, job.gpus_per_node)
    rank_cpus = cpus_per_rank(nodesets, job)
    mounts = mounts_of(spec, nodesets)
    container = container_options(spec, job, mounts)
    held = [name for name, path in sorted(places.items()) if is_of_one_node(spec, path)]
    environment_python = f"{spec.python_env_path}/bin/python"
    logs, results = _place(spec, "logs"), _place(spec, "results")
    disks = [{d.mount_path for d in each.local_disks if "tmp" in d.folders} for each in nodesets]
    declared = dict(sorted(job.environment.items()))
    preemptible = [each.name for each in nodesets if each.billing is Billing.PREEMPTIBLE]
    script = shell(
        "job.sh.j2",
        spec=spec,
        job=job,
        search=search,
        array=search and array_option(search),
        fewest=job.nodes if job.least_nodes is None else job.least_nodes,
        ranks_per_node=ranks_per_node,
        rank_cpus=rank_cpus,
        task_cpus=rank_cpus * ranks_per_node,
        # Servers and load tests are one process, which no launcher starts.
        is_launched=not (job.is_server or job.is_load_test)
        and (job.nodes > 1 or job.gpus_per_node > 0),
        is_look=job.module == LOOK_MODULE,
        compares_inputs=_compares_inputs(job),
        gpus=gpu_options(spec, job.gpus_per_node),
        memory_mib=memory_mib(spec, nodesets, job) if job.gpus_per_node else 0,
        logs=own_place(logs, "%u"),
        results=own_place(shlex.quote(results), "$user"),
        # Where the user's own releases lie; of an attached cluster all of them do.
        own_code=shlex.quote(spec.code_path) if spec.attached else own_code(spec.name, "$user"),
        python=environment_python if job.container is None else CONTAINER_PYTHON,
        metrics=metrics_environment(spec),
        place_words=place_words(spec),
        own_tmp=[PurePosixPath(each, "tmp") for each in sorted(set.intersection(*disks))][:1],
        hardware=_hardware(spec, nodesets, job),
        chat_profile=chat_profile(spec),
        declared=declared and {**declared, "SOPERATOR_DECLARED": " ".join(declared)},
        checks=check_script(job, made_on_nodes=held),
        mounts=mounts,
        container=f" {container}" if container else "",
        # Which nodes of the job are about to be taken when Slurm drains them.
        preemptible="".join(f" --preemptible={name}" for name in preemptible),
        who=WHO,
        release_variable=RELEASE_VARIABLE,
        notice_variable=NOTICE_VARIABLE,
        per_trial=PER_TRIAL,
        trial_file=TRIAL_FILE,
    )
    return f"{script}\n"


def chat_profile(spec: StackSpec) -> dict[str, object]:
    """The stack's reference chat: lengths of a load test (workloads/load/prompts.py reads it)."""
    chat = spec.chat
    return {
        "context_tokens": chat.context_tokens,
        "output_tokens": chat.output_tokens,
        "turns": chat.turns,
        "cached_share": float(chat.cached_share),
        "max_answer_s": None if chat.max_answer_s is None else float(chat.max_answer_s),
    }


def gpu_options(spec: StackSpec, gpus_per_node: int) -> list[str]:
    """GPUs of each node; select/cons_res of an older cluster knows them as GRES alone."""
    if not gpus_per_node:
        return []
    name = "gpus-per-node=" if spec.attached is None else "gres=gpu:"
    return [f"--{name}{gpus_per_node}"]


def _place(spec: StackSpec, name: str) -> str:
    if name not in spec.storage.places:
        raise RenderError(
            f"{spec.name}: storage.places.{name}: missing; jobs write there; name one"
        )
    return spec.storage.places[name]


def _hardware(
    spec: StackSpec, nodesets: Sequence[WorkerSpec], job: JobSpec
) -> list[tuple[list[str], dict[str, str]]]:
    """Nodes of each nodeset as `case` matches them, and what its hardware is."""
    attached = spec.attached
    found = {each.name: each for each in attached.nodesets} if attached else {}
    return [
        (
            [shlex.quote(node) for node in expand_nodes(found[each.name].nodes)]
            if attached
            else [each.name],
            hardware_environment(each, job, is_attached=attached is not None),
        )
        for each in nodesets
    ]


NOTICE_VARIABLE: Final = "SOPERATOR_NOTICE_S"
"""Seconds in which a server on preemptible nodes has to be done."""
TRIAL_FILE: Final = "trial.json"
PER_TRIAL: Final = ("SOPERATOR_PLAN", "SOPERATOR_RUN_CONFIG")
"""Variables that a submission gives each task for itself, as NAME_<number of the task>."""


def search_job(spec: StackSpec, search: SearchSpec) -> JobSpec:
    """The job that each task runs, under the name of the search."""
    for job in spec.jobs:
        if job.name == search.job:
            return replace(job, name=search.name, after=())
    have = ", ".join(job.name for job in spec.jobs)
    raise RenderError(
        f"{spec.name}: searches.{search.name}.job: {search.job!r} is not a job (has: {have})"
    )


def render_search(spec: StackSpec, search: SearchSpec) -> str:
    """The sbatch script of the search; the settings of a task follow those of the sbatch line."""
    return render_sbatch(spec, search_job(spec, search), search)


def array_option(search: SearchSpec, numbers: tuple[int, ...] | None = None) -> str:
    """What `--array` takes: these tasks, or all, so many at once."""
    wanted = f"0-{len(search.settings) - 1}"
    if numbers is not None:
        wanted = ",".join(str(number) for number in numbers)
    return f"{wanted}%{search.at_once}"
