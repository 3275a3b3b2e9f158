"""Rules of what the bill is told beyond resources: the reference chat, runs, preemption, budget."""

from __future__ import annotations

from stacks.rules import Findings
from stacks.schedule import slurm_seconds
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing


def check_chat(spec: StackSpec, findings: Findings) -> None:
    """The chat's own figures first, then its serving nodes, then its speeds."""
    _check_profile(spec, findings)
    _check_serving(spec, findings)
    _check_speeds(spec, findings)


def _check_profile(spec: StackSpec, findings: Findings) -> None:
    chat = spec.chat
    # An answer is part of the context of the next one, so it must fit as a whole.
    if chat.output_tokens > chat.context_tokens * chat.turns:
        findings.add(
            "chat.answers-fit",
            "chat.output_tokens",
            f"{chat.output_tokens} tokens in {chat.turns} turns do not fit context_tokens "
            f"({chat.context_tokens}); raise context_tokens or turns",
        )
    if chat.turns > chat.output_tokens:
        findings.add(
            "chat.turns",
            "chat.turns",
            f"{chat.turns}, but the whole chat writes {chat.output_tokens} tokens "
            "(output_tokens); every turn answers with at least one",
        )
    if chat.cached_share > 1:
        findings.add(
            "chat.cached-share",
            "chat.cached_share",
            f"{chat.cached_share} is more than the whole context; use 0 to 1 "
            "(a quarter is 0.25, not 25)",
        )
    findings.unique("chat.model-twice", "chat.api_models", chat.api_models, advice="name each once")


def _check_serving(spec: StackSpec, findings: Findings) -> None:
    chat = spec.chat
    known = [worker.name for worker in spec.nodes.workers]
    if chat.serving_nodeset is None:
        if chat.serving_nodes > 1:
            findings.add(
                "chat.serving-nodes-of",
                "chat.serving_nodes",
                f"{chat.serving_nodes} of which nodes? Name them in chat.serving_nodeset "
                f"(has: {', '.join(known)})",
            )
        return
    if chat.serving_nodeset not in known:
        place = "chat.serving_nodeset"
        findings.unknown("chat.serving-nodeset", place, chat.serving_nodeset, "nodeset", known)
        return
    most = max(
        worker.max_nodes for worker in spec.nodes.workers if worker.name == chat.serving_nodeset
    )
    if chat.serving_nodes > most:
        findings.add(
            "chat.serving-nodes-most",
            "chat.serving_nodes",
            f"{chat.serving_nodes}, but nodeset '{chat.serving_nodeset}' has at most {most} nodes",
        )


def _check_speeds(spec: StackSpec, findings: Findings) -> None:
    chat = spec.chat
    findings.unique("chat.scenario-twice", "chat.speeds", chat.speeds, key="scenario")
    for index, speed in enumerate(chat.speeds):
        same = [
            other.scenario
            for other in chat.speeds[:index]
            if speed.engine is not None
            and (other.engine, other.batch_size) == (speed.engine, speed.batch_size)
        ]
        if same:
            findings.add(
                "chat.speed-twice",
                f"chat.speeds[{index}].batch_size",
                f"engine '{speed.engine}' with batch {speed.batch_size} is already the row "
                f"'{same[0]}'; one measurement cannot replace both",
            )


def check_runs(spec: StackSpec, findings: Findings) -> None:
    """Forecasts name jobs and sources; losses are declared where nodes are preemptible."""
    jobs = {job.name: job for job in spec.jobs}
    findings.unique("runs.job-twice", "runs", spec.runs, key="job", advice="keep one entry")
    for index, run in enumerate(spec.runs):
        path = f"runs[{index}]"
        if run.job not in jobs:
            findings.unknown("runs.job", f"{path}.job", run.job, "job", jobs)
        if run.train_tokens_per_s is not None and run.source is None:
            findings.add(
                "runs.source-missing",
                f"{path}.source",
                "missing: train_tokens_per_s came from somewhere; say where and when",
            )
        if run.train_tokens_per_s is None and run.source is not None:
            findings.add(
                "runs.source-unused",
                f"{path}.source",
                "no effect without train_tokens_per_s; remove it",
            )
        if run.train_tokens_per_s is not None and run.job in jobs:
            busy_s = run.tokens_per_epoch * run.epochs / run.train_tokens_per_s
            limit = jobs[run.job].time_limit
            limit_s = slurm_seconds(limit)
            if limit_s is not None and busy_s > limit_s:
                findings.add(
                    "runs.time-limit",
                    path,
                    f"{run.job} would take {busy_s / 3600:.2f} hours at the declared speed, but "
                    f"its time_limit is {limit}; raise it, or Slurm ends the job before it is done",
                )
    workers = spec.nodes.workers
    preemptible = [worker.name for worker in workers if worker.billing is Billing.PREEMPTIBLE]
    if preemptible and spec.preemption is None:
        findings.add(
            "runs.preemption",
            "preemption",
            f"{', '.join(preemptible)} is preemptible, but no losses are declared: forecasts "
            "count none; add preemption with its rate, checkpoint stall and restart time",
        )
