"""Shared tests of names, paths and address blocks."""

from __future__ import annotations

import ipaddress
import re
from pathlib import PurePosixPath
from typing import Final

from stacks.machines import IN_JAIL, KEPT

_NAME: Final = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_NAME_RULE: Final = "lower-case letters, digits and dashes, from a letter to a letter or digit"


_RESERVED: Final = {
    **dict.fromkeys(
        (
            "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc",
            "/run", "/sbin", "/sys", "/usr", "/var",
        ),
        "the jail's own system",
    ),
    **{mount.path: mount.what for mount in IN_JAIL},
    **KEPT,
}  # fmt: skip
"""Path in the jail -> what lies there."""


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


def cidr_problem(cidr: str) -> str | None:
    """Why the text is not an IPv4 block as the API wants it, or None."""
    try:
        loose = ipaddress.IPv4Network(cidr, strict=False)
    except ValueError:
        return f"'{cidr}' is no IPv4 block; write it as 203.0.113.0/24"
    if str(loose) == cidr:
        return None
    return f"'{cidr}' has address bits after its prefix, or no /LENGTH; use {loose}"


def reserved_problem(path: str) -> str | None:
    """Why nothing may be mounted at a plain path, or None."""
    for reserved, why in _RESERVED.items():
        # A mount above it depends on which of the two comes first, and that is Soperator's affair.
        if is_under(path, reserved) or is_under(reserved, path):
            how = "hides" if is_under(reserved, path) else "lies in"
            return f"'{path}' {how} {reserved}, {why}; choose another path, such as /mnt/NAME"
    return None


def is_under(path: str, parent: str) -> bool:
    """Whether `path` is `parent` or inside it; both are plain, as path_problem wants them."""
    # Every mount is held against every other one: pathlib takes seconds for hundreds of them.
    return f"{path}/".startswith(f"{parent.rstrip('/')}/")


def word_problem(word: str) -> str | None:
    """Why the text cannot be a name of the API, or None; `<subnet_id>` is a template's place."""
    if re.fullmatch(r"[0-9A-Za-z._-]+", word):
        return None
    return f"{word!r} is no name of the API's; use letters, digits, '.', '_' and '-'"
