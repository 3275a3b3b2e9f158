"""A declared job, or a search as an array of it, as the text of an sbatch script.

The text has the environment that a workload sees (places, ranks), the checks before launch, pyxis'
options (https://github.com/NVIDIA/pyxis/wiki/Usage, 2026-11-21) and the launch line. It does not
know the code's hash: the release folder's name is it.

Three traps shape the text. A rank variable outside single quotes is expanded once, on the batch
host, and gives every node rank 0: `$SLURM_NODEID` is read inside the task. srun of Slurm 22.05 and
later no longer takes --cpus-per-task from the job: it is passed again. And Slurm's task is the
launcher, one a node: its CPUs are those of all ranks that it starts.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from infra.render.names import shell_file
from infra.render.values.pods import METRICS_IMPORT
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


_FAIL = 'fail() { echo "soperator: $SOPERATOR_JOB on $(hostname): $1" >&2; exit 78; }'
_PYTHON = r"""
[[ -x $SOPERATOR_PYTHON ]] ||
  fail "$SOPERATOR_PYTHON is missing: run soperator data venv -s $SOPERATOR_STACK, submit again"
""".strip("\n")
_MOUNTED = r"""
for path in "$@"; do
  mountpoint --quiet "$path" || fail "$path is not mounted: run pulumi up, or drain this node"
done
""".strip("\n")
_PLACES = r"""
for path in "$SOPERATOR_PLACE_DATA" "$SOPERATOR_PLACE_MODEL"; do
  [[ -z $path || -r $path ]] || fail "$path cannot be read: bring data and models there first"
done
for path in "$SOPERATOR_PLACE_CHKPT" "$SOPERATOR_PLACE_RESULTS"; do
  [[ -z $path || -w $path ]] || fail "$path cannot be written: check its owner and mode"
done
[[ -z $SOPERATOR_SHARED_MARK || -e $SOPERATOR_SHARED_MARK ]] ||
  fail "${SOPERATOR_SHARED_MARK%/*} is not the folder that the first node sees: name a shared one"
""".strip("\n")

_INPUTS = '"$SOPERATOR_PYTHON" -m workloads.train.inputs'


def check_script(job: JobSpec, *, made_on_nodes: Sequence[str] = ()) -> str:
    """The checks of a node; whether an image has its Python is known in the image only.

    `made_on_nodes`: places of which each node has its own, whose folder the user's first job makes.
    """
    folders: tuple[str, ...] = ()
    if made_on_nodes:
        names = (f'own_folder "$SOPERATOR_PLACE_{name.upper()}"' for name in made_on_nodes)
        folders = (shell_file("own_folder"), *names)
    python = (_PYTHON,) if job.container is None else ()
    inputs = ()
    if compares_inputs(job):
        # The recipe names the run in the record that a refusal writes.
        recipe = shlex.join(["--recipe", job.recipe])
        inputs = (f"[[ -z $SOPERATOR_INPUTS ]] || exec {_INPUTS} \\", f"  {recipe}")
    return "\n".join((_FAIL, *python, _MOUNTED, *folders, _PLACES, *inputs))


def compares_inputs(job: JobSpec) -> bool:
    """Whether nodes are asked what they read; in an image its ranks compare their rows only."""
    return job.module == "workloads.train" and job.nodes > 1 and job.container is None


def name_inputs(job: JobSpec) -> list[str]:
    """Lines for the first node that say what the recipe's model and data are there."""
    if not compares_inputs(job):
        return []
    return [
        "# The model and the data that the recipe names: every node must read the same.",
        "inputs=0",
        f"SOPERATOR_INPUTS=$({_INPUTS} \\",
        f'  {shlex.join(["--recipe", job.recipe, *job.args])} "$@") || inputs=$?',
        "export SOPERATOR_INPUTS",
    ]


def refuse_inputs(job: JobSpec) -> list[str]:
    """The line after the checks, as a mount or an environment that is missing says more."""
    return ["(( inputs == 0 )) || exit $inputs"] if compares_inputs(job) else []


# How the supervisor hears that a step's programs can be told to stop, and that they have ended.
_STEP_FILES = "export SOPERATOR_EXIT_FILE=$run/.first_exit_status SOPERATOR_NODES_FILE=$run/.nodes"
_FREE_PORT = "from workloads.common.launch import free_port; print(free_port())"


RELEASE_VARIABLE: Final = "SOPERATOR_RELEASE"
"""Release that a job was submitted with; without it: the live one when it starts."""
_CHECKED_PLACES = ("data", "model", "chkpt", "results")


