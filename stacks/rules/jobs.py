"""Rules of partitions, jobs and searches: what a job asks for, the order of `jobs[].after`, which
makes pipelines, `jobs[].schedule`, which Slurm's scrontab runs, and the trials of a search; and of
what the bill is told beyond resources: the reference chat, runs, preemption.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from stacks.load import StackError
from stacks.machines import expand_nodes, workers_of
from stacks.rules import Findings
from stacks.rules.naming import name_problem, path_problem
from stacks.rules.slurm_conf import HIDDEN, check_line
from stacks.schedule import CronError, parse_cron, pipeline, slurm_seconds
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing, WorkerSpec
from stacks.spec.slurm import RECIPE_ENDINGS, JobSpec, SearchSpec

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
# What the name of a secret has among its words; NUM_KEYS, PAD_TOKEN and NCCL_IB_PKEY are none.
_SECRET: Final = re.compile(
    "(?<!BOS|CLS|EOS|PAD|SEP|UNK)_(KEY|(API|SSH|ACCESS|PRIVATE)_?KEYS?|PASS|PWD|PAT|JWT"
    "|CREDENTIALS?|[A-Z0-9]*(TOKEN|SECRETS?|APIKEYS?|PASSWORDS?|PASSWD|PASSPHRASE))_"
)
# Whole tokens, as a folder may be called hf_checkpoints: lengths of gitleaks 8's rules (2026-11).
_SECRET_VALUE: Final = re.compile(
    r"://[^/\s@:]*:[^/\s@]+@|-----BEGIN [A-Z ]*PRIVATE KEY|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.|(?<!\w)"
    r"(hf_[A-Za-z0-9]{30}|gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9]{22}_|glpat-[\w-]{20}"
    r"|A[KS]IA[A-Z0-9]{16}(?!\w)|sk-(?=[\w-]*\d)(ant|proj|svcacct|admin|None|or|lf)-[\w-]{32}"
    r"|sk-(?=[A-Za-z]*\d)[A-Za-z0-9]{32})"
)
_OF_A_SECRET: Final = ("_FILE", "_PATH", "_DIR")
_OWN_VARIABLES: Final = ("SOPERATOR_", "SLURM", "TORCHELASTIC_", "MASTER_", "RANK", "WORLD_SIZE")


PREEMPTION_NOTICE_S: Final = 60
"""SIGTERM comes so long before a preempted VM is stopped:
https://docs.nebius.com/compute/virtual-machines/preemptible, read 2026-11-22."""


def check_jobs(spec: StackSpec, findings: Findings) -> None:
    """Partitions first, then the jobs that use them."""
    if spec.attached is None:
        _check_partitions(spec, findings)
    for index, nodeset in enumerate(spec.attached.nodesets if spec.attached else ()):
        try:
            expand_nodes(nodeset.nodes)
        except ValueError as error:
            findings.add("attached.nodes", f"attached.nodesets[{index}].nodes", error=error)
    findings.unique("jobs.name-twice", "jobs", spec.jobs, key="name")
    for index, job in enumerate(spec.jobs):
        _check_job(spec, job, f"jobs[{index}]", findings)
    _check_order(spec, findings)
    _check_servers(spec, findings)


def _check_partitions(spec: StackSpec, findings: Findings) -> None:
    partitions = spec.slurm.partitions
    known = [worker.name for worker in spec.nodes.workers]
    findings.unique("partitions.name-twice", "slurm.partitions", partitions, key="name")
    for index, partition in enumerate(partitions):
        path = f"slurm.partitions[{index}]"
        problem = name_problem(partition.name, longest=63)
        findings.add_text("partitions.name", f"{path}.name", problem)
        for nodeset in partition.nodesets:
            if nodeset not in known:
                findings.unknown("partitions.refs", f"{path}.nodesets", nodeset, known)
        check_line(partition, path, findings, has_accounting=spec.slurm.accounting)
        findings.unique("partitions.ref-twice", f"{path}.nodesets", partition.nodesets)
        if partition.name == HIDDEN and partition.nodesets:
            findings.add("partitions.hidden-all", f"{path}.nodesets")
    if not any(partition.name == HIDDEN for partition in partitions):
        findings.add("partitions.hidden", "slurm.partitions", hidden=HIDDEN)
    defaults = [part.name for part in partitions if _DEFAULT.search(part.config)]
    if len(defaults) != 1:
        got = f"{', '.join(defaults)} have" if defaults else "none has"
        findings.add("partitions.default", "slurm.partitions", got=got)


