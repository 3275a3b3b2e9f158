"""Dashboards of a stack with observability, as JSON for Grafana.

Schema: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
(2026-11-21). The data source is a variable, as in Soperator's own dashboards. Which metric answers
a panel, and who exports it, is in metrics.tsv.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from cost.prices.price import HOURS_PER_MONTH
from cost.resources.estimate import Burn
from infra.render.monitoring.alerts import (
    AROUND_USD,
    BUDGET_USD,
    JOBS_USD,
    NODE_USD,
    STACK_USD,
    STATE_USD,
    usd_of_a_day,
)

NAME: Final = "soperator-stack"
SCHEMA_VERSION: Final = 39
_COLUMNS: Final = 24
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One graph or number, with the questions that it asks."""

    title: str
    unit: str
    """Unit as Grafana calls it: `percent`, `s`, `currencyUSD`, `short` ..."""
    asks: tuple[tuple[str, str], ...]
    """PromQL and the name of its series."""
    kind: str = "timeseries"
    """`timeseries` or `stat`."""
    stacked: bool = False
    most: float | None = None
    """End of the axis; None follows the data."""
    says: str = ""
    """What the number means, behind the panel's (i)."""
    width: int = 12
    """Columns of 24."""
    height: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One page of Grafana."""

    uid: str
    title: str
    panels: tuple[Panel, ...]
    variables: tuple[tuple[str, str], ...] = ()
    """Name of a choice, and the PromQL of what there is to choose from."""

    @property
    def file_name(self) -> str:
        """Name in the ConfigMap that Grafana's sidecar reads."""
        return f"{self.uid}.json"

    def to_json(self) -> dict[str, Any]:
        """Return the page as Grafana imports it."""
        source = {"name": "datasource", "type": "datasource", "query": "prometheus", "hide": 2}
        return {
            "uid": self.uid,
            "title": self.title,
            "tags": ["soperator-stack"],
            "editable": False,
            "schemaVersion": SCHEMA_VERSION,
            "timezone": "utc",
            "refresh": "30s",
            "time": {"from": "now-6h", "to": "now"},
            "templating": {"list": [source, *(_variable(*each) for each in self.variables)]},
            "panels": _placed(self.panels),
        }