def render_sbatch(spec: StackSpec, job: JobSpec) -> str:
    """The sbatch script of `job`; what follows its path on the sbatch line goes to the module."""
    nodesets = nodesets_of(spec, job)
    ranks_per_node = max(1, job.gpus_per_node)
    rank_cpus = cpus_per_rank(nodesets, job)
    task_cpus = rank_cpus * ranks_per_node
    launched = _is_launched(job)
    mounts = mounts_of(spec, nodesets)
    container = container_options(spec, job, mounts)
    held = [
        name for name, path in sorted(spec.storage.places.items()) if is_of_one_node(spec, path)
    ]
    checks = check_script(job, made_on_nodes=held)
    python = f"{spec.python_env_path}/bin/python" if job.container is None else CONTAINER_PYTHON
    # Where the user's own releases lie; of an attached cluster all of them do.
    own = shlex.quote(spec.code_path) if spec.attached else own_code(spec.name, "$user")
    lines = [
        "#!/bin/bash",
        f"# Job {job.name} of stack {spec.name}; pulumi up renders and replaces it: do not edit.",
        f"# In {spec.code_path}: sbatch jobs/{job.name} [--set key=value]",
        *_directives(spec, job, nodesets, task_cpus),
        *shell_file("own_folder").splitlines(),
        "set -euo pipefail",
        "",
        "# A job keeps the release that soperator submitted it with, also when it is queued again.",
        WHO,
        f"release=${{{RELEASE_VARIABLE}:+releases/${RELEASE_VARIABLE}}}",
        f"own_code={own}",
        "code=$own_code/$release",
        "[[ -n $release && -e $code.whole ]] ||",
        f'  code=$(readlink -f {shlex.quote(spec.code_path)}/"${{release:-current}}")',
        'cd "$code"',
        # What is bound into an image has to be there.
        *([] if job.container is None else ['mkdir -p "$own_code"']),
        "export PYTHONPATH=$code PYTHONUNBUFFERED=1",
        "export SOPERATOR_CODE_HASH=${code##*/}",
        _export(
            {"SOPERATOR_JOB": job.name, "SOPERATOR_STACK": spec.name, **metrics_environment(spec)}
        ),
        f"export SOPERATOR_PYTHON={shlex.quote(python)}",
        *_any_python(spec, job),
        *(f"export {name}={word}" for name, word in place_words(spec).items()),
        *_caches(spec, nodesets),
        *_hardware(spec, nodesets, job),
        f"export OMP_NUM_THREADS={rank_cpus if launched else task_cpus}",
        *_profile(spec, job),
        *_declared(job),
        *_from_file(job),
        "",
        *_mark(spec, job),
        "# Every node must see the same environment and mounts before ranks wait for each other.",
        # --overlap, as the next step asks for the same CPUs: where slurmctld hears later of this
        # one's end, srun 22.05 waits for a signal that gets lost, and then SlurmctldTimeout: 2 min.
        f"srun --overlap {_srun(job, task_cpus)} bash -c {_quote(checks)} check "
        f"{shlex.join(mounts)}".rstrip(),
        *refuse_inputs(job),
        "",
        *(
            _distributed(job, nodesets, ranks_per_node, task_cpus, container)
            if launched
            else _plain(job, nodesets, task_cpus, container)
        ),
    ]
    return "\n".join(lines) + "\n"


def _any_python(spec: StackSpec, job: JobSpec) -> list[str]:
    """A job without packages runs before `soperator data venv`, with any Python of the nodes."""
    if spec.attached is None or job.module != LOOK_MODULE or job.container is not None:
        return []
    return [f"[[ -x $SOPERATOR_PYTHON ]] || SOPERATOR_PYTHON={shlex.quote(spec.attached.python)}"]


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


def _directives(
    spec: StackSpec, job: JobSpec, nodesets: Sequence[WorkerSpec], task_cpus: int
) -> list[str]:
    logs = _place(spec, "logs")
    _place(spec, "results")
    options = [
        f"--job-name={job.name}",
        f"--partition={job.partition}",
        f"--nodes={_node_range(job)}",
        # With a range of nodes, Slurm takes this for as many tasks as the fewest nodes, and gives
        # only those nodes although more are idle.
        *(["--ntasks-per-node=1"] if _fewest(job) == job.nodes else []),
        f"--cpus-per-task={task_cpus}",
        *gpu_options(spec, job.gpus_per_node),
        *spec.charge.options,
        f"--time={job.time_limit}",
        # Both streams; results alone are in .out (log.py: tell).
        f"--output={own_place(logs, '%u')}/%x_%j.log",
        "--open-mode=append",  # a requeued job keeps the log of its first run
        "--requeue",
        *_fault_options(spec, job, nodesets),
    ]
    return [f"#SBATCH {option}" for option in options]


