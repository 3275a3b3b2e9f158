"""The notice of a node that is about to be taken, under two launchers: two nodes of one job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nightly import at_night
from tests.ports import free_ports
from workloads.common.exit_codes import ExitCode

REPOSITORY = Path(__file__).parents[2]
# As a rank in a long step: it hears nothing of its peers until all of them were told and save.
RANK = """
import os, pathlib, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
node, world = os.environ["GROUP_RANK"], int(os.environ["WORLD_SIZE"])
print("up", node, "of", world, flush=True)
if world < int(sys.argv[1]):
    sys.exit(0)
told = signal.sigtimedwait([signal.SIGTERM], 120)
print("told" if told else "not told", node, flush=True)
here = pathlib.Path(__file__).parent
(here / f"told-{node}").touch()
while len(list(here.glob("told-*"))) < world:
    time.sleep(0.02)
sys.exit(75 if told else 3)
"""


class Nodes:
    """Two nodes of a job; the first is where they meet."""

    def __init__(self, folder: Path, *, fewest: int) -> None:
        script = folder / "rank.py"
        script.write_text(RANK)
        (port,) = free_ports(1)
        environment = {
            **os.environ,
            "SLURM_JOB_ID": "13",
            "SOPERATOR_PLACE_RESULTS": str(folder),
            "SOPERATOR_RDZV_KEY": "of this job",
            "SOPERATOR_MIN_NODES": str(fewest),
        }
        meet = "join_timeout=100,last_call_timeout=10,keep_alive_interval=1"
        self.processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "workloads.common.launch", f"--nnodes={fewest}:2"),
                    *("--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d"),
                    *(f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=13.0"),
                    f"--rdzv-conf={meet},keep_alive_max_attempt=2,is_host={int(node == 0)}",
                    *("--local-addr=127.0.0.1", str(script), "2"),
                ],
                cwd=REPOSITORY,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            for node in range(2)
        ]
        self.said: list[str] = []

    def read(self, node: int) -> str:
        """The next line of the ranks of the node."""
        output = self.processes[node].stdout
        assert output is not None
        self.said.append(output.readline().strip())
        return self.said[-1]

    def end(self) -> None:
        for each in self.processes:
            each.kill()
            each.wait()


@pytest.fixture
def nodes(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    made = Nodes(tmp_path, fewest=request.param)
    yield made
    made.end()


@pytest.mark.parametrize("nodes", [2], indirect=True)
@pytest.mark.parametrize("told", [at_night(0), 1])
def test_the_notice_of_one_node_reaches_the_ranks_of_the_other(nodes: Nodes, told: int) -> None:
    """It came to them with the next step's sum alone: after up to a step, in long ones too late."""
    first = {nodes.read(0), nodes.read(1)}
    assert {line.partition(" of")[0] for line in first} == {"up 0", "up 1"}
    nodes.processes[told].send_signal(signal.SIGTERM)
    assert {nodes.read(0)[:-2], nodes.read(1)[:-2]} == {"told"}
    assert [each.wait(60) for each in nodes.processes] == [ExitCode.PREEMPTED] * 2


@pytest.mark.parametrize("nodes", [1], indirect=True)
def test_the_ranks_of_an_elastic_job_save_and_go_on_without_the_node(nodes: Nodes) -> None:
    up = {nodes.read(0), nodes.read(1)}
    assert {line.partition(" of ")[2] for line in up} == {"2"}, up
    nodes.processes[1].send_signal(signal.SIGTERM)
    assert {nodes.read(0)[:-2], nodes.read(1)[:-2]} == {"told"}
    assert nodes.processes[1].wait(60) == ExitCode.PREEMPTED
    assert nodes.read(0) == "up 0 of 1"
    assert nodes.processes[0].wait(60) == ExitCode.OK


@pytest.mark.nightly
@pytest.mark.parametrize("nodes", [2], indirect=True)
def test_a_second_signal_does_not_end_who_waits_for_the_save(nodes: Nodes) -> None:
    """A node signals its processes, and the job's first node hands its own signal on to them."""
    nodes.read(0), nodes.read(1)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1):
        nodes.processes[1].send_signal(number)
    assert {nodes.read(0)[:-2], nodes.read(1)[:-2]} == {"told"}
    assert [each.wait(60) for each in nodes.processes] == [ExitCode.PREEMPTED] * 2


def test_a_training_that_is_taken_away_with_notice_loses_no_step() -> None:
    """Three of the kills that `python -m tests.bench.kills` counts."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.kills", "--kills=3", "--no-write"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "3 kills, notice 6 s: 0 corrupt checkpoints, 0 lost" in done.stdout, done.stderr
    assert done.returncode == 0
