"""What a guard holds ends with it: closed, gone silent, or by itself."""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from infra.clients.errors import JobsError
from infra.operate import sessions
from infra.operate.sessions import Guard, ask
from stacks.load import load_stack
from tests.another_user import as_root, run_python
from tests.unit.cost.run_stacks import l40s, rates_of
from tests.unit.shell.login import Channel, Login


@pytest.fixture
def login(tmp_path: Path) -> Iterator[Login]:
    made = Login(tmp_path)
    made.program("scancel", f'echo "$@" >> {tmp_path}/cancelled')
    yield made
    made.close()


def cancelled(tmp_path: Path) -> str:
    path = tmp_path / "cancelled"
    return path.read_text() if path.exists() else ""


def test_a_guard_that_closes_ends_the_job_by_its_name(login: Login, tmp_path: Path) -> None:
    guard = Guard(login.as_connection(), end="scancel --name=shell-1")
    assert guard.is_open
    assert cancelled(tmp_path) == ""
    assert guard.close()
    assert cancelled(tmp_path) == "--name=shell-1\n"


def test_a_guard_that_falls_silent_is_ended_by_the_login_node(login: Login, tmp_path: Path) -> None:
    guard = Guard(login.as_connection(), end="scancel --name=shell-1", silence_s=1)
    # The first beat comes after ten seconds: for one second this side is as good as gone.
    assert login.channels[0].status_event.wait(60)
    assert cancelled(tmp_path) == "--name=shell-1\n"
    guard.close()


def test_what_runs_in_the_background_ends_with_all_its_children(
    login: Login, tmp_path: Path
) -> None:
    start = f"sleep 600 & echo child $!; wait; touch {tmp_path}/lived"
    guard = Guard(login.as_connection(), start=start, end="kill -- -$!")
    child = next(line for line in guard.lines() if line.startswith("child")).split()[1]
    assert guard.close()
    give_up_at = time.monotonic() + 60
    while not _is_gone(child):
        assert time.monotonic() < give_up_at, "the child lives on"
        time.sleep(0.02)
    assert not (tmp_path / "lived").exists()


def test_what_runs_in_the_background_takes_no_beat(login: Login) -> None:
    """srun reads what it can: beats that it takes would be missing, and the session ended."""
    guard = Guard(login.as_connection(), start="readlink /proc/self/fd/0", end=":")
    assert next(line for line in guard.lines() if line) == "/dev/null"
    guard.close()


def test_an_srun_that_has_not_asked_yet_gets_nothing_once_its_guard_closed(
    login: Login, tmp_path: Path, public_key_file: Path
) -> None:
    """As one that is slow to start: it would ask after the scancel, and hold GPUs for nobody."""
    login.program("srun", f"echo $$ > {tmp_path}/srun; echo starts; exec sleep 600")
    asked = ask(rates_of(l40s()), gpus=1, cpus=None, partition=None, hours=1)
    guard = Guard(login.as_connection(), start=sessions.held(asked), end=sessions.end(asked))
    assert next(line for line in guard.lines() if line) == "starts"
    assert guard.close()
    srun, give_up_at = (tmp_path / "srun").read_text().strip(), time.monotonic() + 60
    while not _is_gone(srun):
        assert time.monotonic() < give_up_at, "srun lives on"
        time.sleep(0.02)
    assert cancelled(tmp_path) == f"--name={asked.name}\n"


def test_tensorboard_ends_with_its_guard(login: Login, public_key_file: Path) -> None:
    """Its command as it is, with a Python of the test's own: nothing stays on the login node."""
    spec = load_stack("local")
    login.program(
        "python", 'case "$*" in *--logdir*) echo child $$; exec sleep 600;; *) echo 6006;; esac'
    )
    start = sessions.tensorboard(spec, "/mnt/logs/tensorboard", 1)
    start = start.replace(f"{sessions.tools_path(spec)}/bin/python", "python")
    guard = Guard(login.as_connection(), start=start, end="kill -- -$!")
    child = next(line for line in guard.lines() if line.startswith("child")).split()[1]
    assert guard.close()
    give_up_at = time.monotonic() + 60
    while not _is_gone(child):
        assert time.monotonic() < give_up_at, "TensorBoard lives on"
        time.sleep(0.02)