def gpu_options(spec: StackSpec, gpus_per_node: int) -> list[str]:
    """GPUs of each node; select/cons_res of an older cluster knows them as GRES alone."""
    if not gpus_per_node:
        return []
    name = "gpus-per-node=" if spec.attached is None else "gres=gpu:"
    return [f"--{name}{gpus_per_node}"]


def _fault_options(spec: StackSpec, job: JobSpec, nodesets: Sequence[WorkerSpec]) -> list[str]:
    is_told = _is_launched(job) or job.is_server
    options = [f"--signal=B:USR1@{job.save_s}"] if is_told else []
    if _fewest(job) < job.nodes:
        options.append("--no-kill")
    if job.gpus_per_node and (memory := memory_mib(spec, nodesets, job)):
        options.append(f"--mem={memory}M")
    elif job.is_load_test:
        # Without it Slurm gives a job all memory of its node, and the server that it asks is there.
        options.append("--mem=8192M")
    return options


def _is_launched(job: JobSpec) -> bool:
    """Whether ranks are started by the launcher; servers and load tests are one process."""
    return not (job.is_server or job.is_load_test) and (job.nodes > 1 or job.gpus_per_node > 0)


def _fewest(job: JobSpec) -> int:
    return job.nodes if job.least_nodes is None else job.least_nodes


def _node_range(job: JobSpec) -> str:
    fewest = _fewest(job)
    return str(job.nodes) if fewest == job.nodes else f"{fewest}-{job.nodes}"


def _caches(spec: StackSpec, nodesets: Sequence[WorkerSpec]) -> list[str]:
    """Where libraries keep what they fetch, and files of a moment: the home is small and shared."""
    fetched = ["export HF_HOME=$SOPERATOR_PLACE_CACHE/huggingface"]
    disks = [{d.mount_path for d in each.local_disks if "tmp" in d.folders} for each in nodesets]
    own = [PurePosixPath(mount, "tmp") for mount in sorted(set.intersection(*disks))]
    return [
        *(fetched if "cache" in spec.storage.places else []),
        *(f"export TMPDIR={path}" for path in own[:1]),
    ]


def _profile(spec: StackSpec, job: JobSpec) -> list[str]:
    if not job.is_load_test:
        return []
    return [_export({"SOPERATOR_CHAT_PROFILE": json.dumps(chat_profile(spec))})]


def _declared(job: JobSpec) -> list[str]:
    """The job's own variables, after the derived ones; their names are for its run record."""
    if not job.environment:
        return []
    declared = dict(sorted(job.environment.items()))
    return [_export({**declared, "SOPERATOR_DECLARED": " ".join(declared)})]


def _from_file(job: JobSpec) -> list[str]:
    """Variables out of a file that only the job's user has; what it says is never run."""
    if job.environment_file is None:
        return []
    return [
        f"environment_file={shlex.quote(job.environment_file)}",
        *shell_file("variables").splitlines(),
    ]


def _mark(spec: StackSpec, job: JobSpec) -> list[str]:
    """Folders of the places, the log's second name, and a file that every node must see."""
    used = [name for name in _CHECKED_PLACES if name in spec.storage.places]
    lines = [f'own_folder "$SOPERATOR_PLACE_{name.upper()}"' for name in used]
    # Slurm counts from 1 again on a new cluster, while results outlive clusters.
    lines += [
        "run=$SOPERATOR_PLACE_RESULTS/$SLURM_JOB_ID",
        "if [[ ${SLURM_RESTART_COUNT:-0} = 0 && ! -L $run && -O $run/run_record.json ]]; then",
        '  mv -T "$run" "$run.of-another-cluster-$(date -u +%Y%m%dT%H%M%SZ)"',
        "fi",
        'own_folder "$run"',
    ]
    if job.module == "workloads.train" and job.name != "train":
        # A second name for who looks: nothing needs it.
        log = "$SOPERATOR_PLACE_LOGS/train_$SLURM_JOB_ID.log"
        lines.append(f"ln -sfnT {job.name}_$SLURM_JOB_ID.log {log} || true")
    if job.nodes > 1 and "chkpt" in used:
        lines += [
            "SOPERATOR_SHARED_MARK=$(mktemp $SOPERATOR_PLACE_CHKPT/.seen_by_all_XXXXXXXX)",
            "export SOPERATOR_SHARED_MARK",
        ]
    return [*lines, *name_inputs(job)]