def _check_job(spec: StackSpec, job: JobSpec, path: str, findings: Findings) -> None:
    findings.add_text("jobs.name", f"{path}.name", name_problem(job.name, longest=63))
    if not _MODULE.fullmatch(job.module):
        findings.add("jobs.module", f"{path}.module")
    if not _RECIPE.fullmatch(job.recipe) or job.recipe.endswith(RECIPE_ENDINGS):
        findings.add("jobs.recipe", f"{path}.recipe", known=RECIPE_ENDINGS)
    if not _TIME_LIMIT.fullmatch(job.time_limit):
        findings.add("jobs.time-form", f"{path}.time_limit")
    partition = next((part for part in spec.slurm.partitions if part.name == job.partition), None)
    if partition is None:
        have = [part.name for part in spec.slurm.partitions]
        findings.unknown("jobs.partition", f"{path}.partition", job.partition, have)
        return
    found = _MAX_TIME.search(partition.config)
    most_s = None if found is None else slurm_seconds(found.group(1))
    asked_s = slurm_seconds(job.time_limit)
    if found is not None and most_s is not None and asked_s is not None and asked_s > most_s:
        findings.add("jobs.time-over", f"{path}.time_limit", found=found)
    _check_faults(job, path, findings)
    workers = workers_of(spec, partition.name)
    preempted = [worker.name for worker in workers if worker.billing is Billing.PREEMPTIBLE]
    notice_s = PREEMPTION_NOTICE_S
    if preempted and job.save_s > notice_s:
        findings.add("jobs.save-notice", f"{path}.save_s", preempted=preempted, notice_s=notice_s)
    if partition.name == HIDDEN:
        findings.add("jobs.hidden", f"{path}.partition")
    _check_fit(job, workers, path, findings)


def _check_faults(job: JobSpec, path: str, findings: Findings) -> None:
    """What the job declares for lost nodes, for its end and for its ranks' environment."""
    if job.least_nodes is not None and not 1 <= job.least_nodes <= job.nodes:
        findings.add("jobs.least-nodes", f"{path}.least_nodes")
    limit_s = slurm_seconds(job.time_limit)
    if limit_s is not None and job.save_s >= limit_s:
        findings.add("jobs.save-time", f"{path}.save_s", limit_s=limit_s)
    for name, value in job.environment.items():
        at = f"{path}.environment.{name}"
        if not _VARIABLE.fullmatch(name) or name.startswith(_OWN_VARIABLES) or "\n" in value:
            findings.add("jobs.environment", at, name=name, known=_OWN_VARIABLES)
        elif name in _BEFORE_EVERYTHING or name.startswith(_LOADER):
            findings.add("jobs.environment-system", at, name=name)
    secret = [
        f"environment.{name}"
        for name, value in job.environment.items()
        if (_SECRET.search(f"_{name}_") and not name.endswith(_OF_A_SECRET))
        or _SECRET_VALUE.search(value)
    ]
    args = enumerate(job.args)
    for key in (*secret, *(f"args[{number}]" for number, arg in args if _SECRET_VALUE.search(arg))):
        findings.add("jobs.environment-secret", f"{path}.{key}")
    if (file := job.environment_file) is not None:
        findings.add_text("jobs.environment-file", f"{path}.environment_file", path_problem(file))