def _variable(name: str, question: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "definition": question,
        "query": {"query": question, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": "All", "value": "$__all"},
    }


def _placed(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Panels from left to right; the next row starts where one does not fit."""
    placed: list[dict[str, Any]] = []
    x = y = row_height = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > _COLUMNS:
            x, y, row_height = 0, y + row_height, 0
        place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
        placed.append({"id": number, "gridPos": place, **_content(panel)})
        x, row_height = x + panel.width, max(row_height, panel.height)
    return placed


def _content(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.stacked:
        defaults["custom"] = {"stacking": {"mode": "normal"}, "fillOpacity": 30}
    return {
        "type": panel.kind,
        "title": panel.title,
        **({"description": panel.says} if panel.says else {}),
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": legend,
            }
            for number, (expression, legend) in enumerate(panel.asks)
        ],
    }


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
    held_out = f"train_eval_loss{{{_OWN}}}", f"{_OF_RUN} held-out rows"
    return Dashboard(
        uid=f"{NAME}-train",
        title="Stack: training",
        variables=(("job", "label_values(train_step, job_id)"),),
        panels=(
            share_panel("Progress", f"100 * train_step{{{_OWN}}} / train_steps{{{_OWN}}}", _OF_RUN),
            Panel(title="Loss", unit="short", asks=((f"train_loss{{{_OWN}}}", _OF_RUN), held_out)),
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


_RUNNING: Final = "serve_running_requests|vllm:num_requests_running"


def serve_dashboard() -> Dashboard:
    """Requests, waits, tokens and memory of servers."""
    return Dashboard(
        uid=f"{NAME}-serve",
        title="Stack: serving",
        variables=(("job", f'label_values({{__name__=~"{_RUNNING}"}}, job_id)'),),
        panels=(
            Panel(
                title="Requests a second",
                unit="reqps",
                asks=(
                    (_rate("serve_requests_total", "model, outcome"), "{{model}} {{outcome}}"),
                    (
                        _rate("vllm:request_success_total", "model_name, finished_reason"),
                        "{{model_name}} {{finished_reason}}",
                    ),
                ),
            ),
            Panel(
                title="Tokens a second",
                unit="short",
                asks=(
                    (_rate("serve_output_tokens_total", "model"), "{{model}} written"),
                    (_rate("serve_prompt_tokens_total", "model"), "{{model}} read"),
                    (_rate("vllm:generation_tokens_total", "model_name"), "{{model_name}} written"),
                    (_rate("vllm:prompt_tokens_total", "model_name"), "{{model_name}} read"),
                ),
            ),
            _quantiles(
                "Time to first token",
                "serve_time_to_first_token_seconds_bucket",
                "vllm:time_to_first_token_seconds_bucket",
            ),
            _quantiles(
                "Time per output token",
                "serve_time_per_output_token_seconds_bucket",
                "vllm:inter_token_latency_seconds_bucket",
            ),
            Panel(
                title="Requests",
                unit="short",
                asks=(
                    (f"serve_running_requests{{{_OWN}}}", f"{_OF_RUN} running"),
                    (f"serve_waiting_requests{{{_OWN}}}", f"{_OF_RUN} waiting"),
                    (f"vllm:num_requests_running{{{_OWN}}}", f"{_OF_RUN} running"),
                    (f"vllm:num_requests_waiting{{{_OWN}}}", f"{_OF_RUN} waiting"),
                ),
            ),
            share_panel(
                "KV cache in use",
                f"100 * serve_kv_cache_used_tokens{{{_OWN}}} / serve_kv_cache_tokens{{{_OWN}}}",
                _OF_RUN,
                (f"100 * vllm:kv_cache_usage_perc{{{_OWN}}}", _OF_RUN),
            ),
            share_panel("GPU in use", f"100 * serve_gpu_utilization_ratio{{{_OWN}}}", _OF_RUN),
            share_panel(
                "GPU memory in use",
                f"100 * serve_gpu_memory_used_bytes{{{_OWN}}} "
                f"/ serve_gpu_memory_total_bytes{{{_OWN}}}",
                _OF_RUN,
            ),
        ),
    )


def _rate(counter: str, labels: str) -> str:
    return f"sum by (job_id, {labels}) (rate({counter}{{{_OWN}}}[5m]))"


def _quantiles(title: str, ours: str, vllms: str) -> Panel:
    asks: list[tuple[str, str]] = []
    for bucket, label in ((ours, "model"), (vllms, "model_name")):
        rate = f"sum by ({label}, le) (rate({bucket}{{{_OWN}}}[5m]))"
        asks += [
            (f"histogram_quantile({share}, {rate})", f"{{{{{label}}}}} p{100 * share:g}")
            for share in (0.5, 0.99)
        ]
    return Panel(title=title, unit="s", asks=tuple(asks))


def cost_dashboard(burn: Burn) -> Dashboard:
    """What the stack costs now, for what, and where that leads."""
    says = f"US dollars without tax, {burn.prices}."
    least = " (at least)" if burn.is_lower_bound else ""
    if burn.unpriced_nodesets:
        says += f" Without nodes of {', '.join(burn.unpriced_nodesets)}: no price is known."
    elif burn.is_lower_bound:
        says += (
            " Without lines of the bill that have no price: `soperator cost -s STACK` lists them."
        )
    trained = "sum(rate(train_tokens_total[15m])) * 3600 / 1e6"
    written = (
        "(sum(rate(serve_output_tokens_total[15m])) or vector(0)) * 3600 / 1e6 "
        "+ (sum(rate(vllm:generation_tokens_total[15m])) or vector(0)) * 3600 / 1e6"
    )
    idle = f'sum({STATE_USD}{{state_base!~"ALLOCATED|MIXED"}})'
    numbers = [
        ("Now, an hour", STACK_USD),
        ("A month at this pace", f"{STACK_USD} * {HOURS_PER_MONTH}"),
        ("Nodes without jobs, an hour", idle),
        ("Last 24 hours, as far as seen", usd_of_a_day(STACK_USD)),
    ]
    if burn.budget_usd_per_month is not None:
        numbers += [
            (
                "Jobs a month at the pace of a day",
                f"{usd_of_a_day(JOBS_USD)} * {HOURS_PER_MONTH} / 24",
            ),
            ("Budget of jobs a month", BUDGET_USD),
        ]
    return Dashboard(
        uid=f"{NAME}-cost",
        title="Stack: cost burn",
        panels=(
            *(
                Panel(
                    title=title if expression == BUDGET_USD else f"{title}{least}",
                    unit="currencyUSD",
                    kind="stat",
                    says=says,
                    asks=((expression, ""),),
                    width=4,
                    height=4,
                )
                for title, expression in numbers
            ),
            Panel(
                title=f"US dollars an hour{least}",
                unit="currencyUSD",
                stacked=True,
                says=f"{says} A node that a job holds in part counts whole.",
                width=24,
                asks=(
                    (f"max({AROUND_USD})", "around the workers"),
                    (STATE_USD, "{{nodeset}} {{state_base}}"),
                ),
            ),
            Panel(
                title="GPUs by state of their node",
                unit="short",
                stacked=True,
                asks=(
                    (
                        "sum by (state_base) (rate(slurm_node_gpu_seconds_total[5m]))",
                        "{{state_base}}",
                    ),
                ),
            ),
            Panel(
                title=f"US dollars for a million tokens, of what jobs hold{least}",
                unit="currencyUSD",
                says=f"{says} All jobs together: exact while one kind of job runs.",
                asks=(
                    (f"{JOBS_USD} / ({trained} > 0)", "trained"),
                    (f"{JOBS_USD} / (({written}) > 0)", "written"),
                ),
            ),
            Panel(
                title="Price of a node, an hour",
                unit="currencyUSD",
                says=says,
                asks=((f"max by (nodeset, priced) ({NODE_USD})", "{{nodeset}}, {{priced}}"),),
            ),
            Panel(
                title="Alerts that fire",
                unit="short",
                asks=(
                    (
                        'sum by (alertname) (ALERTS{alertstate="firing",alertname=~"Soperator.*"})',
                        "{{alertname}}",
                    ),
                ),
            ),
        ),
    )
