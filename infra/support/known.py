"""Values of this machine that are secret: known(state, environ, stack file). Reads, writes nothing.

Owns where secrets lie: the state folder (docs/architecture.md) and the environment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from infra.local.state import State

_WORDS: Final = (
    *("TOKEN", "PASSPHRASE", "PASSWORD", "SECRET", "API_KEY", "ACCESS_KEY", "KEY_FILE"),
    *("CREDENTIAL", "WEBHOOK"),
)
_FILES_OF: Final = ("_FILE", "_PATH")
_LONGEST_BYTES: Final = 64 * 1024


def known(state: State, environ: Mapping[str, str]) -> set[str]:
    """Every secret value that this machine holds for its stacks."""
    found = set(_environment(environ))
    files = [state.passphrase, *_private_keys(state.root / "ssh")]
    cloud = state.root / "cloud"
    if cloud.is_dir():
        # What the engine keeps there has its secrets encrypted: its lines are names and ids.
        files += [
            path
            for path in cloud.rglob("*")
            if path.is_file() and path.relative_to(cloud).parts[1:2] != ("pulumi",)
        ]
    for path in files:
        found |= set(_secrets_of(_read(path)))
    return {each for each in found if each.strip()}


def _environment(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        if "PUBLIC" in name.upper() or not any(word in name.upper() for word in _WORDS):
            continue
        if name.upper().endswith(_FILES_OF) or value.startswith("/"):
            yield from _secrets_of(_read(Path(value)))
        if not name.upper().endswith(_FILES_OF):
            yield value


def _private_keys(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if "PRIVATE KEY" in _read(path)]


def _read(path: Path) -> str:
    try:
        return path.read_bytes()[:_LONGEST_BYTES].decode(errors="replace")
    except OSError:
        return ""


def _secrets_of(text: str) -> Iterator[str]:
    """Secret values of a JSON file; any other whole, and the values of its lines `NAME=value`."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, dict | list):
        yield from _named(found)
    else:
        yield text
        for line in text.splitlines():
            name, equals, value = line.removeprefix("export ").partition("=")
            if equals and any(word in name.upper() for word in (*_WORDS, "KEY")):
                yield value.strip().strip("'\"")


def _named(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _named(each, str(key))
    elif isinstance(value, list):
        for each in value:
            yield from _named(each, name)
    elif isinstance(value, str) and any(word in name.upper() for word in (*_WORDS, "KEY")):
        yield value
