"""Real charts with the program's values: `Helm.render(...)`, and which values change nothing.

Charts are copied first: a source tree lacks packed subcharts, and what a dependency's condition
switches off is not needed. Nothing is written into a checkout.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from infra.clients.kube_rules import Object
from infra.operate.conformance.sources import NotRunError

_KUBERNETES: Final = "1.33.0"
# What a kube cluster has that the charts look for.
_APIS: Final = ("monitoring.coreos.com/v1",)
_TIMEOUT_S: Final = 120

Path_ = tuple[str | int, ...]


class RenderError(Exception):
    """A chart refused the values, in Helm's own words."""


class StuckError(RenderError):
    """Helm did not end in time, which says nothing of a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One value of a release that has no values inside."""

    path: Path_
    value: Any

    @property
    def name(self) -> str:
        """The path as people write it: `slurmNodes.login.size`, `nodesets.0.name`."""
        return ".".join(map(str, self.path))


class Helm:
    """The real Helm over copies of charts in one folder."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self._copies: dict[Path, Path] = {}

    def version(self) -> str:
        """Helm's own word for its version."""
        return self._run(["version", "--short"]).strip()

    def render(
        self, chart: Path, release: str, namespace: str, values: Mapping[str, Any]
    ) -> list[Object]:
        """The objects of a release, hooks included, those of crds/ not."""
        return load_all(self.text(self._copy(chart), release, namespace, values))

    def text(self, chart: Path, release: str, namespace: str, values: Mapping[str, Any]) -> str:
        """What `helm template` prints; RenderError where the chart refuses."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(values, file)
            file.flush()
            apis = [word for api in _APIS for word in ("--api-versions", api)]
            given = ["--namespace", namespace, "--values", file.name, "--kube-version", _KUBERNETES]
            return self._run(["template", release, str(chart), *given, *apis])

    def install(
        self,
        chart: Path,
        release: str,
        namespace: str,
        values: Mapping[str, Any],
        *,
        kubeconfig: Path,
    ) -> None:
        """Into a cluster, without hooks; RenderError where it refuses, the record may stay."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(values, file)
            file.flush()
            given = ["--namespace", namespace, "--create-namespace", "--values", file.name]
            where = ["--kubeconfig", str(kubeconfig), "--no-hooks", "--skip-crds"]
            self._run(["install", release, str(self._copy(chart)), *given, *where])

    def without_effect(
        self, chart: Path, release: str, namespace: str, values: Mapping[str, Any]
    ) -> list[Leaf]:
        """Values whose change leaves the rendering as it was: unknown names, or used by nothing."""
        copied = self._copy(chart)
        base = self.text(copied, release, namespace, values)

        def is_idle(leaf: Leaf) -> bool:
            try:
                return self.text(copied, release, namespace, changed(values, leaf)) == base
            except StuckError:
                raise
            except RenderError:
                # A refused value is one that the chart reads.
                return False

        every = list(leaves(values))
        with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
            idle = list(threads.map(is_idle, every))
        return [leaf for leaf, is_it in zip(every, idle, strict=True) if is_it]

    def _copy(self, chart: Path) -> Path:
        if chart not in self._copies:
            target = self._folder / f"{len(self._copies)}-{chart.name}"
            shutil.copytree(chart, target, symlinks=False)
            _settle_dependencies(chart, target)
            self._copies[chart] = target
        return self._copies[chart]

    def _run(self, arguments: list[str]) -> str:
        # Nothing of the user's own Helm: no plugins, no repositories, no cluster.
        places = {f"HELM_{name}_HOME": str(self._folder) for name in ("CACHE", "CONFIG", "DATA")}
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(self._folder), **places}
        try:
            done = subprocess.run(
                [str(self._program), *arguments],
                env=environment,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            told = f"helm {arguments[0]} did not end within {_TIMEOUT_S} s"
            raise StuckError(told) from error
        except OSError as error:  # such as a program of another architecture
            told = f"program {self._program} cannot be run: {error.strerror}"
            raise NotRunError(told) from error
        if done.returncode:
            raise RenderError(" ".join(done.stderr.split())[-600:])
        return done.stdout


def leaves(values: Any, path: Path_ = ()) -> Iterator[Leaf]:
    """Every value without values inside, empty mappings and lists among them."""
    if isinstance(values, Mapping) and values:
        for key, value in values.items():
            yield from leaves(value, (*path, key))
    elif isinstance(values, list) and values:
        for index, value in enumerate(values):
            yield from leaves(value, (*path, index))
    elif path:
        yield Leaf(path=path, value=values)


def changed(values: Mapping[str, Any], leaf: Leaf) -> dict[str, Any]:
    """The values with another one at this leaf, of its own type as far as it has one."""
    result = copy.deepcopy(dict(values))
    holder: Any = result
    for step in leaf.path[:-1]:
        holder = holder[step]
    holder[leaf.path[-1]] = _other(leaf.value)
    return result


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        # Charts compare such texts.
        return {"true": "false", "false": "true"}.get(value, f"{value}zz")
    return ["zz"] if isinstance(value, list) else {"zz": "zz"}


def _settle_dependencies(chart: Path, target: Path) -> None:
    """Takes dependencies out that are off by default, and in those that lie beside the chart."""
    described = target / "Chart.yaml"
    about = yaml.safe_load(described.read_text(encoding="utf-8"))
    kept = []
    for needed in about.pop("dependencies", None) or []:
        if (target / "charts" / needed["name"]).is_dir():
            kept.append(needed)
        elif (beside := chart.parent / needed["name"]).is_dir():
            # Charts of one repository.
            shutil.copytree(beside, target / "charts" / needed["name"])
            kept.append(needed)
        elif _is_on(target, needed.get("condition", "")):
            raise NotRunError(
                f"chart {about['name']}: its subchart {needed['name']} lies in "
                f"{needed['repository']}"
            )
    described.write_text(yaml.safe_dump({**about, **({"dependencies": kept} if kept else {})}))
    (target / "Chart.lock").unlink(missing_ok=True)


def _is_on(chart: Path, condition: str) -> bool:
    """Whether a dependency's condition holds with the chart's own values; none always holds."""
    if not condition:
        return True
    value: Any = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8")) or {}
    for step in condition.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value is not False


_BASE: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _GoLoader(_BASE):
    """Scalars by the rules of gopkg.in/yaml.v2, which sigs.k8s.io/yaml has inside (resolve.go).

    Python's own rules differ for `1e+06`, `12:30` and dates.
    """

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
