"""The parts of `make test`: every folder in one, every part run, no bad status lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import conftest, ports
from tests.__main__ import APART, Part, Result, lanes, options_of, run, run_part

TESTS = Path(__file__).parents[2]


def part(name: str) -> Part:
    return Part(name=name, folders=(name,), processes=1)


def ended(statuses: dict[str, int]):
    """Stands for pytest: each part ends with its status."""

    def run_one(each: Part, options: object) -> Result:
        return Result(part=each, status=statuses[each.name], seconds=1.0, counts="1 test")

    return run_one


@pytest.mark.feature("S001-16")
def test_every_folder_with_tests_is_in_exactly_one_part():
    with_tests = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")}
    listed = [folder for lane in lanes(2) for each in lane for folder in each.folders]
    assert sorted((*listed, *APART)) == sorted(with_tests)


@pytest.mark.feature("S001-16")
def test_a_part_leaves_no_test_of_its_folders_out():
    words = part("unit").command(["-k", "benchmark"])
    assert words == [sys.executable, "-m", "pytest", "tests/unit", "-k", "benchmark"]


def test_the_longest_files_are_begun_first():
    # xdist itself begins those with the most tests, and these have few.
    assert "--no-loadscope-reorder" in lanes(2)[0][0].command([])
    files = {path.stem for path in TESTS.rglob("test_*.py")}
    assert not set(conftest.LONGEST) - files
    items = [SimpleNamespace(path=TESTS / f"{name}.py") for name in ("test_a", *conftest.LONGEST)]
    ordered = list(reversed(items))
    conftest.pytest_collection_modifyitems(ordered)
    assert [each.path.stem for each in ordered] == [*conftest.LONGEST, "test_a"]


@pytest.mark.parametrize("num_cores", [1, 2, 64])
def test_three_real_slurm_clusters_run_at_once_on_any_machine(num_cores):
    by_name = {each.name: each for lane in lanes(num_cores) for each in lane}
    assert by_name["local"].processes == 3
    assert "-n" not in part("local").command([])
    assert all(1 <= each.processes <= 4 for each in by_name.values())


@pytest.mark.feature("S001-16")
@pytest.mark.parametrize(
    ("statuses", "answer"),
    [((0, 0, 0), 0), ((1, 0, 0), 1), ((0, 3, 1), 3), ((0, 0, 5), 5), ((0, -9, 0), -9)],
)
def test_a_bad_status_of_any_part_is_the_answer_and_the_others_run(statuses, answer, capsys):
    names = ("fast", "engine", "local")
    named = dict(zip(names, statuses, strict=True))
    fast, engine, local = (part(name) for name in names)
    assert run([[fast, engine], [local]], [], ended(named)) == answer
    printed = capsys.readouterr().out
    for name, status in named.items():
        assert f"{'ok    ' if status == 0 else 'FAILED'} {name}" in printed


def test_an_interrupt_ends_the_suite_and_names_what_did_not_run(capsys):
    assert run([[part("fast"), part("engine")]], [], ended({"fast": 2})) == 2
    assert "NOT RUN engine" in capsys.readouterr().out


def test_lanes_run_at_once(capsys):
    both = threading.Barrier(2, timeout=60)

    def run_one(each: Part, options: object) -> Result:
        both.wait()  # broken after a minute if the other one never starts
        return Result(part=each, status=0, seconds=1.0, counts="1 test")

    assert run([[part("engine")], [part("local")]], [], run_one) == 0
    printed = capsys.readouterr().out
    assert printed.index("engine") < printed.index("local")


def test_a_part_without_a_single_test_is_no_success(capsys):
    """A renamed folder must not pass for green."""
    found = run_part(part("unit/suite"), ["-k", "nothing_is_called_so", "-p", "no:cacheprovider"])
    assert found.status == 5
    assert "deselected" in found.counts
    assert found.counts in capsys.readouterr().out


def test_what_failed_is_named_once_more_at_the_end(tmp_path, capsys):
    (tmp_path / "test_it.py").write_text("def test_it():\n    assert 1 + 1 == 3\n")
    here = Part(name="here", folders=(os.path.relpath(tmp_path, TESTS),), processes=1)
    assert run([[here]], ["-p", "no:cacheprovider"]) == 1
    last = capsys.readouterr().out.partition("### all parts")[2]
    assert "test_it.py::test_it" in last


_LAW = """
import pytest
from hypothesis import given, strategies

from tests.nightly import law

seen = []


@law(3)
@given(strategies.integers())
def test_law(number):
    seen.append(number)


def test_count():
    print(f"{len(seen)} examples")


@pytest.mark.nightly
def test_faults():
    print("faults injected")
"""


@pytest.mark.parametrize(
    ("words", "counts", "examples"),
    [
        ([], "2 passed, 1 deselected", 3),
        (["-m", "not gpu"], "2 passed, 1 deselected", 3),
        (["--all"], "3 passed", 30),
    ],
)
def test_only_the_whole_suite_has_what_takes_minutes(words, counts, examples, tmp_path, capsys):
    (tmp_path / "test_law.py").write_text(_LAW)
    (tmp_path / "conftest.py").write_text("from tests import nightly\n")
    here = Part(name="here", folders=(os.path.relpath(tmp_path, TESTS),), processes=1)
    options = options_of([*words, "-s", "-p", "no:cacheprovider"])
    assert run([[here]], options) == 0
    printed = capsys.readouterr().out
    assert f"  {counts}" in printed
    assert f"{examples} examples" in printed
    assert ("faults injected" in printed) == ("--all" in words)


def test_what_a_part_imports_is_compiled_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "test_it.py").write_text(
        "import sys\n\n\ndef test_it():\n    assert not sys.dont_write_bytecode\n"
    )
    here = Part(name="here", folders=(os.path.relpath(tmp_path, TESTS),), processes=1)
    assert run([[here]], ["-p", "no:cacheprovider"]) == 0


def test_two_processes_are_never_given_the_same_port():
    mine = [*ports.free_ports(3), ports.free_base(), ports.free_node_port()]
    code = "from tests.ports import *; print(*free_ports(3), free_base(), free_node_port())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=TESTS.parent, capture_output=True, text=True, check=True
    )
    assert not set(mine) & {int(word) for word in done.stdout.split()}
    assert len(set(mine)) == 5
