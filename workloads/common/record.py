"""What a job says of itself: its run record at the end, and metrics while it runs.

The record is one JSON object per job, schema version 1 (docs/contracts/jobs.md). Owns its fields,
how they are written (`<results>/<job id>/run_record.json`, and a line at the end of the job's log)
and which rank's record stands. Who decides the outcome: job.py and launch.py. Of metrics it owns
when and where: a file among the results, and a copy to the stack's metrics store.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import math
import os
import platform
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TextIO

from workloads.common import atomic
from workloads.common.exit_codes import ExitCode
from workloads.common.hardware import Hardware
from workloads.common.log import log, tell

SCHEMA_VERSION = 1
FILE_NAME = "run_record.json"
Outcome = Literal["PASS", "FAIL", "NOT_RUN"]
DECLARED_NAMES = "SOPERATOR_DECLARED"
"""Variable with the names, divided by spaces, that the stack declares for a job."""
STARTED_S = "SOPERATOR_STARTED_S"
"""Variable with the Unix time at which the launcher started all ranks, in seconds."""
_SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "PASSPHRASE", "KEY", "CREDENTIAL")
EFFECTS = frozenset({ExitCode.OK, ExitCode.DISTRIBUTED, ExitCode.PREEMPTED})
"""What a rank may end with because of what another one met."""
VERSIONED_PACKAGES = ("torch", "transformers", "peft", "pyarrow")


def utc_now() -> str:
    """Return the time as the record spells it: 2026-11-21T05:00:00Z."""
    # datetime.UTC came with Python 3.11, and login nodes of others have 3.10.
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")  # noqa: UP017


def job_id() -> str:
    """Return Slurm's job id, the name of a Kubernetes job, or one made up when run by hand."""
    given = os.environ.get("SLURM_JOB_ID") or os.environ.get("SOPERATOR_JOB_ID")
    return given or f"manual-{os.environ.get('MASTER_PORT', os.getpid())}"


def job_name(default: str) -> str:
    """Return the stack's name of this job, or `default` when run by hand."""
    return os.environ.get("SOPERATOR_JOB") or os.environ.get("SLURM_JOB_NAME") or default


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that move results."""
    versions = {"python": platform.python_version()}
    for name in VERSIONED_PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions | gpu_versions()


def gpu_versions() -> dict[str, str]:
    """Return the versions of CUDA and NCCL that this process has loaded; none without a GPU."""
    torch: Any = sys.modules.get("torch")  # a job without it must not pay for the import
    if torch is None or not torch.cuda.is_available():
        return {}
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return {"cuda": str(torch.version.cuda), "nccl": nccl}


def job_environment() -> dict[str, str]:
    """Return NCCL's variables and the declared ones as the job sees them, without secrets."""
    declared = set(os.environ.get(DECLARED_NAMES, "").split())
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if (name in declared or name.startswith(("NCCL_", "TORCH_NCCL_")))
        and not any(word in name.upper() for word in _SECRET_WORDS)
    }


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """What one job did; metrics carry their unit in the name."""

    kind: str
    recipe: str
    started_at: str = field(default_factory=utc_now)
    began_s: float = field(default_factory=time.time, repr=False)
    outcome: Outcome = "NOT_RUN"
    exit_code: int = ExitCode.OK
    reason: str | None = None
    hardware: Hardware | None = None
    engine: str | None = None
    model: str | None = None
    data_hash: str | None = None
    """SHA-256 of the file of rows that it read or made, which the artifact data_file names."""
    world_size: int = 1
    metrics: dict[str, float | int] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values; a metric that is not a finite number is an error."""
        for name, value in self.metrics.items():
            assert math.isfinite(value), f"metric {name} is {value}"
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "job_id": job_id(),
            "job": job_name(self.kind),
            "stack": os.environ.get("SOPERATOR_STACK") or None,
            "code_hash": os.environ.get("SOPERATOR_CODE_HASH") or None,
            "git_revision": os.environ.get("SOPERATOR_GIT_REVISION") or None,
            "started_at": self.started_at,
            "finished_at": utc_now(),
            "outcome": self.outcome,
            "exit_code": int(self.exit_code),
            "reason": self.reason,
            "hardware": asdict(self.hardware) if self.hardware else None,
            "versions": package_versions(),
            "environment": job_environment(),
            "engine": self.engine,
            "model": self.model,
            "recipe": self.recipe,
            "data_hash": self.data_hash,
            "world_size": self.world_size,
            "metrics": self.metrics,
            "artifacts": self.artifacts,
        }

    @property
    def started_s(self) -> float:
        """Unix time at which all ranks were started; of a process without others, this one.

        A rank that is slow to come up has to see what another one wrote before that.
        """
        return float(os.environ.get(STARTED_S) or self.began_s)

    def stands(self, results_dir: Path | None, *, is_main: bool) -> bool:
        """Whether this rank's record is the job's: rank 0's, or that of the rank which failed.

        What followed from a failure never takes the place of what says why.
        """
        written = written_code(results_dir, since_s=self.started_s)
        if written is None:
            return is_main or self.exit_code != ExitCode.OK
        return written in EFFECTS and (is_main or self.exit_code not in EFFECTS)

    def finish(
        self, results_dir: Path | None, *, is_main: bool = True, to: TextIO | None = None
    ) -> None:
        """Print this record as one line and write it to `results_dir` if it stands there.

        `results_dir` is None where there is no such place.
        """
        with _locked(results_dir):
            if self.stands(results_dir, is_main=is_main):
                _write(self.to_json(), results_dir, to)


def written_code(results_dir: Path | None, *, since_s: float) -> int | None:
    """Return the exit code of the record that was written since then; None without one."""
    if results_dir is None:
        return None
    path = results_dir / FILE_NAME
    try:
        # An older record is that of the run before a requeue or a restart.
        if path.stat().st_mtime < since_s:
            return None
        return int(json.loads(path.read_bytes())["exit_code"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # none, or one cut short
        return None


def say_why(results_dir: Path, fallback: RunRecord) -> None:
    """Make the record say why the job failed, where no rank could: one that was killed cannot.

    What a rank wrote stays, save outcome, exit code and reason; without one `fallback` is written.
    """
    with _locked(results_dir):
        written = written_code(results_dir, since_s=fallback.started_s)
        values = fallback.to_json()
        if written in EFFECTS:
            told = {name: values[name] for name in ("outcome", "exit_code", "reason")}
            values = json.loads((results_dir / FILE_NAME).read_bytes()) | told
        if written is None or written in EFFECTS:
            _write(values, results_dir)


@contextmanager
def _locked(folder: Path | None) -> Iterator[None]:
    """Let no other rank write between the look at a record and its writing.

    A rank that loses a peer ends while that one writes why; there was no record yet for either.
    """
    with ExitStack() as stack:
        if folder is not None and folder.is_dir():
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            with suppress(OSError):  # a filesystem without locks: the launcher says what it can
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _write(values: Mapping[str, Any], results_dir: Path | None, to: TextIO | None = None) -> None:
    line = json.dumps(values)
    tell(line) if to is None else print(line, file=to, flush=True)
    if results_dir is not None:
        atomic.write_text(results_dir / FILE_NAME, f"{line}\n")


METRICS_FILE = "metrics.prom"
URL_VARIABLE = "SOPERATOR_METRICS_URL"
"""Where metrics are sent; the sbatch text of a stack with observability sets it.

