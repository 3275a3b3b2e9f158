"""Metrics of jobs: a file and a copy to the store; what the list of metrics says, jobs export."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.ports import free_ports
from tests.unit.monitoring.exported import EXPORTED
from workloads.common import record
from workloads.common.exit_codes import PreemptedError, WorkloadError
from workloads.common.record import URL_VARIABLE, Publisher, store_url
from workloads.recipes.serve import ServeConfig
from workloads.serve import server
from workloads.serve.metrics import ServeMetrics, Watch
from workloads.serve.scheduler import Load
from workloads.train.measure import Ledger, StepResult


class Store(HTTPServer):
    """Keeps what is sent to it."""

    def __init__(self, status: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = status
        self.sent: list[tuple[str, bytes]] = []


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Store)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.sent.append((self.path, body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store that answers 204, or what the test's parameter says."""
    server = Store(getattr(request, "param", 204))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv(URL_VARIABLE, f"http://127.0.0.1:{server.server_port}/import")
    monkeypatch.setenv("SOPERATOR_STACK", "prod")
    monkeypatch.setenv("SOPERATOR_JOB", "finetune")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def train_page(ledger: Ledger, *, step: int = 3, last_commit_s: float | None = None) -> bytes:
    return ledger.page(step=step, num_steps=9, world_size=2, last_commit_s=last_commit_s)


def values(text: bytes) -> dict[str, float]:
    families = text_string_to_metric_families(text.decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


def serve_metrics() -> ServeMetrics:
    load = Load(num_running=1, num_waiting=0, kv_used_tokens=2, kv_total_tokens=8)
    use = {"memory_used_bytes": 1.0, "memory_total_bytes": 2.0, "utilization_ratio": 0.5}
    metrics = ServeMetrics(lambda: load, lambda: 3, lambda: {"0": use})
    watch = Watch(metrics, "m", 4)
    watch.saw(2)
    watch.end("finished")
    return metrics


def listed(exporter: str) -> set[str]:
    return {each.name for each in EXPORTED.values() if each.exporter == exporter}


def test_a_training_run_exports_what_the_list_says() -> None:
    names = set(values(train_page(Ledger())))
    assert listed("train") == {name for name in names if not name.endswith("_created")}


def test_a_server_exports_what_the_list_says() -> None:
    assert listed("serve") <= values(serve_metrics().text()).keys()


def test_a_step_changes_what_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it ended is a moment of the clock of then: an alert compares it with that of now."""
    ledger = Ledger(began_at_s=50)
    assert values(train_page(ledger))["train_last_step_timestamp_seconds"] == 50
    step = StepResult(
        step=3,
        loss=2.5,
        grad_norm=0.5,
        learning_rate=1e-4,
        num_tokens=70,
        num_positions=100,
        num_label_tokens=60,
    )
    monkeypatch.setattr(time, "time", lambda: 900.0)  # set since the loop began
    ledger.add(step)
    ledger.seconds["data_wait"] += [1, 0.5]
    ledger.seconds["checkpoint"].append(0.25)
    found = values(train_page(ledger, step=4))
    assert found["train_step"] == 4
    assert found["train_steps"] == 9
    assert found["train_loss"] == 2.5
    assert found["train_tokens_total"] == 70
    assert found["train_positions_total"] == 100
    assert found["train_last_step_timestamp_seconds"] == 900
    assert found["train_data_wait_seconds_total"] == 1.5
    assert found["train_checkpoint_stall_seconds_total"] == 0.25


def test_the_age_of_a_checkpoint_counts_from_the_start_until_there_is_one() -> None:
    """Else a run that never saves would never be told."""
    name = "train_last_checkpoint_timestamp_seconds"
    ledger = Ledger(began_at_s=50)
    assert values(train_page(ledger))[name] == 50
    assert values(train_page(ledger, last_commit_s=70.0))[name] == 70


def test_the_last_values_are_written_and_sent_with_the_jobs_labels(
    store: Store, tmp_path: Path
) -> None:
    """Of a job that is shorter than the interval, too."""
    step = iter(range(3, 9))
    read = lambda: b"train_step %d.0\n" % next(step)  # noqa: E731
    with Publisher(read, results_dir=tmp_path, kind="train"):
        pass
    assert (tmp_path / "metrics.prom").read_bytes() == b"train_step 4.0\n"
    (_, first), (path, last) = store.sent
    assert (first, last) == (b"train_step 3.0\n", b"train_step 4.0\n")
    assert parse_qs(urlsplit(path).query) == {
        "extra_label": ["stack=prod", "job_name=finetune", "job_id=12"]
    }


@pytest.mark.parametrize("store", [503], indirect=True)
def test_a_store_that_refuses_is_told_once_and_ends_nothing(
    store: Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    publisher = Publisher(lambda: b"x 1\n", results_dir=tmp_path, kind="train")
    publisher.publish()
    publisher.publish()
    printed = capfd.readouterr()
    assert len(store.sent) == 2
    told = [line for line in (printed.out + printed.err).splitlines() if "not sent" in line]
    assert len(told) == 1
    assert "answers 503" in told[0]


def test_what_has_nothing_to_say_keeps_what_was_said(store: Store, tmp_path: Path) -> None:
    """vLLM's page after the end of vLLM."""
    pages = iter([b"x 1\n", None])
    publisher = Publisher(lambda: next(pages), results_dir=tmp_path, kind="serve")
    publisher.publish()
    publisher.publish()
    assert (tmp_path / "metrics.prom").read_bytes() == b"x 1\n"
    assert len(store.sent) == 1


def test_a_page_that_breaks_off_is_told_once_and_the_next_one_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    pages: Iterator[bytes | Exception] = iter(
        [http.client.IncompleteRead(b"x"), http.client.BadStatusLine("y"), b"x 1\n"]
    )

    def read() -> bytes:
        page = next(pages)
        if isinstance(page, Exception):
            raise page
        return page

    publisher = Publisher(read, results_dir=tmp_path, kind="serve")
    for _ in range(3):
        publisher.publish()
    printed = capfd.readouterr()
    assert (printed.out + printed.err).count("metrics are not read: IncompleteRead") == 1
    assert (tmp_path / "metrics.prom").read_bytes() == b"x 1\n"


def test_a_filesystem_that_hangs_does_not_hold_the_end_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record, "_END_S", 0.05)
    released = threading.Event()

    def hang() -> None:
        released.wait(60)

    with Publisher(hang, results_dir=tmp_path, kind="train"):
        pass
    printed = capfd.readouterr()
    assert not released.is_set()
    released.set()
    assert "metrics are not ended: no end within 0.05 s" in printed.out + printed.err


