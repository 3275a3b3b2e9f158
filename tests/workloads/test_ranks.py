"""Ranks of the tests: as the launcher starts them, and ready at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.workloads.ranks import REPOSITORY, Ranks, run_ranks

_SEEN = """
import ctypes, json, os, sys
names = {"RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"}
names |= {"OMP_NUM_THREADS", "SOPERATOR_STARTS", "OF_THE_TEST"}
signal = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(signal))
print("\\n" + json.dumps({
    "as launched": {
        "environment": {name: os.environ.get(name) for name in names},
        "begun": float(os.environ["SOPERATOR_STARTED_S"]) > 1e9,
        "port": 0 < int(os.environ["MASTER_PORT"]) < 32768,
        "words": sys.argv,
        "names": [__name__, sys.modules["__main__"].__file__],
        "folder": os.getcwd(),
    },
    "loaded": sorted({"peft", "transformers", "workloads.train.strategy"} & {*sys.modules}),
    "tasks of the server": len(os.listdir(f"/proc/{os.getppid()}/task")),
    "ends with it": signal.value,
}))
"""


def seen(said: str) -> list[dict[str, Any]]:
    """Returns what each rank says, in the order of the ranks."""
    found = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return sorted(found, key=lambda each: each["as launched"]["environment"]["RANK"])


def test_forked_ranks_see_what_those_of_the_launcher_see(tmp_path: Path) -> None:
    script = tmp_path / "seen.py"
    script.write_text(_SEEN)
    command = (str(script), "a word", "--set")
    mine = {"OF_THE_TEST": "1"}
    done = run_ranks(*command, num_ranks=2, environment=mine)
    assert done.returncode == 0, done.stderr
    launcher = (sys.executable, "-m", "workloads.common.launch", "--nnodes=1")
    real = subprocess.run(
        [*launcher, "--nproc-per-node=2", "--master-addr=127.0.0.1", *command],
        cwd=REPOSITORY, env={**os.environ, **mine}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    forked, launched = seen(done.stdout), seen(real.stdout)
    assert len(forked) == 2
    assert [each["as launched"] for each in forked] == [each["as launched"] for each in launched]
    for each in forked:
        assert each["loaded"] == ["peft", "transformers", "workloads.train.strategy"]
        assert each["tasks of the server"] == 1, "a thread is lost in a fork, with what it holds"
        assert each["ends with it"] == 9


_ENDS = """
import os, signal, sys, time
first, other, ready = sys.argv[1:]
if os.environ["RANK"] == "0":
    while not os.path.exists(ready):
        time.sleep(0.02)
    print("rank 0 ends", flush=True)
    os.kill(os.getpid(), signal.SIGKILL) if first == "killed" else sys.exit(int(first))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(other)))
open(ready, "x").close()
time.sleep(100)
"""


@pytest.mark.parametrize(
    ("first", "other", "status"), [("killed", 3, 137), ("65", 75, 65), ("71", 66, 66)]
)
def test_the_first_rank_that_fails_ends_the_others_and_says_how(
    tmp_path: Path, first: str, other: int, status: int
) -> None:
    script = tmp_path / "ends.py"
    script.write_text(_ENDS)
    ready = str(tmp_path / "ready")
    begin = time.monotonic()
    done = run_ranks(str(script), first, str(other), ready, num_ranks=2)
    assert done.returncode == status, done.stderr
    assert "rank 0 ends" in done.stdout
    assert time.monotonic() - begin < 60


def test_an_error_of_a_rank_is_its_status_1_and_in_what_it_says(tmp_path: Path) -> None:
    script = tmp_path / "raises.py"
    script.write_text("raise ValueError('of the rank')")
    with Ranks(str(script)) as ranks:
        done = ranks.wait()
    assert done.returncode == 1
    assert "ValueError: of the rank" in done.stderr
