"""GPUs of a job are watched through the script that lies on the cluster; its lines are read back.

A stand-in named nvidia-smi prints what the real one would: this machine has no GPU.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from infra.clients.errors import JobsError
from infra.clients.slurm import Job
from infra.clients.ssh import Connection
from infra.jobs import top
from infra.jobs.top import each_gpu, mean_utilization, rates_gb_per_s, samples
from infra.reports.page.training import gpu_use
from infra.state import CHECKOUT

SCRIPT = CHECKOUT / "workloads" / "monitoring" / "check_gpu_util.sh"
RUNNING = Job(id="12", name="finetune", state="RUNNING", where="worker-[0-1]")
RAW = """\
gpu,worker-0,0,91,61000,81559,612.31,700.00
gpu,worker-1,0,70,[N/A],81559,[NotSupported],700.00
gpu,worker-0,1,95,61000,81559,600.00,700.00
ib,worker-0,mlx5_0/1,1000,2000
ib,worker-0,mlx5_1/1,1000,2000
end,worker-0,100.0
end,worker-1,100.5
gpu,worker-0,0,50,61000,81559,300.00,700.00
ib,worker-0,mlx5_0/1,250001000,2000
ib,worker-0,mlx5_1/1,250001000,500002000
end,worker-0,102.0
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> dict[str, str]:
    """An environment whose nvidia-smi prints two GPUs of 90 and 60 per cent."""
    return stood_in(
        tmp_path, "0, 90, 61000, 81559, 612.31, 700.00", "1, 60, 60000, 81559, 500.00, 700.00"
    )


def stood_in(folder: Path, *lines: str, code: int = 0) -> dict[str, str]:
    """An environment whose nvidia-smi prints these lines and ends so."""
    program = folder / "nvidia-smi"
    printed = "".join(f"echo '{line}'\n" for line in lines)
    program.write_text(f"#!/bin/sh\n{printed}exit {code}\n")
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", SCRIPT, *arguments], env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.feature("S002-47", "S002-89")
@pytest.mark.parametrize(("gate", "word", "code"), [("59", "PASS", 0), ("60", "FAIL", 1)])
def test_the_gate_is_on_every_gpu_of_the_node(
    stand_in: dict[str, str], gate: str, word: str, code: int
) -> None:
    done = run("--gate", gate, env=stand_in)
    assert done.returncode == code
    verdict = f"least busy of 2 GPUs is GPU 1 at 60.0 %, gate above {gate} %: {word}; mean 75.0 %"
    assert verdict in done.stdout


@pytest.mark.feature("S002-47", "S002-89")
def test_one_idle_gpu_among_eight_fails_the_gate_everywhere(tmp_path: Path) -> None:
    """Seed 002: above 80 % on all GPUs. Their mean is 83.1 %."""
    busy = [*(f"{index}, 95, 61000, 81559, 600.00, 700.00" for index in range(7)),
            "7, 0, 61000, 81559, 100.00, 700.00"]  # fmt: skip
    env = stood_in(tmp_path, *busy)
    done = run(env=env)
    assert done.returncode == 1, done.stdout
    assert "least busy of 8 GPUs is GPU 7 at 0.0 %, gate above 80 %: FAIL" in done.stdout
    (tmp_path / "gpu_here.csv").write_text(run("--raw", "0", "2", env=env).stdout)
    screen = top.Screen()
    for sample in samples((tmp_path / "gpu_here.csv").read_text().splitlines()):
        screen.take(sample)
    assert "GPU 7, 0.0 %" in screen.verdict
    assert screen.verdict.startswith("FAIL")
    assert screen.outcome == "FAIL"
    assert gpu_use(tmp_path).each.least_busy == screen.each.least_busy


@pytest.mark.feature("S002-47")
def test_without_an_argument_the_gate_is_the_seeds(stand_in: dict[str, str]) -> None:
    assert f"gate above {top.GATE_PERCENT:g} %: FAIL" in run(env=stand_in).stdout


