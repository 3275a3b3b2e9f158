"""Who we are, how long that lasts, and what that account may see."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from infra.nebius.errors import ApiError
from infra.nebius.token import iam_token
from infra.preflight.cloud import Cloud
from infra.preflight.finding import Finding, failed, not_checked, passed
from infra.preflight.inventory import Owner
from stacks.spec import StackSpec

CREDENTIAL_CHECK: Final = "credentials"
EXPIRY_CHECK: Final = "token expiry"
PERMISSION_CHECK: Final = "permissions"
EXPECTED_UP: Final = timedelta(minutes=45)
"""Longest of the first `up`s that seeds 001 and 002 tell of: 30 to 45 minutes."""
_FRESH: Final = "export NEBIUS_IAM_TOKEN=$(nebius iam get-access-token)"


def ask_account(cloud: Cloud, spec: StackSpec, owner: Owner) -> list[Finding]:
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
    try:
        cloud.get("iam.v1.ProfileService")
    except ApiError as error:
        if error.code != "UNAUTHENTICATED":
            raise
        return f"the API does not accept the token: {error.message}; {_FRESH}"
    return None


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
