"""Values of helm-soperator-notifier: ended jobs, told to Slack. Pure."""

from __future__ import annotations

from typing import Any


def notifier_values(webhook_url: Any) -> dict[str, Any]:
    """The webhook, a secret; the chart puts it into a Secret of its own."""
    return {"nameOverride": "soperator-notifier", "slack": {"webhookUrl": webhook_url}}
