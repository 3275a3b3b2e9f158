"""Schedules go live with the release that declares them, and leave a person's own lines alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from infra.render.charts import chart_values
from infra.render.delivery import code_files, schedule_files, schedule_script
from infra.render.login import activate_script
from stacks.load import STACKS_DIR, load_stack
from stacks.spec import StackSpec

# As Slurm's scrontab: -l, -r, a file in the place of all; it counts how often it wrote.
SCRONTAB = """#!/bin/bash
[[ $1 == -u ]] || exit 9
lines=$HOME/lines-of-$2
shift 2
fail() { echo "scrontab: $1" >&2; exit 1; }
case $1 in
  -l) [[ ! -e $HOME/broken ]] || fail "slurm_request_crontab failed"
      [[ -e $lines ]] || { echo "no crontab for root"; exit 1; }; cat "$lines" ;;
  -r) rm -f "$lines"; echo removed >> "$HOME/writes" ;;
  *) cp "$1" "$lines"; echo written >> "$HOME/writes" ;;
esac
"""
OWN = "# of a person\n5 4 * * * /bin/true\n"


@pytest.fixture
def spec(public_key_file: Path) -> StackSpec:
    return load_stack("local")


def scheduled(spec: StackSpec, **schedules: str) -> StackSpec:
    named = {name.replace("_", "-"): schedule for name, schedule in schedules.items()}
    jobs = (replace(job, schedule=named.get(job.name)) for job in spec.jobs)
    return replace(spec, jobs=tuple(jobs))


class Login:
    """A login node in a folder, with a scrontab of its own."""

    def __init__(self, folder: Path) -> None:
        self.home, self.code = folder / "home", folder / "code"
        for path in (self.home, folder / "bin"):
            path.mkdir(parents=True)
        program = folder / "bin" / "scrontab"
        program.write_text(SCRONTAB)
        program.chmod(0o755)
        self.path = f"{program.parent}:/usr/bin:/bin"

    def activate(self, release: str, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
        folder = self.code / "releases" / release
        (folder / "workloads").mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        return subprocess.run(
            ["bash", "-c", activate_script(str(self.code), release)],
            env={"PATH": self.path, "HOME": str(self.home)},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def lines(self) -> str | None:
        path = self.home / "lines-of-deployer"
        return path.read_text() if path.exists() else None

    @property
    def num_writes(self) -> int:
        path = self.home / "writes"
        return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def login(tmp_path: Path) -> Login:
    return Login(tmp_path)


@pytest.mark.feature("S000-11", "S002-85")
def test_schedules_render_as_their_golden_files(
    spec: StackSpec, golden: Callable[[str, str], None]
) -> None:
    declared = scheduled(spec, evaluate="0 2 * * 1-5", serve="@daily")
    files = schedule_files(declared)
    assert set(files) == {"schedules/evaluate", "schedules/serve", "schedules/scrontab"}
    for path, text in files.items():
        if not path.endswith("scrontab"):
            subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        golden(path, text)
    delivered = code_files(STACKS_DIR.parent, declared)
    assert {path: text.encode() for path, text in files.items()}.items() <= delivered.items()


def test_a_stack_without_schedules_delivers_none_and_sets_nothing(spec: StackSpec) -> None:
    assert schedule_files(spec) == {}
    assert not [
        path for path in code_files(STACKS_DIR.parent, spec) if path.startswith("schedules")
    ]
    assert "customSlurmConfig" not in values(spec)


def test_a_schedule_needs_no_line_of_ours(spec: StackSpec) -> None:
    """The operator writes `enable,explicit_scancel`; a later line would drop the second word."""
    assert "customSlurmConfig" not in values(scheduled(spec, evaluate="@daily"))


def values(spec: StackSpec) -> dict[str, object]:
    return chart_values(spec, "slurm-cluster", {"allocation_id": "a", "ssh_public_keys": []})


@pytest.mark.feature("S002-85")
def test_lines_of_a_person_survive_ours_coming_changing_and_going(
    spec: StackSpec, login: Login
) -> None:
    (login.home / "lines-of-deployer").write_text(OWN)
    first = schedule_files(scheduled(spec, evaluate="@daily"))
    assert login.activate("a", first).returncode == 0
    assert login.lines == OWN + first["schedules/scrontab"]
    second = schedule_files(scheduled(spec, evaluate="@hourly", serve="@daily"))
    assert login.activate("b", second).returncode == 0
    assert login.lines == OWN + second["schedules/scrontab"]
    assert login.activate("c", {}).returncode == 0
    assert login.lines == OWN
    assert not list(login.code.glob(".scheduled*"))


def test_lines_that_ran_as_root_become_the_deployers(spec: StackSpec, login: Login) -> None:
    files = schedule_files(scheduled(spec, evaluate="@daily"))
    before = login.home / "lines-of-root"
    before.write_text(OWN + files["schedules/scrontab"])
    assert login.activate("a", files).returncode == 0
    assert before.read_text() == OWN
    assert login.lines == files["schedules/scrontab"]


def test_the_same_release_twice_writes_once(spec: StackSpec, login: Login) -> None:
    """Slurm makes every job of a scrontab anew when it is written."""
    files = schedule_files(scheduled(spec, evaluate="@daily"))
    for _ in range(2):
        assert login.activate("a", files).returncode == 0
    assert login.num_writes == 1
    assert login.lines == files["schedules/scrontab"]
    assert login.activate("b", {}).returncode == 0
    assert login.lines is None


def test_a_line_that_slurm_disabled_is_written_again(spec: StackSpec, login: Login) -> None:
    """scancel of a recurring job does that."""
    files = schedule_files(scheduled(spec, evaluate="@daily"))
    login.activate("a", files)
    lines = login.lines or ""
    (login.home / "lines").write_text(lines.replace("@daily", "#DISABLED: @daily"))
    login.activate("a", files)
    assert login.lines == lines


def test_a_scrontab_that_cannot_be_read_is_never_overwritten(spec: StackSpec, login: Login) -> None:
    (login.home / "lines-of-deployer").write_text(OWN)
    (login.home / "broken").touch()
    done = login.activate("a", schedule_files(scheduled(spec, evaluate="@daily")))
    assert done.returncode != 0
    assert "slurm_request_crontab failed" in done.stderr
    assert (login.lines, login.num_writes) == (OWN, 0)


def test_a_login_node_without_scrontab_refuses_a_schedule_and_nothing_else(
    spec: StackSpec, login: Login
) -> None:
    login.path = os.pathsep.join(("/usr/bin", "/bin"))
    assert login.activate("a", {}).returncode == 0
    done = login.activate("b", schedule_files(scheduled(spec, evaluate="@daily")))
    assert (done.returncode, "has no scrontab" in done.stderr) == (1, True)
    assert (login.code / "current").readlink().name == "a", "what was live still is"


def run_schedule(spec: StackSpec, folder: Path, *, active: str = "") -> tuple[str, list[str]]:
    """What the script of `evaluate` says, and every sbatch that it makes."""
    programs = folder / "bin"
    programs.mkdir()
    for name, text in {
        "squeue": f"printf '%s' '{active}'",
        "sbatch": f'echo "$* ${{SLURM_MEM_PER_NODE:-}}$SLURM_CONF" >> {folder}/asked; '
        f"wc -l < {folder}/asked",
    }.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    text = schedule_script(replace(spec, code_path=str(folder)), _job(spec, "evaluate"))
    environment = {"SLURM_MEM_PER_NODE": "64", "SLURM_CONF": "/c"}
    done = subprocess.run(
        ["bash", "-s"],
        input=text,
        env={"PATH": f"{programs}:/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    asked = folder / "asked"
    return done.stdout, asked.read_text().splitlines() if asked.exists() else []


def _job(spec: StackSpec, name: str):
    return next(job for job in spec.jobs if job.name == name)


@pytest.mark.feature("S000-116")
def test_a_schedule_submits_what_the_job_needs_in_order_and_hands_down_no_limits(
    spec: StackSpec, tmp_path: Path
) -> None:
    """The 64 MiB of the job that submits are no option of the srun of a submitted one."""
    said, asked = run_schedule(spec, tmp_path)
    options = "--kill-on-invalid-dep=yes"
    assert asked == [
        "--parsable jobs/prepare-data /c",
        f"--parsable --dependency=afterok:1 {options} jobs/finetune /c",
        f"--parsable --dependency=afterok:2 {options} jobs/evaluate /c",
    ]
    assert said.splitlines()[-1] == "soperator: evaluate is job 3"


@pytest.mark.feature("S000-116")
def test_a_schedule_that_comes_too_early_submits_nothing(spec: StackSpec, tmp_path: Path) -> None:
    said, asked = run_schedule(spec, tmp_path, active="finetune (7)")
    assert asked == []
    assert said == (
        "soperator: evaluate is not submitted: finetune (7) of the last time is not over\n"
    )
