"""What a project's deployments need on this machine: key file, passphrase and environment.

Owns the folder `cloud/<project id>/` of the state folder; every file in it is of mode 0600. The
environment is for `set -a; . FILE; set +a` before any pulumi command of that project.
"""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from infra import whole_file
from infra.init.deployer import Key

_BACKEND: Final = "PULUMI_BACKEND_URL"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectState:
    """The files of one project."""

    folder: Path

    @property
    def key_file(self) -> Path:
        """Key of the service account, as the SDK reads it."""
        return self.folder / "deployer.json"

    @property
    def passphrase_file(self) -> Path:
        """Opens the secrets of the project's stacks; nobody else has it."""
        return self.folder / "passphrase"

    @property
    def environment_file(self) -> Path:
        """Variables that the engine needs for this project."""
        return self.folder / "environment"

    def passphrase(self) -> tuple[str, bool]:
        """The passphrase, and whether it was made now."""
        if self.passphrase_file.is_file():
            return self.passphrase_file.read_text().strip(), False
        made = secrets.token_urlsafe(32)
        self.write(self.passphrase_file, f"{made}\n")
        return made, True

    def keys(self) -> Mapping[str, Key]:
        """Keys that lie here: `auth` and `access`, those whose secret half is here too."""
        needed = {"auth": self.key_file, "access": self.environment_file}
        file = self.folder / "keys.json"
        told: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
        return {
            use: Key(id=key["id"], expires_at=datetime.fromisoformat(key["expires_at"]))
            for use, key in told.items()
            if needed[use].is_file()
        }

    def write_keys(self, keys: Mapping[str, Key]) -> None:
        """Remembers which keys lie here."""
        told = {
            use: {"id": key.id, "expires_at": key.expires_at.isoformat()}
            for use, key in keys.items()
        }
        self.write(self.folder / "keys.json", json.dumps(told, indent=1) + "\n")

    def write_key_file(self, *, account: str, key: Key, private_pem: str) -> None:
        """The key of the service account."""
        credentials = {
            "type": "JWT",
            "alg": "RS256",
            "private-key": private_pem,
            "kid": key.id,
            "iss": account,
            "sub": account,
        }
        self.write(self.key_file, json.dumps({"subject-credentials": credentials}) + "\n")

    @property
    def stacks_folder(self) -> Path:
        """States of the project's stacks where they lie on this machine and not in a bucket."""
        return self.folder / "pulumi"

    def backend(self) -> str | None:
        """Address of the backend that the environment names; None before there is one."""
        if not self.environment_file.is_file():
            return None
        words = shlex.split(self.environment_file.read_text(encoding="utf-8"))
        found = (word.removeprefix(f"{_BACKEND}=") for word in words if word.startswith(_BACKEND))
        return next(found, None)

    def write_environment(self, backend: str, keys: Mapping[str, str]) -> None:
        """The backend with the keys that open it, the passphrase and the service account."""
        variables = {
            _BACKEND: backend,
            **keys,
            "PULUMI_CONFIG_PASSPHRASE_FILE": str(self.passphrase_file),
            "SOPERATOR_NEBIUS_KEY_FILE": str(self.key_file),
        }
        lines = [f"{name}={shlex.quote(value)}\n" for name, value in variables.items()]
        self.write(self.environment_file, "".join(lines))

    def write(self, path: Path, text: str) -> None:
        """Writes a file that only its owner can read, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        whole_file.write(path, text, mode=0o600)
