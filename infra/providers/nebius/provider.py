"""The plugin `nebius`: every resource of the API from its descriptors, nothing written for one.

Token `nebius:<package>/<version>:<Resource>`, inputs metadata and spec in the proto's field names,
outputs the same plus status. Each update sends the whole declaration, so that what is no longer
declared is reset. Every resource carries ownership labels, which inputs and diffs never show.
"""

from __future__ import annotations

import json
import threading
import uuid
from functools import cached_property, partial
from typing import Any, Final

from infra.providers.engine.provider import (
    UNKNOWN,
    Diff,
    Dispatch,
    Failure,
    Found,
    PartialError,
    Provider,
    ProviderError,
    Secret,
)
from infra.providers.nebius import adoption
from infra.providers.nebius.adoption import find_namesake, find_twin, obstacle, told_once
from infra.providers.nebius.api import GONE, Api, ApiError, UnfinishedError, Watch, explain
from infra.providers.nebius.resource_type import ResourceType, find_changes, shrunk
from infra.providers.nebius.schema import Schema, plain
from stacks.errors import UserError

Values = dict[str, Any]
_KEYS: Final = uuid.UUID("6f0f6d0e-5d0c-4a53-9d0e-0b6d3f3a7c11")
"""Namespace of our idempotency keys."""
_REPLAYS: Final = 256
"""How often one declaration may be created and destroyed within the lifetime of its keys."""


class NebiusProvider(Dispatch):
    """The plugin: of each type of the API a provider, made when it is asked for first."""

    def __init__(self) -> None:
        super().__init__({})
        self._lock = threading.Lock()

    @cached_property
    def _api(self) -> Api:
        return Api(Schema.shared(), self.cancelled)

    def of(self, type_: str) -> Provider:
        """The provider of the type."""
        with self._lock:
            if type_ not in self._by_type:
                kind = ResourceType.of_token(self._api.schema, type_)
                self._by_type[type_] = ResourceProvider(self._api, kind)
        return super().of(type_)