def _place(spec: StackSpec, name: str) -> str:
    if name not in spec.storage.places:
        raise RenderError(
            f"{spec.name}: storage.places.{name}: missing; jobs write there; name one"
        )
    return spec.storage.places[name]


def _hardware(spec: StackSpec, nodesets: Sequence[WorkerSpec], job: JobSpec) -> list[str]:
    """Platform, preset and interconnect by nodeset; Slurm names nodes <nodeset>-<ordinal>."""
    attached = spec.attached
    exports = {
        each.name: _export(hardware_environment(each, job, is_attached=attached is not None))
        for each in nodesets
    }
    if len(nodesets) == 1:
        return [exports[nodesets[0].name]]
    lines = [f'case "${{SLURMD_NODENAME{"%-*" if attached is None else ""}}}" in']
    for name, export in exports.items():
        nodes = [name]
        if attached is not None:
            found = next(each for each in attached.nodesets if each.name == name)
            nodes = [shlex.quote(each) for each in expand_nodes(found.nodes)]
        lines.append(f"  {'|'.join(nodes)}) {export} ;;")
    return [*lines, "esac"]


def _srun(job: JobSpec, task_cpus: int) -> str:
    nodes = _nodes(job, task_cpus)
    return f"{nodes} --kill-on-bad-exit=1" if _fewest(job) < job.nodes else nodes


def _nodes(job: JobSpec, task_cpus: int) -> str:
    """One task on each node that the job got, which may be fewer than its most."""
    got = f"{job.nodes}" if _fewest(job) == job.nodes else '"$SLURM_JOB_NUM_NODES"'
    return f"--ntasks={got} --ntasks-per-node=1 --cpus-per-task={task_cpus}"


def _distributed(
    job: JobSpec,
    nodesets: Sequence[WorkerSpec],
    ranks_per_node: int,
    task_cpus: int,
    container: str,
) -> list[str]:
    elastic = _fewest(job) < job.nodes
    # Of an elastic job the other nodes go on without the one that failed, although Slurm is set to
    # end a step with its first bad task (KillOnBadExit=1, as Soperator has it).
    options = "--kill-on-bad-exit=0 --no-kill" if elastic else "--kill-on-bad-exit=1"
    if guarded := _preemptible(nodesets):
        options = f"{options} --quiet"  # it tells each time that the supervisor wakes it
    options = f"{options} {container}".rstrip()
    # An acceptance has nothing to save: it ends on the nodes that it began with.
    most = '"$SLURM_JOB_NUM_NODES"' if elastic and job.is_acceptance else f"{job.nodes}"
    return [
        *(['rm -f "${SOPERATOR_SHARED_MARK:-}"'] if job.nodes > 1 else []),
        'read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        "# A port that is free now on this node, the first: jobs that share a node do not collide.",
        f'MASTER_PORT=$("$SOPERATOR_PYTHON" -c {shlex.quote(_FREE_PORT)})',
        "# What nodes tell each other is sealed with it; it is on no command line and in no file.",
        "SOPERATOR_RDZV_KEY=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')",
        (
            "export SOPERATOR_RDZV_KEY MASTER_ADDR MASTER_PORT "
            f"SOPERATOR_RANKS_PER_NODE={ranks_per_node}"
        ),
        _export(
            {
                "SOPERATOR_MIN_NODES": str(_fewest(job)),
                "SOPERATOR_MAX_NODES": str(job.nodes),
                "SOPERATOR_RESTARTS": str(job.restarts),
                "SOPERATOR_SAVE_S": str(job.save_s),
            }
        ),
        _STEP_FILES,
        "# Passes signals on, requeues what has saved, and lets the job have lost nodes back.",
        (
            f'exec "$SOPERATOR_PYTHON" -m workloads.common.supervise --max-nodes={most} '
            f"--save-s={job.save_s}{guarded} -- \\"
        ),
        (
            f"srun {_nodes(job, task_cpus)} {options} bash -c {_quote(shell_file('launch'))} "
            f"launch {_module(job)}"
        ),
    ]


def _preemptible(nodesets: Sequence[WorkerSpec]) -> str:
    """Which nodes of the job are about to be taken when Slurm drains them."""
    names = [each.name for each in nodesets if each.billing is Billing.PREEMPTIBLE]
    return "".join(f" --preemptible={name}" for name in names)


