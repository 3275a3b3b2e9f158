"""Stand-ins of official plugins: they serve what the program sends and refuse the rest by name."""

from __future__ import annotations

from typing import Final

from infra.providers.engine.provider import Failure, Provider, Rules, Values, broken

OFFICIAL: Final = "the official plugin serves more"


class StandIn(Provider):
    """A kind of which the official plugin takes more inputs than the program sends."""

    def check(self, old: Values, new: Values) -> tuple[Values, list[Failure]]:
        return new, refused(new, self.rules or {})


def refused(inputs: Values, rules: Rules) -> list[Failure]:
    """The inputs that break the rules."""
    return [(path, f"{why}; {OFFICIAL}") for path, why in broken(inputs, rules)]
