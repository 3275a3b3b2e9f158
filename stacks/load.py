"""Loads a stack: configuration mapping -> StackSpec, strictly, with every problem reported at once.

Owns decoding (names, types, single values). Does not own rules across fields (check.py).
    spec = load_stack("l40s-dev")
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, TypeGuard, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import yaml

from stacks.spec import StackSpec

_Record = TypeVar("_Record")

PROJECT: Final = "soperator-stack"
"""Pulumi project name: the namespace of our keys in a stack file."""
STACKS_DIR: Final = Path(__file__).parent
KEY_FILE_VARIABLE: Final = "SOPERATOR_SSH_PUBLIC_KEY_FILE"
_DEFAULT_KEY_FILE: Final = "~/.ssh/id_ed25519.pub"
_KEY_FILE_PREFIX: Final = "file:"
_MAY_BE_ZERO: Final = frozenset({"min_nodes", "gpus_per_node", "config_bucket_gib"})
"""Every other whole number of a stack is a size or a count of something that must exist."""


class StackError(ValueError):
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
        have = ", ".join(stack_names(stacks_dir)) or "none"
        hint = _nearest(name, stack_names(stacks_dir))
        raise StackError((f"{name}: no such stack in {stacks_dir}{hint} (have: {have})",))
    try:
        document: object = yaml.load(path.read_text(encoding="utf-8"), _Yaml)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        raise StackError((f"{name}: {path} is not valid YAML: {error}",)) from error
    config = document.get("config") if _is_map(document) else None
    if not _is_map(config):
        raise StackError((f"{name}: {path} has no 'config:' mapping of '{PROJECT}:<key>' entries",))
    return load_config(config, name, environ=environ)


def load_config(
    mapping: Mapping[str, object],
    name: str,
    *,
    environ: Mapping[str, str] | None = None,
) -> StackSpec:
    """The stack of a Pulumi configuration: '<project>:<key>' to a value or its JSON text."""
    decoder = _Decoder(environ=os.environ if environ is None else environ)
    values: dict[str, object] = {"name": name}
    hints = get_type_hints(StackSpec)
    for full_key, value in mapping.items():
        namespace, separator, key = full_key.partition(":")
        if not separator:
            decoder.refuse(f"{name}.{full_key}", f"unknown key; write '{PROJECT}:{full_key}'")
        elif namespace == PROJECT and key == "name":
            decoder.refuse(f"{name}.name", "unknown key; the file name is the stack's name")
        elif namespace == PROJECT:
            values[key] = _from_text(value, text_wanted=_is_text(hints.get(key)))
    spec = decoder.record(StackSpec, values, name)
    if decoder.problems or spec is None:
        raise StackError(tuple(decoder.problems))
    return spec


class _Yaml(yaml.SafeLoader):
    """YAML 1.2 scalars, as Pulumi's own reader sees them: no sexagesimal times, decimals exact."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuses a key that is written twice, which plain YAML readers drop silently."""
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is written twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _decimal_scalar(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Decimal:
    return Decimal(str(loader.construct_scalar(node)))


for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:bool", r"true|false", "tf"),
    ("tag:yaml.org,2002:null", r"null|~|", "n~\0"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", "-+0123456789"),
    ("!decimal", r"[-+]?[0-9]+(\.[0-9]+([eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)", "-+0123456789"),
):
    _Yaml.add_implicit_resolver(
        _tag, re.compile(f"^(?:{_pattern})$"), ["" if c == "\0" else c for c in _first]
    )
_Yaml.add_constructor("!decimal", _decimal_scalar)


@dataclass(slots=True, kw_only=True)
class _Decoder:
    """Plain values -> dataclasses; collects problems instead of stopping at the first."""

    environ: Mapping[str, str]
    problems: list[str] = field(default_factory=lambda: [])

    def refuse(self, path: str, message: str) -> None:
        self.problems.append(f"{path}: {message}")

    def record(self, cls: type[_Record], value: object, path: str) -> _Record | None:
        if not _is_map(value):
            self.refuse(path, f"expected a mapping of {_keys(cls)}, got {_describe(value)}")
            return None
        known = {item.name: item for item in _fields(cls)}
        values = self._spread_nodes(dict(value), known, path)
        for key in [key for key in values if key not in known]:
            allowed = (*known, "nodes") if "min_nodes" in known else tuple(known)
            self.refuse(f"{path}.{key}", f"unknown key{_nearest(str(key), allowed)}")
        hints = get_type_hints(cls)
        arguments: dict[str, object] = {}
        for key, item in known.items():
            if key in values:
                arguments[key] = self.value(hints[key], values[key], f"{path}.{key}", key)
            elif item.default is MISSING and item.default_factory is MISSING:
                self.refuse(f"{path}.{key}", f"missing; give {_wanted(hints[key])}")
                arguments[key] = None
        # With problems found the object would be half-true; nobody sees it, StackError is raised.
        return None if self.problems else cls(**arguments)

    def _spread_nodes(
        self, values: dict[str, object], known: Mapping[str, object], path: str
    ) -> dict[str, object]:
        """`nodes: N` of a node group -> min_nodes and max_nodes."""
        if "nodes" not in values or "min_nodes" not in known:
            return values
        if values.keys() & {"min_nodes", "max_nodes"}:
            self.refuse(f"{path}.nodes", "give either nodes or min_nodes and max_nodes, not both")
        count = self.value(int, values.pop("nodes"), f"{path}.nodes", "nodes")
        # A refused count is replaced by a valid one, so that it is reported once and not three times.
        stand_in = count if count is not None else 1
        return {**values, "min_nodes": stand_in, "max_nodes": stand_in}

    def value(self, hint: object, value: object, path: str, key: str) -> object:
        """The value as the type that `hint` asks for; None after a problem."""
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            inner = next(argument for argument in arguments if argument is not NoneType)
            return None if value is None else self.value(inner, value, path, key)
        if origin is tuple:
            return self._items(arguments[0], value, path, key)
        if origin is Mapping:
            return self._text_mapping(value, path)
        if isinstance(hint, type) and is_dataclass(hint):
            return self.record(hint, value, path)
        if isinstance(hint, type) and issubclass(hint, StrEnum):
            return self._choice(hint, value, path)
        return self._scalar(hint, value, path, key)

    def _items(self, hint: object, value: object, path: str, key: str) -> tuple[object, ...]:
        if not isinstance(value, list | tuple):
            self.refuse(path, f"expected a list, got {_describe(value)}")
            return ()
        items = [
            self.value(hint, item, f"{path}[{index}]", key)
            for index, item in enumerate(cast("list[object]", value))
        ]
        return self._public_keys(items, path) if key == "ssh_public_keys" else tuple(items)

    def _text_mapping(self, value: object, path: str) -> Mapping[str, str]:
        if not _is_map(value):
            self.refuse(path, f"expected a mapping of text, got {_describe(value)}")
            return MappingProxyType({})
        texts = {key: self._scalar(str, item, f"{path}.{key}", key) for key, item in value.items()}
        return MappingProxyType({str(key): str(text) for key, text in texts.items()})

    def _choice(self, hint: type[StrEnum], value: object, path: str) -> StrEnum | None:
        allowed = tuple(member.value for member in hint)
        if value in allowed:
            return hint(cast("str", value))
        nearest = _nearest(str(value), allowed)
        self.refuse(path, f"expected one of {', '.join(allowed)}, got {_describe(value)}{nearest}")
        return None

    def _scalar(self, hint: object, value: object, path: str, key: str) -> object:
        check = _SCALARS[cast("type", hint)]
        decoded, problem = check(value)
        if problem is None and isinstance(decoded, int) and hint is int:
            least = 0 if key in _MAY_BE_ZERO else 1
            if decoded < least:
                problem = f"expected a whole number of {least} or more, got {decoded}"
        if problem is not None:
            self.refuse(path, problem)
            return None
        return decoded

    def _public_keys(self, lines: list[object], path: str) -> tuple[str, ...]:
        keys: list[str] = []
        for index, line in enumerate(lines):
            if not isinstance(line, str):
                continue
            if line.startswith(_KEY_FILE_PREFIX):
                keys.extend(self._key_file(line.removeprefix(_KEY_FILE_PREFIX), f"{path}[{index}]"))
            else:
                keys.append(line.strip())
        return tuple(dict.fromkeys(keys))

    def _key_file(self, name: str, path: str) -> list[str]:
        expanded, unset = _expand(name, self.environ)
        if unset:
            self.refuse(path, f"'{name}' names ${unset}, which is not set; export it or give a path")
            return []
        try:
            text = expanded.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            self.refuse(
                path,
                f"cannot read the SSH public key {expanded} ({_reason(error)}); make one with "
                f"'ssh-keygen -t ed25519' or set {KEY_FILE_VARIABLE}",
            )
            return []
        lines = [line.strip() for line in text.splitlines()]
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            self.refuse(path, f"{expanded} holds no key; make one with 'ssh-keygen -t ed25519'")
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


def _text(value: object) -> tuple[object, str | None]:
    if isinstance(value, str) and value.strip():
        return value, None
    quote = "; put it in quotes" if isinstance(value, bool | int | Decimal | float) else ""
    return None, f"expected text, got {_describe(value)}{quote}"


def _whole(value: object) -> tuple[object, str | None]:
    if isinstance(value, int) and not isinstance(value, bool):
        return value, None
    return None, f"expected a whole number, got {_describe(value)}"


def _truth(value: object) -> tuple[object, str | None]:
    if isinstance(value, bool):
        return value, None
    return None, f"expected true or false, got {_describe(value)}"


def _exact(value: object) -> tuple[object, str | None]:
    if not isinstance(value, bool) and isinstance(value, int | str | float | Decimal):
        try:
            # str() of a float is its shortest exact form, so 3.8 stays 3.8.
            number = Decimal(str(value))
        except InvalidOperation:
            number = Decimal("NaN")
        if number.is_finite() and number > 0:
            return number, None
    return None, f"expected a number over 0, got {_describe(value)}"


_SCALARS: Final[Mapping[type, Callable[[object], tuple[object, str | None]]]] = {
    str: _text,
    int: _whole,
    bool: _truth,
    Decimal: _exact,
}


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


def _is_map(value: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(value, Mapping)


def _fields(cls: type) -> tuple[Field[Any], ...]:
    return fields(cls)


def _keys(cls: type) -> str:
    return ", ".join(item.name for item in _fields(cls))


def _wanted(hint: object) -> str:
    if get_origin(hint) is tuple:
        return "a list"
    if isinstance(hint, type) and is_dataclass(hint):
        return f"a mapping of {_keys(hint)}"
    return {int: "a whole number", bool: "true or false", Decimal: "a number"}.get(
        cast("type", hint), "text"
    )


def _nearest(name: str, allowed: tuple[str, ...]) -> str:
    matches = get_close_matches(name, allowed, n=1, cutoff=0.5)
    return f"; did you mean '{matches[0]}'?" if matches else f"; known: {', '.join(allowed)}"


def _describe(value: object) -> str:
    if value is None:
        return "nothing"
    kinds = {str: "text", bool: "", int: "number", Decimal: "number", dict: "a mapping", list: "a list"}
    kind = kinds.get(type(value), type(value).__name__)
    if isinstance(value, Mapping | list):
        return kind
    shown = repr(value) if isinstance(value, str) else str(value).lower()
    return f"{kind} {shown}".strip()


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or "unreadable").lower() if isinstance(error, OSError) else "not text"
