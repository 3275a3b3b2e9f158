"""Values of a chart: what it knows, its defaults, and the merge with what a release gives.

Owns the refusal of unknown and missing values, all at once, by name. Does not check types:
the API server's schemas do.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from infra.render.names import kube_object

Object = dict[str, Any]
"""One Kubernetes object as JSON."""

RECORDED_LABEL: Final = "local.soperator/recorded"
"""On the ConfigMap of a release that was recorded and not rendered."""
MOUNT_TAG: Final = "local.soperator/mount-tag"
"""Annotation of a PersistentVolume: virtiofs tag of the filesystem behind it."""


MADE_FOLDERS: Final = "local.soperator/folders"
"""Annotation of a NodeSet: volume=folder:folder that an init container makes, comma separated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A Helm release."""

    name: str
    namespace: str
    chart: str
    version: str

    @property
    def labels(self) -> dict[str, str]:
        """The labels of every object of the release."""
        return {
            "app.kubernetes.io/name": self.chart.removeprefix("helm-"),
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/managed-by": "Helm",
            "helm.sh/chart": f"{self.chart}-{self.version}",
        }

    def object(self, api_version: str, kind: str, name: str, **body: Any) -> Object:
        """A namespaced object of the release; `metadata` in the body is merged in."""
        metadata = {"labels": self.labels, **body.pop("metadata", {})}
        return kube_object(api_version, kind, name, self.namespace, metadata=metadata, **body)

    def cluster_object(self, api_version: str, kind: str, name: str, **body: Any) -> Object:
        """An object of the release outside any namespace."""
        made = self.object(api_version, kind, name, **body)
        del made["metadata"]["namespace"]
        return made


def resources(values: dict[str, Any]) -> dict[str, str]:
    """A container's resources under their Kubernetes names."""
    names = {"ephemeralStorage": "ephemeral-storage"}
    return {names.get(key, key): str(value) for key, value in values.items()}


def filled(values: dict[str, Any]) -> dict[str, Any]:
    """The mapping without its empty values, as `with` in a chart's template leaves them out."""
    return {key: value for key, value in values.items() if value not in (None, "", [], {})}


_FOLDER = Path(__file__).parent / "charts"


class ChartError(ValueError):
    """Values that the chart refuses; one problem a line."""


@dataclass(frozen=True, slots=True)
class _Required:
    """A value without a default."""


@dataclass(frozen=True, slots=True)
class _Any:
    """A value of any shape."""

    default: Any


@dataclass(frozen=True, slots=True)
class _Unused:
    """A value that the chart knows and that makes no object on the local stack."""

    default: Any


@dataclass(frozen=True, slots=True)
class _Optional:
    """A mapping that is absent unless it is given."""

    tree: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Each:
    """A list whose items all have one shape."""

    items: Mapping[str, Any]
    default: list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartValues:
    """The values a chart renders with."""

    values: dict[str, Any]
    unused: tuple[str, ...]
    """Paths of the given values that have no effect on the local stack."""


def merge(chart: str, given: Mapping[str, Any]) -> ChartValues:
    """The chart's defaults overridden by `given`; a null removes a default, as Helm has it."""
    merge_ = _Merge()
    values = merge_.mapping(_tree(chart), given, "")
    if merge_.problems:
        raise ChartError("\n".join(f"{chart}: {problem}" for problem in merge_.problems))
    return ChartValues(values=values, unused=tuple(merge_.unused))


class _Merge:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self.unused: list[str] = []

    def mapping(self, tree: Mapping[str, Any], given: Any, path: str) -> dict[str, Any]:
        if not isinstance(given, Mapping):
            self.problems.append(f"{path}: {given!r} is not a mapping (has: {', '.join(tree)})")
            return {}
        for key in given:
            if key not in tree:
                self.problems.append(f"{_join(path, key)}: unknown value; {_hint(key, tree)}")
        merged: dict[str, Any] = {}
        for key, node in tree.items():
            value = self._value(node, given, key, _join(path, key))
            if value is not None:
                merged[key] = value
        return merged

    def _value(self, node: Any, given: Mapping[str, Any], key: str, path: str) -> Any:
        """The merged value at `path`; None where there is none."""
        is_given = key in given
        value = given.get(key)
        if isinstance(node, _Required):
            if value is None or value == "":
                self.problems.append(f"{path}: is required")
            return value
        if isinstance(node, _Unused):
            if is_given and value != node.default:
                self.unused.append(path)
            return None
        if isinstance(node, _Any):
            return deepcopy(_overlay(node.default, value) if is_given else node.default)
        if isinstance(node, _Optional):
            return None if value is None else self.mapping(node.tree, value, path)
        if isinstance(node, _Each):
            return self._list(node, value if is_given else node.default, path)
        if isinstance(node, Mapping):
            return self.mapping(node, value if is_given and value is not None else {}, path)
        return value if is_given else node

    def _list(self, node: _Each, given: Any, path: str) -> list[Any]:
        if given is None:
            return []
        if not isinstance(given, list):
            self.problems.append(f"{path}: {given!r} is not a list")
            return []
        return [self.mapping(node.items, item, f"{path}[{i}]") for i, item in enumerate(given)]


def _overlay(default: Any, given: Any) -> Any:
    """`given` over `default`, mapping by mapping; lists and scalars replace."""
    if not (isinstance(default, Mapping) and isinstance(given, Mapping)):
        return given
    merged = {**default, **{key: _overlay(default.get(key), value) for key, value in given.items()}}
    return {key: value for key, value in merged.items() if value is not None}


def _hint(key: str, tree: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(key, tree, n=1)
    return f"did you mean '{near[0]}'?" if near else f"allowed: {', '.join(tree)}"


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


class _Loader(yaml.SafeLoader):
    """SafeLoader that knows the tags of the values files."""


def _content(loader: Any, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    assert isinstance(node, yaml.ScalarNode)
    # A tagged plain scalar keeps no type of its own: resolve it as an untagged one.
    tag = loader.resolve(yaml.ScalarNode, node.value, (node.style is None, False))
    return loader.construct_object(yaml.ScalarNode(tag, node.value))


_Loader.add_constructor("!required", lambda loader, node: _Required())
_Loader.add_constructor("!any", lambda loader, node: _Any(_content(loader, node)))
_Loader.add_constructor("!unused", lambda loader, node: _Unused(_content(loader, node)))
_Loader.add_constructor("!optional", lambda loader, node: _Optional(_content(loader, node)))
_Loader.add_constructor("!each", lambda loader, node: _Each(**_content(loader, node)))


@cache
def _tree(chart: str) -> Mapping[str, Any]:
    return yaml.load((_FOLDER / f"{chart}.yaml").read_text(), Loader=_Loader)  # noqa: S506
