"""Calls that are no create, get, list, update or delete: tokens, prices, secrets, versions."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jwt
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from jwt.types import Options

from infra.local.nebius_api import access_keys
from infra.local.nebius_api.calculator import estimate
from infra.local.nebius_api.errors import unauthenticated
from infra.local.nebius_api.store import Store
from infra.nebius.schema import Schema
from stacks.catalog import PLATFORMS

_TOKEN_S: Final = 12 * 3600
_LEEWAY_S: Final = 60
"""How far the clocks may differ; what the real service allows is not documented."""
_SIGNATURE_ONLY: Final[Options] = {"verify_aud": False, "verify_iat": False, "verify_exp": False}
_KUBERNETES_VERSIONS: Final = ("1.31", "1.32", "1.33", "1.34")
# Invented, but for the pairs that the recipe uses (nebius-solutions-library soperator, 2026-04).
_IMAGES: Final = (
    ("ubuntu24.04", "cuda12.8"),
    ("ubuntu24.04", "cuda13.0"),
    ("ubuntu22.04", "cuda12"),
)
_GPU_PLATFORMS: Final = tuple(p.name for p in PLATFORMS.values() if p.gres_type is not None)
UNAUTHENTICATED_METHODS: Final = frozenset({"nebius.iam.v1.TokenExchangeService/Exchange"})


@dataclass(frozen=True)
class Call:
    """One call that a hook answers."""

    schema: Schema
    store: Store
    method: MethodDescriptor
    request: Any
    subject: str
    """Id of the account behind the token."""
    now: float
    """Seconds since the epoch, by the emulator's clock."""

    def answer(self, **fields: Any) -> Any:
        """A new response message."""
        return self.schema.message(self.method.output_type.full_name)(**fields)


def _exchange_token(call: Call) -> Any:
    """Trades a JWT, signed by a service account's registered key, for a bearer token."""
    token = call.request.subject_token
    try:
        key = call.store.resources[jwt.get_unverified_header(token)["kid"]]
        account = key.spec.account.service_account.id
        claims = jwt.decode(token, key.spec.data, algorithms=["RS256"], options=_SIGNATURE_ONLY)
        # By the emulator's clock: PyJWT would ask this machine's.
        if not claims["iat"] - _LEEWAY_S <= call.now < claims["exp"] + _LEEWAY_S:
            raise ValueError("iat and exp are not around the present time")
        if not claims["iss"] == claims["sub"] == account:
            raise ValueError(f"iss and sub are not {account}, the owner of the key")
    except (jwt.PyJWTError, KeyError, ValueError) as error:
        raise unauthenticated(f"bad subject token: {error}") from error
    access_token = f"ne1{uuid.uuid4().hex}"
    call.store.put_token(access_token, account)
    return call.answer(
        access_token=access_token,
        token_type="Bearer",  # noqa: S106
        expires_in=_TOKEN_S,
        issued_token_type="urn:ietf:params:oauth:token-type:access_token",  # noqa: S106
    )


def _profile(call: Call) -> Any:
    answer = call.answer()
    account = call.store.resources.get(call.subject)
    if account is not None:
        answer.service_account_profile.info.CopyFrom(account)
    else:
        answer.user_profile.id = call.subject
    return answer


def _estimate(call: Call) -> Any:
    return estimate(call.schema, call.request, call.answer())


def _secret(call: Call) -> Any:
    key = call.store.resources[call.request.id]
    answer = call.answer(secret=access_keys.secret(key.metadata.id))
    if hasattr(answer, "aws_access_key_id"):
        answer.aws_access_key_id = access_keys.key_id(key.metadata.id)
    return answer


def _control_plane_versions(call: Call) -> Any:
    items = [{"version": version} for version in _KUBERNETES_VERSIONS]
    return json_format.ParseDict({"items": items}, call.answer())


def _compatibility_matrix(call: Call) -> Any:
    """Drivers that the images of node groups bring, by Kubernetes version."""
    asked = call.request.cluster_kubernetes_version
    versions = [
        {
            "kubernetes_version": version,
            "items": [
                {"os": os, "drivers_preset": drivers, "compatible_platforms": list(_GPU_PLATFORMS)}
                for os, drivers in _IMAGES
            ],
        }
        for version in _KUBERNETES_VERSIONS
        if asked in ("", version)
    ]
    return json_format.ParseDict({"versions": versions}, call.answer())


HOOKS: Final[Mapping[str, Callable[[Call], Any]]] = {
    "nebius.billing.v1.CalculatorService/EstimateBatch": _estimate,
    "nebius.iam.v1.AccessKeyService/GetSecretOnce": _secret,
    "nebius.iam.v1.ProfileService/Get": _profile,
    "nebius.iam.v1.TokenExchangeService/Exchange": _exchange_token,
    "nebius.iam.v2.AccessKeyService/GetSecret": _secret,
    "nebius.mk8s.v1.ClusterService/ListControlPlaneVersions": _control_plane_versions,
    "nebius.mk8s.v1.NodeGroupService/GetCompatibilityMatrix": _compatibility_matrix,
}
