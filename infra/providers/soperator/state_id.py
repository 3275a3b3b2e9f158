"""The random id of a stack's state, which every named resource of the stack carries as a label.

The stack's first resource, so that a second backend with a stack of the same name stops before it
makes anything; deleted last, when it takes the label off what a destroy keeps, so that the next
`up` finds that again, from whatever backend.
"""

from __future__ import annotations

import contextlib
import secrets
from functools import cached_property
from typing import Any, Final

from infra.providers.engine.provider import Diff, Failure, Provider, ProviderError, compare
from infra.providers.nebius.adoption import owned, release
from infra.providers.nebius.api import Api, ApiError, explain
from infra.providers.nebius.schema import Schema
from infra.providers.nebius.sdk import EndpointError, cache_dir

Values = dict[str, Any]
TYPE: Final = "soperator:cloud:StateId"
_INPUTS: Final = ("project_id", "stack", "project")
_SHOWN: Final = 5
_ASK_S: Final = 5.0
"""Longest wait of a preview for one answer, as in the pre-flight check."""


class StateIdProvider(Provider):
    """Makes the id and, at the end, releases what is left; neither changes in place."""

    @cached_property
    def _api(self) -> Api:
        return Api(Schema(cache_dir()), self.cancelled)

    def check(self, type_: str, old: Values, new: Values) -> tuple[Values, list[Failure]]:
        """The inputs: id of the Nebius project, name of the stack, Pulumi project."""
        wrong = sorted(set(_INPUTS) ^ new.keys())
        return new, [(key, f"give exactly {', '.join(_INPUTS)}") for key in wrong]

    def diff(self, type_: str, id: str, old_inputs: Values, old_state: Values, new: Values) -> Diff:
        """Another project or name is another stack."""
        changes = compare(old_inputs, new)
        return Diff(replaces=tuple(changes), detailed=changes)

    def create(self, type_: str, urn: str, inputs: Values, preview: bool) -> tuple[str, Values]:
        """16 hexadecimal digits, once it is seen that no other state has resources of the stack."""
        if preview:
            # It needs no cloud: the program's own questions say that there is none.
            with contextlib.suppress(ApiError, EndpointError):
                short = Api(Schema(cache_dir()), self.cancelled, call_s=_ASK_S, back_off_s=())
                _refuse_second(short, inputs)
            return "", inputs
        try:
            _refuse_second(self._api, inputs)
        except (ApiError, EndpointError) as error:
            raise self._refusal(error, f"list of {inputs['project_id']}") from error
        return secrets.token_hex(8), inputs

    def delete(self, type_: str, id: str, state: Values) -> None:
        """Takes the id off what a destroy left in the cloud."""
        try:
            release(self._api, id, **{key: state[key] for key in _INPUTS})
        except (ApiError, EndpointError) as error:
            raise self._refusal(error, f"release of what state {id} keeps") from error

    def _refusal(self, error: ApiError | EndpointError, what: str) -> ProviderError:
        if isinstance(error, EndpointError):
            return ProviderError(str(error))
        return ProviderError(explain(error, what, target=self._api.target))


def _refuse_second(api: Api, inputs: Values) -> None:
    others: dict[str, list[str]] = {}
    for each in owned(api, **inputs):
        if each.state_id is not None:
            others.setdefault(each.state_id, []).append(f"{each.type} {each.id}")
    lines = [
        f"{inputs['stack']}: another state has this stack in {inputs['project_id']}: state "
        f"{state_id} with {', '.join(ids[:_SHOWN])}"
        f"{f' and {len(ids) - _SHOWN} more' if len(ids) > _SHOWN else ''}; use its backend or "
        "another name; where that state is lost, or should lose them, `soperator cluster adopt "
        f"state {state_id} --stack {inputs['stack']}`, then the next `pulumi up` takes them"
        for state_id, ids in others.items()
    ]
    if lines:
        raise ProviderError("\n".join(lines))
