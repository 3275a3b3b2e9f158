"""Find and create single resources of the API: Calls().find(...), Calls().create(...).

Owns the check of each request against the API's own rules before it is sent. What is wanted is
decided in deployer.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from google.protobuf import json_format

from infra.init.errors import UnseenError
from infra.nebius.api import Api
from infra.nebius.errors import ApiError, explain
from infra.nebius.schema import Schema
from infra.nebius.sdk import cache_dir
from infra.nebius.validation import Validator
from stacks.errors import UserError

_PAGE: Final = 500


class Calls:
    """The API that the environment names."""

    def __init__(self) -> None:
        self._schema = Schema(cache_dir())
        self._api = Api(self._schema, threading.Event())
        self._rules = Validator(self._schema)

    def get(self, service: str, method: str, **fields: Any) -> Any:
        """The answer of one call, such as `iam.v2.ProjectService` `Get`."""
        found = self._schema.services[f"nebius.{service}"]
        request = self._api.request(found, method)
        json_format.ParseDict(fields, request, descriptor_pool=self._schema.pool)
        problems = [f"{path}: {reason}" for path, reason in self._rules.violations(request)]
        if problems:
            raise UserError(f"{service}/{method}: the API would refuse it: {'; '.join(problems)}")
        try:
            return self._api.call(found, method, request)
        except ApiError as error:
            refusal = UnseenError if error.is_unseen else UserError
            what = f"{service}/{method}"
            raise refusal(explain(error, what, target=self._api.target)) from error

    def find(
        self, service: str, method: str, parent: dict[str, Any], fits: Callable[[Any], bool]
    ) -> Any | None:
        """The first resource of a list that fits, or None."""
        token = ""
        while True:
            page = self.get(service, method, **parent, page_size=_PAGE, page_token=token)
            items = page.memberships if hasattr(page, "memberships") else page.items
            found = next((item for item in items if fits(item)), None)
            if found is not None or not page.next_page_token:
                return found
            token = page.next_page_token

    def create(self, service: str, metadata: dict[str, Any], spec: dict[str, Any]) -> str:
        """Id of the new resource, once it is there."""
        found = self._schema.services[f"nebius.{service}"]
        operation = self.get(service, "Create", metadata=metadata, spec=spec)
        try:
            return self._api.wait(found, operation).resource_id
        except ApiError as error:
            what = f"{service}/Create"
            raise UserError(explain(error, what, target=self._api.target)) from error
