"""Loads a stack: configuration mapping -> StackSpec, strictly, with every problem reported at once.

Owns names, types and single values, and `file:PATH` keys. Rules across fields are in rules/.
    spec = load_stack("l40s-dev")
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import yaml

from stacks.catalog import canonical_platform
from stacks.errors import UserError, nearest, visible
from stacks.files import MAX_BYTES, is_map, parse_yaml, read_text
from stacks.spec import StackSpec
from stacks.spec.bounds import Bounds, FileText, Nodes

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
    except (ValueError, ArithmeticError):  # no JSON, or a number with more digits than are read
        return value


def _is_text(hint: object) -> bool:
    return hint is None or hint is str or str in get_args(hint)


_Record = TypeVar("_Record")
_MOST: Final = 10**12
_LEAST: Final = Decimal("1e-9")
"""Outside of these a number is a slip of the keyboard, and no table could show what it costs."""
_MOST_CHARACTERS: Final = 4096
"""A public key of RSA with 16,384 bits has 2,800; every message and table holds what is read."""
_SHOWN_CHARACTERS: Final = 80
_ANY: Final = Bounds()
_ONE_OR_MORE: Final = ("after",)
"""Lists that may be given as the text of their only entry."""
RENAMED_BOOKS: Final[Mapping[str, str]] = {"seed000": "nebius-2026-09"}
"""Old name of a price book, which stack files and states may have -> its name now."""
_GONE: Final[Mapping[str, str]] = {
    # nebius/soperator, helm/slurm-cluster/templates/slurm-cluster-cr.yaml at 4.1.7 and of 5.0.0:
    # the resource has a field for it, the chart has no value.
    "login.sshd_config_map": (
        "gone, as Soperator's chart takes no sshd configuration for login nodes and the key "
        "changed nothing; remove it (that of workers is nodes.workers[].sshd_config_map)"
    )
}
"""Key that a stack had once -> why it has it no more, and what to do."""


@dataclass(slots=True, kw_only=True)
class Decoder:
    """Plain values -> dataclasses; collects problems instead of stopping at the first."""

    environ: Mapping[str, str]
    problems: list[str] = field(default_factory=list[str])

    def refuse(self, path: str, message: str) -> None:
        self.problems.append(visible(f"{path}: {message}"))

    def record(self, cls: type[_Record], value: object, path: str) -> _Record | None:
        if not is_map(value):
            self.refuse(path, f"expected a mapping of {_keys(cls)}, got {_describe(value)}")
            return None
        known = {item.name: item for item in _fields(cls)}
        values = self._spread_nodes(dict(value), known, path)
        for key in [key for key in values if key not in known]:
            allowed = (*known, "nodes") if "min_nodes" in known else tuple(known)
            _, _, name = f"{path}.{key}".partition(".")
            problem = _GONE.get(name) or f"unknown key{nearest(str(key), allowed)}"
            self.refuse(f"{path}.{key}", problem)
        hints = get_type_hints(cls, include_extras=True)
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
        count = self.value(Nodes, values.pop("nodes"), f"{path}.nodes", "nodes")
        # A refused count is replaced by a valid one, so that it is reported once, not three times.
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
        if origin is Annotated and hint not in _SCALARS:
            return self._scalar(arguments[0], value, path, arguments[1])
        decoded = self._scalar(cast("object", hint), value, path)
        if key == "platform" and isinstance(decoded, str):
            return canonical_platform(decoded)
        if key == "prices" and isinstance(decoded, str):
            return RENAMED_BOOKS.get(decoded, decoded)
        return decoded

    def _items(self, hint: object, value: object, path: str, key: str) -> tuple[object, ...]:
        if key in _ONE_OR_MORE and isinstance(value, str):
            value = [value]
        if not isinstance(value, list | tuple):
            self.refuse(path, f"expected a list, got {_describe(value)}")
            return ()
        items = [
            self.value(hint, item, f"{path}[{index}]", key)
            for index, item in enumerate(cast("list[object]", value))
        ]
        if key == "ssh_public_keys":
            lines = [item for item in items if isinstance(item, str)]
            return expand_keys(lines, self.environ, path, self.refuse)
        return tuple(items)

    def _text_mapping(self, value: object, path: str) -> Mapping[str, str]:
        if not is_map(value):
            self.refuse(path, f"expected a mapping of text, got {_describe(value)}")
            return MappingProxyType({})
        texts = {key: self._scalar(str, item, f"{path}.{key}") for key, item in value.items()}
        return MappingProxyType({str(key): str(text) for key, text in texts.items()})

    def _choice(self, hint: type[StrEnum], value: object, path: str) -> StrEnum | None:
        allowed = tuple(member.value for member in hint)
        if value in allowed:
            return hint(cast("str", value))
        hint_at = nearest(str(value), allowed)
        self.refuse(path, f"expected one of {', '.join(allowed)}, got {_describe(value)}{hint_at}")
        return None

    def _scalar(self, hint: object, value: object, path: str, bounds: Bounds = _ANY) -> object:
        decoded, problem = _SCALARS[hint](value)
        if problem is None and isinstance(decoded, int | Decimal) and hint is not bool:
            problem = _bounds_problem(decoded, bounds, _describe(value))
        if problem is None:
            return decoded
        self.refuse(path, problem)
        return None


def _bounds_problem(number: int | Decimal, bounds: Bounds, given: str) -> str | None:
    least, most = bounds.least, bounds.most
    # Compared, not abs(): arithmetic on 1e9999999 overflows, and on 1e-9999999 makes it 0.
    is_far = not -_MOST <= number <= _MOST or (number != 0 and -_LEAST < number < _LEAST)
    if is_far and (most is None or isinstance(number, Decimal)):
        return f"expected a number from {_LEAST:f} to {_MOST:,}, got {given}"
    if isinstance(number, int):
        if number < least:
            return f"expected a whole number of {least} or more, got {number}"
        if most is not None and number > most:
            return f"expected a whole number from {least} to {most:,}, got {number}"
    elif most is not None and number > most:
        return f"expected a share from {least} to {most}, got {given}"
    elif number < 0 or (number == 0 and least > 0):
        span = "over 0" if least else "of 0 or more"
        return f"expected a number {span}, got {given}"
    return None


def _text(value: object) -> tuple[object, str | None]:
    if isinstance(value, str):
        wanted = None
        if not value.strip():
            wanted = "text that is not blank"
        elif not value.isprintable():
            # It would break the lines of every table, and hide what a terminal shows.
            wanted = "one line of printable text"
        elif len(value) > _MOST_CHARACTERS:
            wanted = f"at most {_MOST_CHARACTERS:,} characters"
        return value, wanted and f"expected {wanted}, got {_describe(value)}"
    quote = "; put it in quotes" if isinstance(value, bool | int | Decimal | float) else ""
    return None, f"expected text, got {_describe(value)}{quote}"


def _file_text(value: object) -> tuple[object, str | None]:
    if not isinstance(value, str):
        return _text(value)
    most = get_args(FileText)[1].most
    wanted = None
    if not value.replace("\n", "").replace("\t", "").isprintable():
        wanted = "lines of printable text"
    elif not 0 < len(value) <= most:
        wanted = f"1 to {most:,} characters"
    return value, wanted and f"expected {wanted}, got {_describe(value)}"


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
        # str() of a float is its shortest exact form, so 3.8 stays 3.8.
        text = str(value)
        # Decimal() alone reads 1_000, and digits of other scripts.
        if re.fullmatch(r"[-+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,9})?", text):
            return Decimal(text), None
    return None, f"expected a number, got {_describe(value)}"


_SCALARS: Final[Mapping[object, Callable[[object], tuple[object, str | None]]]] = {
    str: _text,
    FileText: _file_text,
    int: _whole,
    bool: _truth,
    Decimal: _exact,
}


def _fields(cls: type) -> tuple[Field[Any], ...]:
    return fields(cls)


def _keys(cls: type) -> str:
    return ", ".join(item.name for item in _fields(cls))


def _wanted(hint: object) -> str:
    if get_origin(hint) is Annotated:
        return _wanted(get_args(hint)[0])
    if get_origin(hint) is tuple:
        return "a list"
    if isinstance(hint, type) and is_dataclass(hint):
        return f"a mapping of {_keys(hint)}"
    return {int: "a whole number", bool: "true or false", Decimal: "a number"}.get(
        cast("type", hint), "text"
    )


def _describe(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, bytes):
        return "binary data"
    if isinstance(value, str):
        short = value[:_SHOWN_CHARACTERS]
        return f"text {short!r}" + (f"... of {len(value):,} characters" if short != value else "")
    return str(value).lower() if isinstance(value, bool) else f"number {value}"


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
