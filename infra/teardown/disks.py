"""The Nebius disks behind a cluster's volumes: verified by id, removed by id, never by a guess.

The labels of a CSI disk name a namespace and no cluster, so a search by label would reach disks of
other clusters in the project: what is not known by its id is listed and left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from infra.nebius.api import Api
from infra.nebius.errors import ApiError
from infra.nebius.removal import remove
from infra.nebius.resource_type import ResourceType

_TOKEN: Final = "nebius:compute/v1:Disk"  # noqa: S105
CLAIM_LABEL: Final = "kubernetes.io/created-for/pvc/namespace"
"""On every disk that a CSI driver made for a claim (clean-up script of the official recipe)."""
_PAGE: Final = 500
_DRIVER_S: Final = (1.0, 2.0, 4.0, 8.0)
"""How long the driver has to delete the disk of a claim that has gone."""


class Disks:
    """Disks of one project."""

    def __init__(self, api: Api, project_id: str) -> None:
        self._api = api
        self._kind = ResourceType.of_token(api.schema, _TOKEN)
        self._project_id = project_id

    def remove(self, ids: Iterable[str]) -> list[str]:
        """Removes what the driver has left of these; the ids that were still there."""
        left = [id_ for id_ in ids if self._find(id_) is not None]
        for pause_s in _DRIVER_S if left else ():
            self._api.pause(pause_s)
            left = [id_ for id_ in left if self._find(id_) is not None]
        for id_ in left:
            remove(self._api, self._kind, id_)
        return left

    def unused(self, namespaces: Iterable[str]) -> list[str]:
        """Ids of the project's claimed disks that nothing uses, of whichever cluster."""
        ours = frozenset(namespaces)
        return [
            disk.metadata.id
            for disk in self._all()
            if disk.metadata.labels.get(CLAIM_LABEL) in ours
            and not disk.status.read_write_attachment
        ]

    def _find(self, id_: str) -> Any | None:
        """The disk where it exists in our project."""
        service = self._kind.service
        try:
            found = self._api.call(service, "Get", self._api.request(service, "Get", id=id_))
        except ApiError as error:
            if error.is_not_found:
                return None
            raise
        return found if found.metadata.parent_id == self._project_id else None

    def _all(self) -> list[Any]:
        service, items, token = self._kind.service, list[Any](), ""
        while True:
            request = self._api.request(
                service, "List", parent_id=self._project_id, page_size=_PAGE, page_token=token
            )
            page = self._api.call(service, "List", request)
            items += page.items
            token = page.next_page_token
            if not token:
                return items
