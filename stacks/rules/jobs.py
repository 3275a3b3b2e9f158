"""Rules of partitions and jobs."""

from __future__ import annotations

import re
from typing import Final

from stacks.catalog import find_preset
from stacks.errors import Findings
from stacks.rules.job_order import check_order
from stacks.rules.naming import check_unique, name_problem, path_problem
from stacks.rules.partition_line import HIDDEN, check_line
from stacks.schedule import slurm_seconds
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing, WorkerSpec
from stacks.spec.slurm import JobSpec, PartitionSpec

_DEFAULT: Final = re.compile(r"(?i)\bDefault=YES\b")
_MODULE: Final = re.compile(r"workloads(\.[a-z_][a-z0-9_]*)+")
_RECIPE: Final = re.compile(r"[a-z0-9][a-z0-9_.-]*")
# sbatch --time: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS.
_TIME_LIMIT: Final = re.compile(r"\d+(:\d{2}){0,2}|\d+-\d{1,2}(:\d{2}){0,2}", re.ASCII)
_MAX_TIME: Final = re.compile(r"(?i)\bMaxTime=(\S+)")
# [USER@][REGISTRY#]IMAGE: github.com/NVIDIA/enroot, doc/cmd/import.md (2026-11-21).
_IMAGE: Final = re.compile(r"(docker://)?[A-Za-z0-9/][A-Za-z0-9._/:@#+-]*")
_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*")
_BEFORE_EVERYTHING: Final = frozenset({"PATH", "PYTHONPATH", "PYTHONHOME", "BASH_ENV", "ENV"})
_LOADER: Final = "LD_"
# What the name of a secret has among its words; TOKENIZERS_PARALLELISM and NCCL_IB_PKEY are none.
_SECRET_WORDS: Final = frozenset(
    ["TOKEN", "SECRET", "KEY", "APIKEY", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL"]
)
_OF_A_SECRET: Final = ("_FILE", "_PATH", "_DIR")
_OWN_VARIABLES: Final = ("SOPERATOR_", "SLURM", "TORCHELASTIC_", "MASTER_", "RANK", "WORLD_SIZE")


PREEMPTION_NOTICE_S: Final = 60
"""SIGTERM comes so long before a preempted VM is stopped:
https://docs.nebius.com/compute/virtual-machines/preemptible, read 2026-11-22."""


def check_jobs(spec: StackSpec, findings: Findings) -> None:
    """Partitions first, then the jobs that use them."""
    _check_partitions(spec, findings)
    check_unique(
        (job.name for job in spec.jobs), "jobs", findings, key="name", rule="jobs.name-twice"
    )
    for index, job in enumerate(spec.jobs):
        _check_job(spec, job, f"jobs[{index}]", findings)
    check_order(spec, findings)
    _check_servers(spec, findings)


def nodesets_of(spec: StackSpec, partition: PartitionSpec) -> tuple[WorkerSpec, ...]:
    """Workers of a partition: the named nodesets, or all when it names none."""
    if not partition.nodesets:
        return spec.nodes.workers
    return tuple(worker for worker in spec.nodes.workers if worker.name in partition.nodesets)


def _check_partitions(spec: StackSpec, findings: Findings) -> None:
    partitions = spec.slurm.partitions
    known = [worker.name for worker in spec.nodes.workers]
    check_unique(
        (partition.name for partition in partitions),
        "slurm.partitions",
        findings,
        key="name",
        rule="partitions.name-twice",
    )
    for index, partition in enumerate(partitions):
        path = f"slurm.partitions[{index}]"
        problem = name_problem(partition.name, longest=63)
        if problem:
            findings.error(f"{path}.name", problem, rule="partitions.name")
        for nodeset in partition.nodesets:
            if nodeset not in known:
                findings.error(
                    f"{path}.nodesets",
                    f"'{nodeset}' is not a nodeset (has: {', '.join(known)})",
                    rule="partitions.refs",
                )
        check_line(partition, path, findings)
        check_unique(
            partition.nodesets,
            f"{path}.nodesets",
            findings,
            rule="partitions.ref-twice",
            advice="name each once",
        )
        if partition.name == HIDDEN and partition.nodesets:
            findings.error(
                f"{path}.nodesets",
                "'hidden' must hold all nodes, so it names no nodesets",
                rule="partitions.hidden-all",
            )
    if not any(partition.name == HIDDEN for partition in partitions):
        findings.error(
            "slurm.partitions",
            f"no partition '{HIDDEN}'; Soperator's active checks submit to it: add it, "
            "with Hidden=YES and no nodesets",
            rule="partitions.hidden",
        )
    defaults = [part.name for part in partitions if _DEFAULT.search(part.config)]
    if len(defaults) != 1:
        got = f"{', '.join(defaults)} have" if defaults else "none has"
        findings.error(
            "slurm.partitions",
            f"{got} Default=YES; exactly one partition must",
            rule="partitions.default",
        )


def _check_job(spec: StackSpec, job: JobSpec, path: str, findings: Findings) -> None:
    problem = name_problem(job.name, longest=63)
    if problem:
        findings.error(f"{path}.name", problem, rule="jobs.name")
    if not _MODULE.fullmatch(job.module):
        findings.error(
            f"{path}.module",
            f"'{job.module}' is not a module such as 'workloads.train'",
            rule="jobs.module",
        )
    if not _RECIPE.fullmatch(job.recipe) or job.recipe.endswith(".json"):
        findings.error(
            f"{path}.recipe",
            f"'{job.recipe}' is not a recipe; give the name of a file in workloads/recipes/ "
            "without .json",
            rule="jobs.recipe",
        )
    if not _TIME_LIMIT.fullmatch(job.time_limit):
        findings.error(
            f"{path}.time_limit",
            f"'{job.time_limit}' is no Slurm time; write '02:00:00' or '1-00:00:00'",
            rule="jobs.time-form",
        )
    partition = next((part for part in spec.slurm.partitions if part.name == job.partition), None)
    if partition is None:
        have = ", ".join(part.name for part in spec.slurm.partitions)
        findings.error(
            f"{path}.partition",
            f"'{job.partition}' is not a partition (has: {have})",
            rule="jobs.partition",
        )
        return
    _check_time(job, partition, path, findings)
    _check_faults(job, path, findings)
    _check_notice(job, nodesets_of(spec, partition), path, findings)
    if partition.name == HIDDEN:
        findings.warn(
            f"{path}.partition",
            "'hidden' is for Soperator's active checks, which wait while the job runs; "
            "use another partition",
            rule="jobs.hidden",
        )
    _check_fit(job, nodesets_of(spec, partition), path, findings)


def _check_time(job: JobSpec, partition: PartitionSpec, path: str, findings: Findings) -> None:
    found = _MAX_TIME.search(partition.config)
    most_s = None if found is None else slurm_seconds(found.group(1))
    asked_s = slurm_seconds(job.time_limit)
    if found is not None and most_s is not None and asked_s is not None and asked_s > most_s:
        findings.error(
            f"{path}.time_limit",
            f"'{job.time_limit}' is over MaxTime={found.group(1)} of partition "
            f"'{partition.name}', where the job would wait for ever; lower it, or raise MaxTime",
            rule="jobs.time-over",
        )


def _check_faults(job: JobSpec, path: str, findings: Findings) -> None:
    """What the job declares for lost nodes, for its end and for its ranks' environment."""
    if job.least_nodes is not None and not 1 <= job.least_nodes <= job.nodes:
        findings.error(
            f"{path}.least_nodes",
            f"{job.least_nodes}, but the job has {job.nodes} nodes; write 1 to {job.nodes}",
            rule="jobs.least-nodes",
        )
    limit_s = slurm_seconds(job.time_limit)
    if limit_s is not None and job.save_s >= limit_s:
        findings.error(
            f"{path}.save_s",
            f"{job.save_s} of a time limit of {limit_s} s: it would be told to stop as it starts; "
            "lower it, or raise time_limit",
            rule="jobs.save-time",
        )
    for name, value in job.environment.items():
        if not _VARIABLE.fullmatch(name) or name.startswith(_OWN_VARIABLES) or "\n" in value:
            findings.error(
                f"{path}.environment.{name}",
                f"'{name}={value}' cannot be set: a name has capitals, digits and _, a value is "
                f"one line, and {', '.join(_OWN_VARIABLES)}... are the launcher's own",
                rule="jobs.environment",
            )
        elif name in _BEFORE_EVERYTHING or name.startswith(_LOADER):
            findings.error(
                f"{path}.environment.{name}",
                f"'{name}={value}' would be what srun, the launcher and every rank start with, and "
                "would replace what they need; put programs and libraries into python_env_path",
                rule="jobs.environment-system",
            )
        elif _SECRET_WORDS & set(name.split("_")) and not name.endswith(_OF_A_SECRET):
            findings.error(
                f"{path}.environment.{name}",
                "looks like a secret by its name, and its value would be in the job's script, "
                "which every user of the cluster may read; write NAME=value into a file of mode "
                "0600 on the cluster and set environment_file to its path",
                rule="jobs.environment-secret",
            )
    if job.environment_file is not None and (problem := path_problem(job.environment_file)):
        findings.error(f"{path}.environment_file", problem, rule="jobs.environment-file")


def _check_notice(
    job: JobSpec, workers: tuple[WorkerSpec, ...], path: str, findings: Findings
) -> None:
    """Whether the job can save while a preempted node still runs."""
    preempted = [worker.name for worker in workers if worker.billing is Billing.PREEMPTIBLE]
    if preempted and job.save_s > PREEMPTION_NOTICE_S:
        findings.error(
            f"{path}.save_s",
            f"{job.save_s}, but nodes of {', '.join(preempted)} are preemptible and stop "
            f"{PREEMPTION_NOTICE_S} s after the notice; write {PREEMPTION_NOTICE_S} or less, and "
            "see that a save takes no longer",
            rule="jobs.save-notice",
        )


def _check_fit(
    job: JobSpec, workers: tuple[WorkerSpec, ...], path: str, findings: Findings
) -> None:
    """Whether enough nodes of the partition have the GPUs and CPUs that the job asks for."""
    presets = [
        (worker, preset)
        for worker in workers
        if (preset := find_preset(worker.platform, worker.preset)) is not None
    ]
    if not presets:
        return
    most_gpus = max(preset.gpus for _, preset in presets)
    most_vcpus = max(preset.vcpus for _, preset in presets)
    cpus = (job.cpus_per_task or 1) * max(1, job.gpus_per_node)
    if job.gpus_per_node > most_gpus:
        findings.error(
            f"{path}.gpus_per_node",
            f"{job.gpus_per_node}, but a node of partition '{job.partition}' has {most_gpus}",
            rule="jobs.gpus",
        )
    elif cpus > most_vcpus:
        findings.error(
            f"{path}.cpus_per_task",
            f"{job.cpus_per_task} for each of {max(1, job.gpus_per_node)} tasks is {cpus} CPUs, "
            f"but a node has {most_vcpus}",
            rule="jobs.cpus",
        )
    else:
        fitting = sum(
            worker.max_nodes
            for worker, preset in presets
            if preset.gpus >= job.gpus_per_node and preset.vcpus >= cpus
        )
        if job.nodes > fitting:
            findings.error(
                f"{path}.nodes",
                f"{job.nodes}, but partition '{job.partition}' has at most {fitting} such nodes",
                rule="jobs.nodes",
            )


def _check_servers(spec: StackSpec, findings: Findings) -> None:
    """What a job that serves, and one that measures a server, cannot do."""
    for index, job in enumerate(spec.jobs):
        if job.is_server and job.nodes != 1:
            findings.error(
                f"jobs[{index}].nodes",
                f"{job.nodes}, but '{job.name}' serves, which one node does; write 1, and submit "
                "it again for a second server",
                rule="jobs.server-nodes",
            )
        if job.container is not None:
            _check_container(job.container, f"jobs[{index}].container", findings)
        if job.is_load_test and job.nodes != 1:
            findings.error(
                f"jobs[{index}].nodes",
                f"{job.nodes}, but '{job.name}' is a load test, which one process does for all its "
                "streams; write 1",
                rule="jobs.load-nodes",
            )


def _check_container(image: str, path: str, findings: Findings) -> None:
    if not _IMAGE.fullmatch(image):
        findings.error(
            path,
            f"'{image}' is no image; write [REGISTRY#]IMAGE[:TAG] as enroot does, or the path of a "
            ".sqsh file",
            rule="jobs.container",
        )
