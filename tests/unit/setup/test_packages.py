"""Debian's packages come by the real apt, and no service starts with them.

Apt installs into a folder of the test, from an archive of the test: one package with one program.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from infra.setup.tools import __main__ as parts
from infra.setup.tools.__main__ import SetupError

_NAME = "soperator-helper"
_DEB = f"{_NAME}_1.0_all.deb"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where apt installs; `/policy` there is the switch that keeps services down."""
    version = Path("/etc/debian_version")
    is_debian = version.exists() and version.read_text().startswith(f"{parts._DEBIAN}.")
    if not is_debian or os.geteuid() != 0 or not shutil.which("dpkg-deb"):
        pytest.skip(f"needs root on Debian {parts._DEBIAN}, which set-up installs on")
    root = tmp_path / "root"
    for folder in (
        *("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/apt/lists/partial"),
        *("var/cache/apt/archives/partial", "etc/apt", "var/log/apt"),
    ):
        (root / folder).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    archive = tmp_path / "archive"
    archive.mkdir()
    (root / "etc/apt/sources.list").write_text(f"deb [trusted=yes] file:{archive} ./\n")
    config = tmp_path / "apt.conf"
    config.write_text(
        f"""Dir::Etc "{root}/etc/apt"; Dir::Etc::parts "none"; Dir::State "{root}/var/lib/apt";
Dir::State::status "{root}/var/lib/dpkg/status"; Dir::Cache "{root}/var/cache/apt";
Dir::Log "{root}/var/log/apt"; APT::Sandbox::User "root";
DPkg::Options {{ "--root={root}"; "--log=/dev/null"; }};
DPkg::Pre-Invoke {{ "test ! -x {root}/policy || touch {root}/services-stay-down"; }};
"""
    )
    monkeypatch.setenv("APT_CONFIG", str(config))
    monkeypatch.setenv("PATH", f"{root}/usr/bin:{os.environ['PATH']}")
    monkeypatch.setattr(parts, "_POLICY", root / "policy")
    return root


def offer(archive: Path) -> None:
    """Puts the package, and what apt reads of it, into the archive."""
    tree = archive.parent / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "usr/bin").mkdir(parents=True)
    control = f"Package: {_NAME}\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody <n@x>\n"
    control += "Description: one program\n"
    (tree / "DEBIAN/control").write_text(control)
    program = tree / "usr/bin" / _NAME
    program.write_text("#!/bin/sh\necho here\n")
    program.chmod(0o755)
    subprocess.run(["dpkg-deb", "--build", tree, archive / _DEB], check=True, capture_output=True)
    content = (archive / _DEB).read_bytes()
    rest = (
        f"Filename: ./{_DEB}\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n"
    )
    (archive / "Packages").write_text(f"{control}{rest}")


@pytest.mark.feature("S002-21")
def test_a_missing_program_is_installed_by_apt_and_no_service_is_started(
    root: Path, tmp_path: Path
) -> None:
    offer(tmp_path / "archive")
    step = parts.packages_step({_NAME: _NAME})
    assert not step.done()
    step.run()
    assert step.done()
    said = subprocess.run([_NAME], capture_output=True, text=True, check=True).stdout
    assert said == "here\n"
    assert (root / "services-stay-down").exists(), "as Debian's packages would start their own"
    assert not (root / "policy").exists()


@pytest.mark.feature("S002-21")
def test_what_apt_cannot_find_is_told_in_its_words_with_the_command(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "archive" / "Packages").touch()
    with pytest.raises(SetupError, match=rf"(?s)Unable to locate package {_NAME}.*apt-get install"):
        parts.install([_NAME])
    assert not (root / "policy").exists()
