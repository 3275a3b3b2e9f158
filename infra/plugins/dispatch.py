"""One plugin over several providers, each with resource types of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from infra.plugins.provider import Diff, Failure, Provider

Values = dict[str, Any]


class Dispatch(Provider):
    """Hands each call to the provider of its type; all share the engine's log and interruption."""

    def __init__(self, other: Provider, by_type: Mapping[str, Provider]) -> None:
        """`other` has every type that is not named, and refuses the unknown ones."""
        super().__init__()
        self._other = other
        self._by_type = by_type

    def check(self, type_: str, old: Values, new: Values) -> tuple[Values, Iterable[Failure]]:
        return self._of(type_).check(type_, old, new)

    def diff(self, type_: str, id: str, old_inputs: Values, old_state: Values, new: Values) -> Diff:
        return self._of(type_).diff(type_, id, old_inputs, old_state, new)

    def create(self, type_: str, urn: str, inputs: Values, preview: bool) -> tuple[str, Values]:
        return self._of(type_).create(type_, urn, inputs, preview)

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
        return self._of(type_).update(type_, urn, id, old_state, old_inputs, new, preview)

    def read(
        self, type_: str, id: str, state: Values, inputs: Values
    ) -> tuple[str, Values, Values] | None:
        return self._of(type_).read(type_, id, state, inputs)

    def delete(self, type_: str, id: str, state: Values) -> None:
        self._of(type_).delete(type_, id, state)

    def _of(self, type_: str) -> Provider:
        found = self._by_type.get(type_, self._other)
        found.cancelled, found.engine = self.cancelled, self.engine
        return found
