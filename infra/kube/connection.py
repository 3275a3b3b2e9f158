"""The connection to one API server: requests with the caller's token, errors of one line."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

import urllib3

from infra.kube.errors import KubeError, UnreachableError
from infra.kube.kubeconfig import Access

_CONNECT_TIMEOUT_S: Final = 5.0
_REQUEST_TIMEOUT_S: Final = 30.0
_READINESS_TIMEOUT_S: Final = 2.0
_MAX_CONNECTIONS: Final = 16
_RETRIES: Final = urllib3.Retry(total=1, connect=0, redirect=0, other=0, allowed_methods=None)
"""A connection that the server closed while idle is tried again; every request is idempotent."""


class Connection:
    """A pool of connections; safe to use from several threads."""

    def __init__(self, access: Access) -> None:
        self._access = access
        # A pool of this one host: no proxy of the environment is ever asked.
        self._http = urllib3.connection_from_url(
            access.server,
            maxsize=_MAX_CONNECTIONS,
            timeout=urllib3.Timeout(connect=_CONNECT_TIMEOUT_S, read=_REQUEST_TIMEOUT_S),
            **({"ssl_context": access.ssl_context()} if access.server[:6] == "https:" else {}),
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def is_ok(self, path: str) -> bool:
        """Whether a GET is answered with 200 soon."""
        headers = {"Authorization": f"Bearer {self._access.token()}"}
        timeout = _READINESS_TIMEOUT_S
        try:
            answer = self._http.request(
                "GET", path, headers=headers, timeout=timeout, retries=False
            )
        except urllib3.exceptions.HTTPError:
            return False
        return answer.status == 200

    def request(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        subject: str = "",
    ) -> Any:
        """The answer's JSON; KubeError for a refusal, begun with `subject`."""
        response = self._send(method, path, params or {}, body, content_type)
        if response.status >= 400:
            message = _message(response)
            raise KubeError(f"{subject}: {message}" if subject else message, status=response.status)
        return response.json()

    def _send(
        self,
        method: str,
        path: str,
        params: dict[str, str],
        body: bytes | None,
        content_type: str = "application/json",
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        if token := self._access.token():
            headers["Authorization"] = f"Bearer {token}"
        try:
            url = f"{path}?{urlencode(params)}" if params else path
            return self._http.request(method, url, body=body, headers=headers, retries=_RETRIES)
        except urllib3.exceptions.HTTPError as error:
            raise UnreachableError(f"{self._access.server}: no answer: {_reason(error)}") from error


def _message(response: urllib3.BaseHTTPResponse) -> str:
    """The API server's own words, on one line."""
    try:
        text = response.json()["message"]
    except (ValueError, KeyError):
        text = response.data.decode(errors="replace") or f"HTTP {response.status}"
    return " ".join(text.split())


def _reason(error: urllib3.exceptions.HTTPError) -> str:
    """The cause that helps, without the pool and the URL around it."""
    cause = getattr(error, "reason", None) or error
    return str(cause).rpartition("): ")[2] or type(cause).__name__
