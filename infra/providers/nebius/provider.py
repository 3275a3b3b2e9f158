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
    Failure,
    PartialError,
    Provider,
    ProviderError,
    Secret,
)
from infra.providers.nebius import adoption
from infra.providers.nebius.adoption import find_namesake, find_twin, obstacle, told_once
from infra.providers.nebius.api import GONE, Api, ApiError, UnfinishedError, Watch
from infra.providers.nebius.resource_type import ResourceType, find_changes, shrunk
from infra.providers.nebius.schema import Schema, plain
from stacks.errors import UserError

Values = dict[str, Any]
_KEYS: Final = uuid.UUID("6f0f6d0e-5d0c-4a53-9d0e-0b6d3f3a7c11")
"""Namespace of our idempotency keys."""
_REPLAYS: Final = 256
"""How often one declaration may be created and destroyed within the lifetime of its keys."""


class NebiusProvider(Provider):
    """Create, read, update and delete of any resource over the official SDK's transport."""

    def __init__(self) -> None:
        super().__init__()
        self._types: dict[str, ResourceType] = {}
        self._lock = threading.Lock()

    @cached_property
    def _schema(self) -> Schema:
        return Schema.shared()

    @cached_property
    def _api(self) -> Api:
        return Api(self._schema, self.cancelled)

    def _type(self, token: str) -> ResourceType:
        with self._lock:
            if token not in self._types:
                self._types[token] = ResourceType.of_token(self._schema, token)
            return self._types[token]

    def check(self, type_: str, old: Values, new: Values) -> tuple[Values, list[Failure]]:
        """The inputs in canonical spelling, with all that the API would refuse."""
        kind = self._type(type_)
        inputs, problems = kind.check(new)
        return inputs, [*problems, *shrunk(kind, old, inputs)]

    def diff(self, type_: str, id: str, old_inputs: Values, old_state: Values, new: Values) -> Diff:
        """Changes of the declaration; an immutable field needs a replacement."""
        return find_changes(self._type(type_), old_inputs, new)

    def create(self, type_: str, urn: str, inputs: Values, preview: bool) -> tuple[str, Values]:
        """Creates, or adopts what an earlier run created and this state does not know."""
        kind = self._type(type_)
        if preview:
            metadata = {**inputs["metadata"], "id": UNKNOWN}
            return "", {**inputs, "metadata": metadata, "status": UNKNOWN}
        what = f"create {_describe(kind, inputs)}"
        with self._api.explained(what, GONE):
            namesake = find_namesake(self._api, kind, inputs)
            if namesake is not None:
                return self._adopt(kind, urn, inputs, plain(self._schema, namesake))
            twin = find_twin(self._api, kind, inputs, urn)
            if twin is not None and not told_once(kind):
                return twin.metadata.id, plain(self._schema, twin)
            if twin is not None:
                # The state that had its secret is lost: it is of use to nobody else.
                remove(self._api, kind, twin.metadata.id)
            operation = self._start_create(kind, urn, inputs)
            id_ = operation.resource_id
            try:
                self._api.wait(kind.service, operation, self._watch(kind, urn, what))
            except UnfinishedError as error:
                state = self._known(kind, id_, inputs)
                raise PartialError(f"{what}: {error}", id=id_, state=state) from error
            except ApiError:
                remove(self._api, kind, id_)
                raise
            return id_, self._state(kind, id_)

    def _adopt(
        self, kind: ResourceType, urn: str, inputs: Values, found: Values
    ) -> tuple[str, Values]:
        """Takes over what is there and makes it as declared."""
        problem = obstacle(kind, found, inputs, urn)
        if problem is not None:
            raise ProviderError(f"create {_describe(kind, inputs)}: {problem}")
        id_ = found["metadata"]["id"]
        self.engine.info(urn, f"adopted {id_}, which an earlier run of this stack made")
        # Always sent: it waits for a create that still runs, and completes the labels.
        return id_, self.update(kind.token, urn, id_, found, inputs, False)

    def _start_create(self, kind: ResourceType, urn: str, inputs: Values) -> Any:
        """A create operation whose resource exists, with a key that survives our own death.

        The same declaration has the same key, so that a run after a crash adopts what the first
        one made. A key that answers with an operation of the past, whose resource was destroyed
        since or never became one, is used up: the next one is taken.
        """
        request = kind.request("Create", adoption.add(inputs, urn))
        for attempt in range(_REPLAYS):
            declared = json.dumps([urn, inputs, attempt], sort_keys=True, default=str)
            key = str(uuid.uuid5(_KEYS, declared))
            operation = self._api.call(kind.service, "Create", request, key=key)
            if not operation.HasField("status"):
                return operation
            if operation.status.code:
                continue
            if self._api.find(kind.service, id=operation.resource_id) is not None:
                return operation
        raise ApiError("ABORTED", f"created and destroyed {_REPLAYS} times in a day; rename it")

    def update(
        self, type_: str, urn: str, id: str, old_state: Values, new: Values, preview: bool
    ) -> Values:
        """Sends the whole declaration; ids and status stay known in a preview."""
        kind = self._type(type_)
        if preview:
            metadata = {**old_state.get("metadata", {}), **new["metadata"]}
            return {**old_state, **new, "metadata": metadata}
        what = f"update {_describe(kind, new)}"
        self._seen(kind, id, new, what)
        request = kind.update_request(id, adoption.add(new, urn))
        mask = kind.reset_mask(request)
        started, watch = False, self._watch(kind, urn, what)
        try:
            with self._api.explained(what, GONE):
                operation = self._api.when_idle(
                    kind.service,
                    lambda: self._api.call(kind.service, "Update", request, mask=mask),
                    watch,
                )
                started = True
                self._api.wait(kind.service, operation, watch)
                return _with_told(kind, old_state, self._state(kind, id))
        except UserError as error:
            if not started and not isinstance(error.__cause__, UnfinishedError):
                raise
            raise PartialError(str(error), id=id, state=self._known(kind, id, new)) from error

    def read(
        self, type_: str, id: str, state: Values, inputs: Values
    ) -> tuple[str, Values, Values] | None:
        """What the API has, and the declaration as it would have to be for it."""
        kind = self._type(type_)
        what = f"read {kind.name} {id}"
        # The label of another state in this one would let a destroy delete it.
        found = self._seen(kind, id, inputs, what)
        if found is None:
            return None
        values = _with_told(kind, state, plain(self._schema, found))
        return id, values, kind.inputs_of(adoption.remove(values), inputs)

    def delete(self, type_: str, id: str, state: Values) -> None:
        """Deletes and waits; a resource that is gone is no error."""
        kind = self._type(type_)
        what = f"delete {_describe(kind, state)} {id}"
        self._seen(kind, id, state, what)
        with self._api.explained(what, GONE):
            # The engine names no resource here: the line itself does.
            remove(self._api, kind, id, self._watch(kind, "", what))

    def _seen(self, kind: ResourceType, id_: str, values: Values, what: str) -> Any | None:
        """What is there now, or None; refused where another state of the stack has taken it."""
        with self._api.explained(what, GONE):
            found = self._api.find(kind.service, id=id_)
        declared = values.get("metadata", {}).get("labels") or {}
        if found is not None and (taken := adoption.other_state(found.metadata.labels, declared)):
            raise ProviderError(f"{what}: {found.metadata.id}, {taken}")
        return found

    def _watch(self, kind: ResourceType, urn: str, what: str) -> Watch:
        """Tells the user at the resource how a wait goes."""
        prefix, say = self._schema.kind(kind.resource), partial(self.engine.info, urn)
        return Watch(
            what, prefix, self._schema, say, lambda id_: self._api.find(kind.service, id=id_)
        )

    def _known(self, kind: ResourceType, id_: str, inputs: Values) -> Values:
        """What is known of a resource whose wait ended; the API may be away."""
        try:
            return self._state(kind, id_)
        except ApiError:
            return {**inputs, "metadata": {**inputs["metadata"], "id": id_}, "status": {}}

    def _state(self, kind: ResourceType, id_: str) -> Values:
        found = self._api.find(kind.service, id=id_)
        if found is None:
            raise ApiError("NOT_FOUND", f"{id_} was deleted while it was being changed")
        return plain(self._schema, found)


