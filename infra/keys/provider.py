"""The plugin `soperator`: key pairs. A key exists in the state only; nothing else stores it."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from infra.plugins.provider import UNKNOWN, Diff, Failure, Provider, ProviderError, Secret, compare
from infra.ssh_key import make_key_pair

Values = dict[str, Any]
TYPE: Final = "soperator:ssh:KeyPair"


class KeysProvider(Provider):
    """Makes ed25519 key pairs."""

    def check(self, type_: str, old: Values, new: Values) -> tuple[Values, list[Failure]]:
        """Refuses all but a one-line comment."""
        if type_ != TYPE:
            raise ProviderError(f"{type_}: this plugin has only {TYPE}")
        failures = [(key, "unknown; has comment") for key in sorted(new.keys() - {"comment"})]
        comment = new.get("comment")
        if comment is not UNKNOWN and (not isinstance(comment, str) or "\n" in comment):
            failures.append(("comment", f"{comment!r} is no line of text"))
        return new, failures

    def diff(self, type_: str, id: str, old_inputs: Values, old_state: Values, new: Values) -> Diff:
        """A new comment makes a new pair."""
        changes = compare(old_inputs, new)
        return Diff(replaces=tuple(changes), detailed=changes)

    def create(self, type_: str, urn: str, inputs: Values, preview: bool) -> tuple[str, Values]:
        """A new pair; its id is the fingerprint of the public key."""
        if preview:
            return "", {**inputs, "public_key": UNKNOWN, "private_key": Secret(UNKNOWN)}
        public_key, private_key = make_key_pair(inputs["comment"])
        state = {**inputs, "public_key": public_key, "private_key": Secret(private_key)}
        return hashlib.sha256(public_key.encode()).hexdigest()[:16], state

    def delete(self, type_: str, id: str, state: Values) -> None:
        """Forgets the pair."""
