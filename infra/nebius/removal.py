"""Deletes one resource and waits until it is gone."""

from __future__ import annotations

from typing import Final

from infra.nebius.api import Api
from infra.nebius.errors import ApiError
from infra.nebius.resource_type import ResourceType
from infra.nebius.values import plain
from infra.nebius.wait import Watch

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
