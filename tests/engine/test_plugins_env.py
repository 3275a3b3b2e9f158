"""`soperator env` leaves an environment in which plain pulumi works, and no file changed."""

import os
import shutil
import subprocess
import sys

import pytest

from infra.local import offline, process
from infra.state import CHECKOUT, State
from tests import SHIPPED

pytestmark = pytest.mark.engine
STACKS = [CHECKOUT / f"stacks/Pulumi.{name}.yaml" for name in SHIPPED]


@pytest.fixture
def shell(tmp_path):
    """Runs a bash line in the checkout, with a state folder of its own."""
    clean = {n: v for n, v in os.environ.items() if not n.startswith(("PULUMI_", "NEBIUS_"))}
    env = {**clean, "SOPERATOR_STATE": str(tmp_path / "state"), "PYTHONPATH": str(CHECKOUT)}
    soperator = f"{sys.executable} -m infra.cli.main"

    def run(line):
        text = line.replace("soperator", soperator)
        return subprocess.run(
            ["bash", "-euc", text],
            cwd=CHECKOUT,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )

    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    yield run
    offline.stop(State(tmp_path / "state"))


@pytest.mark.feature("S000-65")
def test_every_stack_is_known_and_its_file_untouched(shell):
    before = [file.read_bytes() for file in STACKS]
    done = shell('eval "$(soperator env --offline)"; pulumi stack ls --json')
    assert done.returncode == 0, done.stderr
    for file in STACKS:
        assert f'"name": "{file.name.split(".")[1]}"' in done.stdout
    assert [file.read_bytes() for file in STACKS] == before


@pytest.mark.feature("S000-65")
def test_a_second_eval_keeps_the_running_emulator(shell, tmp_path):
    first, second = shell("soperator env --offline"), shell("soperator env --offline")
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert offline.endpoint(State(tmp_path / "state")) in first.stdout


def test_an_emulator_that_was_killed_is_started_again(shell, tmp_path):
    state = State(tmp_path / "state")
    assert shell("soperator env --offline").returncode == 0
    process.stop(offline.NAME, state.offline / "run")
    done = shell("soperator env --offline")
    assert done.returncode == 0, done.stderr
    assert offline.endpoint(state) in done.stdout


def test_offline_and_cloud_together_are_refused_in_one_line(shell):
    done = shell("soperator env --offline --cloud")
    assert (done.returncode, done.stdout) == (1, "")
    assert "--offline and --cloud exclude each other" in done.stderr
    assert "Traceback" not in done.stderr
