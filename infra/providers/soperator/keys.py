"""Secrets that exist in the state only, and the days on which they end.

A password's higher version makes a new one and keeps the earlier ones, because what they opened
stays closed without them. An end is chosen once and kept, so that an unchanged `up` changes
nothing; chosen anew when the days or the version change, and at the first `up` in the last quarter
of the time.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final

from infra.clients.ssh_key import make_key_pair
from infra.providers.engine.provider import (
    COUNT,
    UNKNOWN,
    Diff,
    Failure,
    Provider,
    Rule,
    Secret,
    Values,
)

KEY_PAIR: Final = "soperator:ssh:KeyPair"
PASSWORD: Final = "soperator:random:Password"  # noqa: S105 (a type)
EXPIRY: Final = "soperator:time:Expiry"
_BYTES: Final = 32
_RENEWED_WITHIN: Final = 0.25
"""Share of the days before the end in which an `up` renews."""


class _Kept(Provider):
    """What is in the state and nowhere else."""

    def delete(self, type_: str, id: str, state: Values) -> None:
        """Forgets it."""


class KeyPairProvider(_Kept):
    """Makes ed25519 key pairs; another comment is another pair."""

    rules: ClassVar = {
        "comment": Rule(
            lambda value: isinstance(value, str) and "\n" not in value, "{} is no line of text"
        )
    }
    identity = ("comment",)

    def create(self, type_: str, urn: str, inputs: Values, preview: bool) -> tuple[str, Values]:
        """A new pair; its id is the fingerprint of the public key."""
        if preview:
            return "", {**inputs, "public_key": UNKNOWN, "private_key": Secret(UNKNOWN)}
        public_key, private_key = make_key_pair(inputs["comment"])
        state = {**inputs, "public_key": public_key, "private_key": Secret(private_key)}
        return hashlib.sha256(public_key.encode()).hexdigest()[:16], state


class PasswordProvider(_Kept):
    """Makes passwords; a new version is made in place and keeps the earlier ones."""

    rules: ClassVar = {"version": COUNT}

    def check(self, type_: str, old: Values, new: Values) -> tuple[Values, list[Failure]]:
        """Refuses all but a version of 1 or more that does not go back."""
        _, broken = super().check(type_, old, new)
        failures, before = list(broken), old.get("version", 0)
        if not failures and new["version"] is not UNKNOWN and new["version"] < before:
            told = f"{new['version']}, but it was {before}: raise it to rotate again"
            failures.append(("version", told))
        return new, failures

    def create(self, type_: str, urn: str, inputs: Values, preview: bool) -> tuple[str, Values]:
        """A new password without earlier ones; its id is the first fingerprint."""
        state = _unborn(inputs) if preview else _made(inputs, earlier={})
        return "" if preview else state["fingerprint"], state

    def update(
        self, type_: str, urn: str, id: str, old_state: Values, new: Values, preview: bool
    ) -> Values:
        """A new password, the old one among the earlier."""
        if preview:
            return _unborn(new)
        earlier = {**old_state["earlier"], old_state["fingerprint"]: old_state["password"]}
        return _made(new, earlier)


def _unborn(inputs: Values) -> Values:
    """What is known before it exists."""
    secrets = dict.fromkeys(("password", "earlier"), Secret(UNKNOWN))
    return {**inputs, "fingerprint": UNKNOWN, **secrets}


def _made(inputs: Values, earlier: dict[str, str]) -> Values:
    password = secrets.token_urlsafe(_BYTES)
    return {
        **inputs,
        # Of 256 random bits: it names the password and tells nothing about it.
        "fingerprint": hashlib.sha256(password.encode()).hexdigest()[:16],
        "password": Secret(password),
        "earlier": Secret(earlier),
    }


def now() -> datetime:
    """This moment, UTC."""
    return datetime.now(UTC)


class ExpiryProvider(_Kept):
    """Chooses the end of credentials; whatever changes chooses anew."""

    rules: ClassVar = {"days": COUNT, "version": COUNT}
    identity = ("days", "version")

    def diff(self, type_: str, id: str, old_inputs: Values, old_state: Values, new: Values) -> Diff:
        """Anything that changed, and an end that comes near, chooses anew."""
        found = super().diff(type_, id, old_inputs, old_state, new)
        if not found.detailed and _is_near(old_state):
            return Diff(replaces=("days",), detailed={"days": "update"})
        return found

    def create(self, type_: str, urn: str, inputs: Values, preview: bool) -> tuple[str, Values]:
        """The end, as RFC 3339 in whole seconds; also the id."""
        if preview:
            return "", {**inputs, "at": UNKNOWN}
        end = (now() + timedelta(days=inputs["days"])).replace(microsecond=0)
        at = end.isoformat().replace("+00:00", "Z")
        return at, {**inputs, "at": at}


def _is_near(state: Values) -> bool:
    left = datetime.fromisoformat(state["at"]) - now()
    return left < timedelta(days=state["days"]) * _RENEWED_WITHIN
