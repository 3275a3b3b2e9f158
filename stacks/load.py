"""Loads a stack: configuration mapping -> StackSpec, strictly, with every problem reported at once.

Owns the two entries and the outer shape of the file. Decoding is in decode.py, rules in check.py.
    spec = load_stack("l40s-dev")
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Final, cast, get_args, get_type_hints

import yaml

from stacks.decode import Decoder, is_map, nearest
from stacks.errors import UserError
from stacks.spec import StackSpec
from stacks.text_file import read_text
from stacks.yaml_text import MAX_BYTES, parse_yaml

PROJECT: Final = "soperator-stack"
"""Pulumi project name: the namespace of our keys in a stack file."""
STACKS_DIR: Final = Path(__file__).parent


class StackError(UserError):
    """A stack that cannot be loaded, with every problem found."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems: Final = problems


def stack_names(stacks_dir: Path = STACKS_DIR) -> tuple[str, ...]:
    """Names of the stacks that have a file, sorted."""
    return tuple(
        sorted(
            path.name.removeprefix("Pulumi.").removesuffix(".yaml")
            for path in stacks_dir.glob("Pulumi.*.yaml")
        )
    )


def load_stack(
    name: str,
    stacks_dir: Path = STACKS_DIR,
    *,
    environ: Mapping[str, str] | None = None,
) -> StackSpec:
    """The stack of `Pulumi.<name>.yaml`; `environ` resolves key files, the process's by default."""
    path = stacks_dir / f"Pulumi.{name}.yaml"
    if name not in stack_names(stacks_dir):
        have = stack_names(stacks_dir)
        hint = nearest(name, have)
        # Without a likely name the hint lists them all.
        rest = f" (have: {', '.join(have)})" if "did you mean" in hint else ""
        raise StackError((f"{name}: no such stack in {stacks_dir}{hint}{rest}",))
    try:
        document = parse_yaml(read_text(path, at_most_bytes=MAX_BYTES))
    except (OSError, UnicodeDecodeError) as error:
        raise StackError((f"{name}: {path} cannot be read: {error}",)) from error
    except (yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise StackError((f"{name}: {path} is not valid YAML: {reason}",)) from error
    config = document.get("config") if is_map(document) else None
    if not is_map(config):
        raise StackError((f"{name}: {path} has no 'config:' mapping of '{PROJECT}:<key>' entries",))
    return load_config(config, name, environ=environ)


def load_config(
    mapping: Mapping[str, object],
    name: str,
    *,
    environ: Mapping[str, str] | None = None,
) -> StackSpec:
    """The stack of a Pulumi configuration: '<project>:<key>' to a value or its JSON text."""
    decoder = Decoder(environ=os.environ if environ is None else environ)
    values: dict[str, object] = {"name": name}
    hints = get_type_hints(StackSpec)
    for full_key, value in cast("Mapping[object, object]", mapping).items():
        if not isinstance(full_key, str):
            decoder.refuse(f"{name}.{full_key}", f"a key is text; write '{PROJECT}:<key>'")
            continue
        namespace, separator, key = full_key.partition(":")
        if not separator:
            decoder.refuse(f"{name}.{full_key}", f"unknown key; write '{PROJECT}:{full_key}'")
        elif namespace == PROJECT and key == "name":
            decoder.refuse(f"{name}.name", "unknown key; the file name is the stack's name")
        elif namespace == PROJECT:
            try:
                values[key] = _from_text(value, text_wanted=_is_text(hints.get(key)))
            except RecursionError:
                decoder.refuse(f"{name}.{key}", "JSON that is nested too deep to be read")
    spec = decoder.record(StackSpec, values, name)
    if decoder.problems or spec is None:
        raise StackError(tuple(decoder.problems))
    return spec


def _from_text(value: object, *, text_wanted: bool) -> object:
    """JSON text -> value where a mapping or a list is wanted; anything else unchanged."""
    if text_wanted or not isinstance(value, str):
        return value
    try:
        return cast("object", json.loads(value, parse_float=Decimal))
    except json.JSONDecodeError:
        return value


def _is_text(hint: object) -> bool:
    return hint is None or hint is str or str in get_args(hint)
