"""Programs of others: nccl-tests on one node and over all, ib_write_bw on each InfiniBand port."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from workloads.accept import compute, connectivity
from workloads.accept.collectives import PROGRAMS
from workloads.accept.connectivity import Wire, devices_of, judge_ports, measure_ports, parse
from workloads.accept.gates import Node, ProgramError, Report, gates_for, overall
from workloads.accept.readiness import NodeFacts, Port
from workloads.accept.suite import Suite
from workloads.common.places import Places
from workloads.recipes import load_recipe
from workloads.recipes.accept import AcceptConfig, CollectivesConfig, profiled

GB_8 = 8 * 10**9
# Prints what 7 ranks would have, of the one size that it is asked for.
_PROGRAM = """#!/bin/sh
[ "$2" = "$4" ] || exit 9
echo "#                     out-of-place          in-place"
echo "$2 $(($2 / 4)) float sum -1 100.0 1.0 1.75 0 100.0 1.0 1.75 0"
echo '# Avg bus bandwidth'
"""


def _put(folder: Path, text: str, *names: str) -> Path:
    for name in names or PROGRAMS.values():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def test_nccl_tests_measures_the_sizes_that_limits_speak_of(tmp_path: Path) -> None:
    rows = connectivity.run_nccl_tests(_put(tmp_path, _PROGRAM), 7, (1, 8000))
    assert {row.op for row in rows} == set(PROGRAMS)
    for op in PROGRAMS:
        small, large = [row.bytes for row in rows if row.op == op]
        assert 0 <= large - GB_8 < 16 * 7
        assert small % (16 * 7) == large % (16 * 7) == 0


def test_a_program_that_hangs_ends_the_stage_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connectivity, "TIMEOUT_S", 0)
    with pytest.raises(ProgramError, match="the programs did not end in 0 s"):
        connectivity.run_nccl_tests(_put(tmp_path, "#!/bin/sh\nexec sleep 600\n"), 8, (1,))


def test_a_step_that_hangs_is_asked_to_end_so_that_its_tasks_leave_the_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun was killed outright: Slurm let its tasks run on, beside the next stage."""
    hangs = f"#!/bin/sh\ntrap 'touch {tmp_path}/asked; exit 1' TERM\n"
    hangs += f"touch {tmp_path}/up\nwhile :; do sleep 0.05; done\n"

    class Late(subprocess.Popen[str]):
        """Is up when its time is over."""

        def communicate(self, *args: Any, timeout: float | None = None) -> tuple[str, str]:
            if timeout == 0:
                end = time.monotonic() + 60
                while not (tmp_path / "up").exists() and time.monotonic() < end:
                    time.sleep(0.01)
            return super().communicate(*args, timeout=timeout)

    monkeypatch.setattr(subprocess, "Popen", Late)
    monkeypatch.setattr(connectivity, "TIMEOUT_S", 0)
    with pytest.raises(ProgramError, match="did not end in 0 s"):
        connectivity.run_nccl_tests(_put(tmp_path, hangs), 8, (1,))
    assert (tmp_path / "asked").exists()


