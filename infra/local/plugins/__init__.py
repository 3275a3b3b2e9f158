"""Stand-ins of official plugins: they serve what the program sends and refuse the rest by name."""

from __future__ import annotations

from typing import Final

from infra.providers.engine.provider import Failure, Provider, Values

OFFICIAL: Final = "the official plugin serves more"


class StandIn(Provider):
    """A kind of which the official plugin takes more inputs than the program sends."""

    def check(self, old: Values, new: Values) -> tuple[Values, list[Failure]]:
        inputs, failures = super().check(old, new)
        return inputs, [(path, f"{why}; {OFFICIAL}") for path, why in failures]
