"""Runs the program against a recording engine: declare(spec, folder) returns every resource.

Each with URN, inputs and which of them are secret. Used by tests and by
infra/operate/conformance. What a provider would answer (ids, keys, addresses) is made up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
from google.protobuf import json_format
from pulumi.runtime import mocks

from cost.prices.book import PriceBook
from cost.resources.estimate import estimate
from infra.components.stack import Stack
from infra.providers.engine.provider import SIGNATURE
from stacks.spec import StackSpec

CHECKOUT = Path(__file__).parents[2]
PROJECT = "soperator-stack"
OUTPUTS = "test:index:Outputs"
"""A resource whose inputs are the outputs of the stack."""
_ROOT = "pulumi:pulumi:Stack"
SECRET = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105  # marks one on the wire
_CLUSTER_STATUS = {
    "control_plane": {
        "endpoints": {
            "public_endpoint": "https://kube.test:443",
            "private_endpoint": "https://10.0.0.1:443",
        },
        "auth": {"cluster_ca_certificate": "CA-CERTIFICATE"},
    }
}
_STATUS: dict[str, Mapping[str, Any]] = {
    "nebius:vpc/v1:Allocation": {"details": {"allocated_cidr": "203.0.113.7/32"}},
    "nebius:vpc/v1:Subnet": {"ipv4_private_cidrs": ["10.0.0.0/16"]},
    "nebius:mk8s/v1:Cluster": _CLUSTER_STATUS,
    "nebius:storage/v1:Bucket": {"domain_name": "storage.test"},
    "nebius:registry/v1:Registry": {"registry_fqdn": "cr.test/e00"},
    "nebius:iam/v2:AccessKey": {
        "aws_access_key_id": "KEY-ID",
        "secret": {SIGNATURE: SECRET, "value": "HIDDEN access key"},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """One resource as the program asked for it."""

    type: str
    name: str
    urn: str
    parent: str
    """URN; empty for the root."""
    custom: bool
    provider: str
    depends_on: tuple[str, ...]
    """URNs, by options and by values."""
    retain_on_delete: bool
    before_create: tuple[str, ...]
    before_update: tuple[str, ...]
    """Names of hooks."""
    sent: dict[str, Any]
    """Inputs with secrets still wrapped."""

    @property
    def inputs(self) -> dict[str, Any]:
        """Inputs as the provider gets them."""
        return plain(self.sent)


class Recorder(mocks.MockMonitor):
    """Answers as the real plugins do: ids by type and name, a secret private key, a status."""

    def __init__(self) -> None:
        super().__init__(_Answers())
        self.registered: list[Registered] = []
        self.component_outputs: list[dict[str, Any]] = []
        """Outputs of components, with secrets still wrapped."""

    def make_urn(self, parent: str, type_: str, name: str) -> str:
        """The engine's URN: the whole chain of parent types, but for the root's."""
        above = parent.split("::")[2] if parent else _ROOT
        chain = type_ if above == _ROOT else f"{above}${type_}"
        return f"urn:pulumi:stack::{PROJECT}::{chain}::{name}"

    def RegisterResource(self, request: Any) -> Any:
        answer = super().RegisterResource(request)
        self.registered.append(
            Registered(
                type=request.type,
                name=request.name,
                urn=answer.urn,
                parent=request.parent,
                custom=request.custom,
                provider=request.provider,
                depends_on=tuple(request.dependencies),
                retain_on_delete=request.retainOnDelete,
                before_create=tuple(request.hooks.before_create),
                before_update=tuple(request.hooks.before_update),
                sent=json_format.MessageToDict(request.object),
            )
        )
        return answer

    def RegisterResourceOutputs(self, request: Any) -> Any:
        self.component_outputs.append(json_format.MessageToDict(request.outputs))
        return super().RegisterResourceOutputs(request)

    def of(self, type_: str) -> list[Registered]:
        """Every registration of one type, in the order of the program."""
        return [each for each in self.registered if each.type == type_]

    def one(self, type_: str, name: str | None = None) -> Registered:
        """The only registration of a type, or the one of that name."""
        found = [each for each in self.of(type_) if name in (None, each.name)]
        assert len(found) == 1, f"{type_} {name}: {len(found)}, not one"
        return found[0]

    @property
    def outputs(self) -> dict[str, Any]:
        """Outputs of the stack, with secrets still wrapped."""
        return self.one(OUTPUTS).sent


class _Answers(mocks.Mocks):
    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        state = dict(args.inputs)
        if args.typ.startswith("nebius:"):
            state["status"] = _STATUS.get(args.typ, {})
        if args.typ == "soperator:ssh:KeyPair":
            state["public_key"] = f"ssh-ed25519 PUBLIC {args.name}"
            state["private_key"] = {SIGNATURE: SECRET, "value": f"PRIVATE {args.name}"}
        if args.typ == "soperator:random:Password":
            state["fingerprint"] = f"fingerprint-{args.name}"
            state["password"] = {SIGNATURE: SECRET, "value": f"HIDDEN {args.name}"}
            state["earlier"] = {SIGNATURE: SECRET, "value": {"old": "HIDDEN earlier"}}
        if args.typ == "soperator:time:Expiry":
            state["at"] = "2027-11-21T00:00:00Z"
        if args.typ == "command:remote:Command":
            state["stdout"] = f"output of {args.name}"
        return f"{args.typ.rpartition(':')[2].lower()}-{args.name}", state

    def call(self, args: mocks.MockCallArgs) -> tuple[dict[str, Any], None]:
        raise AssertionError(f"the program asks nothing of a provider, but called {args.token}")


def declare(
    spec: StackSpec,
    build_folder: Path,
    *,
    slack_webhook_url: Callable[[], Any] = lambda: pulumi.Output.secret("HIDDEN webhook"),
    rolls_in_stages: bool = False,
) -> Recorder:
    """Runs the whole stack against a fresh recorder; secrets are made inside its run."""
    recorder = Recorder()
    book = PriceBook.load(spec.prices)
    costs = estimate(spec, book)
    # Pulumi asks for the thread's event loop, which asyncio.run of an earlier test takes away.
    asyncio.set_event_loop(asyncio.new_event_loop())
    mocks.set_mocks(recorder.mocks, project=PROJECT, stack="stack", monitor=recorder)

    @pulumi.runtime.test
    def program() -> None:
        stack = Stack(
            spec,
            burn=costs,
            root=CHECKOUT,
            build_folder=build_folder,
            slack_webhook_url=slack_webhook_url(),
            rolls_in_stages=rolls_in_stages,
        )
        pulumi.CustomResource(OUTPUTS, "outputs", stack.outputs)

    program()
    return recorder


def plain(value: Any) -> Any:
    """The value without the wraps of its secrets."""
    if isinstance(value, dict):
        if value.get(SIGNATURE) == SECRET:
            return plain(value["value"])
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value
