"""What the GPUs of this node do while its ranks run: `<results>/<job id>/gpu_<node>.csv`.

Owns when samples are taken: one every ten seconds, for as long as the launcher runs. Lines are
those of workloads/monitoring/check_gpu_util.sh --raw, which `soperator top` and the report read.
A node without nvidia-smi writes none.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from workloads.common.log import log
from workloads.common.record import job_id

EVERY_S = 10
"""A day of eight GPUs is 3 MB."""
_SCRIPT = Path(__file__).parents[1] / "monitoring" / "check_gpu_util.sh"
_END_S = 10.0


@contextlib.contextmanager
def sampled() -> Iterator[None]:
    """Sample while the block runs; what goes wrong is told once and the job goes on."""
    process = _start()
    try:
        yield
    finally:
        if process is not None:
            _end(process)


def _start() -> subprocess.Popen[bytes] | None:
    results = os.environ.get("SOPERATOR_PLACE_RESULTS")
    if not results or shutil.which("nvidia-smi") is None:
        return None
    path = Path(results) / job_id() / f"gpu_{socket.gethostname()}.csv"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as sink:  # a requeued job goes on in the file of its first run
            return subprocess.Popen(
                ["bash", str(_SCRIPT), "--raw", str(EVERY_S), "0"],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
    except OSError as error:
        log(f"{path}: GPUs are not sampled: {error.strerror or error}", every_rank=True)
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the script and what it waits for: it has a process group of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
