"""What a folder with parts of upstream holds: checkouts as data, programs to run.

Owns their names, where each comes from, how its version is read and which chart of theirs is which
release. Builds and fetches nothing: what is not there, or there in another version, is said by name
(NotRunError), and whoever asked goes without it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import yaml

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
        if name == "soperator":  # of which version is asked for by its own name
            return found
        said = self.version(name)
        if said != wanted.version:
            raise NotRunError(
                f"checkout {found} is of {said}, not of {wanted.version}: {wanted.made_by(found)}"
            )
        return found

    def soperator(self, version: str) -> str:
        """Name of the checkout of this version of Soperator."""
        own = f"soperator-{version}"
        for name in ("soperator", own):
            if self.version(name) == version:
                return name
        known = [name for name in ("soperator", own) if (self.folder / name).is_dir()]
        is_of = "".join(f"{self.folder / name} is of {self.version(name)}; " for name in known)
        name = own if "soperator" in known or version != DEPLOYED else "soperator"
        how = _wanted(name).made_by(self.folder / name)
        raise NotRunError(f"no checkout of soperator {version}: {is_of}{how}")

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

    def versions(self) -> dict[str, str]:
        """Every checkout that is here and what it says of its version."""
        others = sorted(each.name for each in self.folder.glob("soperator-*"))
        here = [
            name for name in dict.fromkeys([*CHECKOUTS, *others]) if (self.folder / name).is_dir()
        ]
        return {name: self.version(name) or "" for name in here}

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
