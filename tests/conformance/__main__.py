"""`make conformance SOURCES=FOLDER [PARTS="charts operator"]`: us against real upstream parts.

A line a part: PASS, FAIL or NOT RUN, with what was counted, and the same as JSON and Markdown in
the state folder. Builds nothing: docs/conformance.md says where each part comes from. Exit code 1
where a part failed, else 69 where something was not run for want of a part, else 0.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from infra.operate.conformance.sources import CHECKOUTS, Sources, no_folder
from infra.state import CHECKOUT, State
from tests.conformance.conftest import OUTSIDE, SOURCES

NOT_RUN: Final = 69
_ENDED: Final = (0, 1, 5)
"""pytest's statuses of a run that came to its end: passed, failed, nothing collected."""
_HERE: Final = "tests/conformance"
_NUMBER: Final = re.compile(r"(\d+) ([A-Za-z][A-Za-z, ]*?)(?=, \d|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing that is held against upstream."""

    name: str
    what: str
    tests: tuple[str, ...]
    """Folders and files that one pytest runs."""
    others: tuple[str, ...] = ()
    """Those of them that every other version in the folder takes: `slurm-24.11.7`, and so on."""
    variable: str = ""
    """Environment variable of other suites, and what of the folder it names."""
    inside: str = ""
    programs: tuple[str, ...] = ()
    """Below `inside`; without one of them the part is not run."""


PARTS: Final = (
    Part(
        name="charts",
        what="every release renders, every value changes something",
        tests=(
            f"{_HERE}/test_charts.py",
            f"{_HERE}/test_renderings.py",
            f"{_HERE}/test_release_records.py",
        ),
    ),
    Part(
        name="objects",
        what="every object is accepted under real definitions",
        tests=(f"{_HERE}/test_objects.py",),
    ),
    Part(
        name="operator",
        what="the operator takes every stack; its pods could run",
        tests=(f"{_HERE}/test_operator.py",),
    ),
    Part(
        name="slurm.conf",
        what="Slurm's files, the operator's against the local stack's",
        tests=(f"{_HERE}/test_slurm_conf.py",),
    ),
    Part(
        name="slurm",
        what="tests/local on Soperator's own version of Slurm",
        tests=("tests/local",),
        others=(
            "tests/local/test_attach.py",
            "tests/local/test_team.py",
            "tests/local/test_jobs.py",
            "tests/local/test_partitions.py",
            "tests/local/test_schedules.py",
            "tests/local/test_serve_job.py",
        ),
        variable="SOPERATOR_SLURM",
        inside="slurm-25.11.3",
        programs=("sbin/slurmctld", "sbin/slurmd", "bin/sbatch"),
    ),
    Part(
        name="containers",
        what="jobs in an image, by NVIDIA's own pyxis and enroot",
        tests=("tests/local/test_container_jobs.py",),
        variable="SOPERATOR_SLURM",
        inside="slurm-25.11.3",
        programs=("bin/sbatch", "lib/slurm/spank_pyxis.so", "bin/enroot", "bin/mksquashfs"),
    ),
    Part(
        name="plugins",
        what="Pulumi's own plugins under our program, and beside the stand-ins",
        tests=(
            "tests/local/test_kube_recorded.py",
            "tests/local/test_kube_plugins_up.py",
            "tests/engine",
        ),
        variable="SOPERATOR_PLUGINS",
        inside="bin",
        programs=(
            "pulumi-resource-command",
            "pulumi-resource-kubernetes",
            "pulumi-language-python",
            "pulumi-language-python-exec",
        ),
    ),
    Part(
        name="controllers",
        what="kruise, mariadb-operator, k8up and Kubeflow's operator take what is theirs",
        tests=(f"{_HERE}/test_controllers.py", f"{_HERE}/test_training_operator.py"),
    ),
    Part(
        name="machines",
        what="a stack's pods and those of Kubernetes Jobs, run by kubelets",
        tests=(f"{_HERE}/test_pods.py", f"{_HERE}/test_kubectl.py"),
    ),
    Part(
        name="image",
        what="the jobs' image by podman, what holds in it, and a registry that takes it",
        tests=(f"{_HERE}/test_image.py",),
    ),
    Part(
        name="5.0.0",
        what="what the next Soperator would break",
        tests=(f"{_HERE}/test_next_version.py",),
    ),
)


@dataclass(slots=True, kw_only=True)
class Result:
    """How one part ended."""

    name: str
    what: str
    outcome: str
    counted: dict[str, int] = field(default_factory=dict[str, int])
    versions: list[str] = field(default_factory=list[str])
    problems: list[str] = field(default_factory=list[str])
    not_run: list[str] = field(default_factory=list[str])
    """What the folder lacks."""
    outside: list[str] = field(default_factory=list[str])
    """What no folder can give."""

    def lines(self) -> list[str]:
        """For a person."""
        counted = ", ".join(f"{count} {noun}" for noun, count in self.counted.items())
        head = f"{self.outcome:<8} {self.name:<12} {counted or self.what}"
        if self.versions:
            head += f" ({', '.join(self.versions)})"
        return [
            head,
            *(f"         {text}" for text in self.problems),
            *(f"         not run: {text}" for text in self.not_run),
            *(f"         not looked at: {text}" for text in self.outside),
        ]


def parts(folder: str) -> tuple[Part, ...]:
    """The parts, and one for each other version of a part's programs that lies in the folder."""
    found: list[Part] = []
    for part in PARTS:
        found.append(part)
        stem = part.inside.rpartition("-")[0]
        lying = sorted(Path(folder).glob(f"{stem}-*")) if folder and part.others else []
        found += [
            replace(part, name=each.name, what=f"jobs and money on {each.name}", inside=each.name,
                    tests=part.others, others=())
            for each in lying
            if each.is_dir() and each.name != part.inside
        ]  # fmt: skip
    return tuple(found)


def main(arguments: Sequence[str]) -> int:
    """Runs the parts that are asked for, all by default."""
    folder = os.environ.get(SOURCES, "")
    every = parts(folder)
    known = {part.name: part for part in every}
    if unknown := [name for name in arguments if name not in known]:
        print(f"PARTS: no {', '.join(unknown)} (has: {', '.join(known)})", file=sys.stderr)
        return 2
    asked = [known[name] for name in arguments] or list(every)
    results: list[Result] = []
    groups = [[part] for part in asked if part.variable]
    # Parts of this folder share one pytest, and with it what came up.
    if own := [part for part in asked if not part.variable]:
        groups.insert(0, own)
    for group in groups:
        for result in _run(group, folder):
            print("\n".join(result.lines()), flush=True)
            results.append(result)
    _write(results, checkouts(Sources(Path(folder))) if folder else {})
    if any(result.outcome == "FAIL" for result in results):
        return 1
    return NOT_RUN if any(result.outcome == "NOT RUN" for result in results) else 0


def checkouts(sources: Sources) -> dict[str, str]:
    """Every checkout that is here and what it says of its version."""
    others = sorted(each.name for each in sources.folder.glob("soperator-*"))
    said = {name: sources.version(name) for name in dict.fromkeys([*CHECKOUTS, *others])}
    return {name: version for name, version in said.items() if version is not None}


def _run(group: Sequence[Part], folder: str) -> list[Result]:
    """Parts of one pytest: those of this folder share what the stacks came up to."""
    if not folder or not Path(folder).is_dir():
        why = no_folder(folder, "make conformance SOURCES=FOLDER")
        return [_not_run(part, why) for part in group]
    environment = {**os.environ}
    for part in group:
        if part.variable:
            inside = Path(folder).resolve() / part.inside
            missing = [name for name in part.programs if not (inside / name).exists()]
            if missing:
                return [_not_run(part, f"{inside} has no {', no '.join(missing)}")]
            environment[part.variable] = str(inside)
    with tempfile.TemporaryDirectory() as name:
        report = Path(name) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        if any(part.variable for part in group):  # as `make test` runs these suites
            command += ["-n", "2", "--dist", "loadfile"]
        done = subprocess.run(
            [
                *(*command, f"--junitxml={report}", "-o", "junit_family=xunit1"),
                *(each for part in group for each in part.tests),
            ],
            cwd=CHECKOUT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode not in _ENDED or not report.is_file():
            tail = " ".join(done.stdout.split())[-500:]
            return [
                Result(name=part.name, what=part.what, outcome="FAIL", problems=[tail])
                for part in group
            ]
        root = ElementTree.parse(report).getroot()
        return [read(part, root) for part in group]


def read(part: Part, report: ElementTree.Element) -> Result:
    """A part's result out of what pytest wrote."""
    counted: Counter[str] = Counter()
    versions: dict[str, None] = {}
    # Each reason with the tests that skipped for it, or none where a test told of it and went on.
    not_run: dict[str, list[str]] = {}
    outside: dict[str, list[str]] = {}
    problems: dict[str, None] = {}
    num_passed = 0
    # A test of this part's files that skips for want of another part's programs is that part's.
    others = {each.variable for each in PARTS if each.variable} - {part.variable}
    for case in report.iter("testcase"):
        if not case.attrib.get("file", "").startswith(part.tests):
            continue
        for each in case.iter("property"):
            name, value = each.attrib["name"], each.attrib["value"]
            if name == "versions":
                versions[value] = None
            elif name == "not run":
                not_run.setdefault(value, [])
            elif name == "outside":
                outside.setdefault(value, [])
            elif name == "counted":
                for count, noun in _NUMBER.findall(value):
                    counted[noun] += int(count)
            else:
                counted[name] += int(value)
        bad = [*case.findall("failure"), *case.findall("error")]
        skipped = case.find("skipped")
        for each in bad:
            problems[f"{case.attrib['name']}: {_first(each)}"] = None
        if skipped is not None:
            why = skipped.attrib.get("message", "")
            if any(why.startswith(name) for name in others):
                continue
            into = outside if why.startswith(OUTSIDE) else not_run
            into.setdefault(why.removeprefix(OUTSIDE), []).append(case.attrib["name"])
        num_passed += not bad and skipped is None
    whole = num_passed and not not_run
    outcome = "FAIL" if problems else "PASS" if whole else "NOT RUN"
    return Result(
        name=part.name,
        what=part.what,
        outcome=outcome,
        counted={**counted, "tests passed": num_passed},
        versions=list(versions),
        problems=list(problems),
        not_run=_reasons(not_run),
        outside=_reasons(outside),
    )


def _reasons(found: Mapping[str, Sequence[str]]) -> list[str]:
    """Each reason once, with the test that it kept from running, and how many others."""
    lines = []
    for why, names in found.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"{names[0]}{more}: {why}" if names else why)
    return lines


def _first(failure: ElementTree.Element) -> str:
    """What failed, in the words of the assertion, without pytest's rewriting below it."""
    text = failure.attrib.get("message", "").removeprefix("AssertionError: ")
    return " | ".join(text.split("\nassert ")[0].splitlines())


def _not_run(part: Part, why: str) -> Result:
    return Result(name=part.name, what=part.what, outcome="NOT RUN", not_run=[why])


def _write(results: Sequence[Result], versions: Mapping[str, str]) -> None:
    folder = State.from_environ().root / "conformance"
    folder.mkdir(parents=True, exist_ok=True)
    today = datetime.now(UTC).date().isoformat()
    whole = {"date": today, "checkouts": versions, "parts": [asdict(result) for result in results]}
    (folder / "results.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    (folder / "results.md").write_text(markdown(results, today, versions), encoding="utf-8")
    print(f"written: {folder / 'results.json'}, {folder / 'results.md'}")


def markdown(results: Sequence[Result], today: str, versions: Mapping[str, str]) -> str:
    """The table that docs/conformance.md shows, and what the checkouts said of their versions."""
    rows = [f"| part, {today} | outcome | counted | not run, or never looked at |"]
    rows.append("|---|---|---|---|")
    for each in results:
        counted = ", ".join(f"{count:,} {noun}" for noun, count in each.counted.items())
        rest = "; ".join([*each.problems, *each.not_run, *each.outside])
        rows.append(f"| {each.name}: {each.what} | {each.outcome} | {counted} | {rest} |")
    read = ", ".join(f"{name} {version}" for name, version in versions.items())
    return "\n".join([*rows, "", f"Checkouts: {read or 'none'}."]) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
