"""The known charts: their values, merged with what a release gives, and the objects of that.

Owns the refusal of unknown and missing values, all at once, by name. Does not check types:
the API server's schemas do. charts/ has for each chart its values and its template.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from infra.providers.soperator.crds import LOADER
from stacks.files import environment
from stacks.machines import JAIL_UPPER

if TYPE_CHECKING:
    import jinja2

Object = dict[str, Any]
"""One Kubernetes object as JSON."""

RECORDED_LABEL: Final = "local.soperator/recorded"
"""On the ConfigMap of a release that was recorded and not rendered."""
MOUNT_TAG: Final = "local.soperator/mount-tag"
"""Annotation of a PersistentVolume: virtiofs tag of the filesystem behind it."""


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


_FOLDER = Path(__file__).parent / "charts"


class ChartError(ValueError):
    """Values that the chart refuses; one problem a line."""


@dataclass(frozen=True, slots=True)
class _Tagged:
    """What a tag of the values files says of a value.

    `!required` has no default. `!any` is of any shape, `!unused` makes no object on the local
    stack; both hold their default. `!optional` is a mapping that is absent unless it is given;
    `!each` a list whose `items` all have one shape, with its `default`.
    """

    tag: str
    content: Any


def merge(chart: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The chart's defaults overridden by `given`; a null removes a default, as Helm has it.

    With them the paths of given values that have no effect on the local stack.
    """
    merge_ = _Merge()
    values = merge_.mapping(_tree(chart), given, "")
    if merge_.problems:
        raise ChartError("\n".join(f"{chart}: {problem}" for problem in merge_.problems))
    return values, tuple(merge_.unused)


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
                near = difflib.get_close_matches(key, tree, n=1)
                hint = f"did you mean '{near[0]}'?" if near else f"allowed: {', '.join(tree)}"
                self.problems.append(f"{_join(path, key)}: unknown value; {hint}")
        merged: dict[str, Any] = {}
        for key, node in tree.items():
            value = self._value(node, given, key, _join(path, key))
            if value is not None:
                merged[key] = value
        return merged

    def _value(self, node: Any, given: Mapping[str, Any], key: str, path: str) -> Any:
        """The merged value at `path`; None where there is none."""
        is_given, value = key in given, given.get(key)
        match node:
            case _Tagged("!required"):
                if value is None or value == "":
                    self.problems.append(f"{path}: is required")
                return value
            case _Tagged("!unused", default):
                if is_given and value != default:
                    self.unused.append(path)
                return None
            case _Tagged("!any", default):
                return deepcopy(_overlay(default, value) if is_given else default)
            case _Tagged("!optional", tree):
                return None if value is None else self.mapping(tree, value, path)
            case _Tagged(_, each):
                return self._list(each["items"], value if is_given else each["default"], path)
            case Mapping():
                return self.mapping(node, {} if value is None else value, path)
            case _:
                return value if is_given else node

    def _list(self, items: Mapping[str, Any], given: Any, path: str) -> list[Any]:
        if given is None:
            return []
        if not isinstance(given, list):
            self.problems.append(f"{path}: {given!r} is not a list")
            return []
        return [self.mapping(items, item, f"{path}[{i}]") for i, item in enumerate(given)]


def _overlay(default: Any, given: Any) -> Any:
    """`given` over `default`, mapping by mapping; lists and scalars replace."""
    if not (isinstance(default, Mapping) and isinstance(given, Mapping)):
        return given
    merged = {**default, **{key: _overlay(default.get(key), value) for key, value in given.items()}}
    return {key: value for key, value in merged.items() if value is not None}


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


for _tag in ("!required", "!any", "!unused", "!optional", "!each"):
    _Loader.add_constructor(_tag, lambda loader, node: _Tagged(node.tag, _content(loader, node)))


@cache
def _tree(chart: str) -> Mapping[str, Any]:
    return yaml.load((_FOLDER / f"{chart}.yaml").read_text(), Loader=_Loader)  # noqa: S506


NODESET_API_VERSION: Final = "slurm.nebius.ai/v1alpha1"
API_VERSION: Final = "slurm.nebius.ai/v1"
_SCRIPTS: Final = "slurm-scripts"
_TAG: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


@cache
def _templates() -> jinja2.Environment:
    filters = {
        "amounts": _amounts,
        "filled": _filled,
        "given": lambda item, *keys: _filled({key: item.get(key) for key in keys}),
        "taken": lambda item, *keys: {key: item[key] for key in keys},
        "without": lambda item, *keys: {k: each for k, each in item.items() if k not in keys},
    }
    made = environment(_FOLDER, filters)
    made.globals |= {
        "cluster_api": API_VERSION,
        "nodeset_api": NODESET_API_VERSION,
        "scripts": _SCRIPTS,
        "script_texts": _script_texts,
        "mount_tag": MOUNT_TAG,
        "jail_upper": JAIL_UPPER,
        "kebab": _kebab,
        "fail": _fail,
    }
    return made


def objects(release: Release, values: dict[str, Any]) -> list[Object]:
    """What a release of its chart makes, in the order of its template."""
    text = (
        _templates().get_template(f"{release.chart}.yaml.j2").render(release=release, values=values)
    )
    return [each for each in yaml.load_all(text, Loader=LOADER) if each]


def _amounts(values: dict[str, Any], *but: str) -> dict[str, str]:
    """A container's resources under their Kubernetes names."""
    names = {"ephemeralStorage": "ephemeral-storage"}
    return {names.get(key, key): str(each) for key, each in values.items() if key not in but}


def _filled(values: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping without its empty values, as `with` in a chart's template leaves them out."""
    return {key: value for key, value in values.items() if value not in (None, "", [], {})}


def _fail(text: str) -> None:
    raise ChartError(text)


def _kebab(value: object, path: str) -> str:
    """The value, if the real chart's kebab filter would leave it alone."""
    if not _TAG.fullmatch(str(value)):
        raise ChartError(
            f"{path}: {value!r} would be rewritten by the chart and name another filesystem; "
            "use a-z, 0-9 and '-' only"
        )
    return str(value)


def _script_texts(scripts: dict[str, Any]) -> dict[str, str]:
    """Ours of the chart's base scripts and those that the values give.

    The checks that the real ones run come with the real chart only.
    """
    folder = _FOLDER / "slurm_scripts"
    data = {path.name: path.read_text() for path in sorted(folder.glob("*.sh"))}
    data |= {key: text for key, text in scripts.items() if isinstance(text, str)}
    for key, script in (scripts.get("builtIn") or {}).items():
        if script.get("enabled", True) and script.get("customContent"):
            data[key] = script["customContent"]
    return data | {key: each["content"] for key, each in (scripts.get("extra") or {}).items()}
