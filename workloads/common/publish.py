"""Metrics of a running job: a file among its results, and a copy to the stack's metrics store.

Owns when and where; what is measured is the job's own. The store takes Prometheus text over HTTP
(https://docs.victoriametrics.com/victoriametrics/single-server-victoriametrics/, import of
Prometheus text, 2026-11-21). A store that does not answer never disturbs the job.
"""

from __future__ import annotations

import http.client
import os
import threading
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Self

from workloads.common import atomic
from workloads.common.log import log
from workloads.common.record import job_id, job_name

FILE_NAME = "metrics.prom"
URL_VARIABLE = "SOPERATOR_METRICS_URL"
"""Where metrics are sent; the sbatch text of a stack with observability sets it."""
EVERY_S = 15.0
"""As often as Soperator's chart scrapes GPUs (helm/soperator-dcgm-exporter, 2026-11-21)."""
_TIMEOUT_S = 5
_END_S = 15.0
"""Two sends that get no answer, and the time to read and write."""


class Publisher:
    """Writes and sends what `read` returns at once, every `every_s` seconds, and at the end."""

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
        self._path = results_dir / FILE_NAME
        self._every_s = every_s
        self._url = store_url(kind)
        self._is_over = threading.Event()
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def __enter__(self) -> Self:
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
