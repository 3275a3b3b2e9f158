"""What the API has, read once for all questions: lists by service, paged, from several threads.

Reads only. A call waits no longer than the pre-flight check as a whole.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

from infra.nebius.api import Api
from infra.nebius.schema import Schema
from infra.nebius.sdk import cache_dir, shared_sdk

_PAGE = 500


class Cloud:
    """The API that the environment names, for the length of one pre-flight check."""

    def __init__(self, *, within_s: float) -> None:
        self.schema = Schema(cache_dir())
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
            shared_sdk()  # made once, by whichever question comes first
        found = self.schema.services[f"nebius.{service}"]
        return self._api.call(found, method, self._api.request(found, method, **fields))

    def list(self, service: str, parent_id: str) -> list[Any]:
        """Every resource of a service under one parent; asked once."""
        key = (service, parent_id)
        with self._lock:
            lock = self._locks[key]
        with lock:
            if key not in self._lists:
                self._lists[key] = self._all_pages(service, parent_id)
            return self._lists[key]

    def _all_pages(self, service: str, parent_id: str) -> list[Any]:
        items: list[Any] = []
        token = ""
        while True:
            page = self.get(service, "List", parent_id=parent_id, page_size=_PAGE, page_token=token)
            items += page.items
            token = page.next_page_token
            if not token:
                return items
