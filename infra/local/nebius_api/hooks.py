"""What single services do beside their resource: kubeconfigs, capacity, the price calculator.

The calculator answers what an hour of instances, node groups of a fixed size, disks and filesystems
costs, a SkuCost for each part that is billed, from price_table.yaml beside this file, and refuses
the rest: real rounding and SKU ids are not published.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import jwt
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from jwt.types import Options

from infra.local.nebius_api import states
from infra.local.nebius_api.errors import (
    ApiError,
    bad_request,
    unauthenticated,
    unimplemented,
)
from infra.local.nebius_api.states import Store
from infra.providers.nebius.resource_type import GIB, size_bytes
from infra.providers.nebius.schema import Schema, enum_word
from stacks.catalog import PLATFORMS, find_preset
from stacks.files import parse_yaml

_TABLE: Final = Path(__file__).with_name("price_table.yaml")
_HOUR: Final = "FILTER_AGGREGATION_UNIT_HOUR"
_CENT: Final = Decimal("0.01")
_DIGITS: Final = Decimal("1e-12")


@dataclass(frozen=True, slots=True)
class _Part:
    """One billed part of one resource, for an hour."""

    sku_id: str
    quantity: Decimal
    usd: Decimal


def estimate(schema: Schema, request: Any, answer: Any) -> Any:
    """The filled answer of EstimateBatch; ApiError where a resource has no price."""
    if request.currency.upper() not in ("", "USD"):
        raise bad_request([("currency", f"{request.currency!r} is not supported, use USD")])
    if not request.resource_specs:
        raise bad_request([("resource_specs", "value is required")])
    asked = json_format.MessageToDict(request.filter_aggregation_unit)
    if others := set(asked.get("filterAggregationUnitValues", ())) - {_HOUR}:
        raise unimplemented(f"prices by {', '.join(sorted(others))}")
    costs = [_cost(schema, spec, n) for n, spec in enumerate(request.resource_specs)]
    hourly = {"aggregation_unit": {"unit": "hour", "unit_type": "UNIT_TYPE_TIME_BASED"}}
    answer.currency = "USD"
    for message, parts in costs:
        row = answer.resource_costs.add()
        row.metadata.CopyFrom(message.metadata)
        charged: dict[str, Any] = {"general": {"total": _breakdown(parts)}}
        if (count := _num_instances(message.spec)) is not None:
            each = {"per_instance": _breakdown(parts), "instance_count": count}
            charged = {"fixed_instance": {"total": _breakdown(parts, count), **each}}
        json_format.ParseDict({**hourly, **charged}, row)
    counts = [_num_instances(one.spec) for one, _ in costs]
    times = [1 if count is None else count for count in counts]
    total = _sum([part for (_, parts), n in zip(costs, times, strict=True) for part in parts * n])
    json_format.ParseDict({**hourly, "general": {"total": total}}, answer.total_costs.add())
    return answer


def _cost(schema: Schema, spec: Any, number: int) -> tuple[Any, list[_Part]]:
    """One resource of the request, and its parts."""
    path = f"resource_specs.{number}.spec"
    name = spec.spec.type_url.rsplit("/", 1)[-1]
    if name not in _PRICED:
        raise bad_request([(path, f"no price for {name or 'an empty spec'}")])
    type_: Any = schema.message(name)
    message = type_.FromString(spec.spec.value)
    return message, _PRICED[name](message.spec, f"{path}.spec")


def _instance(spec: Any, path: str) -> list[_Part]:
    resources, path = spec.resources, f"{path}.resources"
    preset = find_preset(resources.platform, resources.preset)
    prices = _table()["platforms"].get(resources.platform)
    if preset is None or prices is None:
        raise _no_price(path, f"{resources.platform} {resources.preset}")
    is_preemptible = spec.HasField("preemptible")
    gpu = "preemptible_gpu" if is_preemptible else "gpu"
    counts = {gpu: preset.gpus, "vcpu": preset.vcpus, "ram": preset.memory_gib}
    billed = [part for part in counts if counts[part] and part in prices]
    if (preset.gpus or is_preemptible) and gpu not in billed:
        raise _no_price(path, f"{resources.platform}, preemptible")
    return [_part(f"{resources.platform}.{part}", counts[part], prices[part]) for part in billed]


def _volume(kind: str, spec: Any, path: str) -> list[_Part]:
    type_ = enum_word(spec, "type")
    prices = _table()[f"{kind}s_per_gib"]
    if type_ not in prices:
        raise _no_price(f"{path}.type", type_)
    return [_part(f"{kind}.{type_.lower()}", Decimal(size_bytes(spec)) / GIB, prices[type_])]


def _node_group(spec: Any, path: str) -> list[_Part]:
    """Of one of its instances."""
    if spec.HasField("autoscaling"):
        raise _no_price(f"{path}.autoscaling", "a group that scales")
    disk = _volume("disk", spec.template.boot_disk, f"{path}.template.boot_disk")
    return _instance(spec.template, f"{path}.template") + disk


def _num_instances(spec: Any) -> int | None:
    """Of a node group; None of what is none."""
    return getattr(spec, "fixed_node_count", None)


def _part(name: str, quantity: int | Decimal, usd: Decimal) -> _Part:
    return _Part(f"sku-e00.{name}", Decimal(quantity), quantity * usd)


def _no_price(path: str, what: str) -> ApiError:
    return bad_request([(path, f"no price for {what}")])


@cache
def _table() -> Any:
    return parse_yaml(_TABLE.read_text(encoding="utf-8"))


def _breakdown(parts: list[_Part], times: int = 1) -> dict[str, Any]:
    skus = []
    for part in parts:
        quantity = dict.fromkeys(("quantity", "quantity_rounded"), _text(part.quantity * times))
        skus.append({"sku_id": part.sku_id, **quantity, **_sum([part] * times)})
    return {"sku_costs": skus, **_sum(parts * times)}


def _sum(parts: list[_Part]) -> dict[str, str]:
    usd = sum((part.usd for part in parts), Decimal(0))
    return {"cost": _text(usd), "cost_rounded": str(usd.quantize(_CENT, ROUND_HALF_UP))}


def _text(value: Decimal) -> str:
    """A decimal as the API writes it: no exponent, no trailing zeros."""
    return f"{value.quantize(_DIGITS, ROUND_HALF_UP).normalize():f}"


_PRICED: Final[Mapping[str, Callable[[Any, str], list[_Part]]]] = {
    "nebius.compute.v1.CreateInstanceRequest": _instance,
    "nebius.compute.v1.CreateDiskRequest": partial(_volume, "disk"),
    "nebius.compute.v1.CreateFilesystemRequest": partial(_volume, "filesystem"),
    "nebius.mk8s.v1.CreateNodeGroupRequest": _node_group,
}


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


def _secret(call: Call) -> Any:
    key = call.store.resources[call.request.id]
    answer = call.answer(secret=states.secret(key.metadata.id))
    if hasattr(answer, "aws_access_key_id"):
        answer.aws_access_key_id = states.key_id(key.metadata.id)
    return answer


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
    "nebius.billing.v1.CalculatorService/EstimateBatch": lambda call: estimate(
        call.schema, call.request, call.answer()
    ),
    "nebius.iam.v1.AccessKeyService/GetSecretOnce": _secret,
    "nebius.iam.v1.ProfileService/Get": _profile,
    "nebius.iam.v1.TokenExchangeService/Exchange": _exchange_token,
    "nebius.iam.v2.AccessKeyService/GetSecret": _secret,
    "nebius.mk8s.v1.ClusterService/ListControlPlaneVersions": lambda call: json_format.ParseDict(
        {"items": [{"version": version} for version in _KUBERNETES_VERSIONS]}, call.answer()
    ),
    "nebius.mk8s.v1.NodeGroupService/GetCompatibilityMatrix": _compatibility_matrix,
}
