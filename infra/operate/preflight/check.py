"""What every pre-flight question uses: its findings, the cloud within a time limit, the owner."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from infra.providers.nebius import adoption
from infra.providers.nebius.api import Api
from infra.providers.nebius.schema import Schema
from infra.providers.nebius.sdk import shared_sdk


class Outcome(StrEnum):
    """NOT CHECKED is no answer: the API was away, slow, or does not tell."""

    PASS = "PASS"  # noqa: S105
    FAIL = "FAIL"
    NOT_CHECKED = "NOT CHECKED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One answer."""

    check: str
    """What was asked, such as `quotas`; empty: `ask` fills in the question's name."""
    outcome: Outcome
    seen: str
    fix: str | None = None
    certain: bool = False
    """Whether an `up` is sure to fail: the program refuses before it declares anything."""

    def __str__(self) -> str:
        return f"{self.check}: {self.seen}" + (f"; {self.fix}" if self.fix else "")


def passed(seen: str, *, check: str = "") -> Finding:
    """An answer without a problem."""
    return Finding(check=check, outcome=Outcome.PASS, seen=seen)


def failed(seen: str, fix: str, *, certain: bool = False, check: str = "") -> Finding:
    """A problem and what to do about it."""
    return Finding(check=check, outcome=Outcome.FAIL, seen=seen, fix=fix, certain=certain)


def not_checked(reason: str) -> Finding:
    """No answer, with the reason."""
    return Finding(check="", outcome=Outcome.NOT_CHECKED, seen=reason)


class Cloud:
    """The API that the environment names, for the length of one pre-flight check."""

    def __init__(self, *, within_s: float) -> None:
        self.schema = Schema.shared()
        self.given_up = threading.Event()
        """Set when the time is over: nothing is asked again."""
        self._api = Api(self.schema, self.given_up, call_s=within_s, back_off_s=(0.2,))
        self._lists: dict[tuple[str, str], list[Any]] = {}
        self._lock = threading.Lock()
        self._locks: dict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)

    @property
    def target(self) -> str | None:
        """The emulator's address, or None for the real cloud."""
        return self._api.target

    def get(self, service: str, method: str = "Get", **fields: Any) -> Any:
        """The answer of one call, such as `iam.v1.ProfileService` Get."""
        with self._lock:
            shared_sdk()
        found = self.schema.services[f"nebius.{service}"]
        return self._api.call(found, method, self._api.request(found, method, **fields))

    def list(self, service: str, parent_id: str) -> list[Any]:
        """Every resource of a service under one parent; asked once."""
        key = (service, parent_id)
        with self._lock:
            shared_sdk()  # made once, by whichever question comes first
            lock = self._locks[key]
        with lock:
            if key not in self._lists:
                found = self.schema.services[f"nebius.{service}"]
                self._lists[key] = [*self._api.pages(found, parent_id=parent_id)]
            return self._lists[key]


KINDS: Final = {
    "cluster": "mk8s.v1.ClusterService", "filesystem": "compute.v1.FilesystemService",
    "GPU cluster": "compute.v1.GpuClusterService", "address": "vpc.v1.AllocationService",
    "network": "vpc.v1.NetworkService", "subnet": "vpc.v1.SubnetService",
    "machine": "compute.v1.InstanceService", "disk": "compute.v1.DiskService",
    "bucket": "storage.v1.BucketService", "service account": "iam.v1.ServiceAccountService",
    "group": "iam.v1.GroupService", "registry": "registry.v1.RegistryService"
}  # fmt: skip
"""What a stack makes under its project -> the service that lists it."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The stack and the Pulumi project whose labels count as ours."""

    stack: str
    project: str

    def owns(self, resource: Any) -> bool:
        """Whether the resource carries our labels."""
        return adoption.is_of(dict(resource.metadata.labels), self.stack, self.project)
