"""Rules of what the bill is told beyond resources: the reference chat, runs, preemption, budget."""

from __future__ import annotations

from stacks.rules import Findings
from stacks.schedule import slurm_seconds
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing


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
