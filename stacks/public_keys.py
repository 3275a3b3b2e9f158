"""Reads SSH public keys that a stack names as files: expand_keys(lines, environ).

Owns variables, ~ and the default file. Does not judge keys (rules/access.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from stacks.text_file import read_text

KEY_FILE_VARIABLE: Final = "SOPERATOR_SSH_PUBLIC_KEY_FILE"
_DEFAULT_KEY_FILE: Final = "~/.ssh/id_ed25519.pub"
_KEY_FILE_PREFIX: Final = "file:"
_KEY_FILE_BYTES: Final = 1 << 20


def expand_keys(
    lines: Sequence[str], environ: Mapping[str, str], path: str, refuse: Callable[[str, str], None]
) -> tuple[str, ...]:
    """Key lines, each once, with `file:PATH` replaced by the lines of the file."""
    keys: list[str] = []
    for index, line in enumerate(lines):
        if line.startswith(_KEY_FILE_PREFIX):
            name = line.removeprefix(_KEY_FILE_PREFIX)
            keys.extend(_key_file(name, environ, f"{path}[{index}]", refuse))
        else:
            keys.append(line.strip())
    return tuple(dict.fromkeys(keys))


def _key_file(
    name: str, environ: Mapping[str, str], path: str, refuse: Callable[[str, str], None]
) -> list[str]:
    expanded, unset = _expand(name, environ)
    if unset:
        refuse(path, f"'{name}': ${unset} is not set; export it or give a path")
        return []
    try:
        text = read_text(expanded, at_most_bytes=_KEY_FILE_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        refuse(
            path,
            f"cannot read the SSH public key {expanded} ({_reason(error)}); make one with "
            f"'ssh-keygen -t ed25519' or set {KEY_FILE_VARIABLE}",
        )
        return []
    lines = [line.strip() for line in text.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        refuse(path, f"{expanded} holds no key; make one with 'ssh-keygen -t ed25519'")
    return keys


def _expand(name: str, environ: Mapping[str, str]) -> tuple[Path, str | None]:
    """The path with $VARS and ~ replaced, and the first variable that is not set."""
    values = {KEY_FILE_VARIABLE: _DEFAULT_KEY_FILE, **{k: v for k, v in environ.items() if v}}
    unset: list[str] = []

    def replace(match: re.Match[str]) -> str:
        variable = match[1] or match[2]
        if variable not in values:
            unset.append(variable)
        return values.get(variable, "")

    text = re.sub(r"\$(?:(\w+)|\{(\w+)\})", replace, name)
    if text == "~" or text.startswith("~/"):
        text = values.get("HOME", str(Path.home())) + text[1:]
    return Path(text), unset[0] if unset else None


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or "unreadable").lower() if isinstance(error, OSError) else "not text"
