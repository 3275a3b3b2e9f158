"""Texts of other formats out of templates beside their users: the one environment of jinja2.

HTML is escaped; a name that nobody gave is an error in every format.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2


def environment(
    folder: Path, filters: Mapping[str, Callable[..., Any]] | None = None
) -> jinja2.Environment:
    """Templates of a folder; `yaml` writes a value as YAML takes it, on one line."""
    # A command that fills in none need not wait for it.
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=jinja2.select_autoescape(("html.j2",)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"yaml": lambda value: json.dumps(value, ensure_ascii=False), **(filters or {})}
    return made


def fill(
    path: Path, filters: Mapping[str, Callable[..., Any]] | None = None, /, **values: Any
) -> str:
    """The text of a template; equal values give equal bytes."""
    return environment(path.parent, filters).get_template(path.name).render(values)
