"""Pre-flight check of a stack: every question at once, answered within 5 s or not at all.

    findings = ask(spec, project="soperator-stack")
    refusal(findings), doubts(findings), in_short(findings)

Reads only. An API that is down, slow or unknown is NOT CHECKED and never stops anybody; what is
certain to fail does, before the first resource is made. What the cloud has is supply.py's; here:
who we are and what that account may see for how long, names taken, charts that exist.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

import urllib3

from infra.operate.preflight import supply
from infra.operate.preflight.supply import (
    KINDS,
    Cloud,
    Finding,
    Outcome,
    failed,
    not_checked,
    passed,
)
from infra.providers.nebius.api import ApiError
from infra.providers.nebius.sdk import EndpointError, iam_token
from infra.render.charts import REGISTRY, cluster_charts, platform_charts
from infra.render.names import filesystems
from infra.render.nodes import boot_disk_noun
from stacks.spec import StackSpec

_EXPECTED_UP: Final = timedelta(minutes=45)
"""Longest of the first `up`s that seeds 001 and 002 tell of: 30 to 45 minutes."""
_FRESH: Final = "export NEBIUS_IAM_TOKEN=$(nebius iam get-access-token)"


def ask_account(cloud: Cloud, *_: object) -> Iterator[Finding]:
    """Whether the API takes the token, and whose it is."""
    try:
        profile = cloud.get("iam.v1.ProfileService")
    except ApiError as error:
        if error.code != "UNAUTHENTICATED":
            raise
        yield failed(f"the API does not accept the token: {error.message}", _FRESH, certain=True)
        return
    kind = profile.WhichOneof("profile") or "account"
    id_ = (
        profile.service_account_profile.info.metadata.id
        if kind == "service_account_profile"
        else profile.user_profile.id
    )
    yield passed(f"{kind.removesuffix('_profile').replace('_', ' ')} {id_}")


def credential_problem(cloud: Cloud) -> str | None:
    """Why the API does not take the token, with the fix, in one line; None where it does."""
    (found,) = ask_account(cloud)
    return f"{found.seen}; {found.fix}" if found.outcome is Outcome.FAIL else None


def ask_expiry(*_: object) -> Iterator[Finding]:
    """Whether the token outlives a first `up`."""
    expires_at = iam_token()[1]
    if expires_at is None:
        yield not_checked("the token of NEBIUS_IAM_TOKEN does not tell its end")
        return
    if expires_at.tzinfo is None:
        expires_at = expires_at.replace(tzinfo=UTC)
    yield _expiry(expires_at - datetime.now(UTC))


def _expiry(left: timedelta) -> Finding:
    minute = timedelta(minutes=1)
    seen = f"{left // minute} min left; a first `up` takes up to {_EXPECTED_UP // minute} min"
    if left < _EXPECTED_UP:
        return failed(seen, "sign in again: nebius profile create, or a new token")
    return passed(seen)


def ask_permissions(cloud: Cloud, spec: StackSpec) -> Iterator[Finding]:
    """Whether the project can be seen; what may be changed is only known by trying."""
    project = spec.nebius.project_id
    try:
        region = cloud.get("iam.v2.ProjectService", id=project).spec.region
    except ApiError as error:
        if not error.is_unseen:
            raise
        seen = f"nebius.project_id: {project} cannot be read ({error.message})"
        fix = "check the id, or ask an administrator of the tenant for the role `editor` in it"
        yield failed(seen, fix, certain=True)
        return
    if region not in ("", spec.nebius.region):
        seen = f"nebius.region: the project is in {region}, not in {spec.nebius.region}"
        yield failed(seen, f"set nebius.region to {region}", certain=True)
    else:
        yield passed(f"{project} can be read; writing is only known by trying")


def wanted_names(spec: StackSpec) -> Iterator[tuple[str, str]]:
    """Kind of KINDS and name of each resource that the stack makes under its project."""
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
        yield "disk", f"{name}-nfs-{boot_disk_noun(spec.nfs.boot_disk.type)}"
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


def ask_names(cloud: Cloud, spec: StackSpec) -> Iterator[Finding]:
    """Every name that a stranger has, and the kinds that the account may not list."""
    wanted: dict[str, list[str]] = defaultdict(list)
    for kind, name in wanted_names(spec):
        wanted[kind].append(name)
    are_free = True
    for kind, names in wanted.items():
        try:
            existing = cloud.list(KINDS[kind], spec.nebius.project_id)
        except ApiError as error:
            # An account without rights on one service still learns of the others' names.
            if error.code != "PERMISSION_DENIED":
                raise
            are_free = False
            yield not_checked(f"{kind} {', '.join(names)}: {error.message}")
            continue
        for found in existing:
            if found.metadata.name in names and not cloud.owns(spec, found):
                are_free = False
                yield failed(
                    f"the {kind} {found.metadata.name!r} exists as {found.metadata.id} and is not "
                    "this stack's own",
                    "delete or rename it, or take it over: soperator cluster adopt KIND "
                    f"{found.metadata.id} --stack {spec.name}",
                    certain=True,
                )
    if are_free:
        yield passed(f"{sum(map(len, wanted.values()))} names are free or this stack's own")


_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_TIMEOUT_S: Final = 4.0


def ask_charts(cloud: Cloud, spec: StackSpec) -> Iterator[Finding]:
    """Each chart that the registry does not have; nothing is asked beside the real cloud."""
    if cloud.target is not None:
        yield not_checked("the emulated cloud has no registry")
        return
    host, _, repository = REGISTRY.removeprefix("oci://").partition("/")
    version = spec.cluster.soperator_version
    yield look_up(f"https://{host}", repository, own_charts(spec), version)


def own_charts(spec: StackSpec) -> list[str]:
    """Names of the charts that the stack takes from Soperator's registry."""
    charts = (
        *platform_charts(spec),
        *cluster_charts(spec, allocation_id="", ssh_public_keys=[], slack_webhook_url=""),
    )
    own = f"{REGISTRY}/"
    return [one.chart.removeprefix(own) for one in charts if one.chart.startswith(own)]


