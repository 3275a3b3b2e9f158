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
from typing import Any, Final

from infra.clients.ssh_key import make_key_pair
from infra.providers.engine.provider import (
    UNKNOWN,
    Diff,
    Failure,
    Provider,
    ProviderError,
    Secret,
    compare,
)

Values = dict[str, Any]
KEY_PAIR: Final = "soperator:ssh:KeyPair"
PASSWORD: Final = "soperator:random:Password"  # noqa: S105 (a type)
EXPIRY: Final = "soperator:time:Expiry"
_TYPES: Final = (KEY_PAIR, PASSWORD, EXPIRY)


class KeysProvider(Provider):
    """Makes ed25519 key pairs, passwords and ends of credentials."""

    def check(self, type_: str, old: Values, new: Values) -> tuple[Values, list[Failure]]:
        """The inputs with what is wrong about them."""
        if type_ == PASSWORD:
            return new, check_password(old, new)
        if type_ == EXPIRY:
            return new, check_expiry(new)
        if type_ != KEY_PAIR:
            raise ProviderError(f"{type_}: this plugin has only {', '.join(_TYPES)}")
        failures = [(key, "unknown; has comment") for key in sorted(new.keys() - {"comment"})]
        comment = new.get("comment")
        if comment is not UNKNOWN and (not isinstance(comment, str) or "\n" in comment):
            failures.append(("comment", f"{comment!r} is no line of text"))
        return new, failures

    def diff(self, type_: str, id: str, old_inputs: Values, old_state: Values, new: Values) -> Diff:
        """What changes in place, and what is made anew: a key pair with another comment."""
        if type_ == PASSWORD:
            return diff_password(old_inputs, new)
        if type_ == EXPIRY:
            return diff_expiry(old_inputs, old_state, new)
        changes = compare(old_inputs, new)
        return Diff(replaces=tuple(changes), detailed=changes)

    def create(self, type_: str, urn: str, inputs: Values, preview: bool) -> tuple[str, Values]:
        """A new one; the id of a pair is the fingerprint of its public key."""
        if type_ == PASSWORD:
            return ("", unborn_password(inputs)) if preview else create_password(inputs)
        if type_ == EXPIRY:
            return ("", {**inputs, "at": UNKNOWN}) if preview else create_expiry(inputs)
        if preview:
            return "", {**inputs, "public_key": UNKNOWN, "private_key": Secret(UNKNOWN)}
        public_key, private_key = make_key_pair(inputs["comment"])
        state = {**inputs, "public_key": public_key, "private_key": Secret(private_key)}
        return hashlib.sha256(public_key.encode()).hexdigest()[:16], state

    def update(
        self, type_: str, urn: str, id: str, old_state: Values, new: Values, preview: bool
    ) -> Values:
        """The next password; nothing else changes in place."""
        if type_ != PASSWORD:
            return super().update(type_, urn, id, old_state, new, preview)
        return unborn_password(new) if preview else next_password(old_state, new)

    def delete(self, type_: str, id: str, state: Values) -> None:
        """Forgets it."""


_BYTES: Final = 32


def check_password(old: Values, new: Values) -> list[Failure]:
    """Refuses all but a version of 1 or more that does not go back."""
    failures = [(key, "unknown; has version") for key in sorted(new.keys() - {"version"})]
    version = new.get("version")
    if version is UNKNOWN:
        return failures
    if not isinstance(version, int) or version < 1:
        failures.append(("version", f"{version!r} is no whole number of 1 or more"))
    elif version < old.get("version", 0):
        failures.append(
            ("version", f"{version}, but it was {old['version']}: raise it to rotate again")
        )
    return failures


def diff_password(old_inputs: Values, new: Values) -> Diff:
    """A new version changes it in place."""
    return Diff(detailed=compare(old_inputs, new))


def unborn_password(inputs: Values) -> Values:
    """What is known before it exists."""
    return {
        **inputs,
        "fingerprint": UNKNOWN,
        "password": Secret(UNKNOWN),
        "earlier": Secret(UNKNOWN),
    }


def create_password(inputs: Values) -> tuple[str, Values]:
    """A new password without earlier ones; its id is the first fingerprint."""
    state = _made(inputs, earlier={})
    return state["fingerprint"], state


def next_password(old_state: Values, new: Values) -> Values:
    """A new password, the old one among the earlier."""
    earlier = {**old_state["earlier"], old_state["fingerprint"]: old_state["password"]}
    return _made(new, earlier)


def _made(inputs: Values, earlier: dict[str, str]) -> Values:
    password = secrets.token_urlsafe(_BYTES)
    return {
        **inputs,
        # Of 256 random bits: it names the password and tells nothing about it.
        "fingerprint": hashlib.sha256(password.encode()).hexdigest()[:16],
        "password": Secret(password),
        "earlier": Secret(earlier),
    }


_KEYS: Final = ("days", "version")
_RENEWED_WITHIN: Final = 0.25
"""Share of the days before the end in which an `up` renews."""


def now() -> datetime:
    """This moment, UTC."""
    return datetime.now(UTC)


def check_expiry(new: Values) -> list[Failure]:
    """Refuses all but whole numbers of 1 or more."""
    failures = [
        (key, f"unknown; has {', '.join(_KEYS)}") for key in sorted(new.keys() - set(_KEYS))
    ]
    for key in _KEYS:
        value = new.get(key)
        if value is not UNKNOWN and (not isinstance(value, int) or value < 1):
            failures.append((key, f"{value!r} is no whole number of 1 or more"))
    return failures


def diff_expiry(old_inputs: Values, old_state: Values, new: Values) -> Diff:
    """Anything that changed, and an end that comes near, chooses anew."""
    changes = compare(old_inputs, new)
    if not changes and _is_near(old_state):
        return Diff(replaces=("days",), detailed={"days": "update"})
    return Diff(replaces=tuple(changes), detailed=changes)


def create_expiry(inputs: Values) -> tuple[str, Values]:
    """The end, as RFC 3339 in whole seconds; also the id."""
    end = (now() + timedelta(days=inputs["days"])).replace(microsecond=0)
    at = end.isoformat().replace("+00:00", "Z")
    return at, {**inputs, "at": at}


def _is_near(state: Values) -> bool:
    left = datetime.fromisoformat(state["at"]) - now()
    return left < timedelta(days=state["days"]) * _RENEWED_WITHIN
