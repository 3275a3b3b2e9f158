"""Rules of alerts: limits that can fire and can be quiet, and something that collects metrics."""

from __future__ import annotations

from typing import Final

from stacks.errors import Findings
from stacks.spec import StackSpec
from stacks.spec.cluster import AlertsSpec, Observability

_DAY_MINUTES: Final = 24 * 60
_LIMITS: Final = {
    "min_gpu_utilization_percent": (1, 100),
    # What an ended job sent last is seen for five minutes more.
    "stalled_step_minutes": (6, _DAY_MINUTES),
    "checkpoint_minutes": (6, 7 * _DAY_MINUTES),
    "drained_minutes": (1, _DAY_MINUTES),
}
"""Least and most of each limit; metrics are kept for a week."""


def check_alerts(spec: StackSpec, findings: Findings) -> None:
    """Every limit in its range, and only where metrics are."""
    alerts = spec.soperator.alerts
    if alerts is None:
        return
    if spec.soperator.observability is Observability.OFF:
        findings.error(
            "soperator.alerts",
            "given, but nothing collects metrics to alert on; set soperator.observability to "
            "small, or remove it",
            rule="soperator.alerts-unseen",
        )
    for name, (least, most) in _LIMITS.items():
        value: int = getattr(alerts, name)
        if not least <= value <= most:
            findings.error(
                f"soperator.alerts.{name}",
                f"{value} is not between {least} and {most}",
                rule="soperator.alert-limit",
            )


assert {*_LIMITS} == {*AlertsSpec.__slots__}, "every limit has a range"
