"""Deletes one resource and waits until it is gone."""

from __future__ import annotations

from infra.nebius.api import Api
from infra.nebius.errors import ApiError
from infra.nebius.resource_type import ResourceType


def remove(api: Api, kind: ResourceType, id_: str) -> None:
    """Deletes, after any other change of the resource has ended; one that is gone is no error."""
    request = api.request(kind.service, "Delete", id=id_)
    try:
        operation = api.when_idle(kind.service, lambda: api.call(kind.service, "Delete", request))
        api.wait(kind.service, operation)
    except ApiError as error:
        if not error.is_not_found:
            raise
