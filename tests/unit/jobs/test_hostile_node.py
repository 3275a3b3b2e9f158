"""What a login node that means harm costs this machine: bounded time and memory, one line.

The node is a process of its own on loopback, with the pinned key; limits are shortened where a test
would wait for them.
"""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import pytest

from infra.clients import ssh
from infra.clients.errors import EndedError
from infra.clients.ssh import Connection, ConnectionLostError, Endpoint
from infra.jobs import top

ROOT = Path(__file__).parents[3]
Node = Callable[[str], Endpoint]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Starts a node that does the harm of this name."""
    key = paramiko.ECDSAKey.generate()
    key.write_private_key_file(str(tmp_path / "identity"))
    with contextlib.ExitStack() as stack:

        def start(harm: str) -> Endpoint:
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.hostile_sshd", harm],
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            port, _, host_key = process.stdout.readline().strip().partition(" ")
            return Endpoint(
                host="127.0.0.1",
                port=int(port),
                host_key=host_key,
                identity=tmp_path / "identity",
            )

        yield start


@contextlib.contextmanager
def within(limit_s: float) -> Iterator[None]:
    began_s = time.monotonic()
    yield
    assert time.monotonic() - began_s < limit_s


_CLIENT = """
    import re, sys
    from pathlib import Path
    from infra.clients.errors import JobsError
    from infra.clients.ssh import Connection, Endpoint
    from infra.clients import slurm, ssh

    ssh.MOST_BYTES = 64 << 20  # half of it, in half of the time

    host_key, port, identity = sys.argv[1:]
    door = Endpoint(host="127.0.0.1", port=int(port), host_key=host_key, identity=Path(identity))
    try:
        with Connection(door) as connection:
            slurm.recent(connection, days=31)
    except JobsError as error:
        print(error)
    # getrusage keeps the peak of the process that it was forked from.
    peak_kib = re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]
    print(int(peak_kib) >> 10)
"""


@pytest.mark.parametrize("harm", ["line breaks", "line breaks of errors"])
def test_a_gibibyte_of_line_breaks_ends_in_one_line_and_little_memory(
    node: Node, harm: str
) -> None:
    """As text and as a list of its lines it would be ten."""
    door = node(harm)
    words = [door.host_key, str(door.port), str(door.identity)]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_CLIENT), *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)),
    )
    error, peak_mib = done.stdout.splitlines()
    assert error.startswith("a command on the login node printed more than 64 MiB"), done
    assert int(peak_mib) < 500


@pytest.mark.parametrize("harm", ["dripping banner", "flooding banner", "silent authentication"])
def test_a_greeting_that_never_ends_is_not_waited_for(
    node: Node, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "_HANDSHAKE_S", 1)
    door = node(harm)
    with (
        within(60),
        pytest.raises(ConnectionLostError, match="no SSH session: not complete within 1 s"),
    ):
        Connection(door)


def test_who_never_answers_the_key_has_not_refused_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the node that is broken, and nobody has to add a key there."""
    monkeypatch.setattr(ssh, "_CONNECT_TIMEOUT_S", 5)
    with within(60), pytest.raises(ConnectionLostError, match="no SSH session: Authentication ti"):
        Connection(node("silent authentication"))
    with pytest.raises(ConnectionLostError, match="no SSH session: Authentication failed: tr"):
        Connection(node("no authentication"))


def test_a_packet_of_gibibytes_is_not_read(node: Node) -> None:
    door = node("large packet")
    with within(60), pytest.raises(ConnectionLostError, match=r"a packet of 42949672\d\d bytes"):
        Connection(door)


@pytest.mark.parametrize("harm", ["dripping answer", "no end", "silent start"])
def test_a_quick_command_that_never_ends_is_given_up(
    node: Node, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every read is within its limit: the whole has one too."""
    with Connection(node(harm)) as connection:
        monkeypatch.setattr(ssh, "QUICK_S", 1)
        with within(60), pytest.raises(ConnectionLostError, match="not complete within 1 s"):
            connection.run("squeue")
        assert not connection.is_open
        connection.reopen()
        with within(60), pytest.raises(ConnectionLostError, match="not complete within 1 s"):
            connection.run("squeue")


def test_what_is_slow_by_its_nature_is_waited_for(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is followed, a transfer, a session: they drip for as long as they want to."""
    with Connection(node("dripping answer")) as connection:
        monkeypatch.setattr(ssh, "QUICK_S", 3)
        began_s = time.monotonic()
        for _ in connection.stream("tail -F log", poll_s=0.2):
            if time.monotonic() - began_s > 5:
                break
        assert connection.is_open


def test_what_is_sent_and_what_is_told_do_not_wait_for_each_other(node: Node) -> None:
    """A node that reads nothing before all of its answer is read, of both more than a window."""
    with Connection(node("output before input")) as connection, within(60):
        assert len(connection.run("bash -s", stdin=b"x" * (8 << 20)).stdout) == 8 << 20


def test_the_names_of_a_hundred_thousand_files_do_not_keep_their_bytes_from_coming(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pull` names its files to a node that sends the first of them before it has read the last."""
    monkeypatch.setattr(ssh, "QUICK_S", 5)
    monkeypatch.setattr(ssh, "SLOWEST_BYTES_PER_S", 8 << 20)
    with Connection(node("output before input")) as connection, within(60):
        stream = connection.stream("bash -s", poll_s=0.05, stdin=b"x" * (8 << 20))
        assert sum(map(len, stream)) == 8 << 20


def test_what_a_command_could_not_read_is_no_end_of_it(node: Node) -> None:
    """`logs` ended with 0 after half of a log that a failing filesystem held."""
    with Connection(node("failing read")) as connection:
        came = connection.stream("tail --bytes=+1 job.log", poll_s=0.2)
        assert next(came) == b"the first line\n"
        with pytest.raises(EndedError, match=r"'job.log': Input/output error") as caught:
            next(came)
        assert caught.value.exit_code == 1


def test_a_line_that_never_ends_is_cut(node: Node) -> None:
    with Connection(node("one long line")) as connection:
        lines = top._lines(connection.stream("srun top.sh", poll_s=0.2))
        assert 1 << 20 <= len(next(lines)) <= 2 << 20
