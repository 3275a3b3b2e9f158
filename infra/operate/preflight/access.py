"""Who we are and what that account may see for how long; names taken; charts that exist."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import urllib3

from infra.operate.preflight.check import (
    KINDS,
    Cloud,
    Finding,
    Outcome,
    Owner,
    failed,
    not_checked,
    passed,
)
from infra.providers.nebius.api import ApiError
from infra.providers.nebius.sdk import iam_token
from infra.render.charts import REGISTRY, cluster_charts, platform_charts
from infra.render.names import filesystems
from infra.render.nodes import boot_disk_name
from stacks.spec import StackSpec

CREDENTIAL_CHECK: Final = "credentials"
EXPIRY_CHECK: Final = "token expiry"
PERMISSION_CHECK: Final = "permissions"
EXPECTED_UP: Final = timedelta(minutes=45)
"""Longest of the first `up`s that seeds 001 and 002 tell of: 30 to 45 minutes."""
_FRESH: Final = "export NEBIUS_IAM_TOKEN=$(nebius iam get-access-token)"


def ask_account(cloud: Cloud, *_: object) -> list[Finding]:
    """Whether the API takes the token, and whose it is."""
    try:
        profile = cloud.get("iam.v1.ProfileService")
    except ApiError as error:
        if error.code != "UNAUTHENTICATED":
            raise
        seen = f"the API does not accept the token: {error.message}"
        return [failed(CREDENTIAL_CHECK, seen, _FRESH, certain=True)]
    kind = profile.WhichOneof("profile") or "account"
    id_ = (
        profile.service_account_profile.info.metadata.id
        if kind == "service_account_profile"
        else profile.user_profile.id
    )
    return [passed(CREDENTIAL_CHECK, f"{kind.removesuffix('_profile').replace('_', ' ')} {id_}")]


def credential_problem(cloud: Cloud) -> str | None:
    """Why the API does not take the token, with the fix, in one line; None where it does."""
    (found,) = ask_account(cloud)
    return f"{found.seen}; {found.fix}" if found.outcome is Outcome.FAIL else None


def ask_expiry(cloud: Cloud, spec: StackSpec, owner: Owner) -> list[Finding]:
    """Whether the token outlives a first `up`."""
    _, expires_at = iam_token()
    if expires_at is None:
        return [not_checked(EXPIRY_CHECK, "the token of NEBIUS_IAM_TOKEN does not tell its end")]
    if expires_at.tzinfo is None:
        expires_at = expires_at.replace(tzinfo=UTC)
    return [_expiry(expires_at - datetime.now(UTC))]


def _expiry(left: timedelta) -> Finding:
    minutes = int(left.total_seconds() // 60)
    expected = int(EXPECTED_UP.total_seconds() // 60)
    seen = f"{minutes} min left; a first `up` takes up to {expected} min"
    if left < EXPECTED_UP:
        return failed(EXPIRY_CHECK, seen, "sign in again: nebius profile create, or a new token")
    return passed(EXPIRY_CHECK, seen)


def ask_permissions(cloud: Cloud, spec: StackSpec, owner: Owner) -> list[Finding]:
    """Whether the project can be seen; what may be changed is only known by trying."""
    project = spec.nebius.project_id
    try:
        found = cloud.get("iam.v2.ProjectService", id=project)
    except ApiError as error:
        if error.code not in ("PERMISSION_DENIED", "NOT_FOUND"):
            raise
        seen = f"nebius.project_id: {project} cannot be read ({error.message})"
        fix = "check the id, or ask an administrator of the tenant for the role `editor` in it"
        return [failed(PERMISSION_CHECK, seen, fix, certain=True)]
    region = found.spec.region
    if region not in ("", spec.nebius.region):
        seen = f"nebius.region: the project is in {region}, not in {spec.nebius.region}"
        return [failed(PERMISSION_CHECK, seen, f"set nebius.region to {region}", certain=True)]
    return [passed(PERMISSION_CHECK, f"{project} can be read; writing is only known by trying")]


NAME_CHECK: Final = "names"


def wanted_names(spec: StackSpec) -> Iterator[tuple[str, str]]:
    """Kind of inventory.KINDS and name of each resource that the stack makes under its project."""
    name = spec.name
    if spec.nebius.subnet_id is None:
        yield "subnet", f"{name}-subnet"
        if spec.nebius.network_id is None:
            yield "network", f"{name}-network"
    yield "address", f"{name}-login"
    yield "cluster", f"{name}-kube"
    for tag, declared in filesystems(spec):
        if declared.existing_id is None:
            yield "filesystem", f"{name}-{tag}"
    if spec.nfs is not None:
        yield "address", f"{name}-nfs-address"
        yield "machine", f"{name}-nfs"
        yield "disk", boot_disk_name(f"{name}-nfs", spec.nfs.boot_disk.type)
        for index in range(spec.nfs.data_disks.count):
            yield "disk", f"{name}-nfs-data-{index}"
    made = [worker for worker in spec.nodes.workers if worker.gpu_cluster_id is None]
    for fabric in sorted({worker.infiniband_fabric for worker in made} - {None}, key=str):
        yield "GPU cluster", f"{name}-{fabric}"
    storage = spec.storage
    if storage.backup is not None:
        yield "bucket", f"{name}-backups"
        yield "service account", f"{name}-backup"
        yield "group", f"{name}-backup-writers"
    if storage.config_bucket_gib is not None:
        yield "bucket", f"{name}-configs"
        yield "service account", f"{name}-config-upload"
        yield "group", f"{name}-config-upload-writers"
    if storage.registry_gib is not None:
        yield "registry", f"{name}-images"


def ask_names(cloud: Cloud, spec: StackSpec, owner: Owner) -> list[Finding]:
    """Every name that a stranger has, and the kinds that the account may not list."""
    findings: list[Finding] = []
    wanted: dict[str, list[str]] = defaultdict(list)
    for kind, name in wanted_names(spec):
        wanted[kind].append(name)
    for kind, names in wanted.items():
        try:
            existing = cloud.list(KINDS[kind], spec.nebius.project_id)
        except ApiError as error:
            # An account without rights on one service still learns of the others' names.
            if error.code != "PERMISSION_DENIED":
                raise
            told = f"{kind} {', '.join(names)}: {error.message}"
            findings.append(not_checked(NAME_CHECK, told))
            continue
        findings += [
            failed(
                NAME_CHECK,
                f"the {kind} {found.metadata.name!r} exists as {found.metadata.id} and is not this "
                "stack's own",
                "delete or rename it, or take it over: soperator cluster adopt KIND "
                f"{found.metadata.id} --stack {spec.name}",
                certain=True,
            )
            for found in existing
            if found.metadata.name in names and not owner.owns(found)
        ]
    num_wanted = sum(map(len, wanted.values()))
    return findings or [passed(NAME_CHECK, f"{num_wanted} names are free or this stack's own")]


CHART_CHECK: Final = "charts"
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_TIMEOUT_S: Final = 4.0


def ask_charts(cloud: Cloud, spec: StackSpec, owner: Owner) -> list[Finding]:
    """Each chart that the registry does not have; nothing is asked beside the real cloud."""
    if cloud.target is not None:
        return [not_checked(CHART_CHECK, "the emulated cloud has no registry")]
    host, _, repository = REGISTRY.removeprefix("oci://").partition("/")
    return look_up(f"https://{host}", repository, own_charts(spec), spec.cluster.soperator_version)


def own_charts(spec: StackSpec) -> list[str]:
    """Names of the charts that the stack takes from Soperator's registry."""
    charts = (
        *platform_charts(spec),
        *cluster_charts(spec, allocation_id="", ssh_public_keys=[], slack_webhook_url=""),
    )
    own = f"{REGISTRY}/"
    return [one.chart.removeprefix(own) for one in charts if one.chart.startswith(own)]


def look_up(registry: str, repository: str, charts: list[str], version: str) -> list[Finding]:
    """What a registry says of each chart."""
    missing, silent = [], []
    with urllib3.PoolManager(timeout=_TIMEOUT_S, retries=False) as http:
        for chart in charts:
            url = f"{registry}/v2/{repository}/{chart}/manifests/{version}"
            try:
                status = http.request("HEAD", url, headers={"Accept": _MANIFEST}).status
            except urllib3.exceptions.HTTPError as error:
                return [
                    not_checked(CHART_CHECK, f"no answer from {registry}: {type(error).__name__}")
                ]
            if status == 404:
                missing.append(chart)
            elif status >= 400:
                silent.append(f"{chart} (HTTP {status})")
    if missing:
        fix = "set cluster.soperator_version to a released one (github.com/nebius/soperator)"
        seen = f"{registry} has no {version} of {', '.join(missing)}"
        return [failed(CHART_CHECK, seen, fix, certain=True)]
    if silent:
        return [not_checked(CHART_CHECK, f"{registry} does not tell of {', '.join(silent)}")]
    return [passed(CHART_CHECK, f"{len(charts)} charts of Soperator {version} are there")]
