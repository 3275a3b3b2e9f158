"""Backups of the jail by k8up: schedule, restore, and what a teardown deletes first.

The chart helm-soperator-backup-config only writes a ConfigMap that Flux reads (nebius/soperator
0b21c36), so the Schedule is declared itself, with the values that the chart has. A Restore writes
to the root of a claim and nowhere else (k8up-io/k8up operator/restorecontroller, read 2026-11-21),
so a folder beside the users' files is a volume and a claim of its own on the same filesystem.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from infra.render import names
from infra.render.charts import KRUISE, cluster_charts, k8up_chart, platform_charts
from infra.render.names import kube_object
from infra.render.templates import manifest
from stacks.spec import StackSpec
from stacks.spec.storage import BackupSpec

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
_ID_KEY: Final = "aws-access-key-id"
_SECRET_KEY: Final = "aws-access-secret-key"  # noqa: S105
PASSWORD_KEY: Final = "backup-password"  # noqa: S105


def pod_config_spec() -> dict[str, Any]:
    """What the pods of all jobs have."""
    return _spec("PodConfig")


def _spec(kind: str, known: Mapping[str, Any] | None = None, **values: Any) -> dict[str, Any]:
    return manifest("backup.yaml.j2", known, kind=kind, pod_config=POD_CONFIG, **values)


def password_key(fingerprint: str) -> str:
    """Key in the secret of an earlier password."""
    return f"{PASSWORD_KEY}-{fingerprint}"


def kept_secret(fingerprint: str) -> str:
    """Name of the secret that keeps one password in the cluster, whatever becomes of the state."""
    return f"{SECRET}-{fingerprint}"


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
    return _spec(
        "Schedule",
        backup=backup,
        bucket=bucket,
        endpoint=endpoint,
        repository=repository,
        secret=SECRET,
        id_key=_ID_KEY,
        secret_key=_SECRET_KEY,
        password_key=PASSWORD_KEY,
    )


def backup(name: str, namespace: str, schedule: Mapping[str, Any]) -> dict[str, Any]:
    """A Backup now, as the spec of a Schedule makes them when they are due."""
    own = {key: value for key, value in schedule["backup"].items() if key not in _TIMES}
    shared = {key: schedule[key] for key in ("backend", "podSecurityContext") if key in schedule}
    return kube_object(API_VERSION, BACKUP_KIND, name, namespace, spec={**shared, **own})


RESTORE_KIND: Final = "Restore"
JAIL_ON_NODE: Final = "/mnt/jail"
"""Where the nodes mount the jail: helm-slurm-cluster-storage."""
FOLDER: Final = "/mnt/restored"
"""Folder of the jail that has what is restored beside the users' files."""
_PATTERNS: Final = frozenset("*?[]\\")

Object = dict[str, Any]


def restore(
    name: str,
    namespace: str,
    *,
    backend: Mapping[str, Any],
    snapshot: str,
    claim: str = CLAIM,
    path: str | None = None,
) -> Object:
    """The Restore of a snapshot, or of one path of the jail in it, into the root of a claim.

    k8up asks restic for `SNAPSHOT:/data/CLAIM`, so the root of the jail is the root that a path is
    looked for in (k8up 4.8.7, restic/cli/restore.go; up to 4.8.6 the path began with /data/CLAIM).
    """
    known = {"backend": dict(backend)}
    spec = _spec(RESTORE_KIND, known, snapshot=snapshot, claim=claim, path=path)
    return kube_object(API_VERSION, RESTORE_KIND, name, namespace, spec=spec)


def path_problem(path: str) -> str:
    """Why a path cannot be chosen from a snapshot; empty where it can."""
    parts = path.split("/")[1:]
    if not path.startswith("/") or path == "/" or not all(parts) or {".", ".."} & set(parts):
        return "is no absolute path in the jail, such as /home/user/file"
    if _PATTERNS & set(path):
        return "has a letter that restic takes for a pattern: *, ?, [, ] or \\"
    return ""


def folder_in_jail(name: str) -> str:
    """Path that users see of what a Restore of this name writes beside their files."""
    return f"{FOLDER}/{name}"


def folder_objects(name: str, namespace: str) -> tuple[Object, Object]:
    """A volume on that folder of the jail, which the node makes, and its claim."""
    offered = _spec(
        "PersistentVolume",
        name=name,
        namespace=namespace,
        folder=f"{JAIL_ON_NODE}{folder_in_jail(name)}",
        label=names.JAIL_LABEL,
    )
    volume = kube_object("v1", "PersistentVolume", name, spec=offered)
    kind = "PersistentVolumeClaim"
    return volume, kube_object("v1", kind, name, namespace, spec=_spec(kind, name=name))


def backends_of(backend: Mapping[str, Any], repository: str) -> list[dict[str, Any]]:
    """The schedule's backend, turned to the repository that a snapshot lies in, with each place
    that may have its password, the first that has it counts.

    Another one than the schedule's was made with an earlier password, whose fingerprint is the last
    part of its name: the state brings it, or, where the state was lost since, the cluster kept it.
    """
    s3 = backend["s3"]
    if repository in ("", f"s3:{s3['endpoint']}/{s3['bucket']}"):
        return [dict(backend)]
    bucket = repository.removeprefix(f"s3:{s3['endpoint']}/")
    fingerprint = repository.rpartition("/")[2]
    places = (
        {"name": SECRET, "key": password_key(fingerprint)},
        {"name": kept_secret(fingerprint), "key": PASSWORD_KEY},
    )
    return [{"s3": {**s3, "bucket": bucket}, "repoPasswordSecretRef": each} for each in places]


def namespaces(spec: StackSpec) -> tuple[str, ...]:
    """Every namespace of the stack, the Slurm cluster's own first."""
    charts = [
        *platform_charts(spec),
        *cluster_charts(spec, allocation_id="", ssh_public_keys=[], slack_webhook_url=""),
    ]
    if spec.storage.backup is not None:
        charts.append(k8up_chart(spec))
    made = (chart.namespace for chart in charts)
    return tuple(dict.fromkeys((spec.cluster.namespace, *made, KRUISE)))
