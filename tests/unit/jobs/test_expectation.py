"""A job's next moment comes from the scheduler, from our forecast, or from its limit."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from cost.runs.ledger import FILE_NAME, ForecastEntry, Ledger
from infra.clients.slurm import Job
from infra.jobs.follow import expected, forecast_hours

STARTED = "2026-11-21T05:00:00"
LIMIT = "2026-11-21T13:00:00"


@pytest.mark.parametrize(
    ("state", "started", "hours", "text"),
    [
        ("PENDING", None, None, None),
        ("PENDING", STARTED, Decimal(2), f"starts {STARTED}"),
        ("RUNNING", STARTED, Decimal("1.5"), "ends 2026-11-21T06:30:00 by forecast"),
        ("RUNNING", STARTED, None, f"ends {LIMIT} at the latest"),
        ("RUNNING", "five o'clock", Decimal(1), f"ends {LIMIT} at the latest"),
        ("COMPLETED", STARTED, Decimal(1), None),
    ],
)
def test_the_next_moment_of_a_job(
    state: str, started: str | None, hours: Decimal | None, text: str | None
) -> None:
    job = Job(id="1", name="finetune", state=state, started=started, limit_at=LIMIT)
    assert expected(job, hours) == text


def test_forecasts_of_another_cluster_with_the_same_ids_do_not_count(tmp_path: Path) -> None:
    with Ledger(tmp_path / "runs" / "local" / FILE_NAME).locked() as ledger:
        for cluster, hours in (("old", Decimal(9)), ("new", Decimal(2)), ("new", None)):
            ledger.append(
                ForecastEntry(
                    at=datetime(2026, 11, 21, tzinfo=UTC),
                    job="finetune",
                    job_id="1" if hours else "2",
                    cluster=cluster,
                    num_nodes=1,
                    hours=hours,
                    nodes_usd=None,
                    basis="measured",
                )
            )
    assert forecast_hours(tmp_path, "local", "new") == {"1": Decimal(2)}
    assert forecast_hours(tmp_path, "other", "new") == {}
