"""Rules of a stack's lifetime: an end that is a time, an idle limit that can be seen."""

from __future__ import annotations

from typing import Final

from stacks.errors import Findings
from stacks.schedule import parse_end
from stacks.spec import StackSpec

_MOST_HOURS: Final = 30 * 24
"""An idle month is not told from a forgotten stack."""


def check_lifetime(spec: StackSpec, findings: Findings) -> None:
    """What is declared has an effect, and something can see it."""
    lifetime = spec.lifetime
    if lifetime is None:
        return
    if lifetime.until is None and lifetime.idle_hours is None:
        findings.error(
            "lifetime",
            "neither until nor idle_hours, so it ends nothing; give one of them, or remove it",
            rule="lifetime.empty",
        )
    if lifetime.until is not None and parse_end(lifetime.until) is None:
        findings.error(
            "lifetime.until",
            f"'{lifetime.until}' is no time with its zone; write 2026-12-24T18:00Z",
            rule="lifetime.until",
        )
    if lifetime.idle_hours is None:
        return
    if lifetime.idle_hours > _MOST_HOURS:
        findings.error(
            "lifetime.idle_hours",
            f"{lifetime.idle_hours} is more than {_MOST_HOURS}; declare less, or an end",
            rule="lifetime.idle-hours",
        )
    if not spec.slurm.accounting:
        findings.error(
            "lifetime.idle_hours",
            "nobody knows when the last job ended: slurm.accounting is off; switch it on, or "
            "declare lifetime.until alone",
            rule="lifetime.idle-unseen",
        )
    for index, job in enumerate(spec.jobs):
        if job.schedule is not None:
            findings.error(
                f"jobs[{index}].schedule",
                "an idle stack is paused (lifetime.idle_hours), and then no schedule runs any "
                "more; take idle_hours out and declare lifetime.until, or take the schedule out",
                rule="lifetime.idle-schedule",
            )
