"""The dashboard of servers, whichever engine they have: ours, or vLLM with its own names. Pure.

Owns which question each panel asks; metrics.tsv says who answers it.
"""

from __future__ import annotations

from typing import Final

from infra.render.monitoring.dashboards import share_panel
from infra.render.monitoring.objects import NAME
from infra.render.monitoring.panels import Dashboard, Panel

_OWN: Final = 'job_id=~"$job"'
_OF_RUN: Final = "{{job_name}} {{job_id}}"
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