def _check_fit(
    job: JobSpec, workers: tuple[WorkerSpec, ...], path: str, findings: Findings
) -> None:
    """Whether enough nodes of the partition have the GPUs and CPUs that the job asks for."""
    presets = [(worker, preset) for worker in workers if (preset := worker.hardware) is not None]
    if not presets:
        return
    most_gpus = max(preset.gpus for _, preset in presets)
    most = max(preset.vcpus for _, preset in presets)
    tasks = max(1, job.gpus_per_node)
    cpus, each = (job.cpus_per_task or 1) * tasks, most // tasks
    if job.gpus_per_node > most_gpus:
        findings.add("jobs.gpus", f"{path}.gpus_per_node", most_gpus=most_gpus)
    elif cpus > most:
        at = f"{path}.cpus_per_task"
        findings.add("jobs.cpus", at, tasks=tasks, cpus=cpus, most=most, each=each)
    else:
        fitting = sum(
            worker.max_nodes
            for worker, preset in presets
            if preset.gpus >= job.gpus_per_node and preset.vcpus >= cpus
        )
        if job.nodes > fitting:
            findings.add("jobs.nodes", f"{path}.nodes", fitting=fitting)


def _check_servers(spec: StackSpec, findings: Findings) -> None:
    """What a job that serves, and one that measures a server, cannot do."""
    for index, job in enumerate(spec.jobs):
        if job.is_server and job.nodes != 1:
            findings.add("jobs.server-nodes", f"jobs[{index}].nodes")
        if job.container is not None and not _IMAGE.fullmatch(job.container):
            findings.add("jobs.container", f"jobs[{index}].container")
        if job.is_load_test and job.nodes != 1:
            findings.add("jobs.load-nodes", f"jobs[{index}].nodes")


def _check_order(spec: StackSpec, findings: Findings) -> None:
    """What a job needs exists, ends, and does not need the job itself."""
    after = {job.name: job.after for job in spec.jobs}
    fewest = {job.name: job.least_nodes or job.nodes for job in spec.jobs}
    servers = {job.name for job in spec.jobs if job.is_server}
    for index, job in enumerate(spec.jobs):
        for name in job.after:
            other = fewest.get(name, 0)
            if job.least_nodes is not None and other > job.least_nodes:
                findings.add("jobs.after-nodes", f"jobs[{index}].after", name=name, other=other)
            if name not in after:
                findings.unknown("jobs.after", f"jobs[{index}].after", name, after)
        findings.unique("jobs.after-twice", f"jobs[{index}].after", job.after)
        for name in sorted(servers.intersection(job.after)):
            findings.add("jobs.after-server", f"jobs[{index}].after", name=name)
        circle = _circle(job.name, after)
        if circle:
            findings.add("jobs.circle", f"jobs[{index}].after", circle=" -> ".join(circle))


