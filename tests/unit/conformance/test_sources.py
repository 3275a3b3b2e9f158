"""What a folder of upstream lacks is said with the command or the place that gives it."""

from __future__ import annotations

import subprocess
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from infra.operate.conformance.sources import (
    CHARTS,
    CHECKOUTS,
    OUTSIDE,
    Checkout,
    NotRunError,
    OutsideError,
    Sources,
)
from stacks.compatibility import SOPERATOR
from tests.conformance.__main__ import checkouts


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("revision", ["1.0.0", "a commit"])
def test_the_printed_command_makes_the_checkout(revision, tmp_path):
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init", "--quiet")
    git(origin, "commit", "--quiet", "--allow-empty", "--message=one")
    git(origin, "tag", "1.0.0")
    wanted = git(origin, "rev-parse", "HEAD")
    git(origin, "commit", "--quiet", "--allow-empty", "--message=two")
    at = wanted if revision == "a commit" else revision
    command = Checkout(url=str(origin), revision=at, version="1.0.0").made_by(tmp_path / "my copy")
    subprocess.run(["bash", "-c", command], check=True, capture_output=True)
    assert git(tmp_path / "my copy", "rev-parse", "HEAD") == wanted


@pytest.mark.parametrize("name", CHECKOUTS)
def test_a_missing_checkout_is_named_with_its_command(name, tmp_path):
    with pytest.raises(NotRunError) as refused:
        Sources(tmp_path).checkout(name)
    wanted = CHECKOUTS[name]
    assert str(refused.value) == (
        f"no checkout {tmp_path / name}: "
        f"git clone {wanted.url} {tmp_path / name} "
        f"&& git -C {tmp_path / name} checkout {wanted.revision}"
    )


def test_a_missing_program_is_named_with_its_place(tmp_path):
    with pytest.raises(NotRunError) as refused:
        Sources(tmp_path).program("helm")
    assert str(refused.value) == (
        f"no program {tmp_path}/bin/helm: copy it there (https://github.com/helm/helm v3.21.4)"
    )


@pytest.mark.parametrize(
    ("name", "checkout", "package"),
    [
        ("kruise-manager", "kruise", "."),
        ("soperator-operator-4.0.0", "soperator-4.0.0", "./cmd"),
    ],
)
def test_a_missing_program_of_a_checkout_is_named_with_its_command(
    name, checkout, package, tmp_path
):
    with pytest.raises(NotRunError) as refused:
        Sources(tmp_path).program(name)
    assert str(refused.value) == (
        f"no program {tmp_path}/bin/{name}: "
        f"go -C {tmp_path}/{checkout} build -o {tmp_path}/bin/{name} {package}"
    )


@pytest.mark.parametrize("release", OUTSIDE)
def test_a_chart_that_no_checkout_has_is_nothing_to_fetch(release, tmp_path):
    with pytest.raises(OutsideError, match=f"^chart of {release} is never rendered here: "):
        Sources(tmp_path).chart(release, "*")


def says(folder: Path, name: str, text: str) -> Path:
    """A clone whose file of the version has the text."""
    (folder / name / ".git").mkdir(parents=True)
    file = folder / name / CHECKOUTS.get(name, CHECKOUTS["soperator"]).file
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return folder / name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("soperator", "4.9.9\n"),
        ("soperator-5.0.0", "4.9.9\n"),
        ("k8up", "name: k8up\nversion: 4.9.9\n"),
        ("mariadb-operator", 'version: 25.10.2\nappVersion: "4.9.9"\n'),
        ("prometheus-operator", "    operator.prometheus.io/version: 4.9.9\n"),
        ("security-profiles-operator", "  newTag: v4.9.9\n"),
    ],
)
def test_a_checkout_of_another_version_is_as_good_as_none(name, text, tmp_path):
    folder, wanted = says(tmp_path, name, text), CHECKOUTS[name]
    with pytest.raises(NotRunError) as refused:
        Sources(tmp_path).checkout(name)
    assert str(refused.value) == (
        f"checkout {folder} is of 4.9.9, not of {wanted.version}: "
        f"git -C {folder} checkout {wanted.revision}"
    )
    (folder / wanted.file).write_text(text.replace("4.9.9", wanted.version))
    assert Sources(tmp_path).checkout(name) == folder
    assert checkouts(Sources(tmp_path)) == {name: wanted.version}


def test_what_is_no_clone_is_not_switched(tmp_path):
    """`git -C` would work on a repository around it."""
    folder = says(tmp_path, "k8up", "version: 4.9.9\n")
    (folder / ".git").rmdir()
    with pytest.raises(NotRunError, match=r"4\.8\.7: move it away, then git clone .*k8up-4\.8\.7$"):
        Sources(tmp_path).checkout("k8up")


