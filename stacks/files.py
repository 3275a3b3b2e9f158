"""Reads files that somebody else wrote: read_text(path), and parse_yaml(text) as Pulumi reads it.

Also fill(path): the text of a template, which lies beside its user. There is one environment of
jinja2, in which HTML is escaped and a name that nobody gave is an error.

Never more than fits: a pull request can name `/dev/zero` or a FIFO where a key or a stack belongs;
whoever prices it must neither wait for ever nor run out of memory.

parse_yaml differs from yaml.safe_load: `00:20:00` stays text (YAML 1.1 makes it 1200), 3.8 is a
Decimal, and a key that is written twice, a text of megabytes and a nesting that no declaration has
are refused.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeGuard, cast

import yaml

if TYPE_CHECKING:
    import jinja2

AT_MOST_BYTES: Final = 64 << 20


def read_text(path: Path, *, at_most_bytes: int = AT_MOST_BYTES) -> str:
    """The text of a regular file; OSError for another kind or more bytes, UnicodeDecodeError."""
    return read_bytes(path, at_most_bytes=at_most_bytes).decode("utf-8")


def read_bytes(path: Path, *, at_most_bytes: int = AT_MOST_BYTES) -> bytes:
    """The bytes of a regular file; OSError for another kind or more of them."""
    # Without O_NONBLOCK a FIFO is waited for before anybody can see that it is one.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if stat.S_ISDIR(found.st_mode):  # fdopen would name the descriptor instead of the path
        os.close(descriptor)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "a device, FIFO or socket, not a regular file", str(path))
        # Files of /proc say 0 bytes and have more.
        content = b"" if found.st_size > at_most_bytes else file.read(at_most_bytes + 1)
        if found.st_size > at_most_bytes or len(content) > at_most_bytes:
            raise OSError(errno.EFBIG, f"more than {_size(at_most_bytes)}", str(path))
    return content


def _size(num_bytes: int) -> str:
    return f"{num_bytes >> 20} MiB" if num_bytes >= 1 << 20 else f"{num_bytes >> 10} KiB"


_MAX_CHARACTERS: Final = 4 << 20
"""A hundred times the largest price book."""
MAX_BYTES: Final = 4 * _MAX_CHARACTERS
"""What so many characters can take."""
_MAX_DEPTH: Final = 100
"""libyaml composes by recursion in C: from some 30,000 levels on it takes the process with it."""


def parse_yaml(text: str) -> object:
    """The document of the text; yaml.YAMLError when it is not one."""
    if len(text) > _MAX_CHARACTERS:
        raise yaml.YAMLError(f"{len(text)} characters; at most {_MAX_CHARACTERS} are read")
    _refuse_depth(text)
    return cast("object", yaml.load(text, _Yaml))  # noqa: S506 (a SafeLoader)


def is_map(value: object) -> TypeGuard[Mapping[str, object]]:
    """Whether the value is a mapping."""
    return isinstance(value, Mapping)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Whether the value is a list."""
    return isinstance(value, list)


def _refuse_depth(text: str) -> None:
    """Refuses a nesting of more than _MAX_DEPTH; reads events, which libyaml makes in a loop."""
    # No text is deeper than it has brackets, and per column one mapping with one list in it.
    most = text.count("[") + text.count("{") + 2 * max(map(len, text.splitlines()), default=0)
    if most <= _MAX_DEPTH:
        return
    depth = 0
    reader: Any = yaml  # its events have no types
    for event in reader.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise yaml.YAMLError(f"nested more than {_MAX_DEPTH} levels deep")


_SCALARS: Final = (
    ("tag:yaml.org,2002:bool", r"true|false", "tf"),
    ("tag:yaml.org,2002:null", r"null|~", "n~"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", "-+0123456789"),
    ("!decimal", r"[-+]?[0-9]+(\.[0-9]+([eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)", "-+0123456789"),
)
"""Tag, pattern and first characters of every scalar that is not text."""


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    resolvers = {"": [("tag:yaml.org,2002:null", re.compile(r"^$"))]}
    for tag, pattern, first_characters in _SCALARS:
        for character in first_characters:
            resolvers.setdefault(character, []).append((tag, re.compile(f"^(?:{pattern})$")))
    return resolvers


# libyaml reads a price book ten times as fast; PyYAML is built without it on some systems.
_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Yaml(_Loader):
    """YAML 1.2 scalars and unique keys."""

    yaml_implicit_resolvers = _resolvers()

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


def _number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int | Decimal:
    text = str(loader.construct_scalar(node))
    try:
        if node.tag == "!decimal":
            return Decimal(text)
        if re.fullmatch(r"[-+]?(0|[1-9][0-9]*)", text):
            return int(text)
        problem = "has a 0 before it, which is octal for some readers; write it without"
    except (ValueError, ArithmeticError):
        problem = "is too long for a number"
    raise yaml.constructor.ConstructorError(None, None, f"{text[:40]} {problem}", node.start_mark)


_Yaml.add_constructor("!decimal", _number)
_Yaml.add_constructor("tag:yaml.org,2002:int", _number)


def environment(
    folder: Path,
    filters: Mapping[str, Callable[..., Any]] | None = None,
    *,
    variables: tuple[str, str] = ("{{", "}}"),
) -> jinja2.Environment:
    """Templates of a folder; `yaml` writes a value as YAML takes it, on one line.

    `variables` stand around what is filled in, where the text has those of another language.
    """
    # A command that fills in none need not wait for it.
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=jinja2.select_autoescape(("html.j2",)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        variable_start_string=variables[0],
        variable_end_string=variables[1],
    )
    made.filters |= {"yaml": _yaml, **(filters or {})}  # pyright: ignore[reportUnknownMemberType]
    return made


def _yaml(value: object) -> str:
    """JSON that YAML reads as the same: to it U+0085 and U+2028 end a line, others are none."""
    text = json.dumps(value, ensure_ascii=False)
    return re.sub(r"[\x7f-\x9f\u2028\u2029\ufeff]", lambda each: f"\\u{ord(each[0]):04x}", text)


def fill(
    path: Path, filters: Mapping[str, Callable[..., Any]] | None = None, /, **values: Any
) -> str:
    """The text of a template; equal values give equal bytes."""
    made = environment(path.parent, filters) if filters else _environment(path.parent)
    return made.get_template(path.name).render(values)


_environment = cache(environment)
"""Keeps what it compiled: the reconciler fills in Slurm's files in each of its passes."""