def test_over_several_nodes_srun_starts_a_process_for_each_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node was measured and no other: a fabric passed that only torch had seen."""
    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "PMIX_RANK": "0", "NCCL_DEBUG": "INFO"}
    srun = f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\nenv >> {tmp_path}/env\n'
    srun += 'while [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n'
    environment = {**job, "PATH": f"{_put(tmp_path, srun, 'srun')}:/usr/bin:/bin"}
    launcher = connectivity.over_nodes(2, 8, environment)
    assert launcher is not None
    rows = connectivity.run_nccl_tests(
        _put(tmp_path, _PROGRAM), 8, (1,), nodes=2, launcher=launcher, environment=environment
    )
    assert {row.ranks for row in rows} == {16}
    words = (tmp_path / "asked").read_text().splitlines()[0].split()
    assert {"--jobid=7", "--overlap", "--nodes=2", "--ntasks=16", "--ntasks-per-node=8"} <= {*words}
    assert words[-2:] == ["-g", "1"]
    seen = (tmp_path / "env").read_text()
    assert "NCCL_DEBUG=INFO" in seen
    assert "SLURM_NTASKS" not in seen, "srun would take it for its own option"
    assert "PMIX_RANK" not in seen
    assert connectivity.over_nodes(2, 8, {"PATH": environment["PATH"]}) is None, "no job of Slurm"


def test_processes_that_each_measured_alone_are_no_result(tmp_path: Path) -> None:
    twice = _PROGRAM + "exec 3<&0; " + _PROGRAM.partition("\n")[2]
    with pytest.raises(ProgramError, match=r"2 tables of 16 ranks: .* build nccl-tests with MPI"):
        connectivity.run_nccl_tests(_put(tmp_path, twice), 8, (1,), nodes=2, launcher=("env",))


def _nodes(*names: str) -> tuple[Node, ...]:
    return tuple(
        Node(name=name, role="worker", ranks=(i,), device="H100", gpus=1, gpu_memory_gib=79)
        for i, name in enumerate(names)
    )


@dataclass(frozen=True, kw_only=True)
class _Ranks:
    """World of threads: what the suite asks of a process group."""

    rank: int
    barriers: threading.Barrier
    said: dict[int, Any] = field(default_factory=dict)

    def gather(self, value: Any) -> list[Any]:
        self.said[self.rank] = value
        self.barriers.wait(60)
        found = [self.said[rank] for rank in sorted(self.said)]
        self.barriers.wait(60)
        return found


def _suite(world: Any, config: AcceptConfig, nodes: Sequence[Node]) -> Suite:
    report = Report(
        config=config,
        gates=gates_for("gpu-h100-sxm", 8),
        nodes=tuple(nodes),
        world_size=len(nodes),
        backend="nccl",
    )
    return Suite(world=world, config=config, places=Places({}), report=report)


def test_what_could_not_be_run_is_said_and_loses_no_other_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    config = AcceptConfig(collectives=CollectivesConfig(sizes_mb=(1,)))
    suite = _suite(None, config, _nodes("worker-0", "worker-1"))
    rows, whys = suite._nccl_tests(str(_put(tmp_path, _PROGRAM)), 7)
    assert {row.nodes[0] for row in rows} == {"worker-0"}
    assert whys == {"2 nodes": "srun starts them over nodes, and this is no job of Slurm"}
    rows, whys = suite._nccl_tests(str(tmp_path / "empty"), 7)
    assert (rows, "all_reduce_perf: not there" in whys["worker-0"]) == ([], True)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert suite._nccl_tests("PATH", 7) == ([], {}), "what is not there is left out"


def test_a_named_folder_without_the_program_passes_nothing(tmp_path: Path) -> None:
    nodes = _nodes("worker-0", "worker-1")
    alone: Any = _Ranks(rank=0, barriers=threading.Barrier(1))
    suite = _suite(alone, AcceptConfig(), nodes)
    up = Port(device="mlx5_0", state="ACTIVE", gbit_per_s=400, link_layer="InfiniBand")
    suite.facts = (
        NodeFacts(name="worker-0", gpus=(), nvlinks={}, ports=(up,), versions={}, errors=()),
    )
    # A file that nobody may execute is none: its start would have ended the job.
    (tmp_path / connectivity.PROGRAM).write_text("")
    suite._wires(str(tmp_path))
    (check,) = suite.report.checks
    assert (check.id, check.outcome) == ("connectivity.wires", "NOT_RUN")
    assert check.reason == f"{tmp_path}/ib_write_bw is not on every node"
    (tmp_path / connectivity.PROGRAM).chmod(0o755)
    suite.facts, suite.report.checks = (replace(suite.facts[0], ports=()),), []
    suite._wires(str(tmp_path))
    (check,) = suite.report.checks
    assert (check.outcome, check.reason) == ("NOT_RUN", "no InfiniBand device is up on every node")
    # Hardware that has no port to be had is asked nothing.
    suite.report.gates, suite.report.checks = gates_for("gpu-l40s-a", 1), []
    suite._wires(str(tmp_path))
    assert suite.report.checks == []


def test_gpus_that_no_rank_worked_on_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of eight whose job had one rank passed all that each GPU does alone."""
    monkeypatch.setenv("SOPERATOR_PRESET", "8gpu-128vcpu-1600gb")
    row = {"gemm_tflops": 740.0, "hbm_gb_per_s": 3000.0, "host_to_device_gb_per_s": 55.0}
    rows = [{"rank": 0, **row, "is_right": True}]
    monkeypatch.setattr(compute, "measure_compute", lambda *_: rows)
    for gpus, outcome in ((1, "NOT_RUN"), (8, "PASS")):
        suite = _suite(None, AcceptConfig(), [replace(_nodes("worker-0")[0], gpus=gpus)])
        suite.compute()
        assert overall(suite.report.checks) == outcome
        reasons = {check.reason for check in suite.report.checks}
        assert ("1 of 8 GPUs had a rank" in reasons) == (gpus == 1)


