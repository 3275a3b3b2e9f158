"""Shared tests of names and paths."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final

_NAME: Final = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_NAME_RULE: Final = "lower-case letters, digits and dashes, from a letter to a letter or digit"


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
