"""The certificate as one self-contained HTML page: no request, every foreign text escaped."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from infra.accept import plots
from infra.accept.result import STAGES

_FOLDER = Path(__file__).parent
_FIRST = ("FAIL", "NOT_RUN", "PASS")
"""What a reader looks for first."""
_FACTORS = "2(n-1)/n (all_reduce), (n-1)/n (all_gather, reduce_scatter) or 1 (send_recv)"
"""workloads/accept/bus.py has them; nothing of it is imported here."""
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
        "ranks": ranks_text,
        "context": context_text,
        "number": number_text,
        "usd": usd_text,
    }
    measured = values["measurements"]
    drawn = {
        "Bandwidth of collectives": plots.bandwidth(measured.get("collectives", [])),
        "Scaling of training": plots.scaling(measured.get("training", {}).get("points", [])),
        "Soak": plots.rounds(measured.get("soak", {}).get("round_s", [])),
    }
    style = _REPORT_STYLE.read_text(encoding="utf-8") + (_FOLDER / "page.css").read_text(
        encoding="utf-8"
    )
    return environment.get_template("page.html.j2").render(
        it=values,
        checks=sorted(values["checks"], key=lambda check: _FIRST.index(check["outcome"])),
        outcome=outcome_text(values),
        style=Markup(style),  # noqa: S704 (our own files)
        plots={name: Markup(plot) for name, plot in drawn.items() if plot},  # noqa: S704 (escaped in svg.py)
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
    """`PASS`, or of some stages `PASS of readiness only`."""
    outcome = str(values["outcome"]).replace("_", " ")
    if set(values["stages"]) >= set(STAGES):
        return outcome
    return f"{outcome} of {', '.join(values['stages'])} only"


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
    """Ranks as a range where they are one: 0-7."""
    if len(ranks) > 1 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))


def context_text(context: Mapping[str, Any]) -> str:
    """What a number depends on, in one line."""
    return ", ".join(f"{name} {_short(value)}" for name, value in context.items())


def _short(value: object) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
