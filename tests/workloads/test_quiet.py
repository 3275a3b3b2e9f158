"""An evaluation of a slow model is never silent: rows done of all, their rate, time left."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import workloads
from tests.ticks import Ticks
from workloads.common import log as logging
from workloads.common.exit_codes import ExitCode
from workloads.common.log import Counted, log
from workloads.job import Job, run_job

QUIET_S = 0.2
SLOW_S = 0.05


class Lines:
    """Standard error that knows when each line came."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[tuple[float, str]] = [(time.monotonic(), "")]
        monkeypatch.setattr(logging, "QUIET_S", QUIET_S)
        monkeypatch.setattr(sys, "stderr", self)

    def write(self, text: str) -> int:
        self.lines.append((time.monotonic(), text.strip()))
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        return False

    @property
    def text(self) -> str:
        return "\n".join(line for _, line in self.lines)

    def longest_gap_s(self) -> float:
        times_s = [*(at_s for at_s, _ in self.lines), time.monotonic()]
        return max(b - a for a, b in pairwise(times_s))


def test_a_slow_evaluation_says_how_many_rows_are_done_at_what_rate(
    run: Any, recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaForCausalLM

    from workloads.evaluate.__main__ import main

    assert run("prepare-data")[0] == run("train", "train.max_steps=1")[0] == 0
    forward = LlamaForCausalLM.forward

    def slow(*arguments: Any, **named: Any) -> Any:
        time.sleep(SLOW_S)
        return forward(*arguments, **named)

    monkeypatch.setattr(LlamaForCausalLM, "forward", slow)
    lines = Lines(monkeypatch)
    sets = ("evaluate.batch_size=2", "evaluate.max_new_tokens=16", "evaluate.num_speed_tokens=6")
    words = [word for each in sets for word in ("--set", each)]
    with Ticks(QUIET_S) as ticks:
        assert run_job("evaluate", main, ["--recipe", str(recipe_file), *words]) == ExitCode.OK
        longest_s = lines.longest_gap_s()
    assert longest_s < ticks.allowed_s()
    rows = r"base: answer: \d+ of \d+ rows, [\d.]+ rows/s, \d+ s left"
    assert re.search(rows, lines.text), lines.text
    assert re.search(r"\(\d at once, token \d+ of \d+ at most\)", lines.text)
    assert re.search(r"base: speed: \d of 8 runs", lines.text)


def test_a_job_reads_torch_where_it_is_not_silent() -> None:
    """An evaluation read it before its first line: 11 s on a busy machine."""
    root = Path(workloads.__file__).parent
    frame = re.compile(r"^ +end\(run_job\(", re.MULTILINE)
    jobs = [
        ".".join(path.relative_to(root.parent).with_suffix("").parts)
        for path in sorted(root.rglob("*.py"))
        if frame.search(path.read_text(encoding="utf-8"))
    ]
    assert "workloads.evaluate.__main__" in jobs
    probe = (
        "import importlib, sys\nfor job in sys.argv[1:]:\n    importlib.import_module(job)\n    "
    )
    probe += "'torch' in sys.modules and sys.exit(f'{job}: imports torch before run_job')"
    done = subprocess.run(
        [sys.executable, "-c", probe, *jobs], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_job_that_logs_nothing_repeats_what_it_is_at(
    recipe_file: Path, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del places

    def wait(_job: Job) -> None:
        log("base: loading")
        time.sleep(1.3)

    lines = Lines(monkeypatch)
    with Ticks(QUIET_S) as ticks:
        assert run_job("evaluate", wait, ["--recipe", str(recipe_file)]) == ExitCode.OK
        longest_s = lines.longest_gap_s()
    assert re.search("still: base: loading, [0-9]+ s", lines.text)
    assert longest_s < ticks.allowed_s()


def test_training_says_what_it_is_at_where_it_takes_long(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save that the run's end waits for, and the weights after it, have no step's line."""
    from workloads.common import atomic
    from workloads.train import checkpoint

    def slow(target: Any, name: str) -> None:
        real = getattr(target, name)

        def later(*arguments: Any, **options: Any) -> Any:
            time.sleep(3 * QUIET_S)
            return real(*arguments, **options)

        monkeypatch.setattr(target, name, later)

    assert run("prepare-data")[0] == ExitCode.OK
    slow(checkpoint, "dcp_save")
    slow(atomic, "new_directory")
    monkeypatch.setattr("workloads.job.TRAIN_QUIET_S", QUIET_S)
    lines = Lines(monkeypatch)
    sets = ("train.max_steps=1", "train.checkpoint.background=false")
    assert run("train", *sets)[0] == ExitCode.OK
    assert re.search(r"still: saving \S+/checkpoint-1, 0 s", lines.text), lines.text
    assert re.search(r"still: writing \S+/final, 0 s", lines.text), lines.text


def test_a_server_that_nobody_asks_has_nothing_to_say(
    recipe_file: Path, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del places
    lines = Lines(monkeypatch)
    run_job("serve", lambda _job: time.sleep(0.6), ["--recipe", str(recipe_file)])
    assert "still" not in lines.text


def test_the_time_left_follows_from_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = [100.0]
    monkeypatch.setattr(logging.time, "monotonic", lambda: clock_s[0])
    work = Counted(what="base: answer", total=24, began_s=100.0)
    clock_s[0] += 12
    assert str(work) == "base: answer: 0 of 24 rows, 12 s"
    work.done = 6
    assert str(work) == "base: answer: 6 of 24 rows, 0.5 rows/s, 36 s left"


def test_work_goes_on_where_nobody_reads_its_log_any_more(tmp_path: Path) -> None:
    """A server whose slurmstepd was killed logs that it ends, and must end."""
    made = tmp_path / "made"
    work = (
        "import pathlib, sys; from workloads.common.log import log; sys.stdin.readline();"
        "log('one'); log('two'); pathlib.Path(sys.argv[1]).touch()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", work, str(made)], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stderr is not None
    child.stderr.close()
    child.stdin.close()
    child.wait(60)
    assert made.exists()