def test_a_file_of_the_version_that_is_not_there_is_another_version(tmp_path):
    (tmp_path / "k8up").mkdir()
    with pytest.raises(NotRunError, match=r"is of a version without charts/k8up/Chart\.yaml"):
        Sources(tmp_path).checkout("k8up")


def test_a_clone_whose_files_say_nothing_is_known_by_its_tag(tmp_path):
    clone, sources = tmp_path / "kruise", Sources(tmp_path)
    clone.mkdir()
    cannot = "a version that cannot be read (no git clone)"
    assert checkouts(sources) == {"kruise": cannot}
    with pytest.raises(NotRunError) as refused:
        sources.checkout("kruise")
    assert str(refused.value) == (
        f"checkout {clone} is of {cannot}, not of 1.8.0: move it away, then "
        f"git clone https://github.com/openkruise/kruise {clone} "
        f"&& git -C {clone} checkout v1.8.0"
    )
    (clone / ".git").mkdir()
    with pytest.raises(NotRunError, match=r"cannot be read \(fatal: .*\), not of 1\.8\.0: git -C"):
        sources.checkout("kruise")
    git(clone, "init", "--quiet")
    git(clone, "commit", "--quiet", "--allow-empty", "--message=one")
    with pytest.raises(NotRunError, match=f"is of commit {git(clone, 'rev-parse', 'HEAD')}, not"):
        sources.checkout("kruise")
    git(clone, "tag", CHECKOUTS["kruise"].revision)
    assert sources.checkout("kruise") == clone
    assert sources.version("kruise") == CHECKOUTS["kruise"].version


def test_soperator_is_taken_in_the_version_that_is_asked_for(tmp_path):
    sources = Sources(tmp_path)
    says(tmp_path, "soperator", "4.1.7\n")
    assert sources.soperator("4.1.7") == "soperator"
    with pytest.raises(NotRunError) as refused:
        sources.soperator("4.0.0")
    assert str(refused.value) == (
        f"no checkout {tmp_path}/soperator-4.0.0: "
        f"git clone https://github.com/nebius/soperator {tmp_path}/soperator-4.0.0 "
        f"&& git -C {tmp_path}/soperator-4.0.0 checkout 4.0.0"
    )
    says(tmp_path, "soperator-4.0.0", "4.0.0\n")
    assert sources.soperator("4.0.0") == "soperator-4.0.0"
    assert checkouts(sources) == {"soperator": "4.1.7", "soperator-4.0.0": "4.0.0"}


def test_a_chart_is_of_the_version_that_the_stack_has(tmp_path):
    chart = says(tmp_path, "k8up", "version: 4.8.7\n") / "charts" / "k8up"
    sources = Sources(tmp_path)
    assert sources.chart("k8up", "4.8.*") == chart
    with pytest.raises(NotRunError, match=r"^chart of k8up: the stack has 4\.7\.\*, .* of 4\.8\.7"):
        sources.chart("k8up", "4.7.*")


def test_a_chart_of_soperator_has_a_version_of_its_own(tmp_path):
    says(tmp_path, "soperator", "4.1.7\n")
    chart = tmp_path / "soperator" / "helm" / "nfs-server"
    chart.mkdir(parents=True)
    (chart / "Chart.yaml").write_text('version: "1.2.0"\n')
    assert Sources(tmp_path).chart("nfs-server", "1.2.0") == chart


def test_versions_of_checkouts_are_those_of_the_table_of_versions():
    """stacks/compatibility.yaml pins charts; a checkout is of a version that its pin takes."""
    pins = SOPERATOR[CHECKOUTS["soperator"].version].charts
    of_release = {release: chart.partition("/")[0] for release, chart in CHARTS.items()}
    # Soperator's own chart, under a version of its own.
    assert set(pins) - {"nfs-server"} == {*of_release, *OUTSIDE}
    others = {
        checkout: pins[release]
        for release, checkout in of_release.items()
        if not fnmatchcase(CHECKOUTS[checkout].version, pins[release])
    }
    assert others == {}


# Another name than a tag: a branch and a commit.
@pytest.mark.parametrize("name", sorted({*CHECKOUTS} - {"kruise-charts", "soperator-5.0.0"}))
def test_the_tag_of_a_checkout_is_of_its_version(name):
    assert CHECKOUTS[name].revision.endswith(CHECKOUTS[name].version)
