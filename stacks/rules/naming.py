"""Shared tests of names and paths."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final

_NAME: Final = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_NAME_RULE: Final = "lower-case letters, digits and dashes, from a letter to a letter or digit"


_SYSTEM: Final = "the jail's own system"
_OPTIONAL: Final = "/opt"
"""Reserved itself, not what is under it."""
_RESERVED: Final = {
    **dict.fromkeys(
        (
            "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc",
            "/run", "/sbin", "/sys", "/usr", "/var",
        ),
        _SYSTEM,
    ),
    "/mnt/jail": "where nodes mount the jail",
    "/mnt/jail.upper": "where nodes put their mounts into the jail",
    "/opt/slurm_scripts": "the prolog, epilog and health checks of Soperator",
    "/opt/soperator-home": "the homes of Soperator's own users",
    "/opt/soperator-outputs": "the logs of Soperator's checks",
    _OPTIONAL: "with the scripts and homes of Soperator in it",
    "/root": "the home of root with the keys that let `soperator` in",
    "/tmp": "the disk that each node puts there",  # noqa: S108
}  # fmt: skip
"""Path in the jail -> what lies there (nebius/soperator 4.1.7: complement_jail.sh, the charts)."""


def name_problem(name: str, *, longest: int) -> str | None:
    """Why the text is not a resource name of at most `longest` characters, or None."""
    if not _NAME.fullmatch(name):
        return f"'{name}' is not a name; use {_NAME_RULE}"
    if len(name) > longest:
        return f"'{name}' has {len(name)} characters; at most {longest} are allowed"
    return None


def path_problem(path: str) -> str | None:
    """Why the text is not an absolute, plain path, or None."""
    if not path.startswith("/"):
        return f"'{path}' is not absolute; start it with /"
    if str(PurePosixPath(path)) != path or ".." in PurePosixPath(path).parts or "//" in path:
        return f"'{path}' is not plain; write it without '..', '//' and a trailing /"
    if re.search(r"[^A-Za-z0-9._/-]", path):
        return f"'{path}' has characters that scripts must quote; use letters, digits and . _ - /"
    return None


def reserved_problem(path: str) -> str | None:
    """Why nothing may be mounted at a plain path, or None."""
    for reserved, why in _RESERVED.items():
        is_taken = path == reserved if reserved == _OPTIONAL else is_under(path, reserved)
        if is_taken:
            return f"'{path}' hides {reserved}, {why}; choose another path, such as /mnt/NAME"
    return None


def is_under(path: str, parent: str) -> bool:
    """Whether `path` is `parent` or inside it; both are plain, as path_problem wants them."""
    # Every mount is held against every other one: pathlib takes seconds for hundreds of them.
    return f"{path}/".startswith(f"{parent.rstrip('/')}/")


def repeated(names: Iterable[str]) -> tuple[str, ...]:
    """Names that occur more than once, in order of their second occurrence."""
    seen: set[str] = set()
    twice: dict[str, None] = {}
    for name in names:
        if name in seen:
            twice[name] = None
        seen.add(name)
    return tuple(twice)
