"""Real ranks under the launcher: one hangs or runs out of memory, and all of them end as declared.

Also a signal that comes before the first step, when there is nothing to save yet.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from workloads.common.exit_codes import ExitCode
from workloads.train import finish
from workloads.train.inputs import StopRequest

REPOSITORY = Path(__file__).parents[2]
MAY_RESTART = ("out of memory", "slow export")
TIMEOUT_S, GRACE_S = 10, 60
"""The least that may be declared; and what a busy machine may take to say so."""


@contextmanager
def two_ranks(places: Path, fault: str) -> Iterator[subprocess.Popen[str]]:
    """The launcher with two ranks, of which the second one meets `fault`; logs in train.log."""
    command = [
        *(sys.executable, "-m", "workloads.common.launch", "--nnodes=1", "--nproc-per-node=2"),
        # Whatever ranks may be restarted for is not what ends them here.
        *(f"--max-restarts={2 if fault in MAY_RESTART else 0}", "--rdzv-backend=c10d"),
        *("--rdzv-endpoint=127.0.0.1:0", "-m", "tests.workloads.train_with_a_fault"),
        *("--recipe", "bert_full_1xcpu", "--set", "train.gradient_accumulation=1"),
        *("--set", f"train.checkpoint.timeout_s={TIMEOUT_S}"),
        *("--set", f"train.save_original={str(fault == 'slow export').lower()}"),
    ]
    environment = {**os.environ, "SLURM_JOB_ID": "13", "OMP_NUM_THREADS": "1", "TRAIN_FAULT": fault}
    environment["TRAIN_TIMEOUT_S"] = str(TIMEOUT_S)
    with (places / "train.log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def lines_of(places: Path, word: str) -> list[str]:
    """Returns the lines of the ranks' log that hold `word`."""
    return [line for line in (places / "train.log").read_text().splitlines() if word in line]


def record_of(places: Path) -> dict[str, Any]:
    """Returns the run record; the log has the same line."""
    text = (places / "results" / "13" / "run_record.json").read_text()
    assert text in (places / "train.log").read_text()
    return json.loads(text)


def wait_for(what: Any, process: subprocess.Popen[str], limit_s: float) -> bool:
    """Returns whether `what()` became true before the launcher ended and the limit passed."""
    end = time.monotonic() + limit_s
    while not what() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    return bool(what())


@pytest.mark.nightly
@pytest.mark.feature("S003-51")
def test_a_rank_that_stands_ends_the_others_within_the_declared_time(places: Path) -> None:
    """SIGSTOP: the rank is there, its connections are open, and nothing ever comes from it."""
    with two_ranks(places, "hang") as process:
        pid_file = places / "results" / "faulty.pid"
        assert wait_for(pid_file.exists, process, 240), (places / "train.log").read_text()
        told = wait_for(lambda: lines_of(places, "HUNG (exit 76)"), process, TIMEOUT_S + GRACE_S)
        text = (places / "train.log").read_text()
        assert told, text
        # The launcher gives ranks 30 s to save before it kills them; this one may go on and end.
        os.kill(int(pid_file.read_text()), signal.SIGCONT)
        assert process.wait(240) == ExitCode.HUNG, text
    (line,) = [each for each in text.splitlines() if "HUNG (exit 76)" in each]
    assert "rank 0" in line
    assert any(cause in line for cause in ("Timed out waiting", "did not end within 10 s")), line
    assert "raise train.checkpoint.timeout_s" in line


RANK = """
import os, sys
print("start", os.environ["SOPERATOR_STARTS"], flush=True)
sys.exit(int(sys.argv[1]) if os.environ["SOPERATOR_STARTS"] == "1" else 0)
"""


@pytest.mark.feature("S003-53")
@pytest.mark.parametrize(
    ("failure", "code", "starts"),
    [
        (ExitCode.DISTRIBUTED, ExitCode.OK, ["start 1", "start 2"]),
        (ExitCode.BAD_CONFIG, ExitCode.BAD_CONFIG, ["start 1"]),
    ],
)
def test_ranks_start_again_after_what_may_not_come_again(
    tmp_path: Path, failure: ExitCode, code: ExitCode, starts: list[str]
) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    command = [
        *(sys.executable, "-m", "workloads.common.launch", "--nnodes=1", "--nproc-per-node=1"),
        *("--max-restarts=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
        *(str(tmp_path / "rank.py"), str(int(failure))),
    ]
    environment = {**os.environ, "SOPERATOR_PLACE_RESULTS": str(tmp_path), "SLURM_JOB_ID": "13"}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("start ")] == starts


