"""What a folder with parts of upstream holds: checkouts as data, programs to run, real charts.

Owns their names, where each comes from, how its version is read and which chart of theirs is which
release. Builds and fetches nothing: what is not there, or there in another version, is said by name
(NotRunError), and whoever asked goes without it.

`Helm.render(...)` renders charts with the program's values.
Charts are copied first: a source tree lacks packed subcharts, and what a dependency's condition
switches off is not needed. Nothing is written into a checkout.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import yaml

from infra.clients.kube_rules import Object
from stacks.compatibility import SOPERATOR

_DEPLOYED: Final = [each for each in SOPERATOR.values() if each.refused is None][-1]
"""The newest version of Soperator that can be deployed."""
DEPLOYED: Final = _DEPLOYED.version
_FIRST_WORD: Final = r"\A(\S+)"
_OWN_CHART: Final = r"(?m)^version: *[\"']?v?([^\s\"']+)"
_APP: Final = _OWN_CHART.replace("version", "appVersion")


class NotRunError(Exception):
    """A part of upstream that the folder lacks: what it is and where it comes from."""


class OutsideError(NotRunError):
    """What no folder can give, and why: nothing is to be fetched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """One repository of upstream as it was at a revision."""

    url: str
    revision: str
    """A tag, a branch or a commit."""
    version: str
    """What the checkout itself says, without a leading `v`."""
    file: str = ""
    """Where it says so; nowhere but in git where empty."""
    pattern: str = _FIRST_WORD
    """How it says so there."""

    def made_by(self, folder: Path) -> str:
        """What makes the checkout of the folder as it is: absent, a clone or anything else.

        `git clone --branch` would refuse a commit.
        """
        to = shlex.quote(str(folder))
        switch = f"git -C {to} checkout {self.revision}"
        if (folder / ".git").exists():
            return switch
        # git would work on a repository around it instead.
        away = "move it away, then " if folder.exists() else ""
        return f"{away}git clone {self.url} {to} && {switch}"


def _read() -> dict[str, dict[str, Any]]:
    """The tables of sources.yaml, with the versions in them."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    for chart, version in {**_DEPLOYED.charts, "soperator": DEPLOYED}.items():
        text = text.replace(f"{{{chart}}}", version)
    return yaml.safe_load(text)


def _checkout(*, says: str = _FIRST_WORD, **row: str) -> Checkout:
    return Checkout(**row, pattern={"own": _OWN_CHART, "app": _APP}.get(says, says))


_TABLES: Final = _read()
CHECKOUTS: Final = {name: _checkout(**row) for name, row in _TABLES["checkouts"].items()}
RELEASED: Final[Mapping[str, str]] = _TABLES["released"]
"""Name in FOLDER/bin -> repository on GitHub and tag, of what has no checkout there."""
PROGRAMS: Final[Mapping[str, tuple[str, str]]] = _TABLES["programs"]
"""Name in FOLDER/bin -> checkout and Go package that it is built from."""
CHARTS: Final[Mapping[str, str]] = _TABLES["charts"]
"""Release -> chart, of those that are not Soperator's own."""
OUTSIDE: Final[Mapping[str, str]] = _TABLES["outside"]
"""Releases that no checkout has a whole chart of, and why."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The folder that the user names."""

    folder: Path

    def checkout(self, name: str) -> Path:
        """The folder of a checkout that says that it is of its version."""
        found, wanted = self.folder / name, _wanted(name)
        if not found.is_dir():
            raise NotRunError(f"no checkout {found}: {wanted.made_by(found)}")
        said = self.version(name)
        if said != wanted.version:
            raise NotRunError(
                f"checkout {found} is of {said}, not of {wanted.version}: {wanted.made_by(found)}"
            )
        return found

    def soperator(self, version: str) -> str:
        """Name of the checkout of this version of Soperator, which is there."""
        name = "soperator" if version == DEPLOYED else f"soperator-{version}"
        self.checkout(name)
        return name

    def version(self, name: str) -> str | None:
        """What a checkout says of its version, by its file or as a clone; None without one."""
        folder, wanted = self.folder / name, _wanted(name)
        if not folder.is_dir():
            return None
        if not wanted.file:
            return _of_clone(folder, wanted)
        try:
            said = _said(folder / wanted.file, wanted.pattern)
        except OSError:
            return f"a version without {wanted.file}"
        return said or f"a version that {wanted.file} does not say"

    def program(self, name: str) -> Path:
        """A program of upstream."""
        found = self.folder / "bin" / name
        if not os.access(found, os.X_OK):
            how = built_by(name, shlex.quote(str(self.folder)))
            raise NotRunError(f"no program {found}: {how}")
        return found

    def chart(self, release: str, version: str, soperator: str = DEPLOYED) -> Path:
        """The chart of a release, where a checkout has it whole and in the version.

        `version` may be a pattern, as Helm takes it; `soperator` is the version of Soperator.
        """
        if release in OUTSIDE:
            raise OutsideError(f"chart of {release} is never rendered here: {OUTSIDE[release]}")
        if release in CHARTS:
            checkout, _, inside = CHARTS[release].partition("/")
        else:
            checkout, inside = self.soperator(soperator), f"helm/{release}"
        found = self.checkout(checkout) / inside
        about = found / "Chart.yaml"
        if not about.is_file():
            raise NotRunError(f"chart of {release}: {found} has no Chart.yaml")
        said = self.version(checkout) if release in CHARTS else _said(about, _OWN_CHART)
        if not fnmatchcase(said or "", version):
            raise NotRunError(f"chart of {release}: the stack has {version}, {found} is of {said}")
        return found