VLLM = """
import http.server, os, signal, socket, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_metrics = self.path == "/metrics"
        has_key = self.headers["Authorization"] == "Bearer " + os.environ["VLLM_API_KEY"]
        self.send_response(200 if has_key == is_metrics else 401)
        self.end_headers()
        self.wfile.write(b"vllm:num_requests_running 1.0\\n")
        self.server.is_over = is_metrics
    def log_message(self, *words): ...
signal.alarm(60)
class Server(http.server.HTTPServer):
    address_family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = Server((sys.argv[1], int(sys.argv[2])), Handler)
server.is_over = False
while not server.is_over:
    server.handle_request()
"""


@pytest.fixture
def signals() -> Iterator[None]:
    """Handlers of this process as they were: the server takes them over."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_page_of_vllm_is_published_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """A stand-in that ends when its page was read: an end that nobody asked for is an error.

    It is asked where it listens, and gets the key for the page alone: until it answers, somebody
    else may have its port.
    """
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    (port,) = free_ports(1)
    ready: list[int] = []
    words = [sys.executable, "-c", VLLM, host, str(port)]
    config = ServeConfig(host=host)
    with pytest.raises(WorkloadError, match="vLLM ended with 0"):
        server.run_vllm(words, config, port, "a-key", lambda: ready.append(1), results_dir=tmp_path)
    assert ready == [1]
    assert (tmp_path / "metrics.prom").read_bytes() == b"vllm:num_requests_running 1.0\n"


STAYS = """
import http.server, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.alarm(60)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.mark.usefixtures("signals")
def test_a_vllm_that_stays_after_its_drain_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.32 waits for ever for the reader of an answer that it gave up."""
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    monkeypatch.setattr(server, "_CLOSE_S", 0.5)
    (port,) = free_ports(1)
    words = [sys.executable, "-c", STAYS, str(port)]

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    config = ServeConfig(drain_s=0.5)
    began_s = time.monotonic()
    with pytest.raises(PreemptedError, match="stopped by SIGTERM; vLLM ended with -9"):
        server.run_vllm(words, config, port, "a-key", stop, results_dir=tmp_path)
    assert time.monotonic() - began_s < 50, "before the stand-in's own end"


RANKS = """
import json, os, pathlib, sys, tempfile
there = pathlib.Path(tempfile.gettempdir())
(there / "vllm_dist_1").write_text("where the ranks listen")
seen = [str(there), oct(there.stat().st_mode & 0o777), os.environ["GLOO_SOCKET_IFNAME"]]
pathlib.Path(sys.argv[1]).write_text(json.dumps(seen))
"""


@pytest.mark.usefixtures("signals")
def test_ranks_of_vllm_meet_where_no_neighbour_looks_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They find each other by a file in the temporary folder, and listen where gloo is told to."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    words = [sys.executable, "-c", RANKS, str(tmp_path / "seen")]
    with pytest.raises(WorkloadError, match="vLLM ended with 0"):
        server.run_vllm(words, ServeConfig(), 1, "a-key", lambda: None, results_dir=tmp_path)
    folder, mode, interface = json.loads((tmp_path / "seen").read_text())
    assert (mode, interface, Path(folder).exists()) == ("0o700", "lo", False)


def test_vllms_metrics_in_the_list_are_read_nowhere_else_than_on_its_page() -> None:
    assert all(name.startswith("vllm:") for name in listed("vllm"))


def test_a_store_that_is_gone_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(URL_VARIABLE, "http://127.0.0.1:1/import")
    Publisher(lambda: b"x 1\n", results_dir=tmp_path, kind="train").publish()
    printed = capfd.readouterr()
    assert "metrics are not sent: http://127.0.0.1:1/import" in printed.out + printed.err


def test_without_a_store_only_the_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    assert store_url("train") is None
    Publisher(lambda: b"x 1\n", results_dir=tmp_path, kind="train").publish()
    assert (tmp_path / "metrics.prom").is_file()
