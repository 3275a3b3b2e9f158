"""The certificate as one self-contained HTML page: no request, every foreign text escaped."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import jinja2
from markupsafe import Markup

from infra.accept import plots
from infra.accept.result import STAGES
from infra.report.answers import REHEARSAL

_FOLDER = Path(__file__).parent
_FIRST = ("FAIL", "NOT_RUN", "PASS")
"""What a reader looks for first."""
_FACTORS = "2(n-1)/n (all_reduce), (n-1)/n (all_gather, reduce_scatter) or 1 (send_recv)"
"""workloads/accept/bus.py has them; nothing of it is imported here."""
_BEST: Final = {
    "collectives.values": (("up to ", "busbw_gb_per_s", "GB/s"),),
    "compute.values": (("up to ", "gemm_tflops", "TFLOP/s"),),
    "storage": (("write ", "write_gb_per_s", "GB/s"), ("read ", "read_gb_per_s", "GB/s")),
    "training.loss": (("up to ", "tokens_per_s", "tokens/s"),),
}
"""The figure of a stage that stands beside a check without a number of its own."""
_REPORT_STYLE = _FOLDER.parent / "report" / "page.css"


def render(values: Mapping[str, Any]) -> str:
    """The page's HTML; equal input gives equal bytes."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "limit": limit_text,
        "measured": lambda check: measured_text(check, values["measurements"]),
        "ranks": ranks_text,
        "context": context_text,
        "number": number_text,
        "usd": usd_text,
    }
    measured = values["measurements"]
    drawn = (
        plots.bandwidth(measured.get("collectives", [])),
        plots.scaling(measured.get("training", {}).get("points", [])),
        plots.rounds(measured.get("soak", {}).get("round_s", [])),
    )
    style = _REPORT_STYLE.read_text(encoding="utf-8") + (_FOLDER / "page.css").read_text(
        encoding="utf-8"
    )
    return environment.get_template("page.html.j2").render(
        it=values,
        checks=sorted(values["checks"], key=lambda check: _FIRST.index(check["outcome"])),
        outcome=outcome_text(values),
        style=Markup(style),  # noqa: S704 (our own files)
        plots=[Markup(plot) for plot in drawn if plot],  # noqa: S704 (escaped in cost/charts.py)
        is_rehearsal=is_rehearsal(values),
        counts={
            outcome: sum(check["outcome"] == outcome for check in values["checks"])
            for outcome in ("PASS", "FAIL", "NOT_RUN")
        },
        collectives=measured.get("collectives", []),
        factors=_FACTORS,
        wires=measured.get("wires", []),
        storage=measured.get("storage", []),
        points=measured.get("training", {}).get("points", []),
        compute=measured.get("compute", []),
    )


def outcome_text(values: Mapping[str, Any]) -> str:
    """`PASS`, `PASS of readiness only`, or `PASS (CPU rehearsal)` where no GPU took part."""
    outcome = str(values["outcome"]).replace("_", " ")
    if set(values["stages"]) < set(STAGES):
        outcome += f" of {', '.join(values['stages'])} only"
    return f"{outcome} ({REHEARSAL})" if is_rehearsal(values) else outcome


def is_rehearsal(values: Mapping[str, Any]) -> bool:
    """Whether no GPU took part, so that passing certifies none."""
    return not any(node["gpus"] for node in values["nodes"])


def measured_text(check: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    """The number of the check; a question without one is answered with yes or no, and its stage's
    best figure where it has one.
    """
    if check["measured"] is not None:
        return f"{number_text(check['measured'])} {check['unit']}".rstrip()
    answer = {"PASS": "yes", "FAIL": "no"}.get(check["outcome"], "-")
    rows = {**measured, "training": measured.get("training", {}).get("points", [])}
    stage = check["id"].partition(".")[0]
    found = [
        f"{name}{number_text(max(row[key] for row in of))} {unit}"
        for name, key, unit in _BEST.get("storage" if stage == "storage" else check["id"], ())
        if (of := [row for row in rows.get(stage, []) if _is_of(check, row)])
    ]
    return f"{answer}; {', '.join(found)}" if found and answer != "-" else answer


def _is_of(check: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether a measurement is of the check's subject; only those of storage are of one place."""
    return "path" not in row or check["subject"].startswith(f"{row['path']} on ")


def limit_text(limit: Mapping[str, Any] | None) -> str:
    """A limit in words: at least 350."""
    if limit is None:
        return ""
    if limit["at_least"] is not None:
        return f"at least {limit['at_least']:g}"
    return f"at most {limit['at_most']:g}"


def number_text(value: float) -> str:
    """Four digits, and whole numbers with thousands from 1,000 on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def usd_text(value: str) -> str:
    """Dollars with thousands and cents."""
    return f"{Decimal(value):,.2f}"


def ranks_text(ranks: list[int]) -> str:
    """How many ranks, and which, as a range where they are one: `8 ranks (0-7)`."""
    which = ", ".join(map(str, ranks))
    if len(ranks) > 1 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        which = f"{ranks[0]}-{ranks[-1]}"
    return f"{len(ranks)} rank{'' if len(ranks) == 1 else 's'} ({which})"


def context_text(context: Mapping[str, Any]) -> str:
    """What a number depends on, in one line."""
    return ", ".join(f"{name} {_short(value)}" for name, value in context.items())


def _short(value: object) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