The store takes Prometheus text over HTTP
(https://docs.victoriametrics.com/victoriametrics/single-server-victoriametrics/, import of
Prometheus text, 2026-11-21).
"""
EVERY_S = 15.0
"""As often as Soperator's chart scrapes GPUs (helm/soperator-dcgm-exporter, 2026-11-21)."""
_TIMEOUT_S = 5
_END_S = 15.0
"""Two sends that get no answer, and the time to read and write."""


class Publisher:
    """Writes and sends what `read` returns at once, every `every_s` seconds, and at the end.

    A store that does not answer never disturbs the job.
    """

    def __init__(
        self,
        read: Callable[[], bytes | None],
        *,
        results_dir: Path,
        kind: str,
        every_s: float = EVERY_S,
    ) -> None:
        """`read`: Prometheus text; None where there is nothing to say now."""
        self._read = read
        self._path = results_dir / METRICS_FILE
        self._every_s = every_s
        self._url = store_url(kind)
        self._is_over = threading.Event()
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_over.set()
        # A filesystem that hangs must not hold a job that failed or gives its nodes back.
        self._thread.join(timeout=_END_S)
        if self._thread.is_alive():
            self._tell("ended", f"no end within {_END_S:g} s")

    def _run(self) -> None:
        self.publish()
        while not self._is_over.wait(self._every_s):
            self.publish()
        self.publish()

    def publish(self) -> None:
        """Write and send once; what goes wrong is told once and the job goes on."""
        try:
            text = self._read()
        except Exception as error:
            # A page that breaks off once must not end the metrics of all hours after it.
            self._tell("read", f"{type(error).__name__}: {error}")
            return
        if text is None:
            return
        try:
            atomic.write_text(self._path, text.decode())
        except OSError as error:
            self._tell("written", f"{self._path}: {error.strerror or error}")
        if self._url is None:
            return
        try:
            _post(self._url, text)
        except (OSError, ValueError, http.client.HTTPException) as error:
            self._tell("sent", f"{self._url.partition('?')[0]}: {error}")

    def _tell(self, what: str, reason: str) -> None:
        if what not in self._told:
            self._told.add(what)
            log(f"metrics are not {what}: {reason}; the job goes on without them")


def store_url(kind: str) -> str | None:
    """Return where this job's metrics go, with the labels that they get there; None: nowhere."""
    base = os.environ.get(URL_VARIABLE)
    if not base:
        return None
    labels = {
        "stack": os.environ.get("SOPERATOR_STACK", ""),
        "job_name": job_name(kind),
        "job_id": job_id(),
    }
    pairs = [("extra_label", f"{name}={value}") for name, value in labels.items() if value]
    return f"{base}?{urllib.parse.urlencode(pairs)}"


def _post(url: str, text: bytes) -> None:
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=_TIMEOUT_S)
    try:
        connection.request("POST", f"{parts.path}?{parts.query}", text)
        answer = connection.getresponse()
        if answer.status >= http.client.BAD_REQUEST:
            raise OSError(f"answers {answer.status} {answer.reason}")
    finally:
        connection.close()
