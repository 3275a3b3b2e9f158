"""What the cloud has of a stack: every resource of one project whose ownership labels name it.

Owns which types are looked at, and the order in which they can be deleted. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from infra.nebius import ownership
from infra.nebius.api import Api
from infra.nebius.resource_type import ResourceType
from infra.nebius.values import plain

NODE_GROUP: Final = "nebius:mk8s/v1:NodeGroup"
CLUSTER: Final = "nebius:mk8s/v1:Cluster"
FILESYSTEM: Final = "nebius:compute/v1:Filesystem"
INSTANCE: Final = "nebius:compute/v1:Instance"
BUCKET: Final = "nebius:storage/v1:Bucket"
ALLOCATION: Final = "nebius:vpc/v1:Allocation"
TYPES: Final = (
    CLUSTER,
    "nebius:compute/v1:GpuCluster",
    FILESYSTEM,
    INSTANCE,
    "nebius:compute/v1:Disk",
    ALLOCATION,
    "nebius:vpc/v1:Subnet",
    "nebius:vpc/v1:Network",
    "nebius:iam/v2:AccessKey",
    "nebius:iam/v1:Group",
    "nebius:iam/v1:ServiceAccount",
    BUCKET,
    "nebius:registry/v1:Registry",
)
"""Types that stand directly in a project, users before what they use."""
_PAGE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """One resource of the stack."""

    token: str
    id: str
    name: str
    values: dict[str, Any]
    """The whole resource, as plain values."""

    @property
    def type(self) -> str:
        """Short name, such as `Filesystem`."""
        return self.token.rpartition(":")[2]


def owned(api: Api, *, project_id: str, stack: str, project: str) -> Iterator[Owned]:
    """Every resource of the stack of a Pulumi project, in an order in which they can be deleted."""
    for token in TYPES:
        found = [*_labelled(api, token, project_id, stack, project)]
        if token == CLUSTER:
            for cluster in found:
                yield from _labelled(api, NODE_GROUP, cluster.id, stack, project)
        yield from found


def _labelled(api: Api, token: str, parent_id: str, stack: str, project: str) -> Iterator[Owned]:
    kind = ResourceType.of_token(api.schema, token)
    page = ""
    while True:
        request = api.request(
            kind.service, "List", parent_id=parent_id, page_size=_PAGE, page_token=page
        )
        answer = api.call(kind.service, "List", request)
        for item in answer.items:
            if ownership.is_of(item.metadata.labels, stack, project):
                metadata = item.metadata
                yield Owned(
                    token=token,
                    id=metadata.id,
                    name=metadata.name,
                    values=plain(api.schema, item),
                )
        page = answer.next_page_token
        if not page:
            return
