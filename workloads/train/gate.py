"""The success criteria of a run: PASS, FAIL or NOT RUN, each with what was seen.

Exit 0 and enough memory are told by the exit code: a run that gets here has both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from workloads.common.exit_codes import NotRunError, WorkloadError
from workloads.train.config import GateConfig

Outcome = Literal["PASS", "FAIL", "NOT RUN"]


class GateError(WorkloadError):
    """The run ended well and missed a bound that its recipe declares."""


class GateNotRunError(NotRunError):
    """The run ended well, and nobody knows whether it keeps a bound that its recipe declares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One line of the gate."""

    name: str
    outcome: Outcome
    detail: str
    is_needed: bool = True
    """False where this hardware has nothing to judge."""

    def __str__(self) -> str:
        return f"{self.outcome:7} {self.name}: {self.detail}"


def judge(
    gate: GateConfig, *, final: Path, metrics: Mapping[str, float], is_gpu: bool
) -> tuple[Criterion, ...]:
    """Return every criterion of a run that ended, with its outcome."""
    present = final.is_dir() and any(final.glob("*.safetensors"))
    found = [
        Criterion(name="exit code", outcome="PASS", detail="the run reached its last step"),
        Criterion(name="memory", outcome="PASS", detail="no rank ran out of it"),
        Criterion(
            name="final/",
            outcome="PASS" if present else "FAIL",
            detail=f"{final}" if present else f"{final} holds no weights",
        ),
    ]
    if gate.max_loss is not None:
        found.append(_bound("loss", metrics.get("last_loss"), below=gate.max_loss))
    if gate.min_tokens_per_s_per_gpu is not None:
        name = "tokens/s/GPU"
        found.append(
            _bound(
                name,
                metrics.get("train_tokens_per_s_per_gpu"),
                above=gate.min_tokens_per_s_per_gpu,
            )
            if is_gpu
            else Criterion(
                name=name, outcome="NOT RUN", detail="this job had no GPU", is_needed=False
            )
        )
    return tuple(found)


def _bound(
    name: str, value: float | None, *, below: float | None = None, above: float | None = None
) -> Criterion:
    limit = f"below {below:g}" if below is not None else f"above {above:g}"
    if value is None:
        return Criterion(
            name=name, outcome="NOT RUN", detail=f"not measured in this run; wanted {limit}"
        )
    good = value < below if below is not None else above is not None and value > above
    return Criterion(
        name=name, outcome="PASS" if good else "FAIL", detail=f"{value:.4g}, wanted {limit}"
    )


def verdict(found: Sequence[Criterion]) -> Outcome:
    """Return the outcome of all criteria together."""
    outcomes = {each.outcome for each in found if each.is_needed}
    return "FAIL" if "FAIL" in outcomes else "NOT RUN" if "NOT RUN" in outcomes else "PASS"


def refuse_failed(found: Sequence[Criterion]) -> None:
    """Raise GateError when a criterion failed, GateNotRunError when one was not measured."""
    outcome = verdict(found)
    if outcome == "PASS":
        return
    said = [
        f"{each.name} {each.detail}" for each in found if each.outcome == outcome and each.is_needed
    ]
    error = GateError if outcome == "FAIL" else GateNotRunError
    raise error(f"gate: {'; '.join(said)}; the model is saved, the bounds are in train.gate")
