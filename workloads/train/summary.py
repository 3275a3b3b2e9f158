"""`train_<job>_summary.txt`: what a run did, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workloads.train.gate import Criterion, verdict


def summary_text(
    *,
    job: str,
    recipe: str,
    model: str,
    strategy: str,
    world_size: int,
    metrics: Mapping[str, float],
    artifacts: Mapping[str, str],
    gate: Sequence[Criterion],
) -> str:
    """Return the summary: what was trained, every metric, where things are, the gate."""
    lines = [
        f"job        {job}",
        f"recipe     {recipe}",
        f"model      {model}",
        f"ranks      {world_size} ({strategy})",
        "",
        *headline(metrics),
        "",
        *(f"{name:36} {_number(value)}" for name, value in sorted(metrics.items())),
        "",
        *(f"{name:16} {path}" for name, path in sorted(artifacts.items())),
    ]
    if gate:
        lines += ["", f"gate: {verdict(gate)}", *(f"  {each}" for each in gate)]
    return "\n".join(lines) + "\n"


def headline(metrics: Mapping[str, float]) -> list[str]:
    """Return training time, throughput and GPU memory; NOT RUN where one was not measured."""

    def figure(name: str, unit: str, why: str) -> str:
        value = metrics.get(name)
        return f"NOT RUN: {why}" if value is None else f"{value:,.1f} {unit}"

    throughput = figure("train_tokens_per_s", "tokens/s", "fewer than two steps were trained")
    if "train_tokens_per_s_per_gpu" in metrics:
        throughput += f", {metrics['train_tokens_per_s_per_gpu']:,.1f} a rank"
    return [
        f"training time  {figure('train_time_s', 's', 'not a step was trained')}",
        f"throughput     {throughput}",
        f"GPU memory     {figure('peak_gpu_memory_gib', 'GiB a GPU', 'this job had no GPU')}",
    ]


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"
