"""Alert rules: what is paid for and stands still, and what would be lost. Pure.

Owns conditions and words. Each names its runbook; limits are `soperator.alerts` of the stack.
"""

from __future__ import annotations

from typing import Any, Final

from cost.burn import Burn
from cost.price import HOURS_PER_MONTH
from infra.render.monitoring.records import BUDGET_USD, JOBS_USD, PAID_NODES, usd_of_a_day
from stacks.soperator_spec import AlertsSpec
from stacks.spec import StackSpec

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
        rules.append(_budget(burn))
    if spec.lifetime is not None and spec.lifetime.idle_hours is not None:
        rules.append(_idle(spec.lifetime.idle_hours, burn))
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


def _budget(burn: Burn) -> dict[str, Any]:
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
        f"({burn.prices}). `soperator spend` says what is spent.",
        runbook="paid-and-idle.md",
    )


def _idle(hours: int, burn: Burn) -> dict[str, Any]:
    """Checks of nodes are no work: with `checks: full` they run several times a day."""
    return _alert(
        "SoperatorNodesIdle",
        f'{PAID_NODES} unless on () slurm_job_info{{job_state="RUNNING",user_name!="{_CHECKS}"}}',
        minutes=hours * 60,
        summary="No job has run for longer than lifetime.idle_hours",
        description=f"{{{{ $value }}}} nodes of {{{{ $labels.nodeset }}}} are there, and nothing "
        f"but checks has run for {hours} h: {_rates(burn)}. "
        "`soperator reap --act` pauses the stack.",
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
