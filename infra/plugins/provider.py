"""What a resource plugin of ours implements: Provider, over plain values, and its errors.

A plugin subclasses Provider and calls serve.serve(). Custom resources only: no components,
functions, or parameterized packages.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from infra.plugins.diff import Diff, Kind, compare
from infra.plugins.engine import EngineLog
from infra.plugins.values import UNKNOWN, Archive, Asset, Secret, contains_unknown

__all__ = [
    "UNKNOWN",
    "Archive",
    "Asset",
    "Diff",
    "Kind",
    "PartialError",
    "Provider",
    "ProviderError",
    "Secret",
    "compare",
    "contains_unknown",
]

Values = dict[str, Any]
Failure = tuple[str, str]
"""Path of the value and the reason why it is refused."""


class ProviderError(Exception):
    """A refusal that the user reads as one line: path, what came, what is allowed, what to do."""


class PartialError(ProviderError):
    """The resource exists but did not become what was asked: the engine keeps `id` and `state`."""

    def __init__(self, message: str, *, id: str, state: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.id = id
        self.state = state


class Provider:
    """Behaviour of one plugin; override what the resources need, at least create and delete."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        """Set when the user interrupts; long waits must end soon after."""
        self.engine = EngineLog("")
        """Where lines for the user go while a call runs."""

    def configure(self, variables: Values) -> None:
        """Takes the provider's configuration, before any resource call."""

    def check(self, type_: str, old: Values, new: Values) -> tuple[Values, Iterable[Failure]]:
        """The inputs as they go to the state, with every problem found."""
        return new, ()

    def diff(self, type_: str, id: str, old_inputs: Values, old_state: Values, new: Values) -> Diff:
        """What an update would change; compares inputs by default."""
        return Diff(detailed=compare(old_inputs, new))

    def create(self, type_: str, urn: str, inputs: Values, preview: bool) -> tuple[str, Values]:
        """The new resource's id and state; in a preview the id is ignored and nothing happens."""
        raise NotImplementedError

    def update(
        self,
        type_: str,
        urn: str,
        id: str,
        old_state: Values,
        old_inputs: Values,
        new: Values,
        preview: bool,
    ) -> Values:
        """The state after the change; in a preview nothing happens."""
        raise ProviderError(f"{type_}: cannot be updated in place; replace it")

    def read(
        self, type_: str, id: str, state: Values, inputs: Values
    ) -> tuple[str, Values, Values] | None:
        """Id, state and inputs as they are in the world, or None where it is gone."""
        return id, state, inputs

    def delete(self, type_: str, id: str, state: Values) -> None:
        """Removes the resource; one that is already gone is no error."""
        raise NotImplementedError


def text_failures(inputs: Values, keys: Sequence[str]) -> list[Failure]:
    """Problems of inputs that must be these texts, not empty, and nothing else."""
    failures = [
        (key, f"unknown; has {', '.join(keys)}") for key in sorted(inputs.keys() - set(keys))
    ]
    for key in keys:
        value = inputs.get(key)
        if value is not UNKNOWN and (not isinstance(value, str) or not value):
            failures.append((key, "is required, as a text that is not empty"))
    return failures