@pytest.mark.nightly
def test_a_copy_of_the_original_and_an_export_may_take_longer_than_a_step(places: Path) -> None:
    """The ranks that wait ended as hung, were restarted, and copied or exported again."""
    with two_ranks(places, "slow export") as process:
        assert process.wait(280) == ExitCode.OK, (places / "train.log").read_text()
    assert record_of(places)["outcome"] == "PASS"
    (run_dir,) = (places / "chkpt").glob("*/13")
    for name in ("original", "final"):
        assert (run_dir / name / "model.safetensors").is_file()
    assert not lines_of(places, "all ranks start again")


@pytest.mark.feature("S001-38", "S001-41", "S003-49")
def test_a_killed_rank_is_seen_by_the_others_within_the_declared_time(places: Path) -> None:
    """SIGKILL, as the kernel does it to a process for memory: nobody says goodbye."""
    with two_ranks(places, "killed") as process:
        pid_file = places / "results" / "faulty.pid"
        assert wait_for(pid_file.exists, process, 240), (places / "train.log").read_text()
        code = process.wait(TIMEOUT_S + GRACE_S)
    text = (places / "train.log").read_text()
    assert code == 128 + signal.SIGKILL, text
    record = record_of(places)
    assert (record["outcome"], record["exit_code"]) == ("FAIL", 137)
    assert record["reason"].startswith("rank 1 was ended by SIGKILL, as the kernel does it for")
    # Of rank 0, or of the launcher where rank 0 aborted as its peer was gone.
    assert record["hardware"]["device"] == "cpu"


@pytest.mark.nightly
def test_a_killed_first_rank_leaves_a_record_too(places: Path) -> None:
    """It writes the record itself; nobody else had a reason to."""
    with two_ranks(places, "first killed") as process:
        code = process.wait(240 + TIMEOUT_S + GRACE_S)
    record = record_of(places)
    assert code == record["exit_code"] == 137, (places / "train.log").read_text()
    assert record["reason"].startswith("rank 0 was ended by SIGKILL")
    assert record["hardware"]["device"] == "cpu"


@pytest.mark.nightly
@pytest.mark.feature("S001-41")
def test_a_rank_without_memory_in_a_step_ends_all_with_its_code(places: Path) -> None:
    """A published trainer went on, or ended with 0; three restarts would not have helped it."""
    with two_ranks(places, "out of memory") as process:
        code = process.wait(240)
    text = (places / "train.log").read_text()
    assert code == ExitCode.OUT_OF_MEMORY, text
    (line,) = lines_of(places, "OUT_OF_MEMORY (exit 70)")
    assert "rank 1" in line
    assert "CUDA out of memory" in line
    assert "lower train.micro_batch_size" in line
    assert "start again from the last checkpoint" not in text
    # Rank 0 was stopped by the launcher; its own reason says nothing.
    record = record_of(places)
    assert record["exit_code"] == ExitCode.OUT_OF_MEMORY
    assert "CUDA out of memory" in record["reason"]
    assert not lines_of(places, '"outcome": "PASS"'), "rank 0 went on alone"


@pytest.mark.feature("S003-11")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_while_the_model_is_built_ends_with_the_requeue_code_and_a_record(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Before the loop SIGTERM was the shell's 143, and no record said why."""
    former = signal.getsignal(number)
    build_strategy = finish.build_strategy

    def told_to_stop(*args: Any) -> Any:
        os.kill(os.getpid(), number)
        return build_strategy(*args)

    monkeypatch.setattr(finish, "build_strategy", told_to_stop)
    run("prepare-data")
    code, record = run("train")
    assert code == ExitCode.PREEMPTED
    assert record["outcome"] == "FAIL"
    assert f"stopped by {number.name} outside the train steps" in record["reason"]
    assert json.loads((places / "results" / "12" / "run_record.json").read_text()) == record
    assert signal.getsignal(number) is former


def test_a_signal_in_a_step_waits_and_a_second_one_does_not_end_the_first_ones_record() -> None:
    with StopRequest() as stop:
        with stop.deferred():
            os.kill(os.getpid(), signal.SIGUSR1)
            assert stop.signal_name == "SIGUSR1"
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal_name == "SIGTERM"
