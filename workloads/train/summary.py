"""`train_<job>_summary.txt`: what a run did, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workloads.train.gate import Criterion


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
        *(f"{name:36} {_number(value)}" for name, value in sorted(metrics.items())),
        "",
        *(f"{name:16} {path}" for name, path in sorted(artifacts.items())),
    ]
    if gate:
        verdict = "FAIL" if any(each.outcome == "FAIL" for each in gate) else "PASS"
        lines += ["", f"gate: {verdict}", *(f"  {each}" for each in gate)]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"
