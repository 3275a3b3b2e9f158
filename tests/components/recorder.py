"""A recording engine: every resource of a stack as the program registers it, and its outputs.

Secrets stay wrapped in what is recorded, so that a test sees which values the engine would hide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
from google.protobuf import json_format
from pulumi.runtime import mocks

from cost.prices.book import PriceBook
from cost.resources.estimate import estimate
from infra.components.recorder import PROJECT, Answers, run
from infra.components.stack import Stack
from infra.providers.engine.provider import SECRET, SIGNATURE
from infra.state import CHECKOUT
from stacks.spec import StackSpec

OUTPUTS = "test:index:Outputs"
"""A resource whose inputs are the outputs of the stack."""
_ROOT = "pulumi:pulumi:Stack"


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
        super().__init__(Answers())
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


def declare(
    spec: StackSpec,
    build_folder: Path,
    *,
    slack_webhook_url: Callable[[], Any] = lambda: pulumi.Output.secret("HIDDEN webhook"),
    rolls_in_stages: bool = False,
) -> Recorder:
    """Runs the whole stack against a fresh recorder; secrets are made inside its run."""
    recorder = Recorder()
    costs = estimate(spec, PriceBook.load(spec.prices))

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

    run(program, recorder)
    return recorder


def plain(value: Any) -> Any:
    """The value without the wraps of its secrets."""
    if isinstance(value, dict):
        if value.get(SIGNATURE) == SECRET:
            return plain(value["value"])
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value
