"""Errors in OpenAI's form: {"error": {"message", "type", "param", "code"}} and an HTTP status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

RETRY_AFTER_S = 2
"""What a client that met a full queue or a stopping server is told to wait."""


@dataclass(slots=True, kw_only=True)
class ApiError(Exception):
    """One answer that is no chat."""

    status: int
    message: str
    code: str
    param: str | None = None

    def __str__(self) -> str:
        return self.message

    def to_json(self) -> dict[str, Any]:
        """Return the body."""
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, "server_error"),
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that belong to the status."""
        if self.status in (429, 503):
            return {"retry-after": str(RETRY_AFTER_S)}
        return {"www-authenticate": "Bearer"} if self.status == 401 else {}


_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    504: "timeout_error",
}


def bad_request(message: str, param: str | None, code: str = "invalid_value") -> ApiError:
    """Return a 400 that names the parameter."""
    return ApiError(status=400, message=message, param=param, code=code)
