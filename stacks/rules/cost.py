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
        problem = (
            f"{chat.output_tokens} tokens in {chat.turns} turns do not fit context_tokens "
            f"({chat.context_tokens}); raise context_tokens or turns"
        )
        findings.add("chat.answers-fit", "chat.output_tokens", problem)
    if chat.turns > chat.output_tokens:
        problem = (
            f"{chat.turns}, but the whole chat writes {chat.output_tokens} tokens "
            "(output_tokens); every turn answers with at least one"
        )
        findings.add("chat.turns", "chat.turns", problem)
    if chat.cached_share > 1:
        problem = (
            f"{chat.cached_share} is more than the whole context; use 0 to 1 "
            "(a quarter is 0.25, not 25)"
        )
        findings.add("chat.cached-share", "chat.cached_share", problem)
    findings.unique("chat.model-twice", "chat.api_models", chat.api_models, advice="name each once")
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
            problem = (
                f"engine '{speed.engine}' with batch {speed.batch_size} is already the row "
                f"'{same[0]}'; one measurement cannot replace both"
            )
            findings.add("chat.speed-twice", f"chat.speeds[{index}].batch_size", problem)


def _check_serving(spec: StackSpec, findings: Findings) -> None:
    chat = spec.chat
    known = [worker.name for worker in spec.nodes.workers]
    if chat.serving_nodeset is None:
        if chat.serving_nodes > 1:
            problem = (
                f"{chat.serving_nodes} of which nodes? Name them in chat.serving_nodeset "
                f"(has: {', '.join(known)})"
            )
            findings.add("chat.serving-nodes-of", "chat.serving_nodes", problem)
        return
    if chat.serving_nodeset not in known:
        place = "chat.serving_nodeset"
        findings.unknown("chat.serving-nodeset", place, chat.serving_nodeset, "nodeset", known)
        return
    most = max(
        worker.max_nodes for worker in spec.nodes.workers if worker.name == chat.serving_nodeset
    )
    if chat.serving_nodes > most:
        problem = (
            f"{chat.serving_nodes}, but nodeset '{chat.serving_nodeset}' has at most {most} nodes"
        )
        findings.add("chat.serving-nodes-most", "chat.serving_nodes", problem)


def check_runs(spec: StackSpec, findings: Findings) -> None:
    """Forecasts name jobs and sources; losses are declared where nodes are preemptible."""
    jobs = {job.name: job for job in spec.jobs}
    findings.unique("runs.job-twice", "runs", spec.runs, key="job", advice="keep one entry")
    for index, run in enumerate(spec.runs):
        path = f"runs[{index}]"
        if run.job not in jobs:
            findings.unknown("runs.job", f"{path}.job", run.job, "job", jobs)
        if run.train_tokens_per_s is not None and run.source is None:
            problem = "missing: train_tokens_per_s came from somewhere; say where and when"
            findings.add("runs.source-missing", f"{path}.source", problem)
        if run.train_tokens_per_s is None and run.source is not None:
            problem = "no effect without train_tokens_per_s; remove it"
            findings.add("runs.source-unused", f"{path}.source", problem)
        if run.train_tokens_per_s is not None and run.job in jobs:
            busy_s = run.tokens_per_epoch * run.epochs / run.train_tokens_per_s
            limit = jobs[run.job].time_limit
            limit_s = slurm_seconds(limit)
            if limit_s is not None and busy_s > limit_s:
                problem = (
                    f"{run.job} would take {busy_s / 3600:.2f} hours at the declared speed, but "
                    f"its time_limit is {limit}; raise it, or Slurm ends the job before it is done"
                )
                findings.add("runs.time-limit", path, problem)
    workers = spec.nodes.workers
    preemptible = [worker.name for worker in workers if worker.billing is Billing.PREEMPTIBLE]
    if preemptible and spec.preemption is None:
        problem = (
            f"{', '.join(preemptible)} is preemptible, but no losses are declared: forecasts "
            "count none; add preemption with its rate, checkpoint stall and restart time"
        )
        findings.add("runs.preemption", "preemption", problem)
