"""The runner's line of a part: PASS, FAIL and NOT RUN are three things, each with its reason."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from infra.state import CHECKOUT
from tests.conformance import __main__ as runner
from tests.conformance.conftest import SOURCES

PART = runner.Part(
    name="objects", what="what is held", tests=("tests/conformance/test_objects.py",)
)
CASE = '<testcase file="tests/conformance/test_objects.py" name="{name}">{inner}</testcase>'
COUNTED = (
    '<properties><property name="counted" value="7 releases, 40 objects"/>'
    '<property name="not run" value="no chart"/><property name="versions" value="Helm v3"/>'
    "</properties>"
)
SKIPPED = '<skipped message="no checkout"/>'
FAILED = '<failure message="AssertionError: Pod x: no&#10;  Pod y: no&#10;assert not [1]"/>'


def result(*cases: tuple[str, str]) -> runner.Result:
    inner = "".join(CASE.format(name=name, inner=text) for name, text in cases)
    return runner.read(PART, ElementTree.fromstring(f"<testsuites>{inner}</testsuites>"))


def test_what_the_tests_counted_is_added_up():
    found = result(("a", COUNTED), ("b", COUNTED))
    assert found.counted == {"releases": 14, "objects": 80, "tests passed": 2}
    assert (found.versions, found.not_run) == (["Helm v3"], ["no chart"])


@pytest.mark.parametrize(
    ("texts", "outcome"),
    [
        ([""], "PASS"),
        (["", SKIPPED], "NOT RUN"),
        ([COUNTED], "NOT RUN"),
        ([COUNTED, FAILED], "FAIL"),
    ],
)
def test_a_part_passes_where_nothing_was_missing(texts, outcome):
    found = result(*((str(number), text) for number, text in enumerate(texts)))
    assert found.outcome == outcome


def test_one_failure_is_the_answer_and_named():
    found = result(("a", COUNTED), ("b", FAILED))
    assert found.outcome == "FAIL"
    assert found.problems == ["b: Pod x: no |   Pod y: no"]


def test_a_part_of_skips_alone_is_no_success():
    found = result(("a", SKIPPED))
    assert (found.outcome, found.not_run) == ("NOT RUN", ["a: no checkout"])


def test_what_keeps_many_tests_from_running_is_told_once():
    found = result(("a", SKIPPED), ("b", SKIPPED), ("c", SKIPPED))
    assert found.not_run == ["a and 2 more: no checkout"]


def test_a_test_that_waits_for_another_parts_programs_is_not_this_parts():
    found = result(("a", ""), ("b", '<skipped message="SOPERATOR_SLURM names no folder"/>'))
    assert (found.outcome, found.counted) == ("PASS", {"tests passed": 1})


def test_what_no_folder_can_give_is_told_apart_from_what_this_one_lacks():
    found = result(("a", COUNTED), ("b", '<skipped message="outside: no daemons"/>'))
    assert (found.outcome, found.not_run, found.outside) == (
        "NOT RUN",
        ["no chart"],
        ["b: no daemons"],
    )


@pytest.mark.parametrize(
    ("texts", "code"),
    [([COUNTED], runner.NOT_RUN), ([], runner.NOT_RUN), ([""], 0), (["", FAILED, COUNTED], 1)],
)
def test_a_part_that_lacked_something_is_no_whole_success(texts, code, monkeypatch, tmp_path):
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path))
    found = result(*((str(number), text) for number, text in enumerate(texts)))
    monkeypatch.setattr(runner, "_run", lambda group, folder: [found])
    assert runner.main(["objects"]) == code


@pytest.mark.parametrize("part", runner.PARTS, ids=lambda part: part.name)
def test_every_file_of_a_part_is_there(part):
    assert [path for path in part.tests if not (CHECKOUT / path).exists()] == []


def test_cases_of_other_parts_are_not_counted():
    other = '<testcase file="tests/conformance/test_charts.py" name="c"/>'
    report = ElementTree.fromstring(f"<testsuites>{other}</testsuites>")
    assert runner.read(PART, report).outcome == "NOT RUN"


@pytest.mark.parametrize("folder", ["", "/nowhere/at/all"])
def test_without_a_folder_every_part_is_not_run_by_name(folder, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv(SOURCES, folder)
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path))
    assert runner.main([]) == runner.NOT_RUN
    printed = capsys.readouterr().out
    named = [line.split()[2] for line in printed.splitlines() if line.startswith("NOT RUN")]
    assert sorted(named) == sorted(part.name for part in runner.PARTS)
    assert (tmp_path / "conformance" / "results.json").is_file()


def test_a_part_without_its_programs_names_them(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv(SOURCES, str(tmp_path))
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    assert runner.main(["slurm"]) == runner.NOT_RUN
    assert "slurm-25.11.3 has no sbin/slurmctld, no sbin/slurmd" in capsys.readouterr().out


def test_each_other_version_of_slurm_in_the_folder_is_a_part(monkeypatch, tmp_path, capsys):
    for name in ("slurm-24.11.7", "slurm-25.11.3", "slurm-26.05.3", "soperator-5.0.0"):
        (tmp_path / name).mkdir()
    found = {part.name: part for part in runner.parts(str(tmp_path))}
    assert set(found) - {part.name for part in runner.PARTS} == {"slurm-24.11.7", "slurm-26.05.3"}
    assert found["slurm-26.05.3"].tests == found["slurm"].others
    assert set(found["slurm"].others) <= {
        str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / "tests/local").iterdir()
    }
    monkeypatch.setenv(SOURCES, str(tmp_path))
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    assert runner.main(["slurm-26.05.3"]) == runner.NOT_RUN
    assert f"{tmp_path}/slurm-26.05.3 has no sbin/slurmctld" in capsys.readouterr().out


def test_the_results_have_what_each_checkout_says_of_its_version(monkeypatch, tmp_path):
    monkeypatch.setenv(SOURCES, str(tmp_path))
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    (tmp_path / "soperator").mkdir()
    (tmp_path / "soperator" / "VERSION").write_text("4.0.9\n")
    runner.main(["slurm"])
    written = tmp_path / "state" / "conformance"
    assert json.loads((written / "results.json").read_text())["checkouts"] == {"soperator": "4.0.9"}
    assert (written / "results.md").read_text().endswith("\nCheckouts: soperator 4.0.9.\n")


def test_an_unknown_part_is_wrong_usage(monkeypatch, tmp_path, capsys):
    assert runner.main(["slrum"]) == 2
    assert "PARTS: no slrum (has: charts," in capsys.readouterr().err
