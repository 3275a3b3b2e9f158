"""Set-up makes each thing once, whole or not at all, and says what to do where it cannot."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from infra.setup.tools import __main__ as setup
from infra.setup.tools.__main__ import SetupError, Step, whole_folder
from infra.state import CHECKOUT, Cache


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """A set-up with its own cache and two steps that count their runs."""
    monkeypatch.setenv("SOPERATOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    made, runs = set(), []

    def make(name):
        def run():
            runs.append(name)
            if name == "second" and runs.count("second") == 1:
                raise SetupError("the network is down\nrun this again")
            made.add(name)

        return Step(name=name, expect="", done=lambda: name in made, run=run)

    monkeypatch.setattr(setup, "steps", lambda *, tests: [make("first"), make("second")])
    return runs


@pytest.mark.feature("S002-20")
def test_a_step_that_failed_is_made_again_and_a_finished_one_is_not(alone, capsys):
    assert setup.main([]) == 1
    assert "setup: the network is down\nsetup: run this again" in capsys.readouterr().err
    assert setup.main([]) == 0
    assert setup.main([]) == 0
    assert alone == ["first", "second", "second"]


def test_a_step_that_made_nothing_is_no_success(alone, monkeypatch, capsys):
    empty = Step(name="engine", expect="", done=lambda: False, run=lambda: None)
    monkeypatch.setattr(setup, "steps", lambda *, tests: [empty])
    assert setup.main([]) == 1
    assert "engine: made, but not found" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_is_named(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SOPERATOR_CACHE", str(tmp_path / "file" / "cache"))
    assert setup.main([]) == 1
    assert re.search(r"SOPERATOR_CACHE: .*file/cache cannot be written", capsys.readouterr().err)


def test_an_interrupted_folder_never_appears_under_its_final_name(tmp_path):
    final = tmp_path / "bin"

    def interrupted():
        with whole_folder(final) as folder:
            (folder / "half").write_text("")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_cleared_by_the_next(tmp_path):
    final = tmp_path / "bin"
    (tmp_path / ".bin.killed").mkdir()
    with whole_folder(final) as folder:
        (folder / "program").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_a_new_folder_replaces_the_old_one_whole(tmp_path):
    final = tmp_path / "bin"
    final.mkdir()
    (final / "old").write_text("")
    with whole_folder(final) as folder:
        (folder / "new").write_text("")
    assert [path.name for path in final.iterdir()] == ["new"]


def test_a_failed_program_is_told_with_its_last_lines_and_the_fix():
    with pytest.raises(SetupError, match=r"(?s)no space left\n`sh .*` ended with 3\nfree some"):
        setup.execute(["sh", "-c", "echo no space left; exit 3"], fix="free some")


@pytest.mark.feature("S002-21")
def test_packages_are_asked_for_only_where_their_program_is_missing(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, path=None: name != "etcd" or None)
    assert setup.missing(setup.PACKAGES) == ["etcd-server"]


@pytest.mark.feature("S002-21")
def test_without_root_the_command_to_run_is_printed(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda self: "12.11\n")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(SetupError, match=r"run as root: apt-get install munge slurmdbd"):
        setup.install(["munge", "slurmdbd"])


def test_another_debian_is_told_which_programs_are_needed(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda self: "13.1\n")
    with pytest.raises(SetupError, match=r"(?s)this is Debian 13.1; .* munged, etcd$"):
        setup.install(["munge", "etcd-server"])


@pytest.mark.feature("S002-20")
@pytest.mark.parametrize(
    ("found", "text", "match"),
    [
        (None, "", r"Go, to build it, is not either\ninstall Go 1.26 or later"),
        ("/usr/bin/go", "go version go1.19.8 linux/amd64", r"go1.19.8 .* is too old"),
    ],
)
def test_a_missing_or_old_go_is_refused_before_anything_is_fetched(monkeypatch, found, text, match):
    monkeypatch.setattr(shutil, "which", lambda name: found)
    done = subprocess.CompletedProcess([], 0, stdout=text)
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: done)
    with pytest.raises(SetupError, match=match):
        setup.check_go("pulumi")


@pytest.mark.feature("S002-12", "S003-18")
def test_the_go_modules_name_the_versions_that_the_cache_is_keyed_by():
    cache = Cache(Path("/c"))
    for name, module, folder in (
        ("pulumi", "github.com/pulumi/pulumi/pkg/v3", cache.pulumi.parent.name),
        ("kube-apiserver", "k8s.io/kubernetes", cache.kube_apiserver.parent.name),
    ):
        text = (CHECKOUT / "infra" / "setup" / "tools" / "go" / name / "go.mod").read_text()
        version = folder.removeprefix(f"{name}-")
        assert f"require {module} {version}\n" in text


@pytest.mark.feature("S002-20", "S002-73", "S003-18")
def test_an_engine_on_path_without_a_language_host_is_not_used(monkeypatch, tmp_path):
    """A lone pulumi binary starts and then fails in every program."""
    program = tmp_path / "pulumi"
    program.write_text("#!/bin/sh\necho v3.200.0\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert not setup.is_usable(program)
    (tmp_path / "pulumi-language-python").write_text("")
    assert setup.is_usable(program)
    program.write_text("#!/bin/sh\necho v3.99.0\n")
    assert not setup.is_usable(program)


def test_data_is_made_again_when_its_lock_file_changes(tmp_path, monkeypatch):
    *_, step = setup.python_steps(Cache(tmp_path))
    folder = tmp_path / "data" / "bfcl"
    folder.mkdir(parents=True)
    (folder / ".source").write_text("an older lock file")
    assert not step.done()
    (folder / ".source").write_text((CHECKOUT / "infra/setup/tools/data.lock").read_text())
    assert not step.done(), "made before bfcl-eval's scorer was kept too"
    (folder / setup.CHECKER).mkdir()
    assert step.done()


LOCKS = ["requirements.lock", "requirements-workloads.lock", "requirements-gpu.lock"]
LOCKS += [f"infra/setup/tools/{name}.lock" for name in ("bootstrap", "model", "data")]


@pytest.mark.feature("S000-67", "S002-12")
@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_file_pins_by_hash_and_names_no_index(name):
    text = (CHECKOUT / name).read_text()
    pinned = re.findall(r"^[\w.\[\], -]+==\S+ \\\n    --hash=sha256:", text, re.MULTILINE)
    assert len(pinned) == len(re.findall(r"^[a-z0-9]", text, re.MULTILINE))
    assert "://" not in text
    assert "--index" not in text
    assert "--find-links" not in text


def test_both_lock_files_fit_into_one_environment():
    pins = [
        dict(re.findall(r"^([\w.-]+)==(\S+) ", (CHECKOUT / name).read_text(), re.MULTILINE))
        for name in LOCKS[:2]
    ]
    both = pins[0].keys() & pins[1].keys()
    assert {name: pins[0][name] for name in both} == {name: pins[1][name] for name in both}


@pytest.mark.feature("S002-12", "S003-18")
def test_every_direct_requirement_is_locked():
    for source, lock in (
        ("requirements.in", LOCKS[0]),
        ("requirements-dev.in", LOCKS[0]),
        ("requirements-workloads.in", LOCKS[1]),
    ):
        lines = (CHECKOUT / source).read_text().splitlines()
        text = (CHECKOUT / lock).read_text()
        for line in lines:
            assert line.startswith("#") or f"\n{line} \\\n" in text, f"{lock} lacks {line}"


def test_the_bootstrap_is_posix_shell():
    script = CHECKOUT / "infra" / "setup" / "tools" / "bootstrap.sh"
    subprocess.run(["dash" if shutil.which("dash") else "sh", "-n", script], check=True)


def test_an_attached_cluster_needs_no_torch_here(tmp_path: Path) -> None:
    """It took 7 GB of a laptop that only submits."""
    script = tmp_path / "infra" / "setup" / "tools" / "bootstrap.sh"
    script.parent.mkdir(parents=True)
    shutil.copy(CHECKOUT / "infra" / "setup" / "tools" / "bootstrap.sh", script)
    for name in (*LOCKS, "pyproject.toml", "infra/setup/tools/bootstrap.lock"):
        (tmp_path / name).write_text(name)
    uv = '#!/bin/sh\necho "$@" >> asked\n'
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\n[ "$2" != venv ] || { mkdir -p .venv/bin && cp $0 .venv/bin/python && '
        f"printf '%s' '{uv}' > .venv/bin/uv && chmod +x .venv/bin/uv; }}\n"
    )
    python.chmod(0o755)

    def synced(*words: str) -> list[str]:
        (tmp_path / "asked").write_text("")
        environ = {**os.environ, "PYTHON": str(python)}
        subprocess.run(["sh", script, *words], env=environ, check=True, capture_output=True)
        lines = (tmp_path / "asked").read_text().splitlines()
        return [word for line in lines for word in line.split() if word in LOCKS]

    assert synced("attach") == [LOCKS[0]]
    assert synced("attach") == []
    assert synced() == LOCKS[:3]
    assert synced("attach") == synced() == [], "what has everything has this"


def test_the_workloads_environment_is_this_python(tmp_path):
    assert sys.version_info[:2] == (3, 11)
    assert setup.python_steps(Cache(tmp_path))[0].done() is False


def test_make_demo_without_root_stops_before_it_installs_anything(tmp_path: Path) -> None:
    """It installed 2 GB for a user who could not run what they are for."""
    stand_in = tmp_path / "id"
    stand_in.write_text("#!/bin/sh\necho 1000\n")
    stand_in.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    make = ["make", "-C", str(CHECKOUT)]
    done = subprocess.run([*make, "as-root"], env=environ, capture_output=True, text=True)
    assert done.returncode != 0
    assert "needs root" in done.stderr
    steps = subprocess.run([*make, "-n", "demo"], env=environ, capture_output=True, text=True)
    assert steps.stdout.index("needs root") < steps.stdout.index("infra/setup/tools/bootstrap.sh")
