"""Logical places (data, model, chkpt, ...) of a stack, resolved to paths inside the job.

Owns the environment contract `SOPERATOR_PLACE_<PLACE>` and the look-up of models and data that the
jail image brings. Does not create anything.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from workloads.common.exit_codes import ConfigError, DataError

PLACES = ("data", "model", "chkpt", "elastic", "logs", "results", "cache", "scratch")
IMAGE_MODELS = Path("/opt/soperator/models")
IMAGE_DATA = Path("/opt/soperator/data")


class Places:
    """Paths of the logical places that this job was given."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment

    def path(self, place: str) -> Path:
        """Return the directory of `place`."""
        if place not in PLACES:
            raise ConfigError(f"place '{place}' is unknown; allowed: {', '.join(PLACES)}")
        variable = f"SOPERATOR_PLACE_{place.upper()}"
        value = self._environment.get(variable)
        if not value:
            raise ConfigError(
                f"{variable} is not set: the recipe needs the place '{place}'; declare "
                f"storage.places.{place} in the stack, or export {variable}=/some/path"
            )
        if not value.startswith("/"):
            raise ConfigError(f"{variable}: '{value}' is not an absolute path")
        return Path(value)

    def has(self, place: str) -> bool:
        """Whether the stack names `place`."""
        return bool(self._environment.get(f"SOPERATOR_PLACE_{place.upper()}"))

    def expand(self, value: str, *, at: str) -> Path:
        """Return `value` with `{place:NAME}` replaced; `at` is the recipe key for the message."""
        if value.startswith("{place:"):
            name, closed, rest = value.removeprefix("{place:").partition("}")
            if not closed:
                raise ConfigError(f"{at}: '{value}' has no closing brace; write {{place:data}}/x")
            return self.path(name) / rest.lstrip("/")
        if not value.startswith("/"):
            raise ConfigError(
                f"{at}: '{value}' is neither an absolute path nor starts with {{place:NAME}}"
            )
        return Path(value)

    def model_dir(self, name: str) -> Path:
        """Return the folder of model `name`: the user's own, the shared one, the jail image's."""
        return self._find(name, "model", IMAGE_MODELS, "config.json")

    def data_path(self, name: str) -> Path:
        """Return a file or folder of raw data: the user's own, the shared one, the jail image's."""
        return self._find(name, "data", IMAGE_DATA, None)

    def _shared(self, place: str) -> list[Path]:
        """Where `place` has what is there for every user, who reads it and changes nothing."""
        value = self._environment.get(f"SOPERATOR_SHARED_{place.upper()}")
        return [Path(value)] if value else []

    def _find(self, name: str, place: str, image: Path, marker: str | None) -> Path:
        if name.startswith(("/", "{")):
            candidates = [self.expand(name, at=place)]
        else:
            folders = [self.path(place), *self._shared(place), image]
            names = dict.fromkeys((name, Path(name).name))  # without its owner too
            candidates = [folder / each for each in names for folder in folders]
        for candidate in candidates:
            if (candidate / marker).is_file() if marker else candidate.exists():
                return candidate
        need = f" with a {marker}" if marker else ""
        raise DataError(
            f"{place} '{name}' was not found{need}; looked in: "
            f"{', '.join(str(path) for path in candidates)}; copy it to the first of these"
        )


def own_folder(mount: Path) -> Path:
    """Where this process may write on a mount: the user's home, or what `pulumi up` made there.

    The mount itself where it has neither.
    """
    try:
        user = pwd.getpwuid(os.geteuid())
    except KeyError:  # a container's user has no entry
        return mount
    if Path(user.pw_dir).is_relative_to(mount):
        return Path(user.pw_dir)
    own = mount / "users" / user.pw_name
    return own if own.is_dir() else mount