@pytest.mark.feature("S001-14")
def test_the_recipe_of_gpus_runs_what_the_nodes_have_and_quick_only_what_is_short() -> None:
    config = load_recipe("accept_gpu", []).accept
    assert config is not None
    assert (config.profile, config.device, config.soak_s) == ("full", "gpu", 1800)
    assert load_recipe("accept_gpu", []).model == "decoder-163m"
    assert (config.collectives.nccl_tests, config.connectivity.perftest) == ("PATH", "PATH")
    quick = profiled(replace(config, profile="quick"))
    assert (quick.collectives.nccl_tests, quick.connectivity.perftest) == (None, "PATH")


_RATE = """ #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             RATE             RATE     0.739306
"""
# A server waits to be ended; a client finds no server the first time, then the rate of its device.
_WRITE_BW = """#!/bin/sh
case "$*" in *report_gbits) exec sleep 600 ;; esac
if mkdir FOLDER/tried.$2 2> /dev/null; then echo "Couldn't connect to $5" >&2; exit 1; fi
rate=387.61
[ "$2" != mlx5_1 ] || rate=201.20
cat << END
#bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             $rate             $rate     0.739306
END
"""


def test_every_port_writes_to_the_next_node_and_a_slow_one_fails_by_name(tmp_path: Path) -> None:
    _put(tmp_path, _WRITE_BW.replace("FOLDER", str(tmp_path)), connectivity.PROGRAM)
    nodes, barriers, said = _nodes("worker-0", "worker-1"), threading.Barrier(2), {}
    found: dict[int, list[Wire]] = {}

    def run(rank: int) -> None:
        world: Any = _Ranks(rank=rank, barriers=barriers, said=said)
        found[rank] = measure_ports(world, nodes, ("mlx5_0", "mlx5_1"), tmp_path)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found[0] == found[1]
    assert [(each.device, each.one, each.other, each.gbit_per_s) for each in found[0]] == [
        ("mlx5_0", "worker-0", "worker-1", 387.61),
        ("mlx5_0", "worker-1", "worker-0", 387.61),
        ("mlx5_1", "worker-0", "worker-1", 201.2),
        ("mlx5_1", "worker-1", "worker-0", 201.2),
    ]
    (check,) = judge_ports(found[0], gates_for("gpu-h100-sxm", 8))
    assert (check.id, check.outcome, check.measured) == ("connectivity.wires", "FAIL", 25.15)
    assert "mlx5_1 worker-0 to worker-1 201 Gbit/s" in str(check.reason)
    assert check.nodes == ("worker-0", "worker-1")
    (check,) = judge_ports(found[0][:2], gates_for("gpu-h100-sxm", 8))
    assert check.outcome == "PASS"
    assert judge_ports(found[0], gates_for("gpu-l40s-d", 2)) == [], "hardware without a limit"


def test_a_port_that_gave_no_rate_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="no rate in Gb/sec; its last line: MB/sec"):
        parse("65536 5000 1.0 1.0 1.0\nBW average[MB/sec]\nMB/sec\n")
    assert parse(_RATE.replace("RATE", "391.2")) == 391.2
    error = "no answer"
    wire = Wire(device="mlx5_0", one="a", other="b", gbit_per_s=None, error=error)
    (check,) = judge_ports([wire], gates_for("gpu-h100-sxm", 8))
    assert (check.outcome, check.reason) == ("NOT_RUN", "mlx5_0 a to b: no answer")


def test_only_ports_that_all_nodes_have_up_are_asked() -> None:
    def node(name: str, *ports: tuple[str, str, str]) -> NodeFacts:
        return NodeFacts(
            name=name,
            gpus=(),
            nvlinks={},
            ports=tuple(
                Port(device=device, state=state, gbit_per_s=400, link_layer=layer)
                for device, state, layer in ports
            ),
            versions={},
            errors=(),
        )

    up, down = ("mlx5_0", "ACTIVE", "InfiniBand"), ("mlx5_1", "DOWN", "InfiniBand")
    ethernet = ("mlx5_2", "ACTIVE", "Ethernet")
    other = ("mlx5_1", "ACTIVE", "InfiniBand")
    assert devices_of([node("a", up, down, ethernet), node("b", up, other, ethernet)]) == (
        "mlx5_0",
    )
    assert devices_of([]) == ()