class ResourceProvider(Provider):
    """Create, read, update and delete of one type over the official SDK's transport."""

    def __init__(self, api: Api, kind: ResourceType) -> None:
        super().__init__()
        self._api = api
        self.kind = kind

    def check(self, old: Values, new: Values) -> tuple[Values, list[Failure]]:
        """The inputs in canonical spelling, with all that the API would refuse."""
        inputs, problems = self.kind.check(new)
        return inputs, [*problems, *shrunk(self.kind, old, inputs)]

    def diff(self, id: str, old_inputs: Values, old_state: Values, new: Values) -> Diff:
        """Changes of the declaration; an immutable field needs a replacement."""
        return find_changes(self.kind, old_inputs, new)

    def preview(self, urn: str, id: str, old_state: Values, new: Values) -> Values:
        """The declaration; of what is there ids and status stay known."""
        if not id:
            return {**new, "metadata": {**new["metadata"], "id": UNKNOWN}, "status": UNKNOWN}
        metadata = {**old_state.get("metadata", {}), **new["metadata"]}
        return {**old_state, **new, "metadata": metadata}

    def create(self, urn: str, inputs: Values) -> tuple[str, Values]:
        """Creates, or adopts what an earlier run created and this state does not know."""
        api, kind, what = self._api, self.kind, f"create {self._describe(inputs)}"
        with api.explained(what, GONE):
            namesake = find_namesake(api, kind, inputs)
            if namesake is not None:
                return self._adopt(urn, inputs, plain(kind.schema, namesake))
            twin = find_twin(api, kind, inputs, urn)
            if twin is not None and not told_once(kind):
                return twin.metadata.id, plain(kind.schema, twin)
            if twin is not None:
                # The state that had its secret is lost: it is of use to nobody else.
                remove(api, kind, twin.metadata.id)
            operation = self._start_create(urn, inputs)
            id_ = operation.resource_id
            try:
                api.wait(kind.service, operation, self._watch(urn, what))
            except UnfinishedError as error:
                state = self._known(id_, inputs)
                raise PartialError(f"{what}: {error}", id=id_, state=state) from error
            except ApiError:
                try:
                    remove(api, kind, id_)
                except (ApiError, UnfinishedError) as error:
                    left = f"{id_} could not be removed ({error}); the next up takes it over, "
                    listed = f"soperator cluster orphans --stack {adoption.labels(urn)['stack']}"
                    self.engine.warning(urn, f"{left}{listed} lists it")
                raise
            try:
                return id_, self._state(id_)
            except ApiError as error:
                if error.is_not_found or told_once(kind):
                    raise  # nothing is there, or the next run makes it anew for its secret
                # Without its id in the state no destroy finds it, and it is paid on.
                told = explain(error, what, target=api.target)
                raise PartialError(told, id=id_, state=self._known(id_, inputs)) from error

    def _adopt(self, urn: str, inputs: Values, found: Values) -> tuple[str, Values]:
        """Takes over what is there and makes it as declared."""
        problem = obstacle(self.kind, found, inputs, urn)
        if problem is not None:
            raise ProviderError(f"create {self._describe(inputs)}: {problem}")
        id_ = found["metadata"]["id"]
        self.engine.info(urn, f"adopted {id_}, which an earlier run of this stack made")
        # Always sent: it waits for a create that still runs, and completes the labels.
        return id_, self.update(urn, id_, found, inputs)

    def _start_create(self, urn: str, inputs: Values) -> Any:
        """A create operation whose resource exists, with a key that survives our own death.

        The same declaration has the same key, so that a run after a crash adopts what the first
        one made. A key that answers with an operation of the past, whose resource was destroyed
        since or never became one, is used up: the next one is taken.
        """
        service = self.kind.service
        request = self.kind.request("Create", adoption.add(inputs, urn))
        for attempt in range(_REPLAYS):
            declared = json.dumps([urn, inputs, attempt], sort_keys=True, default=str)
            key = str(uuid.uuid5(_KEYS, declared))
            operation = self._api.call(service, "Create", request, key=key)
            if not operation.HasField("status"):
                return operation
            if operation.status.code:
                continue
            if self._api.find(service, id=operation.resource_id) is not None:
                return operation
        raise ApiError("ABORTED", f"created and destroyed {_REPLAYS} times in a day; rename it")

    def update(self, urn: str, id: str, old_state: Values, new: Values) -> Values:
        """Sends the whole declaration."""
        what = f"update {self._describe(new)}"
        found = self._seen(id, new, what)
        if found is not None and "Update" not in self.kind.service.methods_by_name:
            values = plain(self.kind.schema, found)
            if self.kind.inputs_of(adoption.remove(values), new) == new:
                return self._with_told(old_state, values)  # it was half made, and is whole by now
        request = self.kind.update_request(id, adoption.add(new, urn))
        mask = self.kind.reset_mask(request)
        service, started, watch = self.kind.service, False, self._watch(urn, what)
        try:
            with self._api.explained(what, GONE):
                operation = self._api.when_idle(
                    service, lambda: self._api.call(service, "Update", request, mask=mask), watch
                )
                started = True
                self._api.wait(service, operation, watch)
                return self._with_told(old_state, self._state(id))
        except UserError as error:
            if not started and not isinstance(error.__cause__, UnfinishedError):
                raise
            raise PartialError(str(error), id=id, state=self._known(id, new)) from error

    def read(self, id: str, state: Values, inputs: Values) -> Found | None:
        """What the API has, and the declaration as it would have to be for it."""
        # The label of another state in this one would let a destroy delete it.
        found = self._seen(id, inputs, f"read {self.kind.name} {id}")
        if found is None:
            return None
        values = self._with_told(state, plain(self.kind.schema, found))
        return id, values, self.kind.inputs_of(adoption.remove(values), inputs)

    def delete(self, id: str, state: Values) -> None:
        """Deletes and waits; a resource that is gone is no error."""
        what = f"delete {self._describe(state)} {id}"
        self._seen(id, state, what)
        with self._api.explained(what, GONE):
            # The engine names no resource here: the line itself does.
            remove(self._api, self.kind, id, self._watch("", what))

    def _seen(self, id_: str, values: Values, what: str) -> Any | None:
        """What is there now, or None; refused where another state of the stack has taken it."""
        with self._api.explained(what, GONE):
            found = self._api.find(self.kind.service, id=id_)
        declared = values.get("metadata", {}).get("labels") or {}
        if found is not None and (taken := adoption.other_state(found.metadata.labels, declared)):
            raise ProviderError(f"{what}: {found.metadata.id}, {taken}")
        return found

    def _watch(self, urn: str, what: str) -> Watch:
        """Tells the user at the resource how a wait goes."""
        schema, service = self.kind.schema, self.kind.service
        prefix, say = schema.kind(self.kind.resource), partial(self.engine.info, urn)
        return Watch(what, prefix, schema, say, lambda id_: self._api.find(service, id=id_))

    def _known(self, id_: str, inputs: Values) -> Values:
        """What is known of a resource whose wait ended; the API may be away."""
        try:
            return self._state(id_)
        except ApiError:
            return {**inputs, "metadata": {**inputs["metadata"], "id": id_}, "status": {}}

    def _state(self, id_: str) -> Values:
        found = self._api.find(self.kind.service, id=id_)
        if found is None:
            raise ApiError("NOT_FOUND", f"{id_} was deleted while it was being changed")
        return plain(self.kind.schema, found)

    def _describe(self, values: Values) -> str:
        name = values.get("metadata", {}).get("name")
        return f"{self.kind.name} {name!r}" if isinstance(name, str) else self.kind.name

    def _with_told(self, old_state: Values, values: Values) -> Values:
        """With the secrets that their create told and a later read may not show again."""
        old, status = old_state.get("status", {}), values.get("status", {})
        keys = told_once(self.kind)
        kept = {key: Secret(old[key]) for key in keys if key in old and key not in status}
        return {**values, "status": {**status, **kept}} if kept else values


_LOOK_AGAIN_S: Final = (0.5, 1.0, 2.0, 4.0)


def remove(api: Api, kind: ResourceType, id_: str, watch: Watch | None = None) -> None:
    """Deletes, after any other change of the resource has ended; one that is gone is no error."""
    request = api.request(kind.service, "Delete", id=id_)
    try:
        delete = partial(api.call, kind.service, "Delete", request)
        operation = api.when_idle(kind.service, delete, watch)
        api.wait(kind.service, operation, watch)
        _verify_gone(api, kind, id_)
    except ApiError as error:
        if not error.is_not_found:
            raise


def _verify_gone(api: Api, kind: ResourceType, id_: str) -> None:
    """Raises NOT_FOUND, which is what is hoped for, or tells that the resource is still there.

    By id, because an operation that ended well has left something behind before; several times,
    because a read may lag behind.
    """
    state = ""
    for pause_s in _LOOK_AGAIN_S:
        found = api.ask(kind.service, id=id_)
        state = str(plain(api.schema, found).get("status", {}).get("state", ""))
        if "DELET" in state.upper():
            return
        api.pause(pause_s)
    raise ApiError("ABORTED", f"{id_} is still there after its deletion ended (state {state})")
