"""Objects of one bucket over the S3 API, in plain values and errors of one line.

Owns the one construction of a client and the words for what it refuses. obstore is imported at the
first call: a preview makes none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from obstore.store import S3Store

_RETRIES: Final = 4
_RETRY_S: Final = 30.0
_CONNECT_S: Final = 10.0
_CALL_S: Final = 60.0


class StorageError(Exception):
    """Object storage did not do what was asked; one line."""


class DeniedError(StorageError):
    """The key does not exist, has ended, or has no right on the bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One object as a listing shows it."""

    key: str
    size_bytes: int
    etag: str | None
    """Another one with each write of the object; None: the store gives none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One object and the key that opens its bucket."""

    endpoint: str
    region: str
    bucket: str
    key: str
    access_key_id: str
    secret_access_key: str

    def __str__(self) -> str:
        return f"{self.endpoint}/{self.bucket}/{self.key}"

    def read(self) -> bytes | None:
        """The content of the object, or None where there is none."""
        with self._store() as store:
            try:
                return store.get(self.key).bytes().to_bytes()
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise
                return None

    def below(self) -> tuple[Listed, ...]:
        """Every object whose key starts with this one, by key."""
        with self._store() as store:
            found = [each for page in store.list(self.key) for each in page]
        listed = (
            Listed(
                key=each["path"],
                size_bytes=each["size"],
                etag=(each["e_tag"] or "").strip('"') or None,
            )
            for each in found
        )
        return tuple(sorted(listed, key=lambda each: each.key))

    def write(self, content: bytes) -> None:
        """Makes the object, or writes over it."""
        with self._store() as store:
            store.put(self.key, content, use_multipart=False)

    def remove(self) -> None:
        """Deletes the object; one that is gone, or whose bucket is, is no error."""
        with self._store() as store, contextlib.suppress(FileNotFoundError):
            store.delete(self.key)

    @contextlib.contextmanager
    def _store(self) -> Iterator[S3Store]:
        """The bucket's store; what it refuses in the block is a StorageError."""
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
        from obstore.store import S3Store

        try:
            yield S3Store(
                self.bucket,
                endpoint=self.endpoint,
                region=self.region,
                access_key_id=self.access_key_id,
                secret_access_key=self.secret_access_key,
                virtual_hosted_style_request=False,
                client_options={
                    "allow_http": self.endpoint.startswith("http://"),
                    "connect_timeout": timedelta(seconds=_CONNECT_S),
                    "timeout": timedelta(seconds=_CALL_S),
                },
                retry_config={
                    "max_retries": _RETRIES,
                    "retry_timeout": timedelta(seconds=_RETRY_S),
                },
            )
        except FileNotFoundError as error:
            raise StorageError(f"{self}: there is no bucket {self.bucket!r}") from error
        except BaseError as error:
            # Without its dump of the request, which follows an empty line.
            reason = " ".join(str(error).partition("\n\n")[0].split())
            denied = isinstance(error, PermissionDeniedError | UnauthenticatedError)
            raise (DeniedError if denied else StorageError)(f"{self}: {reason}") from error
