"""YAML as Helm and Kubernetes read it; Python's own rules differ for `1e+06`, `12:30` and dates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

_BASE: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _GoLoader(_BASE):
    """Scalars by the rules of gopkg.in/yaml.v2, which sigs.k8s.io/yaml has inside (resolve.go)."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the class attribute of PyYAML


_BOOL: Final = r"[yY]es|YES|[nN]o|NO|[tT]rue|TRUE|[fF]alse|FALSE|[oO]n|ON|[oO]ff|OFF"
_INT: Final = r"[-+]?(0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)"
_FLOAT: Final = (
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
for _tag, _pattern, _first in (
    ("bool", _BOOL, list("yYnNtTfFoO")),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", ["<"]),
):
    _GoLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first
    )


def load_all(text: str) -> list[dict[str, Any]]:
    """Every object of a stream; empty documents are left out."""
    documents = yaml.load_all(text, Loader=_GoLoader)
    return [whole(each) for each in documents if each]


def whole(value: Any) -> Any:
    """The value with whole numbers as such: Go writes 1e+07 as 10000000 and takes it as one."""
    if isinstance(value, Mapping):
        return {key: whole(each) for key, each in value.items()}
    if isinstance(value, list):
        return [whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
