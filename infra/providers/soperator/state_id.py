"""The random id of a stack's state, which every named resource of the stack carries as a label.

The stack's first resource, so that a second backend with a stack of the same name stops before it
makes anything; deleted last, when it takes the label off what a destroy keeps, so that the next
`up` finds that again, from whatever backend.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Generator
from functools import cached_property
from typing import ClassVar, Final

from infra.providers.engine.provider import TEXT, Diff, Provider, ProviderError, Values
from infra.providers.nebius.adoption import adopt_state, is_others, is_taken, owned, release
from infra.providers.nebius.api import Api, ApiError, explain
from infra.providers.nebius.schema import Schema
from infra.providers.nebius.sdk import EndpointError

TYPE: Final = "soperator:cloud:StateId"
GUARD: Final = "soperator:cloud:StateGuard"
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
        return Api(Schema(), self.cancelled)

    @contextlib.contextmanager
    def _explained(self, what: str) -> Generator[None]:
        try:
            yield
        except EndpointError as error:
            raise ProviderError(str(error)) from error
        except ApiError as error:
            raise ProviderError(explain(error, what, target=self._api.target)) from error


class StateIdProvider(_OfState):
    """Makes the id and, in the end, frees what is left; refuses what another state has by now."""

    identity = _INPUTS

    def diff(self, type_: str, id: str, old_inputs: Values, old_state: Values, new: Values) -> Diff:
        """Another project or name is another stack; the same one may have been taken over."""
        found = super().diff(type_, id, old_inputs, old_state, new)
        if not found.detailed:
            self._ask(new, id)
        return found

    def create(self, type_: str, urn: str, inputs: Values, preview: bool) -> tuple[str, Values]:
        """16 hexadecimal digits, once it is seen that no other state has resources of the stack."""
        if preview:
            self._ask(inputs)
            return "", inputs
        with self._explained(f"list of {inputs['project_id']}"):
            _refuse_second(self._api, inputs)
        return secrets.token_hex(8), inputs

    def delete(self, type_: str, id: str, state: Values) -> None:
        """Takes the id off what a destroy left in the cloud."""
        with self._explained(f"release of state {id} in {state['project_id']}"):
            release(self._api, id, **{key: state[key] for key in _INPUTS})

    def _ask(self, inputs: Values, own: str | None = None) -> None:
        # A preview needs no cloud: where none answers, the pre-flight check has said so.
        with contextlib.suppress(ApiError, EndpointError):
            short = Api(Schema(), self.cancelled, call_s=_ASK_S, back_off_s=())
            _refuse_second(short, inputs, own)


class StateGuardProvider(_OfState):
    """Refuses to be deleted once another state has resources of the stack.

    Changes in place: the end of an old one would be refused where a state got another id.
    """

    rules: ClassVar = dict.fromkeys((*_INPUTS, "state_id"), TEXT)
    in_place = True

    def create(self, type_: str, urn: str, inputs: Values, preview: bool) -> tuple[str, Values]:
        """Asks nothing yet; the inputs are what its end asks by."""
        return "" if preview else "guard", inputs

    def delete(self, type_: str, id: str, state: Values) -> None:
        """Asks for the first time: a destroy ends this resource before all others."""
        with self._explained(f"list of what another state has in {state['project_id']}"):
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
