"""The text of one Slurm job: spec -> sbatch script, delivered as `jobs/<name>`. Pure.

Owns the environment a workload sees (places, ranks), the checks before launch and the launch line.
Which nodes a job can have and what of them goes to it: job_nodes.py. Does not submit (infra/jobs)
and does not know the code hash: the release folder's name is it.

Three traps shape the text. A rank variable outside single quotes is expanded once, on the batch
host, and gives every node rank 0: `$SLURM_NODEID` is read inside the task. srun of Slurm 22.05 and
later no longer takes --cpus-per-task from the job: it is passed again. And Slurm's task is the
launcher, one a node: its CPUs are those of all ranks that it starts.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from infra.render.job_checks import check_script, name_inputs, refuse_inputs
from infra.render.job_metrics import metrics_environment
from infra.render.job_mounts import (
    CONTAINER_PYTHON,
    container_options,
    in_memory,
    mounts_of,
    place_word,
)
from infra.render.job_nodes import (
    RenderError,
    cpus_per_rank,
    hardware_environment,
    memory_mib,
    nodesets_of,
)
from stacks.node_spec import WorkerSpec
from stacks.slurm_spec import JobSpec
from stacks.spec import StackSpec

# Read on the node: `exec`, so that signals of Slurm reach torchrun and no shell dies of them.
# last_call_timeout: how long ranks that could start with fewer nodes wait for more.
_READ_VARIABLES = r"""
no_variables() { echo "soperator: $SOPERATOR_JOB: $environment_file: $1" >&2; exit 78; }
[[ -f $environment_file && ! -L $environment_file ]] || no_variables 'no such file: write it'
[[ $(stat -c '%u %a' "$environment_file") = "$EUID 600" ]] ||
  no_variables 'is not of this user with mode 600: chown and chmod it'
while IFS= read -r line || [[ -n $line ]]; do
  [[ $line =~ ^[[:space:]]*(#|$) ]] && continue
  [[ $line =~ ^([A-Z_][A-Z0-9_]*)=(.*)$ ]] || no_variables 'has a line that is not NAME=value'
  case ${BASH_REMATCH[1]} in
    PATH | PYTHONPATH | PYTHONHOME | BASH_ENV | ENV | LD_* | SLURM* | SOPERATOR_*)
      no_variables "${BASH_REMATCH[1]} cannot be set" ;;
  esac
  export "${BASH_REMATCH[1]}=${BASH_REMATCH[2]}"
done < "$environment_file"
"""
_LAUNCH = r"""
is_host=0
[[ $SLURM_NODEID != 0 ]] || is_host=1
conf=is_host=$is_host,join_timeout=600,last_call_timeout=${SOPERATOR_LAST_CALL_S:-15}
conf+=,keep_alive_interval=5,keep_alive_max_attempt=3
exec "$SOPERATOR_PYTHON" -m workloads.common.launch \
  --nnodes="$SOPERATOR_MIN_NODES:$SLURM_NNODES" \
  --nproc-per-node="$SOPERATOR_RANKS_PER_NODE" --max-restarts="$SOPERATOR_RESTARTS" \
  --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \
  --rdzv-id="$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}" --rdzv-conf="$conf" \
  --local-addr="$SLURMD_NODENAME" -m "$@"
""".strip("\n")

_FREE_PORT = 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'

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
    held = [place for place, path in sorted(spec.storage.places.items()) if in_memory(path)]
    checks = check_script(job, places_in_memory=held)
    python = f"{spec.python_env_path}/bin/python" if job.container is None else CONTAINER_PYTHON
    lines = [
        "#!/bin/bash",
        f"# Job {job.name} of stack {spec.name}; pulumi up renders and replaces it: do not edit.",
        f"# In {spec.code_path}: sbatch jobs/{job.name} [--set key=value]",
        *_directives(spec, job, nodesets, task_cpus),
        "set -euo pipefail",
        "",
        "# A job keeps the release that soperator submitted it with, also when it is queued again.",
        f"release=${{{RELEASE_VARIABLE}:+releases/${RELEASE_VARIABLE}}}",
        f'code=$(readlink -f {shlex.quote(spec.code_path)}/"${{release:-current}}")',
        'cd "$code"',
        "export PYTHONPATH=$code PYTHONUNBUFFERED=1",
        "export SOPERATOR_CODE_HASH=${code##*/}",
        _export(
            {"SOPERATOR_JOB": job.name, "SOPERATOR_STACK": spec.name, **metrics_environment(spec)}
        ),
        f"export SOPERATOR_PYTHON={shlex.quote(python)}",
        *(
            f"export SOPERATOR_PLACE_{place.upper()}={place_word(path)}"
            for place, path in sorted(spec.storage.places.items())
        ),
        *_hardware(nodesets, job),
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
        f"{_words(mounts)}".rstrip(),
        *refuse_inputs(job),
        "",
        *(
            _distributed(job, ranks_per_node, task_cpus, container)
            if launched
            else _plain(job, task_cpus, container)
        ),
    ]
    return "\n".join(lines) + "\n"


def chat_profile(spec: StackSpec) -> dict[str, object]:
    """The stack's reference chat: lengths of a load test (workloads/load/lengths.py reads it)."""
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
        *([f"--gpus-per-node={job.gpus_per_node}"] if job.gpus_per_node else []),
        f"--time={job.time_limit}",
        f"--output={logs}/%x_%j.out",
        "--open-mode=append",  # a requeued job keeps the log of its first run
        "--requeue",
        *_fault_options(spec, job, nodesets),
    ]
    return [f"#SBATCH {option}" for option in options]


def _fault_options(spec: StackSpec, job: JobSpec, nodesets: Sequence[WorkerSpec]) -> list[str]:
    options = [f"--signal=B:USR1@{job.save_s}"] if _is_launched(job) else []
    if _fewest(job) < job.nodes:
        options.append("--no-kill")
    if job.gpus_per_node:
        options.append(f"--mem={memory_mib(spec, nodesets, job)}M")
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
        *_READ_VARIABLES.strip().splitlines(),
    ]


