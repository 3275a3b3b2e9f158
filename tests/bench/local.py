"""Measures the local stack after set-up: `make bench`, or python -m tests.bench.local [--runs N].

From nothing to an idle cluster, a second `pulumi up`, submit to job start, delay of a log line.
Runs in a state folder and on ports of its own and takes everything down at the end; prints a table
and writes tests/bench/local.json with medians and the machine they were measured on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infra.cli.machine import env
from infra.clients import slurm
from infra.clients.pulumi import StackOutputs, read_outputs
from infra.clients.slurm import ACTIVE_STATES
from infra.clients.ssh import Connection
from infra.jobs import follow
from infra.setup.demo import runner
from infra.state import CHECKOUT, State

STACK = "local"
RESULT = Path(__file__).with_name("local.json")
LIMITS = {
    "slurm_ready_s": 60.0,
    "second_up_s": 10.0,
    "submit_to_start_s": 2.0,
    "log_line_delay_s": 1.0,
}
"""Targets of the product (docs/performance.md); a median over its limit ends with 1."""
_PORT_BASE = 18800
_LOG_LINES = 10
_LINE_JOB = """#!/bin/bash
#SBATCH --output={log}
for number in $(seq {lines}); do date +%s.%N; sleep 0.7; done
"""


def main() -> int:
    """Measures, prints, writes; 0 when every median keeps its limit."""
    options = _parser().parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soperator-bench-"))
    os.environ |= {
        "SOPERATOR_STATE": str(folder),
        "SOPERATOR_LOCAL_PORT_BASE": str(_PORT_BASE),
    }
    for name in ("PULUMI_BACKEND_URL", "PULUMI_HOME", "PULUMI_CONFIG_PASSPHRASE_FILE"):
        os.environ.pop(name, None)
    samples: dict[str, list[float]] = {name: [] for name in LIMITS}
    load = os.getloadavg()[0]
    if load > (os.cpu_count() or 1) / 2:
        say(f"warning: other work loads this machine ({load:.1f}): the figures are too high")
    try:
        for number in range(options.runs):
            say(f"run {number + 1} of {options.runs}")
            _one_run(folder, samples)
    finally:
        _local("down", "--purge")
        shutil.rmtree(folder, ignore_errors=True)
    result = _result(samples, load)
    _print(result)
    if options.write:
        RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return int(any(result["medians"][name] > limit for name, limit in LIMITS.items()))


def say(text: str) -> None:
    """Progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def _one_run(folder: Path, samples: dict[str, list[float]]) -> None:
    env.prepare()
    ready = _timed(lambda: (_local("up"), _pulumi("up", folder)))
    samples["slurm_ready_s"].append(ready)
    second = _timed(lambda: _pulumi("up", folder, "--expect-no-changes"))
    samples["second_up_s"].append(second)
    outputs = read_outputs(STACK, _environ())
    with Connection(outputs.endpoint(State.from_environ().ssh_key)) as connection:
        samples["submit_to_start_s"].append(_submit_to_start(connection))
        samples["log_line_delay_s"] += _log_delays(connection, outputs)
    _pulumi("destroy", folder)
    _local("down", "--purge")


def _submit_to_start(connection: Connection) -> float:
    """Seconds from typing `soperator submit` to a running job: with start-up, pulumi and SSH."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "infra.cli.main", "submit", "prepare-data", "--stack", STACK],
        cwd=CHECKOUT,
        env=_environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"submit ended with {done.returncode}: {done.stderr}")
    job_id = done.stdout.strip()
    while slurm.find(connection, job_id).state == "PENDING":
        time.sleep(0.02)
    elapsed = time.monotonic() - started
    slurm.cancel(connection, [job_id])
    while slurm.find(connection, job_id).state in ACTIVE_STATES:
        time.sleep(0.1)
    return elapsed


def _log_delays(connection: Connection, outputs: StackOutputs) -> list[float]:
    """Seconds from the moment a job writes a line to the moment `logs` has it; same clock."""
    log = f"{outputs.places['logs']}/bench_%j.out"
    script = _LINE_JOB.format(log=log, lines=_LOG_LINES)
    made = connection.run("sbatch --parsable", stdin=script.encode())
    if not made.ok:
        raise SystemExit(f"sbatch: {made.stderr}")
    job_id = made.stdout.strip()
    delays: list[float] = []

    def write(chunk: bytes) -> None:
        now = time.time()
        delays.extend(now - float(line) for line in chunk.split())

    follow.follow(connection, log.replace("%j", job_id), job_id, write=write)
    return delays


def _pulumi(verb: str, folder: Path, *options: str) -> None:
    runner.run(
        [verb, "--skip-preview", *options],
        stack=STACK,
        environ=_environ(),
        log=folder / f"{verb}.log",
        say=say,
    )


def _local(*words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "infra.cli.main", "local", *words],
        cwd=CHECKOUT,
        env=_environ(),
        stdout=sys.stderr,
        check=True,
    )


def _environ() -> dict[str, str]:
    return {**os.environ, **env.environment(env.Target.LOCAL)}


def _timed(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def _result(samples: dict[str, list[float]], load: float) -> dict[str, Any]:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "measured_at": datetime.now(UTC).date().isoformat(),
        "machine": {
            "cpu": model,
            "num_cpus": os.cpu_count(),
            "memory_gib": round(memory / 2**30, 1),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "load_before": round(load, 2),
        },
        "medians": {name: round(statistics.median(each), 3) for name, each in samples.items()},
        "limits": LIMITS,
        "samples": {name: [round(one, 3) for one in each] for name, each in samples.items()},
    }


def _print(result: dict[str, Any]) -> None:
    for name, limit in LIMITS.items():
        median = result["medians"][name]
        verdict = "PASS" if median <= limit else "FAIL"
        count = len(result["samples"][name])
        print(f"{name:<20}{median:>9.3f} s  limit {limit:>5.1f} s  {verdict}  median of {count}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.local", description=__doc__)
    parser.add_argument("--runs", type=int, default=1, help="whole cycles from nothing")
    parser.add_argument("--no-write", dest="write", action="store_false", help="keep local.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
