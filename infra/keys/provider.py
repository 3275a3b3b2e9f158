"""The plugin `soperator`: secrets that exist in the state only, and the days on which they end."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from infra.keys import expiry, password
from infra.plugins.provider import UNKNOWN, Diff, Failure, Provider, ProviderError, Secret, compare
from infra.ssh_key import make_key_pair

Values = dict[str, Any]
TYPE: Final = "soperator:ssh:KeyPair"
_TYPES: Final = (TYPE, password.TYPE, expiry.TYPE)


class KeysProvider(Provider):
    """Makes ed25519 key pairs, passwords and ends of credentials."""

    def check(self, type_: str, old: Values, new: Values) -> tuple[Values, list[Failure]]:
        """The inputs with what is wrong about them."""
        if type_ == password.TYPE:
            return new, password.check(old, new)
        if type_ == expiry.TYPE:
            return new, expiry.check(new)
        if type_ != TYPE:
            raise ProviderError(f"{type_}: this plugin has only {', '.join(_TYPES)}")
        failures = [(key, "unknown; has comment") for key in sorted(new.keys() - {"comment"})]
        comment = new.get("comment")
        if comment is not UNKNOWN and (not isinstance(comment, str) or "\n" in comment):
            failures.append(("comment", f"{comment!r} is no line of text"))
        return new, failures

    def diff(self, type_: str, id: str, old_inputs: Values, old_state: Values, new: Values) -> Diff:
        """What changes in place, and what is made anew: a key pair with another comment."""
        if type_ == password.TYPE:
            return password.diff(old_inputs, new)
        if type_ == expiry.TYPE:
            return expiry.diff(old_inputs, old_state, new)
        changes = compare(old_inputs, new)
        return Diff(replaces=tuple(changes), detailed=changes)

    def create(self, type_: str, urn: str, inputs: Values, preview: bool) -> tuple[str, Values]:
        """A new one; the id of a pair is the fingerprint of its public key."""
        if type_ == password.TYPE:
            return ("", password.unborn(inputs)) if preview else password.create(inputs)
        if type_ == expiry.TYPE:
            return ("", {**inputs, "at": UNKNOWN}) if preview else expiry.create(inputs)
        if preview:
            return "", {**inputs, "public_key": UNKNOWN, "private_key": Secret(UNKNOWN)}
        public_key, private_key = make_key_pair(inputs["comment"])
        state = {**inputs, "public_key": public_key, "private_key": Secret(private_key)}
        return hashlib.sha256(public_key.encode()).hexdigest()[:16], state

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
        """The next password; nothing else changes in place."""
        if type_ != password.TYPE:
            return super().update(type_, urn, id, old_state, old_inputs, new, preview)
        return password.unborn(new) if preview else password.update(old_state, new)

    def delete(self, type_: str, id: str, state: Values) -> None:
        """Forgets it."""