@as_root
def test_the_events_that_tensorboard_shows_are_below_a_secret_that_others_do_not_see(
    login: Login, tmp_path: Path, public_key_file: Path
) -> None:
    """TensorBoard itself, asked by another user on each port that it listens on."""
    writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    writer.EventFileWriter(str(tmp_path / "events")).close()
    spec = load_stack("local")
    start = sessions.tensorboard(spec, str(tmp_path / "events"), 1)
    start = start.replace(f"{sessions.tools_path(spec)}/bin/python", sys.executable)
    guard = Guard(login.as_connection(), start=start, end="kill -- -$!", secret="s3cret")
    there = sessions.wait_for(guard, sessions.TENSORBOARD_READY, say=lambda _: None)
    processes = [
        each for each in psutil.process_iter() if str(tmp_path / "events") in _command(each)
    ]
    ports = {
        each.laddr.port
        for process in processes
        for each in process.net_connections()
        if each.status == psutil.CONN_LISTEN
    }
    assert ports == {there.port}, "it listens where no secret is asked for"
    assert not [each for each in processes if "s3cret" in _command(each)]
    answers = run_python(
        "import http.client",
        f"""
for path in ("/", "/data/logdir", "/s3cret/data/logdir"):
    asked = http.client.HTTPConnection("127.0.0.1", {there.port})
    asked.request("GET", path)
    print(asked.getresponse().status)
""",
    )
    assert answers.split() == ["404", "404", "200"]
    written = list(Path(tempfile.gettempdir()).glob("tmp*/.tensorboard-info/*.info"))
    ours = [each for each in written if str(tmp_path / "events") in each.read_text()]
    assert [each.parents[1].stat().st_mode & 0o777 for each in ours] == [0o700]
    assert guard.close()
    assert not psutil.wait_procs(processes, timeout=60)[1]
    assert not [each for each in ours if each.parents[1].exists()]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _is_gone(process: str) -> bool:
    """Whether the process has ended; one that nobody waited for yet has."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_secret_is_in_no_argument(login: Login) -> None:
    guard = Guard(
        login.as_connection(), start='echo "got $SOPERATOR_SECRET"', end=":", secret="s3cret"
    )
    assert next(line for line in guard.lines() if line) == "got s3cret"
    guard.close()
    assert not [each for each in login.asked if "s3cret" in each]


def test_a_connection_that_is_lost_at_once_starts_nothing(
    login: Login, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(channel: Channel, data: bytes) -> None:
        channel.shutdown_write()
        raise OSError("Socket is closed")

    monkeypatch.setattr(Channel, "sendall", lost)
    with pytest.raises(JobsError, match="lost before anything was started; nothing is held"):
        Guard(login.as_connection(), start=f"touch {tmp_path}/started", end="wait $!")
    assert login.channels[0].status_event.wait(60)
    assert not (tmp_path / "started").exists()


def test_an_endpoint_is_told_once_it_takes_requests(login: Login) -> None:
    start = "echo loading; echo soperator-endpoint worker-0 8888; echo 'x is running at'; sleep 60"
    guard = Guard(login.as_connection(), start=start, end="kill -- -$!")
    said: list[str] = []
    found = sessions.wait_for(guard, sessions.JUPYTER_READY, say=said.append)
    assert (found.host, found.port) == ("worker-0", 8888)
    assert said == ["loading"]
    assert guard.close()


@pytest.mark.parametrize(
    "said",
    [
        # ssh's configuration takes the first quote for a letter, and its ProxyJump is a shell's.
        "x\\'$(>proof)\\' 22",
        "-oProxyCommand=x 22",
        "worker-0,worker-1 22",
        "\x1b]0;x\a 22",
        f"worker-0 {'9' * 5000}",
    ],
)
def test_what_is_no_host_is_never_given_to_the_ssh_of_this_machine(login: Login, said: str) -> None:
    start = f"printf '%s\\n' {shlex.quote(f'soperator-endpoint {said}')}"
    guard = Guard(login.as_connection(), start=start, end=":")
    with pytest.raises(JobsError, match="ended before it was up: soperator-endpoint"):
        sessions.wait_for(guard, None, say=lambda _: None)
    guard.close()


def test_a_second_reader_goes_on_at_the_next_line(login: Login) -> None:
    guard = Guard(login.as_connection(), start="printf 'one\\ntwo\\nthree\\n'", end=":")
    assert next(line for line in guard.lines() if line) == "one"
    assert next(line for line in guard.lines() if line) == "two"
    guard.close()


def test_what_ends_before_it_is_up_is_refused_with_its_last_words(login: Login) -> None:
    start = "echo soperator-endpoint worker-0 8888; echo no module named jupyterlab; false"
    guard = Guard(login.as_connection(), start=start, end=":")
    with pytest.raises(JobsError, match="ended before it was up: no module named jupyterlab"):
        sessions.wait_for(guard, sessions.JUPYTER_READY, say=lambda _: None)
    guard.close()
