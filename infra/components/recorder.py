"""The program without an engine: what it would send to Kubernetes, with the values as they are.

What a provider would answer (ids, keys, addresses) is made up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pulumi
from pulumi.runtime import mocks

from cost.prices.book import PriceBook
from cost.resources.estimate import estimate
from infra.components.stack import Stack
from infra.providers.engine.provider import SECRET, SIGNATURE, reveal, unmarshal
from infra.state import CHECKOUT
from stacks.spec import StackSpec

PROJECT = "soperator-stack"
_KUBERNETES: Final = "kubernetes:"
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


class Answers(mocks.Mocks):
    """What the real plugins answer: ids by type and name, a secret private key, a status."""

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


def run(program: Callable[[], None], monitor: mocks.MockMonitor) -> None:
    """Runs a program whose resources go to the monitor."""
    # Pulumi asks for the thread's event loop, which asyncio.run of an earlier test takes away.
    asyncio.set_event_loop(asyncio.new_event_loop())
    mocks.set_mocks(monitor.mocks, project=PROJECT, stack="stack", monitor=monitor)
    pulumi.runtime.test(program)()


class _Sent(mocks.MockMonitor):
    def __init__(self) -> None:
        super().__init__(Answers())
        self.inside: list[tuple[str, dict[str, Any]]] = []

    def RegisterResource(self, request: Any) -> Any:
        if request.type.startswith(_KUBERNETES):
            self.inside.append((request.type, reveal(unmarshal(request.object))))
        return super().RegisterResource(request)


def sent_to_kubernetes(spec: StackSpec, build_folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """Type and inputs of every resource inside the kube cluster, in the program's order."""
    monitor = _Sent()

    def program() -> None:
        Stack(
            spec,
            burn=estimate(spec, PriceBook.load(spec.prices)),
            root=CHECKOUT,
            build_folder=build_folder,
            slack_webhook_url=pulumi.Output.secret("HIDDEN webhook"),
        )

    run(program, monitor)
    return monitor.inside