def test_no_gpu_is_not_run_and_never_a_success(tmp_path: Path) -> None:
    done = run(env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert done.returncode == 69
    assert "NOT RUN" in done.stdout


FAILED_SMI = (
    "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.",
    "Make sure that the latest NVIDIA driver is installed and running.",
)


@pytest.mark.feature("S002-46")
@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (FAILED_SMI, 9),
        (("No devices were found",), 0),
        (("0, [N/A], 61000, 81559, [N/A], 700.00",), 0),
        (("0, 90, 61000, 81559, 612.31, 700.00", "Unable to determine the device handle"), 15),
    ],
)
def test_what_nvidia_smi_says_of_its_own_failure_is_no_gpu(
    lines: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    """It prints errors where its answer would be."""
    done = run(env=stood_in(tmp_path, *lines, code=code))
    assert done.returncode == 69, done.stdout
    assert "NOT RUN" in done.stdout
    raw = run("--raw", env=stood_in(tmp_path, *lines, code=code)).stdout.splitlines()
    (sample,) = samples(raw)
    assert [gpu.utilization_percent for gpu in sample.gpus] == ([None] if "N/A" in lines[0] else [])


def test_a_gpu_that_does_not_tell_is_left_out_of_the_scripts_mean(tmp_path: Path) -> None:
    lines = ("0, 90, 61000, 81559, 612.31, 700.00", "1, [N/A], [N/A], 81559, [N/A], 700.00")
    done = run(env=stood_in(tmp_path, *lines))
    assert done.returncode == 0
    assert "least busy of 1 GPUs is GPU 0 at 90.0 %" in done.stdout


@pytest.mark.parametrize("words", [("--fast",), ("--gate",), ("--gate", "abc"), ("--gate", "")])
def test_a_wrong_option_is_refused(words: tuple[str, ...], stand_in: dict[str, str]) -> None:
    assert run(*words, env=stand_in).returncode == 2


@pytest.mark.feature("S002-46", "S002-89")
def test_what_the_script_prints_is_what_is_read(stand_in: dict[str, str]) -> None:
    found = list(samples(run("--raw", "0", "2", env=stand_in).stdout.splitlines()))
    assert len(found) == 2
    assert [gpu.utilization_percent for gpu in found[0].gpus] == [90, 60]
    assert found[1].at_s >= found[0].at_s


def _port(sysfs: Path, device: str, number: int, **counters: int) -> None:
    folder = sysfs / "class" / "infiniband" / device / "ports" / str(number) / "counters"
    folder.mkdir(parents=True, exist_ok=True)
    for name, words in counters.items():
        (folder / name).write_text(f"{words}\n")


@pytest.mark.feature("S002-50", "S002-71")
def test_counters_of_every_infiniband_port_are_read(
    stand_in: dict[str, str], tmp_path: Path
) -> None:
    """Names of the kernel's sysfs tree; a port without counters is left out."""
    environment = {**stand_in, "SOPERATOR_SYSFS": str(tmp_path)}
    (tmp_path / "class" / "infiniband" / "mlx5_2" / "ports" / "1").mkdir(parents=True)
    screens: list[str] = []
    for received, sent in ((1000, 2000), (250_001_000, 500_002_000)):
        _port(tmp_path, "mlx5_0", 1, port_rcv_data=received, port_xmit_data=2000)
        _port(tmp_path, "mlx5_1", 2, port_rcv_data=received, port_xmit_data=sent)
        screens.append(run("--raw", env=environment).stdout)
    lines = [line.split(",")[2:] for line in screens[0].splitlines() if line.startswith("ib,")]
    assert lines == [["mlx5_0/1", "1000", "2000"], ["mlx5_1/2", "1000", "2000"]]
    first, last = samples("".join(screens).splitlines())
    later = replace(last, at_s=first.at_s + 2)
    # 250 million words of 4 bytes through each of two ports, in two seconds.
    assert rates_gb_per_s(first, later) == (1.0, 1.0)


@pytest.mark.feature("S002-48")
def test_memory_is_judged_by_the_gpu_that_uses_least() -> None:
    screen = top.Screen(memory_gate_percent=50)
    assert screen.memory_verdict == "NOT RUN: no GPU told its memory"
    first, second = samples(
        """\
gpu,worker-0,0,90,60000,80000,600.0,700.0
gpu,worker-0,1,90,40000,80000,600.0,700.0
end,worker-0,1.0
gpu,worker-0,0,90,10000,80000,600.0,700.0
gpu,worker-0,1,90,44000,80000,600.0,700.0
end,worker-0,2.0
""".splitlines()
    )
    screen.take(first)
    assert screen.memory_verdict.startswith("FAIL: memory of the least used GPU 50.0 %")
    assert screen.outcome == "FAIL"
    screen.take(second)
    assert screen.memory_verdict.startswith("PASS: memory of the least used GPU 55.0 %")
    assert screen.outcome == "PASS"
    assert each_gpu([first, second]).memory_percent == 55.0


def test_a_gate_that_cannot_be_told_passes_nothing_and_hides_no_failure() -> None:
    silent = "gpu,worker-0,0,{busy},[N/A],[N/A],600.0,700.0\nend,worker-0,1.0"
    for busy, outcome in ((90, "NOT RUN"), (10, "FAIL")):
        screen = top.Screen()
        screen.take(next(samples(silent.format(busy=busy).splitlines())))
        assert screen.outcome == outcome


@pytest.mark.feature("S002-50")
def test_samples_of_nodes_may_be_mixed() -> None:
    first, second, third = samples(RAW.splitlines())
    assert [(each.node, len(each.gpus)) for each in (first, second, third)] == [
        ("worker-0", 2),
        ("worker-1", 1),
        ("worker-0", 1),
    ]
    assert second.gpus[0].memory_used_mib is None
    assert second.ib_bytes is None
    # (500,000,000 words received, 500,000,000 sent) x 4 bytes in 2 s
    assert rates_gb_per_s(first, third) == pytest.approx((1.0, 1.0))


@pytest.mark.feature("S002-50")
def test_counters_that_went_back_give_no_rate() -> None:
    first, _, third = samples(RAW.splitlines())
    assert rates_gb_per_s(third, first) is None


def test_gpus_that_do_not_tell_are_left_out_of_the_mean() -> None:
    found = list(samples(["gpu,a,0,[N/A],1,2,3,4", "gpu,a,1,40,1,2,3,4", "end,a,1"]))
    assert mean_utilization(found[0].gpus) == 40


def test_lines_of_another_version_are_refused() -> None:
    with pytest.raises(JobsError, match="run pulumi up"):
        list(samples(["gpu,a,0,many,1,2,3,4"]))


class Login:
    """A login node that streams this."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = chunks
        self.command = ""

    def stream(self, command: str, *, poll_s: float) -> Iterator[bytes]:
        self.command = command
        yield from self.chunks


def watch(login: Login, job: Job = RUNNING) -> top.Screen:
    screen = top.Screen()
    for sample in top.watch(cast("Connection", login), "/code", job, every_s=2, count=0):
        screen.take(sample)
    return screen


@pytest.mark.feature("S001-35", "S002-43", "S002-65")
def test_a_screen_shows_the_newest_of_every_node_and_judges_every_gpu() -> None:
    login = Login(*(bytes([each]) for each in RAW.encode()))
    screen = watch(login)
    assert login.command == (
        "srun --jobid=12 --overlap --nodes=2 --ntasks=2 --ntasks-per-node=1 --mem=0 --unbuffered "
        "bash /code/current/workloads/monitoring/check_gpu_util.sh --raw 2 0 2>&1; true"
    )
    assert screen.rows() == [
        ("worker-0", 0, "50 %", "61,000 of 81,559 MiB", "300 of 700 W"),
        ("worker-1", 0, "70 %", None, None),
        ("worker-0", None, None, "InfiniBand 1.00 GB/s in, 1.00 GB/s out", None),
    ]
    # (91 + 95) / 2, (91 + 95 + 70) / 3 and (50 + 70) / 2
    assert screen.mean_percent == pytest.approx((93 + 256 / 3 + 60) / 3)
    assert screen.verdict == (
        "FAIL: utilisation of the least busy GPU, worker-1 GPU 0, 70.0 %, gate above 80 %; "
        "mean of all 79.4 %"
    )
    assert screen.sparkline() == "%%+"


def test_nodes_without_gpus_are_not_run() -> None:
    screen = watch(Login(b"none,worker-0\nend,worker-0,1\n"))
    assert screen.mean_percent is None
    assert screen.verdict.startswith("NOT RUN: worker-0 told of no GPU")


def test_what_srun_refuses_is_told() -> None:
    with pytest.raises(JobsError, match="Invalid job id"):
        watch(Login(b"srun: error: Unable to confirm allocation for job 12: Invalid job id\n"))


def test_a_job_that_waits_has_nothing_to_look_at() -> None:
    with pytest.raises(JobsError, match="job 12 finetune is PENDING"):
        watch(Login(), Job(id="12", name="finetune", state="PENDING"))
