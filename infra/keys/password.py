"""Passwords that the program makes: `soperator:random:Password`, kept in the state only.

A higher version makes a new one and keeps the earlier ones, because what they opened stays closed
without them.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any, Final

from infra.plugins.provider import UNKNOWN, Diff, Failure, Secret, compare

Values = dict[str, Any]
TYPE: Final = "soperator:random:Password"
_BYTES: Final = 32


def check(old: Values, new: Values) -> list[Failure]:
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


def diff(old_inputs: Values, new: Values) -> Diff:
    """A new version changes it in place."""
    return Diff(detailed=compare(old_inputs, new))


def unborn(inputs: Values) -> Values:
    """What is known before it exists."""
    return {
        **inputs,
        "fingerprint": UNKNOWN,
        "password": Secret(UNKNOWN),
        "earlier": Secret(UNKNOWN),
    }


def create(inputs: Values) -> tuple[str, Values]:
    """A new password without earlier ones; its id is the first fingerprint."""
    state = _made(inputs, earlier={})
    return state["fingerprint"], state


def update(old_state: Values, new: Values) -> Values:
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
