"""The resource `soperator:storage:Object`: one object of a bucket, named by its key.

An object is never written over with another content: that is another key, so a change replaces it
and whoever declares it decides whether the old one stays. New credentials change the state only.
"""

from __future__ import annotations

from typing import ClassVar, Final

from infra.clients.objects import DeniedError, Place, StorageError
from infra.providers.engine.provider import (
    TEXT,
    UNKNOWN,
    Diff,
    Found,
    Provider,
    ProviderError,
    Values,
    compare,
)

TYPE: Final = "soperator:storage:Object"
_ADDRESS: Final = ("endpoint", "region", "bucket", "key", "access_key_id", "secret_access_key")
_IDENTITY: Final = ("bucket", "key", "content")
_TRIES_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""A new key and its rights are not known everywhere at once: the recipe waits up to 150 s."""


class ObjectProvider(Provider):
    """Uploads, looks again and removes; a new way in changes in place."""

    rules: ClassVar = dict.fromkeys((*_ADDRESS, "content"), TEXT)
    in_place = True

    def __init__(self, tries_s: tuple[float, ...] = _TRIES_S) -> None:
        super().__init__()
        self._tries_s = tries_s

    def diff(self, id: str, old_inputs: Values, old_state: Values, new: Values) -> Diff:
        """Another bucket, key or content is another object; the rest changes in place."""
        changes = compare(old_inputs, new)
        # A bucket that is only known later is the one that it was, or `up` asks again and knows.
        replaces = [key for key in changes if key in _IDENTITY and new.get(key) is not UNKNOWN]
        return Diff(detailed=changes, replaces=tuple(replaces))

    def create(self, urn: str, inputs: Values) -> tuple[str, Values]:
        """Uploads, unless the object is there with this content."""
        place, content = _place(inputs), inputs["content"].encode()
        for pause_s in (*self._tries_s, None):
            try:
                if place.read() != content:
                    place.write(content)
                break
            except DeniedError as error:
                if pause_s is None or self.cancelled.wait(pause_s):
                    raise ProviderError(
                        f"{error}; the account of the key needs storage.object-editor on the bucket"
                    ) from error
            except StorageError as error:
                raise ProviderError(f"{error}; run the command again") from error
        return f"{inputs['bucket']}/{inputs['key']}", dict(inputs)

    def read(self, id: str, state: Values, inputs: Values) -> Found | None:
        """The object with the content that it has now, or None where it is gone."""
        try:
            content = _place(state).read()
        except DeniedError as error:
            # A key that ended must not block a refresh: the next `up` makes another.
            self.engine.info("", f"not looked at: {error}")
            return id, state, inputs
        except StorageError as error:
            raise ProviderError(str(error)) from error
        if content is None:
            return None
        live = {"content": content.decode("utf-8", "replace")}
        return id, {**state, **live}, {**inputs, **live}

    def delete(self, id: str, state: Values) -> None:
        """Removes the object."""
        try:
            _place(state).remove()
        except StorageError as error:
            raise ProviderError(f"{error}; run the command again") from error


def _place(values: Values) -> Place:
    return Place(**{key: values[key] for key in _ADDRESS})
