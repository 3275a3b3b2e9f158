"""What exists in the state only: secrets, the days on which they end, the id of the state.

A password's higher version makes a new one and keeps the earlier ones, because what they opened
stays closed without them. An end is chosen once and kept, so that an unchanged `up` changes
nothing; chosen anew when the days or the version change, and at the first `up` in the last quarter
of the time.

With them the random id of the stack's state, which every named resource of the stack carries as a
label. It is the stack's first resource, so that a second backend with a stack of the same name
stops before it makes anything; deleted last, when it takes the label off what a destroy keeps, so
that the next `up` finds that again, from whatever backend.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import ClassVar, Final

from infra.clients.ssh_key import make_key_pair
from infra.providers.engine.provider import (
    COUNT,
    TEXT,
    UNKNOWN,
    Diff,
    Failure,
    Provider,
    ProviderError,
    Rule,
    Secret,
    Values,
)
from infra.providers.nebius.adoption import adopt_state, is_others, is_taken, owned, release
from infra.providers.nebius.api import Api, ApiError
from infra.providers.nebius.schema import Schema
from infra.providers.nebius.sdk import EndpointError

KEY_PAIR: Final = "soperator:ssh:KeyPair"
PASSWORD: Final = "soperator:random:Password"  # noqa: S105 (a type)
EXPIRY: Final = "soperator:time:Expiry"
_BYTES: Final = 32
_RENEWED_WITHIN: Final = 0.25
"""Share of the days before the end in which an `up` renews."""


class KeyPairProvider(Provider):
    """Makes ed25519 key pairs; another comment is another pair."""

    rules: ClassVar = {
        "comment": Rule(
            lambda value: isinstance(value, str) and "\n" not in value, "{} is no line of text"
        )
    }
    identity = ("comment",)
    outputs: ClassVar = {"public_key": UNKNOWN, "private_key": Secret(UNKNOWN)}

    def create(self, urn: str, inputs: Values) -> tuple[str, Values]:
        """A new pair; its id is the fingerprint of the public key."""
        public_key, private_key = make_key_pair(inputs["comment"])
        state = {**inputs, "public_key": public_key, "private_key": Secret(private_key)}
        return hashlib.sha256(public_key.encode()).hexdigest()[:16], state


class PasswordProvider(Provider):
    """Makes passwords; a new version is made in place and keeps the earlier ones."""

    rules: ClassVar = {"version": COUNT}
    outputs: ClassVar = {
        "fingerprint": UNKNOWN,
        "password": Secret(UNKNOWN),
        "earlier": Secret(UNKNOWN),
    }

    def check(self, old: Values, new: Values) -> tuple[Values, list[Failure]]:
        """Refuses all but a version of 1 or more that does not go back."""
        _, broken = super().check(old, new)
        failures, before = list(broken), old.get("version", 0)
        if not failures and new["version"] is not UNKNOWN and new["version"] < before:
            told = f"{new['version']}, but it was {before}: raise it to rotate again"
            failures.append(("version", told))
        return new, failures

    def create(self, urn: str, inputs: Values) -> tuple[str, Values]:
        """A new password without earlier ones; its id is the first fingerprint."""
        state = _made(inputs, earlier={})
        return state["fingerprint"], state

    def update(self, urn: str, id: str, old_state: Values, new: Values) -> Values:
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


def now() -> datetime:
    """This moment, UTC."""
    return datetime.now(UTC)


class ExpiryProvider(Provider):
    """Chooses the end of credentials; whatever changes chooses anew."""

    rules: ClassVar = {"days": COUNT, "version": COUNT}
    identity = ("days", "version")
    outputs: ClassVar = {"at": UNKNOWN}

    def diff(self, id: str, old_inputs: Values, old_state: Values, new: Values) -> Diff:
        """Anything that changed, and an end that comes near, chooses anew."""
        found = super().diff(id, old_inputs, old_state, new)
        left = datetime.fromisoformat(old_state["at"]) - now()
        if not found.detailed and left < timedelta(days=old_state["days"]) * _RENEWED_WITHIN:
            return Diff(replaces=("days",), detailed={"days": "update"})
        return found

    def create(self, urn: str, inputs: Values) -> tuple[str, Values]:
        """The end, as RFC 3339 in whole seconds; also the id."""
        end = (now() + timedelta(days=inputs["days"])).replace(microsecond=0)
        at = end.isoformat().replace("+00:00", "Z")
        return at, {**inputs, "at": at}


STATE_ID: Final = "soperator:cloud:StateId"
STATE_GUARD: Final = "soperator:cloud:StateGuard"
"""The stack's last resource, so that a destroy asks before it ends what runs in the kube cluster,
which has no label."""
_INPUTS: Final = ("project_id", "stack", "project")
_MOST_IDS: Final = 5
_ASK_S: Final = 5.0
"""Seconds that a preview waits for one answer at most, as the pre-flight check does."""


class _OfState(Provider):
    """What the id and its guard share: the inputs that name a stack, and the cloud."""

    rules: ClassVar = dict.fromkeys(_INPUTS, TEXT)

    @cached_property
    def _api(self) -> Api:
        return Api(Schema.shared(), self.cancelled)


class StateIdProvider(_OfState):
    """Makes the id and, in the end, frees what is left; refuses what another state has by now."""

    identity = _INPUTS

    def diff(self, id: str, old_inputs: Values, old_state: Values, new: Values) -> Diff:
        """Another project or name is another stack; the same one may have been taken over."""
        found = super().diff(id, old_inputs, old_state, new)
        if not found.detailed:
            self._ask(new, id)
        return found

    def preview(self, urn: str, id: str, old_state: Values, new: Values) -> Values:
        """The inputs, once it is seen that no other state has resources of the stack."""
        self._ask(new)
        return new

    def create(self, urn: str, inputs: Values) -> tuple[str, Values]:
        """16 hexadecimal digits, once it is seen that no other state has resources of the stack."""
        with self._api.explained(f"list of {inputs['project_id']}"):
            _refuse_second(self._api, inputs)
        return secrets.token_hex(8), inputs

    def delete(self, id: str, state: Values) -> None:
        """Takes the id off what a destroy left in the cloud."""
        with self._api.explained(f"release of state {id} in {state['project_id']}"):
            release(self._api, id, **{key: state[key] for key in _INPUTS})

    def _ask(self, inputs: Values, own: str | None = None) -> None:
        # A preview needs no cloud: where none answers, the pre-flight check has said so.
        with contextlib.suppress(ApiError, EndpointError):
            short = Api(Schema.shared(), self.cancelled, call_s=_ASK_S, back_off_s=())
            _refuse_second(short, inputs, own)


class StateGuardProvider(_OfState):
    """Refuses to be deleted once another state has resources of the stack.

    Changes in place: the end of an old one would be refused where a state got another id.
    """

    rules: ClassVar = dict.fromkeys((*_INPUTS, "state_id"), TEXT)
    in_place = True

    def create(self, urn: str, inputs: Values) -> tuple[str, Values]:
        """Asks nothing yet; the inputs are what its end asks by."""
        return "guard", inputs

    def delete(self, id: str, state: Values) -> None:
        """Asks for the first time: a destroy ends this resource before all others."""
        with self._api.explained(f"list of what another state has in {state['project_id']}"):
            _refuse_second(self._api, state, state["state_id"])


def _refuse_second(api: Api, inputs: Values, own: str | None = None) -> None:
    """ProviderError where another state than `own` has any resource of the stack."""
    others: dict[str, list[str]] = {}
    for each in owned(api, **{key: inputs[key] for key in _INPUTS}):
        if each.state_id and is_others(each.state_id, (own,)):
            others.setdefault(each.state_id, []).append(f"{each.type} {each.id}")
    stack = inputs["stack"]
    forget = f"; to forget this state: `pulumi stack rm --force {stack}`" if own else ""
    lines = [
        f"{stack}: {'this state lost' if is_taken(state_id, own) else 'another state has'} this "
        f"stack in {inputs['project_id']}: state {state_id} with {', '.join(ids[:_MOST_IDS])}"
        f"{f' and {len(ids) - _MOST_IDS} more' if ids[_MOST_IDS:] else ''}; use its backend or "
        "another name; where that state is lost, or should lose them, "
        f"{adopt_state(state_id, stack)}, then the next `pulumi up` takes them{forget}"
        for state_id, ids in others.items()
    ]
    if lines:
        raise ProviderError("\n".join(lines))
