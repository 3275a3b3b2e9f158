"""The dashboards of GPUs and of what trains on them. Pure.

Owns which question each panel asks; metrics.tsv says who answers it.
"""

from __future__ import annotations

from typing import Final

from infra.render.monitoring.objects import NAME
from infra.render.monitoring.panels import Dashboard, Panel

_GPU_JOB: Final = 'hpc_job=~"$job"'
_OWN: Final = 'job_id=~"$job"'
_OF_RUN: Final = "{{job_name}} {{job_id}}"


def gpu_dashboard() -> Dashboard:
    """Use, memory, power and faults of GPUs, by Slurm job."""
    job = "job {{hpc_job}}"
    used, free = f"DCGM_FI_DEV_FB_USED{{{_GPU_JOB}}}", f"DCGM_FI_DEV_FB_FREE{{{_GPU_JOB}}}"
    tensor = f"avg by (hpc_job) (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{_GPU_JOB}}})"
    memory = f"avg by (hpc_job) (DCGM_FI_PROF_DRAM_ACTIVE{{{_GPU_JOB}}})"
    return Dashboard(
        uid=f"{NAME}-gpu",
        title="Stack: GPUs",
        variables=(("job", "label_values(DCGM_FI_DEV_GPU_UTIL, hpc_job)"),),
        panels=(
            share_panel("Use", f"avg by (hpc_job) (DCGM_FI_DEV_GPU_UTIL{{{_GPU_JOB}}})", job),
            share_panel(
                "Use of each GPU", f"DCGM_FI_DEV_GPU_UTIL{{{_GPU_JOB}}}", "{{Hostname}} {{gpu}}"
            ),
            share_panel("Tensor cores active", f"100 * {tensor}", job),
            share_panel("Memory bandwidth in use", f"100 * {memory}", job),
            share_panel(
                "Memory in use", f"100 * {used} / ({used} + {free})", "{{Hostname}} {{gpu}}"
            ),
            Panel(
                title="Power",
                unit="watt",
                asks=((f"sum by (hpc_job) (DCGM_FI_DEV_POWER_USAGE{{{_GPU_JOB}}})", job),),
            ),
            Panel(
                title="NVLink",
                unit="Bps",
                asks=(
                    (f"sum by (hpc_job) (DCGM_FI_PROF_NVLINK_TX_BYTES{{{_GPU_JOB}}})", f"{job} tx"),
                    (f"sum by (hpc_job) (DCGM_FI_PROF_NVLINK_RX_BYTES{{{_GPU_JOB}}})", f"{job} rx"),
                ),
            ),
            Panel(
                title="Hottest GPU",
                unit="celsius",
                asks=(("max by (Hostname) (DCGM_FI_DEV_GPU_TEMP)", "{{Hostname}}"),),
            ),
            Panel(
                title="Clock",
                unit="rotmhz",
                says="A clock that falls under load is a GPU that is too hot or lacks power.",
                asks=(("min by (Hostname) (DCGM_FI_DEV_SM_CLOCK)", "{{Hostname}}"),),
            ),
            Panel(
                title="Last XID error",
                unit="short",
                says="0: none. Numbers: https://docs.nvidia.com/deploy/xid-errors/",
                asks=(("DCGM_FI_DEV_XID_ERRORS", "{{Hostname}} {{gpu}}"),),
            ),
        ),
    )


def train_dashboard() -> Dashboard:
    """Progress, loss, speed and waits of training jobs."""
    wait, stall = "train_data_wait_seconds_total", "train_checkpoint_stall_seconds_total"
    tokens, positions = (
        f"rate(train_{name}_total{{{_OWN}}}[5m])" for name in ("tokens", "positions")
    )
    return Dashboard(
        uid=f"{NAME}-train",
        title="Stack: training",
        variables=(("job", "label_values(train_step, job_id)"),),
        panels=(
            share_panel("Progress", f"100 * train_step{{{_OWN}}} / train_steps{{{_OWN}}}", _OF_RUN),
            Panel(title="Loss", unit="short", asks=((f"train_loss{{{_OWN}}}", _OF_RUN),)),
            Panel(title="Tokens a second", unit="short", asks=((tokens, _OF_RUN),)),
            Panel(
                title="Tokens a second and rank",
                unit="short",
                asks=((f"{tokens} / train_ranks{{{_OWN}}}", _OF_RUN),),
            ),
            share_panel(
                "Time that nothing trained",
                f"100 * rate({wait}{{{_OWN}}}[5m])",
                f"{_OF_RUN} waits for rows",
                (f"100 * rate({stall}{{{_OWN}}}[5m])", f"{_OF_RUN} saves"),
            ),
            share_panel("Padding", f"100 * (1 - {tokens} / {positions})", _OF_RUN),
            _age("Since the last step", "train_last_step_timestamp_seconds"),
            _age("Age of the newest checkpoint", "train_last_checkpoint_timestamp_seconds"),
            Panel(
                title="Gradient norm",
                unit="short",
                asks=((f"train_grad_norm{{{_OWN}}}", _OF_RUN),),
            ),
            Panel(
                title="Learning rate",
                unit="sci",
                asks=((f"train_learning_rate{{{_OWN}}}", _OF_RUN),),
            ),
        ),
    )


def share_panel(title: str, expression: str, legend: str, *more: tuple[str, str]) -> Panel:
    """A graph of percent."""
    return Panel(title=title, unit="percent", most=100, asks=((expression, legend), *more))


def _age(title: str, metric: str) -> Panel:
    return Panel(title=title, unit="s", asks=((f"time() - {metric}{{{_OWN}}}", _OF_RUN),))