def _circle(start: str, after: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The shortest way from the job back to itself by what it needs; empty: there is none."""
    ways: list[tuple[str, ...]] = [(start,)]
    seen: set[str] = set()
    for way in ways:
        for name in after.get(way[-1], ()):
            if name == start:
                return (*way, name)
            if name not in seen:
                seen.add(name)
                ways.append((*way, name))
    return ()


def check_schedules(spec: StackSpec, findings: Findings) -> None:
    """Every schedule can be read, comes, and leaves its runs the time that they have."""
    scheduled = [index for index, job in enumerate(spec.jobs) if job.schedule is not None]
    for index in scheduled:
        _check_schedule(spec, spec.jobs[index], f"jobs[{index}].schedule", findings)
    if not scheduled:
        return
    if spec.attached is not None:
        findings.add("jobs.schedule-attached", f"jobs[{scheduled[0]}].schedule")
    for index, line in enumerate(spec.slurm.config_lines):
        if line.lower().startswith("scronparameters"):
            findings.add("jobs.schedule-line", f"slurm.config_lines[{index}]")


def _check_schedule(spec: StackSpec, job: JobSpec, path: str, findings: Findings) -> None:
    try:
        cron = parse_cron(job.schedule or "")
    except CronError as error:
        findings.add_text("jobs.schedule", path, str(error))
        return
    if not cron.times_per_month:
        findings.add("jobs.schedule-never", path)
        return
    gap, longest = cron.shortest_gap, _longest(spec, job)
    if gap is not None and longest is not None and longest > gap:
        findings.add("jobs.schedule-overlap", path, gap=gap, longest=longest)


def _longest(spec: StackSpec, job: JobSpec) -> timedelta | None:
    """The longest way through what the schedule submits; None where other rules refuse it."""
    if any(name not in {each.name for each in spec.jobs} for name in job.after):
        return None
    ends: dict[str, int] = {}
    try:
        for each in pipeline(spec, job.name):
            before = max((ends[name] for name in each.after if name in ends), default=0)
            ends[each.name] = before + (slurm_seconds(each.time_limit) or 0)
    except StackError:
        return None
    return timedelta(seconds=min(ends[job.name], timedelta.max // timedelta(seconds=1)))


TRIALS_MOST: Final = 500
"""The sbatch line names two files a task, and a command of Linux holds 128 KiB (execve(2)); Slurm's
own limit is 1,000 (slurm.conf(5), MaxArraySize), or what `slurm.config_lines` makes of it."""
_ARRAY_SIZE: Final = re.compile(r"(?ai)\s*MaxArraySize\s*=\s*(\d+)")
_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_METRIC: Final = re.compile(r"[a-z][a-z0-9_]*")


def check_searches(spec: StackSpec, findings: Findings) -> None:
    """Names, jobs, settings and numbers of the declared searches."""
    jobs = {job.name: job for job in spec.jobs}
    findings.unique("searches.name-twice", "searches", spec.searches, key="name")
    for index, search in enumerate(spec.searches):
        path = f"searches[{index}]"
        problem = name_problem(search.name, longest=63)
        if problem is None and search.name in jobs:
            problem = f"'{search.name}' is a job; submit takes both by name: use another"
        findings.add_text("searches.name", f"{path}.name", problem)
        if not _METRIC.fullmatch(search.metric):
            findings.add("searches.metric", f"{path}.metric")
        job = jobs.get(search.job)
        if job is None:
            findings.unknown("searches.job", f"{path}.job", search.job, jobs)
        elif not job.ends:
            findings.add("searches.job-ends", f"{path}.job", job=job)
        # Counted first: a grid is made of products, and a slip makes millions.
        if _check_count(search, path, findings):
            _check_settings(search, path, findings)
            _check_array(spec, search, findings)


def _check_array(spec: StackSpec, search: SearchSpec, findings: Findings) -> None:
    """Slurm refuses the whole array where a task reaches MaxArraySize; tasks count from 0."""
    given = [
        (index, int(found[1]))
        for index, line in enumerate(spec.slurm.config_lines)
        if (found := _ARRAY_SIZE.match(line))
    ]
    if not given:
        return
    # Of a name that slurm.conf has twice, Slurm takes the last.
    index, most = given[-1]
    path, count = f"slurm.config_lines[{index}]", len(search.settings)
    if count > most:
        findings.add("searches.array-size", path, most=most, search=search, count=count)


def _check_count(search: SearchSpec, path: str, findings: Findings) -> bool:
    for index, axis in enumerate(search.grid):
        if not axis.values:
            findings.add("searches.axis-empty", f"{path}.grid[{index}].values")
    combined = math.prod(len(axis.values) for axis in search.grid) if search.grid else 0
    count = combined + len(search.trials)
    if 2 <= count <= TRIALS_MOST:
        return True
    findings.add("searches.count", path, count=count, most=TRIALS_MOST)
    return False


def _check_settings(search: SearchSpec, path: str, findings: Findings) -> None:
    findings.unique("searches.axis-twice", f"{path}.grid", search.grid, key="key")
    wrong: list[str] = []
    for index, axis in enumerate(search.grid):
        if not _KEY.fullmatch(axis.key):
            problem = f"'{axis.key}' is no setting such as 'train.learning_rate'"
            findings.add_text("searches.key", f"{path}.grid[{index}].key", problem)
            wrong.append(axis.key)
    for index, trial in enumerate(search.trials):
        for setting in trial.settings:
            key, equals, _ = setting.partition("=")
            if not equals or not _KEY.fullmatch(key):
                problem = f"'{setting}' is not key=value, such as 'train.learning_rate=2e-5'"
                findings.add_text("searches.key", f"{path}.trials[{index}].settings", problem)
                wrong.append(setting)
    if wrong:
        return
    counts = Counter(tuple(sorted(each)) for each in search.settings)
    for settings, number in counts.items():
        if number > 1:
            trial = " ".join(settings) or "no setting"
            findings.add("searches.trial-twice", path, trial=trial, number=number)


def check_chat(spec: StackSpec, findings: Findings) -> None:
    """The chat's own figures first, then its serving nodes, then its speeds."""
    chat = spec.chat
    # An answer is part of the context of the next one, so it must fit as a whole.
    if chat.output_tokens > chat.context_tokens * chat.turns:
        findings.add("chat.answers-fit", "chat.output_tokens")
    if chat.turns > chat.output_tokens:
        findings.add("chat.turns", "chat.turns")
    if chat.cached_share > 1:
        findings.add("chat.cached-share", "chat.cached_share")
    findings.unique("chat.model-twice", "chat.api_models", chat.api_models)
    _check_serving(spec, findings)
    findings.unique("chat.scenario-twice", "chat.speeds", chat.speeds, key="scenario")
    for index, speed in enumerate(chat.speeds):
        same = [
            other.scenario
            for other in chat.speeds[:index]
            if speed.engine is not None
            and (other.engine, other.batch_size) == (speed.engine, speed.batch_size)
        ]
        if same:
            findings.add("chat.speed-twice", f"chat.speeds[{index}].batch_size", same=same)


def _check_serving(spec: StackSpec, findings: Findings) -> None:
    chat = spec.chat
    known = [worker.name for worker in spec.nodes.workers]
    if chat.serving_nodeset is None:
        if chat.serving_nodes > 1:
            findings.add("chat.serving-nodes-of", "chat.serving_nodes", known=known)
        return
    if chat.serving_nodeset not in known:
        place = "chat.serving_nodeset"
        findings.unknown("chat.serving-nodeset", place, chat.serving_nodeset, known)
        return
    most = max(
        worker.max_nodes for worker in spec.nodes.workers if worker.name == chat.serving_nodeset
    )
    if chat.serving_nodes > most:
        findings.add("chat.serving-nodes-most", "chat.serving_nodes", most=most)


def check_runs(spec: StackSpec, findings: Findings) -> None:
    """Forecasts name jobs and sources; losses are declared where nodes are preemptible."""
    jobs = {job.name: job for job in spec.jobs}
    findings.unique("runs.job-twice", "runs", spec.runs, key="job")
    for index, run in enumerate(spec.runs):
        path = f"runs[{index}]"
        if run.job not in jobs:
            findings.unknown("runs.job", f"{path}.job", run.job, jobs)
        if run.train_tokens_per_s is not None and run.source is None:
            findings.add("runs.source-missing", f"{path}.source")
        if run.train_tokens_per_s is None and run.source is not None:
            findings.add("runs.source-unused", f"{path}.source")
        if run.train_tokens_per_s is not None and run.job in jobs:
            busy_s = run.tokens_per_epoch * run.epochs / run.train_tokens_per_s
            limit = jobs[run.job].time_limit
            limit_s = slurm_seconds(limit)
            if limit_s is not None and busy_s > limit_s:
                findings.add("runs.time-limit", path, hours=busy_s / 3600, limit=limit)
    workers = spec.nodes.workers
    preemptible = [worker.name for worker in workers if worker.billing is Billing.PREEMPTIBLE]
    if preemptible and spec.preemption is None:
        findings.add("runs.preemption", "preemption", preemptible=preemptible)
