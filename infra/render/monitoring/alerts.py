"""Recording rules (`soperator:*`) and alerts of a stack with observability.

A price in a rule is of the day on which it was rendered: the label `priced`. Each alert names its
runbook; its limits are `soperator.alerts` of the stack. metrics.tsv lists what is exported.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from cost.prices.price import HOURS_PER_MONTH
from cost.resources.estimate import Burn
from stacks.spec import StackSpec
from stacks.spec.cluster import AlertsSpec

NODE_USD: Final = "soperator:node_usd_per_hour"
AROUND_USD: Final = "soperator:around_usd_per_hour"
BUDGET_USD: Final = "soperator:budget_usd_per_month"
STATE_USD: Final = "soperator:node_state_usd_per_hour"
JOBS_USD: Final = "soperator:jobs_usd_per_hour"
STACK_USD: Final = "soperator:stack_usd_per_hour"
INTERVAL_S: Final = 30
"""As often as Soperator's exporter asks Slurm."""

# A cloud node that is powered down is listed by Slurm and costs nothing.
_PAID: Final = 'slurm_node_info{state_is_powered_down!="true"}'
_OF_NODESET: Final = f'(label_replace({_PAID}, "nodeset", "$1", "node_name", "(.+)-[0-9]+")))'
PAID_NODES: Final = f"count by (nodeset) (group by (node_name, nodeset) {_OF_NODESET}"
"""Nodes that cost money by their nodeset, priced or not."""
_NODES: Final = (
    "count by (nodeset, state_base) (group by (node_name, nodeset, state_base) " + _OF_NODESET
)
# Without the Slurm exporter nothing is known, which is not the same as no cost.
_SEEN: Final = "and on () (count(slurm_node_info) > 0)"
_BUSY: Final = 'state_base=~"ALLOCATED|MIXED"'


def records(burn: Burn) -> list[dict[str, Any]]:
    """The rules, in the order in which they need each other."""
    priced = "" if burn.price_date is None else burn.price_date.isoformat()
    prices = [
        _constant(NODE_USD, usd, nodeset=nodeset, priced=priced)
        for nodeset, usd in burn.node_usd_per_hour.items()
        if usd is not None
    ]
    prices.append(_constant(AROUND_USD, burn.around_usd_per_hour, priced=priced))
    if burn.budget_usd_per_month is not None:
        prices.append(_constant(BUDGET_USD, burn.budget_usd_per_month))
    return [
        *prices,
        _record(STATE_USD, f"{_NODES} * on (nodeset) group_left () max by (nodeset) ({NODE_USD})"),
        _record(JOBS_USD, f"(sum({STATE_USD}{{{_BUSY}}}) or vector(0)) {_SEEN}"),
        _record(STACK_USD, f"((sum({STATE_USD}) or vector(0)) + max({AROUND_USD})) {_SEEN}"),
    ]


def usd_of_a_day(record: str) -> str:
    """PromQL of the US dollars that were seen to be spent in the last day."""
    # An average would take the hours that are not there, of a pause, for hours as the others.
    return f"sum_over_time({record}[1d]) / {3600 // INTERVAL_S}"


def _constant(name: str, usd: Decimal, **labels: str) -> dict[str, Any]:
    rule = _record(name, f"vector({usd:.6f})")
    return {**rule, "labels": labels} if labels else rule


def _record(name: str, expression: str) -> dict[str, Any]:
    return {"record": name, "expr": expression}


_RUNBOOKS: Final = "docs/runbooks"
_CHECKS: Final = "soperatorchecks"
"""User whose jobs Soperator's active checks are."""
_JOB: Final = "{{ $labels.job_name }} {{ $labels.job_id }}"


def alerts(spec: StackSpec, burn: Burn) -> list[dict[str, Any]]:
    """Every alert of the stack; those that need a declaration only with it."""
    limits = spec.soperator.alerts or AlertsSpec()
    rules = [
        _low_utilization(limits, burn),
        _stalled(limits, burn),
        _checkpoint(limits),
        _drained(limits, burn),
    ]
    if burn.budget_usd_per_month is not None:
        rules.append(_budget(burn, spec.name))
    if spec.lifetime is not None and spec.lifetime.idle_hours is not None:
        rules.append(_idle(spec.lifetime.idle_hours, burn, spec.name))
    return rules