def _plain(
    job: JobSpec, nodesets: Sequence[WorkerSpec], task_cpus: int, container: str
) -> list[str]:
    options = f"{_srun(job, task_cpus)} {container}".rstrip()
    run = f'"$SOPERATOR_PYTHON" -m {_module(job)}'
    if not job.is_server:
        return [f"exec srun {options} {run}"]
    preemptible = _preemptible(nodesets)
    if not preemptible or container:
        # Without it where nodes are taken: srun has to be kept from answering SIGTERM with SIGKILL.
        quiet = "--quiet " if preemptible else ""  # else it says each time that it was woken
        run = f"srun {quiet}{options} {run}"
    notice = [_export({NOTICE_VARIABLE: str(job.save_s)})] if preemptible else []
    return [
        *notice,
        *([_STEP_FILES] if preemptible and container else []),
        "# A server whose node is taken, or that makes room for another job, waits for nodes anew.",
        (
            f'exec "$SOPERATOR_PYTHON" -m workloads.common.supervise --serves --max-nodes=1 '
            f"--save-s={job.save_s}{preemptible} -- \\"
        ),
        run,
    ]


def _module(job: JobSpec) -> str:
    return f'{shlex.join([job.module, "--recipe", job.recipe, *job.args])} "$@"'


def _export(environment: Mapping[str, str]) -> str:
    pairs = (f"{name}={shlex.quote(value)}" for name, value in environment.items())
    return f"export {' '.join(pairs)}"


def _quote(script: str) -> str:
    """The script in single quotes, so that only the task on the node expands it."""
    if "'" in script:
        raise AssertionError("a launch script must not hold single quotes")
    return f"'{script}'"


NOTICE_VARIABLE: Final = "SOPERATOR_NOTICE_S"
"""Seconds in which a server on preemptible nodes has to be done."""
TRIAL_FILE: Final = "trial.json"
PER_TRIAL: Final = ("SOPERATOR_PLAN", "SOPERATOR_RUN_CONFIG")
"""Variables that a submission gives each task for itself, as NAME_<number of the task>."""
_DIRECTIVE: Final = "#SBATCH "
_BEGIN: Final = "set -euo pipefail"


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
    lines = render_sbatch(spec, search_job(spec, search)).splitlines()
    last = max(index for index, line in enumerate(lines) if line.startswith(_DIRECTIVE))
    lines.insert(last + 1, f"{_DIRECTIVE}--array={array_option(search)}")
    begin = lines.index(_BEGIN)
    lines[begin + 1 : begin + 1] = _trials(spec, search)
    return "\n".join(lines) + "\n"


def array_option(search: SearchSpec, numbers: tuple[int, ...] | None = None) -> str:
    """What `--array` takes: these tasks, or all, so many at once."""
    wanted = f"0-{len(search.settings) - 1}"
    if numbers is not None:
        wanted = ",".join(str(number) for number in numbers)
    return f"{wanted}%{search.at_once}"


def _trials(spec: StackSpec, search: SearchSpec) -> list[str]:
    results = spec.storage.places.get("results")
    if results is None:
        raise RenderError(f"{spec.name}: storage.places.results: missing; trials are told there")
    results = own_place(shlex.quote(results), "$user")
    trial = f'{{"search": "{search.name}", "array": "%s", "trial": %s, "settings": %s}}\\n'
    return [
        "",
        f"# A trial of search {search.name}: its settings win over those of the command line.",
        "case $SLURM_ARRAY_TASK_ID in",
        *(f"  {number}) {_trial(each)} ;;" for number, each in enumerate(search.settings)),
        f'  *) echo "soperator: {search.name} has no trial $SLURM_ARRAY_TASK_ID" >&2; exit 2 ;;',
        "esac",
        f"for name in {' '.join(PER_TRIAL)}; do",
        "  own=${name}_$SLURM_ARRAY_TASK_ID",
        '  [[ -z ${!own:-} ]] || export "$name=${!own}"',
        "done",
        WHO,
        f"trial={results}/$SLURM_JOB_ID",
        'own_folder "$trial"',
        (
            f'printf {shlex.quote(trial)} "$SLURM_ARRAY_JOB_ID" "$SLURM_ARRAY_TASK_ID" '
            f'"$settings" > "$trial/{TRIAL_FILE}"'
        ),
    ]


def _trial(settings: tuple[str, ...]) -> str:
    words = shlex.join([word for each in settings for word in ("--set", each)])
    return f'settings={shlex.quote(json.dumps(settings))}; set -- "$@" {words}'