def _mark(spec: StackSpec, job: JobSpec) -> list[str]:
    """Folders of the places, the log's second name, and a file that every node must see."""
    used = [name for name in _CHECKED_PLACES if name in spec.storage.places]
    lines = [f"mkdir -p {' '.join(f'$SOPERATOR_PLACE_{name.upper()}' for name in used)}"]
    # Slurm counts from 1 again on a new cluster, while results outlive clusters.
    lines += [
        "run=$SOPERATOR_PLACE_RESULTS/$SLURM_JOB_ID",
        "if [[ ${SLURM_RESTART_COUNT:-0} = 0 && -e $run/run_record.json ]]; then",
        '  mv -T "$run" "$run.of-another-cluster-$(date -u +%Y%m%dT%H%M%SZ)"',
        "fi",
    ]
    if job.module == "workloads.train":
        log = f"{_place(spec, 'logs')}/train_$SLURM_JOB_ID.log"
        lines.append(f"ln -sfn {job.name}_$SLURM_JOB_ID.out {log}")
    if job.nodes > 1 and "chkpt" in used:
        lines += [
            "export SOPERATOR_SHARED_MARK=$SOPERATOR_PLACE_CHKPT/.seen_by_all_$SLURM_JOB_ID",
            'touch "$SOPERATOR_SHARED_MARK"',
        ]
    return [*lines, *name_inputs(job)]


def _place(spec: StackSpec, name: str) -> str:
    if name not in spec.storage.places:
        raise RenderError(
            f"{spec.name}: storage.places.{name}: missing; jobs write there; name one"
        )
    return spec.storage.places[name]


def _hardware(nodesets: Sequence[WorkerSpec], job: JobSpec) -> list[str]:
    """Platform, preset and interconnect by nodeset; Slurm names nodes <nodeset>-<ordinal>."""
    if len(nodesets) == 1:
        return [_export(hardware_environment(nodesets[0], job))]
    lines = ['case "${SLURMD_NODENAME%-*}" in']
    for worker in nodesets:
        lines.append(f"  {worker.name}) {_export(hardware_environment(worker, job))} ;;")
    return [*lines, "esac"]


def _srun(job: JobSpec, task_cpus: int) -> str:
    nodes = _nodes(job, task_cpus)
    return f"{nodes} --kill-on-bad-exit=1" if _fewest(job) < job.nodes else nodes


def _nodes(job: JobSpec, task_cpus: int) -> str:
    """One task on each node that the job got, which may be fewer than its most."""
    got = f"{job.nodes}" if _fewest(job) == job.nodes else '"$SLURM_JOB_NUM_NODES"'
    return f"--ntasks={got} --ntasks-per-node=1 --cpus-per-task={task_cpus}"


def _distributed(job: JobSpec, ranks_per_node: int, task_cpus: int, container: str) -> list[str]:
    elastic = _fewest(job) < job.nodes
    # Of an elastic job the other nodes go on without the one that failed, although Slurm is set to
    # end a step with its first bad task (KillOnBadExit=1, as Soperator has it).
    options = "--kill-on-bad-exit=0 --no-kill" if elastic else "--kill-on-bad-exit=1"
    options = f"{options} {container}".rstrip()
    return [
        *(['rm -f "${SOPERATOR_SHARED_MARK:-}"'] if job.nodes > 1 else []),
        'read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        "# A port that is free now on this node, the first: jobs that share a node do not collide.",
        f'MASTER_PORT=$("$SOPERATOR_PYTHON" -c {shlex.quote(_FREE_PORT)})',
        f"export MASTER_ADDR MASTER_PORT SOPERATOR_RANKS_PER_NODE={ranks_per_node}",
        _export(
            {
                "SOPERATOR_MIN_NODES": str(_fewest(job)),
                "SOPERATOR_MAX_NODES": str(job.nodes),
                "SOPERATOR_RESTARTS": str(job.restarts),
                "SOPERATOR_SAVE_S": str(job.save_s),
            }
        ),
        "export SOPERATOR_EXIT_FILE=$run/.first_exit_status SOPERATOR_NODES_FILE=$run/.nodes",
        "# Passes signals on, requeues what has saved, and lets the job have lost nodes back.",
        (
            f'exec "$SOPERATOR_PYTHON" -m workloads.common.supervise --max-nodes={job.nodes} '
            f"--save-s={job.save_s} -- \\"
        ),
        f"srun {_nodes(job, task_cpus)} {options} bash -c {_quote(_LAUNCH)} launch {_module(job)}",
    ]


def _plain(job: JobSpec, task_cpus: int, container: str) -> list[str]:
    options = f"{_srun(job, task_cpus)} {container}".rstrip()
    return [f'exec srun {options} "$SOPERATOR_PYTHON" -m {_module(job)}']


def _module(job: JobSpec) -> str:
    return f'{_words([job.module, "--recipe", job.recipe, *job.args])} "$@"'


def _export(environment: Mapping[str, str]) -> str:
    pairs = (f"{name}={shlex.quote(value)}" for name, value in environment.items())
    return f"export {' '.join(pairs)}"


def _words(words: Sequence[str]) -> str:
    return " ".join(shlex.quote(word) for word in words)


def _quote(script: str) -> str:
    """The script in single quotes, so that only the task on the node expands it."""
    if "'" in script:
        raise AssertionError("a launch script must not hold single quotes")
    return f"'{script}'"