def _low_utilization(limits: AlertsSpec, burn: Burn) -> dict[str, Any]:
    least = limits.min_gpu_utilization_percent
    return _alert(
        "SoperatorLowGpuUtilization",
        f'avg by (hpc_job) (avg_over_time(DCGM_FI_DEV_GPU_UTIL{{hpc_job!=""}}[10m])) < {least}',
        minutes=30,
        summary=f"GPUs of job {{{{ $labels.hpc_job }}}} are used less than {least} %",
        description="Job {{ $labels.hpc_job }} uses its GPUs to "
        f'{{{{ $value | printf "%.0f" }}}} % for half an hour, and pays for them: {_rates(burn)}.',
        runbook="paid-and-idle.md",
    )


def _stalled(limits: AlertsSpec, burn: Burn) -> dict[str, Any]:
    minutes = limits.stalled_step_minutes
    return _alert(
        "SoperatorTrainStepStalled",
        _age("train_last_step_timestamp_seconds", minutes),
        minutes=1,
        summary=f"Training job {_JOB} stands still",
        description=f"Job {_JOB} ended its last step {{{{ $value | humanizeDuration }}}} ago "
        f"(limit: {minutes} min), and pays for its nodes: {_rates(burn)}.",
        runbook="nccl-timeout.md",
    )


def _checkpoint(limits: AlertsSpec) -> dict[str, Any]:
    minutes = limits.checkpoint_minutes
    return _alert(
        "SoperatorCheckpointOld",
        _age("train_last_checkpoint_timestamp_seconds", minutes),
        minutes=1,
        summary=f"Training job {_JOB} has saved nothing for long",
        description=f"The newest checkpoint of job {_JOB} is {{{{ $value | humanizeDuration }}}} "
        f"old (limit: {minutes} min): a node that is lost now takes that much work along.",
        runbook="storage-full.md",
    )


def _drained(limits: AlertsSpec, burn: Burn) -> dict[str, Any]:
    return _alert(
        "SoperatorNodeDrained",
        'max by (node_name, reason) (slurm_node_info{state_is_drain="true",'
        'state_is_powered_down!="true"}) > 0',
        minutes=limits.drained_minutes,
        summary="Node {{ $labels.node_name }} is drained",
        description="Node {{ $labels.node_name }} takes no jobs and is paid for. Slurm's reason: "
        f"{{{{ $labels.reason }}}}. {_rates(burn)}.",
        runbook="node-failure.md",
    )


def _budget(burn: Burn, stack: str) -> dict[str, Any]:
    """The pace of one day: metrics are kept for a week, so a month cannot be summed up."""
    assert burn.budget_usd_per_month is not None
    least = "at least " if burn.unpriced_nodesets else ""
    return _alert(
        "SoperatorBudgetBurn",
        f"{usd_of_a_day(JOBS_USD)} * {HOURS_PER_MONTH} / 24 > on () max({BUDGET_USD})",
        minutes=60,
        summary="Jobs cost more than the budget allows",
        description=f"At the pace of the last day, jobs cost {least}${{{{ $value | "
        f'printf "%.2f" }}}} a month; the budget is ${burn.budget_usd_per_month:,.2f} '
        f"({burn.prices}). `soperator cost spend -s {stack}` says what is spent.",
        runbook="paid-and-idle.md",
    )


def _idle(hours: int, burn: Burn, stack: str) -> dict[str, Any]:
    """Checks of nodes are no work: with `checks: full` they run several times a day."""
    return _alert(
        "SoperatorNodesIdle",
        f'{PAID_NODES} unless on () slurm_job_info{{job_state="RUNNING",user_name!="{_CHECKS}"}}',
        minutes=hours * 60,
        summary="No job has run for longer than lifetime.idle_hours",
        description=f"{{{{ $value }}}} nodes of {{{{ $labels.nodeset }}}} are there, and nothing "
        f"but checks has run for {hours} h: {_rates(burn)}. "
        f"`soperator cluster autostop --act -s {stack}` pauses it.",
        runbook="paid-and-idle.md",
    )


def _age(metric: str, minutes: int) -> str:
    return f"time() - max by (stack, job_name, job_id) ({metric}) > {minutes * 60}"


def _rates(burn: Burn) -> str:
    """What a node of each nodeset costs, in words."""
    words = [
        f"a node of {nodeset} costs {'an unknown amount' if usd is None else f'${usd:,.2f}'}"
        for nodeset, usd in burn.node_usd_per_hour.items()
    ]
    return f"{', '.join(words)} an hour ({burn.prices})"


def _alert(
    name: str, expression: str, *, minutes: int, summary: str, description: str, runbook: str
) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expression,
        "for": f"{minutes}m",
        # The operator sends a config of alertmanager only alerts of the config's namespace.
        "labels": {"severity": "warning", "namespace": "monitoring-system"},
        "annotations": {
            "summary": summary,
            "description": description,
            "runbook": f"{_RUNBOOKS}/{runbook}",
        },
    }