def look_up(registry: str, repository: str, charts: list[str], version: str) -> Finding:
    """What a registry says of the charts."""
    missing, silent = [], []
    with urllib3.PoolManager(timeout=_TIMEOUT_S, retries=False) as http:
        for chart in charts:
            url = f"{registry}/v2/{repository}/{chart}/manifests/{version}"
            try:
                status = http.request("HEAD", url, headers={"Accept": _MANIFEST}).status
            except urllib3.exceptions.HTTPError as error:
                return not_checked(f"no answer from {registry}: {type(error).__name__}")
            if status == 404:
                missing.append(chart)
            elif status >= 400:
                silent.append(f"{chart} (HTTP {status})")
    if missing:
        fix = "set cluster.soperator_version to a released one (github.com/nebius/soperator)"
        seen = f"{registry} has no {version} of {', '.join(missing)}"
        return failed(seen, fix, certain=True)
    if silent:
        return not_checked(f"{registry} does not tell of {', '.join(silent)}")
    return passed(f"{len(charts)} charts of Soperator {version} are there")


WITHIN_S: Final = 5.0
_CREDENTIALS: Final = "credentials"
QUESTIONS: Final[dict[str, Callable[[Cloud, StackSpec], Iterator[Finding]]]] = {
    _CREDENTIALS: ask_account,
    "token expiry": ask_expiry,
    "permissions": ask_permissions,
    "quotas": supply.ask_quotas,
    "capacity": supply.ask_capacity,
    "platforms": supply.ask_platforms,
    "kubernetes version": supply.ask_versions,
    "drivers": supply.ask_drivers,
    "names": ask_names,
    "charts": ask_charts,
}
_SILENT: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})


def ask(spec: StackSpec, *, project: str, within_s: float = WITHIN_S) -> tuple[Finding, ...]:
    """The answers in the order of QUESTIONS; `project` is the Pulumi project of the stack."""
    until = time.monotonic() + within_s
    cloud = Cloud(within_s=within_s, project=project)
    answers: dict[str, list[Finding]] = {}

    def answer(check: str) -> None:
        try:
            answers[check] = list(QUESTIONS[check](cloud, spec))
            return
        except ApiError as error:
            reason = f"{error.code}: {error.message}"
            if error.code in _SILENT:
                reason = f"no answer from {cloud.target or 'the Nebius API'}"
        except EndpointError as error:
            reason = str(error) if check == _CREDENTIALS else "no way to the API"
        except Exception as error:
            # A question that breaks, say on an answer of a newer API, must stop nobody.
            reason = f"{type(error).__name__}: {error}"
        answers[check] = [not_checked(reason)]

    # Daemons: a call that hangs must not keep the process.
    threads = [threading.Thread(target=answer, args=(each,), daemon=True) for each in QUESTIONS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    cloud.given_up.set()
    late = [not_checked(f"no answer within {within_s:g} s")]
    return tuple(
        replace(finding, check=finding.check or check)
        for check in QUESTIONS
        for finding in answers.get(check) or late
    )


def refusal(findings: Sequence[Finding]) -> str | None:
    """The lines that stop an `up` before it begins, or None."""
    certain = [str(one) for one in findings if one.outcome is Outcome.FAIL and one.certain]
    return "\n".join(certain) if certain else None


def doubts(findings: Sequence[Finding]) -> list[str]:
    """What may go wrong and stops nobody, a text each."""
    return [str(one) for one in findings if one.outcome is Outcome.FAIL and not one.certain]


def in_short(findings: Sequence[Finding]) -> str:
    """One line: how many questions passed, and what was not checked."""
    num_passed = sum(one.outcome is Outcome.PASS for one in findings)
    silent = [one.check for one in findings if one.outcome is Outcome.NOT_CHECKED]
    told = f"pre-flight: {num_passed} passed"
    return f"{told}; not checked: {', '.join(silent)}" if silent else told
