"""Copies of the jail: what k8up gets, and which rights its account has. Pure.

The chart helm-soperator-backup-config only writes a ConfigMap that Flux reads (nebius/soperator
0b21c36), so the Schedule is declared itself, with the values that the chart has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from infra.render.charts import Chart
from stacks.storage_spec import BackupSpec

SECRET: Final = "jail-backup"  # noqa: S105  # the name of one
SCHEDULE: Final = "jail-backup"
API_VERSION: Final = "k8up.io/v1"
KIND: Final = "Schedule"
# Of the one bucket and nothing else: README of the recipe, backups, files of 2026-07 to 09.
ROLES: Final = ("storage.object-editor", "storage.viewer")
_TAG: Final = "soperator-jail-schedule"
_ID_KEY: Final = "aws-access-key-id"
_SECRET_KEY: Final = "aws-access-secret-key"  # noqa: S105
_PASSWORD_KEY: Final = "backup-password"  # noqa: S105


def k8up_chart() -> Chart:
    """The operator that makes the copies; its crds/ bring the custom resources."""
    return Chart(
        release="k8up",
        chart="k8up",
        # What soperator-fluxcd 4.1.7 pins (nebius/soperator, 2026-07-30).
        version="4.8.*",
        repository="https://k8up-io.github.io/k8up",
        namespace="k8up-system",
        values={
            "k8up": {
                # Only volumes that ask for it, as the jail's claim does: the rest of the namespace
                # is submounts of terabytes.
                "envVars": [{"name": "BACKUP_SKIP_WITHOUT_ANNOTATION", "value": "true"}]
            }
        },
    )


def secret_data(
    *, key_id: str, secret: str, password: str, earlier: Mapping[str, str]
) -> dict[str, str]:
    """Text of the secret's keys; earlier passwords open earlier repositories."""
    old = {f"{_PASSWORD_KEY}-{fingerprint}": each for fingerprint, each in earlier.items()}
    return {_ID_KEY: key_id, _SECRET_KEY: secret, _PASSWORD_KEY: password, **old}


def schedule_spec(
    backup: BackupSpec, *, bucket: str, endpoint: str, repository: str
) -> dict[str, Any]:
    """The Schedule: a repository for each password, so that none meets another's."""
    return {
        "backend": {
            "s3": {
                # k8up makes `s3:ENDPOINT/BUCKET` of it, so that a folder can follow.
                "bucket": f"{bucket}/{repository}",
                "endpoint": endpoint,
                "accessKeyIDSecretRef": {"name": SECRET, "key": _ID_KEY},
                "secretAccessKeySecretRef": {"name": SECRET, "key": _SECRET_KEY},
            },
            "repoPasswordSecretRef": {"name": SECRET, "key": _PASSWORD_KEY},
        },
        "backup": {
            "schedule": backup.schedule,
            "failedJobsHistoryLimit": 2,
            "successfulJobsHistoryLimit": 2,
            "concurrentRunsAllowed": False,
            "tags": [_TAG],
        },
        "prune": {
            "schedule": backup.prune_schedule,
            "retention": {"keepDaily": backup.keep_daily, "tags": [_TAG]},
        },
        # Files of every user.
        "podSecurityContext": {"runAsUser": 0},
    }
