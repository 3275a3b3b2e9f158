"""Copies of the jail: what k8up gets, and which rights its account has. Pure.

The chart helm-soperator-backup-config only writes a ConfigMap that Flux reads (nebius/soperator
0b21c36), so the Schedule is declared itself, with the values that the chart has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from infra.render.chart import Chart
from stacks.storage_spec import BackupSpec

SECRET: Final = "jail-backup"  # noqa: S105  # the name of one
SCHEDULE: Final = "jail-backup"
POD_CONFIG: Final = "jail-backup"
CLAIM: Final = "jail-pvc"
"""Claim of the jail, as helm-slurm-cluster-storage names it."""
API_VERSION: Final = "k8up.io/v1"
KIND: Final = "Schedule"
POD_CONFIG_KIND: Final = "PodConfig"
BACKUP_KIND: Final = "Backup"
# Of the one bucket and nothing else: README of the recipe, backups, files of 2026-07 to 09.
ROLES: Final = ("storage.object-editor", "storage.viewer")
_TIMES: Final = ("schedule", "concurrentRunsAllowed")
"""Keys of a Schedule's part that its objects do not have."""
_TAG: Final = "soperator-jail-schedule"
_ID_KEY: Final = "aws-access-key-id"
_SECRET_KEY: Final = "aws-access-secret-key"  # noqa: S105
PASSWORD_KEY: Final = "backup-password"  # noqa: S105


def k8up_chart() -> Chart:
    """The operator that makes the copies; its crds/ bring the custom resources."""
    return Chart(
        release="k8up",
        chart="k8up",
        # What soperator-fluxcd 4.1.7 pins (nebius/soperator, 2026-07-30).
        version="4.8.*",
        repository="https://k8up-io.github.io/k8up",
        namespace="k8up-system",
        definitions="k8up.io",
        values={
            "k8up": {
                # Only volumes that ask for it, as the jail's claim does: the rest of the namespace
                # is submounts of terabytes.
                "skipWithoutAnnotation": True
            }
        },
    )


def pod_config_spec() -> dict[str, Any]:
    """What the pods of all jobs have: every node with the jail has a taint of its role."""
    pod = {
        # A pod needs one by its schema; k8up brings its own image and command.
        "containers": [{"name": "k8up"}],
        # Files of every user.
        "securityContext": {"runAsUser": 0},
        "tolerations": [{"operator": "Exists"}],
    }
    return {"template": {"spec": pod}}


def password_key(fingerprint: str) -> str:
    """Key in the secret of an earlier password."""
    return f"{PASSWORD_KEY}-{fingerprint}"


def kept_secret(fingerprint: str) -> str:
    """Name of the secret that keeps one password in the cluster, whatever becomes of the state."""
    return f"{SECRET}-{fingerprint}"


def kept_data(password: str) -> dict[str, str]:
    """Text of its only key."""
    return {PASSWORD_KEY: password}


def secret_data(
    *, key_id: str, secret: str, password: str, earlier: Mapping[str, str]
) -> dict[str, str]:
    """Text of the secret's keys; earlier passwords open earlier repositories."""
    old = {password_key(fingerprint): each for fingerprint, each in earlier.items()}
    return {_ID_KEY: key_id, _SECRET_KEY: secret, PASSWORD_KEY: password, **old}


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
            "repoPasswordSecretRef": {"name": SECRET, "key": PASSWORD_KEY},
        },
        "backup": {
            "schedule": backup.schedule,
            "failedJobsHistoryLimit": 2,
            "successfulJobsHistoryLimit": 2,
            "concurrentRunsAllowed": False,
            "tags": [_TAG],
            "podConfigRef": {"name": POD_CONFIG},
        },
        "prune": {
            "schedule": backup.prune_schedule,
            "retention": {"keepDaily": backup.keep_daily, "tags": [_TAG]},
            "podConfigRef": {"name": POD_CONFIG},
        },
        # Files of every user.
        "podSecurityContext": {"runAsUser": 0},
    }


def backup(name: str, namespace: str, schedule: Mapping[str, Any]) -> dict[str, Any]:
    """A Backup now, as the spec of a Schedule makes them when they are due."""
    own = {key: value for key, value in schedule["backup"].items() if key not in _TIMES}
    shared = {key: schedule[key] for key in ("backend", "podSecurityContext") if key in schedule}
    return {
        "apiVersion": API_VERSION,
        "kind": BACKUP_KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**shared, **own},
    }
