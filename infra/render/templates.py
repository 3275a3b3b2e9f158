"""Texts that are filled in out of files of this folder: shell, and YAML as the values that it says.

Variables stand in {{ }} in shell, which has [[ ]], and in [[ ]] in YAML, which has braces.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from infra.render.names import shell_file
from stacks.files import environment, is_list, is_map, parse_yaml

if TYPE_CHECKING:
    import jinja2

_FOLDER: Final = Path(__file__).parent


def shell(template: str, **values: object) -> str:
    """A template of shell text, filled in; no newline at its end."""
    return _shell().get_template(template).render(**values).rstrip("\n")


def manifest(template: str, known: Mapping[str, Any] | None = None, **values: object) -> Any:
    """What a template of YAML says once it is filled in.

    `known`: values that Pulumi may know only once it has made something; `<name>` stands for each.
    """
    known = known or {}
    found = parse_yaml(_yaml().get_template(template).render(known=known, **values))
    return _placed(found, {f"<{name}>": each for name, each in known.items()}) if known else found


def has_template(template: str) -> bool:
    """Whether there is such a file."""
    return (_FOLDER / template).is_file()


def _placed(value: object, known: Mapping[str, Any]) -> object:
    if is_map(value):
        return {key: _placed(each, known) for key, each in value.items()}
    if is_list(value):
        return [_placed(each, known) for each in value]
    return known.get(value, value) if isinstance(value, str) else value


@cache
def _yaml() -> jinja2.Environment:
    return environment(_FOLDER, variables=("[[", "]]"))


@cache
def _shell() -> jinja2.Environment:
    filters = {"quote": shlex.quote, "join_words": shlex.join, "json": json.dumps}
    made = environment(_FOLDER, {**filters, "export": _export, "in_quotes": _in_quotes})
    made.globals["shell_file"] = shell_file
    return made


def _export(environment: Mapping[str, str]) -> str:
    pairs = (f"{name}={shlex.quote(value)}" for name, value in environment.items())
    return f"export {' '.join(pairs)}"


def _in_quotes(script: str) -> str:
    """The script in single quotes, so that only the task on the node expands it."""
    if "'" in script:
        raise AssertionError("a launch script must not hold single quotes")
    return f"'{script}'"
