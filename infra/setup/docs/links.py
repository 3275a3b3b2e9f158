"""Links of pages that lead out of docs/: the site carries those files too, under source/."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Final

FOLDER: Final = "source"
_LINK: Final = re.compile(r"(\]\()(?!https?://|mailto:|#)([^)#\s]+)((?:#[^)]*)?\))")


def outside(text: str, page: str) -> list[str]:
    """Paths from the checkout's root of the files that a page of docs/ links to outside of it."""
    paths = (_path(match[2], page) for match in _LINK.finditer(text))
    return [path for path in paths if path is not None]


def inside(text: str, page: str) -> str:
    """The page with those links led to the site's own copies."""

    def replace(match: re.Match[str]) -> str:
        path = _path(match[2], page)
        if path is None:
            return match[0]
        target = posixpath.relpath(site_path(path), posixpath.dirname(page) or ".")
        return f"{match[1]}{target}{match[3]}"

    return _LINK.sub(replace, text)


def site_path(path: str) -> str:
    """Where the site has a file of the checkout."""
    # A browser shows it as text, whatever it is; a Markdown page would be made a page of the site.
    return f"{FOLDER}/{path}.txt" if Path(path).suffix in ("", ".md", ".py") else f"{FOLDER}/{path}"


def _path(link: str, page: str) -> str | None:
    """Path from the checkout's root of what a link names outside of docs/, and of its tables."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    leaves = not path.startswith("docs/") or path.endswith(".tsv")
    return path if leaves else None