def _describe(kind: ResourceType, values: Values) -> str:
    name = values.get("metadata", {}).get("name")
    return f"{kind.name} {name!r}" if isinstance(name, str) else kind.name


def _with_told(kind: ResourceType, old_state: Values, values: Values) -> Values:
    """The values, with the secrets that their create told and a later read may not show again."""
    old, status = old_state.get("status", {}), values.get("status", {})
    kept = {key: Secret(old[key]) for key in told_once(kind) if key in old and key not in status}
    return {**values, "status": {**status, **kept}} if kept else values


_LOOK_AGAIN_S: Final = (0.5, 1.0, 2.0, 4.0)


def remove(api: Api, kind: ResourceType, id_: str, watch: Watch | None = None) -> None:
    """Deletes, after any other change of the resource has ended; one that is gone is no error."""
    request = api.request(kind.service, "Delete", id=id_)
    try:
        operation = api.when_idle(
            kind.service, lambda: api.call(kind.service, "Delete", request), watch
        )
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
        found = api.call(kind.service, "Get", api.request(kind.service, "Get", id=id_))
        state = str(plain(api.schema, found).get("status", {}).get("state", ""))
        if "DELET" in state.upper():
            return
        api.pause(pause_s)
    raise ApiError("ABORTED", f"{id_} is still there after its deletion ended (state {state})")