def built_by(program: str, folder: str) -> str:
    """The command that builds a program of a checkout in the folder, or where it is from."""
    if program in RELEASED:
        return f"copy it there (https://github.com/{RELEASED[program]})"
    checkout, package = PROGRAMS.get(program) or (program.replace("-operator", "", 1), "./cmd")
    return f"go -C {folder}/{checkout} build -o {folder}/bin/{program} {package}"


def no_folder(folder: str | Path, command: str) -> str:
    """Why nothing is looked at where the folder is not there."""
    lacking = f"no folder '{folder}'" if folder else "no folder is named"
    return f"{lacking}: give the folder: {command} (docs/conformance.md)"


def _said(file: Path, pattern: str) -> str | None:
    found = re.search(pattern, file.read_text(encoding="utf-8"))
    return found[1] if found else None


def _wanted(name: str) -> Checkout:
    """What a checkout is to be; that of `soperator-VERSION` is of the tag that is the version."""
    if name in CHECKOUTS:
        return CHECKOUTS[name]
    version = name.removeprefix("soperator-")
    url = CHECKOUTS["soperator"].url
    return _checkout(url=url, revision=version, version=version, file="VERSION")


def _of_clone(folder: Path, wanted: Checkout) -> str:
    """The version where the clone is at its tag, else its commit or why neither can be read."""
    if not (folder / ".git").exists():
        return "a version that cannot be read (no git clone)"
    git = ["git", "-C", str(folder)]
    try:
        tags, commit = (
            subprocess.run([*git, *words], capture_output=True, text=True, check=True).stdout
            for words in (("tag", "--points-at", "HEAD"), ("rev-parse", "HEAD"))
        )
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", None) or str(error)
        return f"a version that cannot be read ({' '.join(why.split())})"
    return wanted.version if wanted.revision in tags.split() else f"commit {commit.strip()}"


_KUBERNETES: Final = "1.33.0"
_APIS: Final = "monitoring.coreos.com/v1"
"""What a kube cluster has that the charts look for."""
_TIMEOUT_S: Final = 120


class RenderError(Exception):
    """A chart refused the values, in Helm's own words."""


class Helm:
    """The real Helm over copies of charts in one folder."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self._copies: dict[Path, Path] = {}

    def render(
        self, chart: Path, release: str, namespace: str, values: Mapping[str, Any]
    ) -> list[Object]:
        """The objects of a release, hooks included, those of crds/ not."""
        return load_all(self.text(chart, release, namespace, values))

    def text(self, chart: Path, release: str, namespace: str, values: Mapping[str, Any]) -> str:
        """What `helm template` prints; RenderError where the chart refuses."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(values, file)
            file.flush()
            given = ["--namespace", namespace, "--values", file.name]
            cluster = ["--kube-version", _KUBERNETES, "--api-versions", _APIS]
            return self.run(["template", release, str(self.copied(chart)), *given, *cluster])

    def copied(self, chart: Path) -> Path:
        """A copy of the chart with the subcharts that it needs, made once."""
        if chart not in self._copies:
            target = self._folder / f"{len(self._copies)}-{chart.name}"
            shutil.copytree(chart, target, symlinks=False)
            _settle_dependencies(chart, target)
            self._copies[chart] = target
        return self._copies[chart]

    def run(self, arguments: list[str]) -> str:
        """What Helm prints; RenderError where it refuses, or does not end."""
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
            raise RenderError(told) from error
        except OSError as error:  # such as a program of another architecture
            told = f"program {self._program} cannot be run: {error.strerror}"
            raise NotRunError(told) from error
        if done.returncode:
            raise RenderError(" ".join(done.stderr.split())[-600:])
        return done.stdout


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
