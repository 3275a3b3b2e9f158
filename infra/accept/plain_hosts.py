"""The acceptance by torchrun over SSH on machines without Slurm: bare metal, plain VMs.

Owns what goes to each host, how torchrun is started on all of them and ended on all of them, and
the result's way home. Hosts are reached by the `ssh` program, with the user's own configuration and
known hosts. Does not judge: the result is the one of every other route.
"""

from __future__ import annotations

import shlex
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from infra.accept.errors import AcceptError
from infra.accept.result import FILE_NAME

DEFAULT_PORT: Final = 29500
"""What torchrun takes by default."""
_CONNECT_S: Final = 15
_END_S: Final = 60.0
"""Longest that the others are waited for when one host has ended badly."""
_KEPT_LINES: Final = 20
# Unpacked aside and renamed, so that it is whole also where hosts share the folder.
_DELIVER: Final = """
set -eu
mkdir -p {folder}/results {folder}/scratch
cd {folder}
if [ ! -d {code} ]; then
  part=$(mktemp -d code.XXXXXX)
  trap 'rm -rf "$part"' EXIT
  tar -xz --no-same-owner -C "$part"
  chmod 755 "$part"
  mv -T "$part" {code} 2> /dev/null || true
fi
"""
# Standard input is open as long as somebody waits here; its end is the end of the ranks.
_RUN: Final = """
exec 3<&0
cd {folder}/{code}
{command} < /dev/null 3<&- &
ranks=$!
{{ cat <&3; kill -TERM $ranks; }} > /dev/null 2>&1 &
watch=$!
wait $ranks
status=$?
kill $watch 2> /dev/null
exit $status
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainHosts:
    """Where the ranks run."""

    hosts: tuple[str, ...]
    """As `ssh` takes them; the first holds rank 0 and is connected to by the others."""
    python: str
    """With torch; on every host."""
    folder: str
    """For code, scratch files and results; on every host."""
    master_address: str
    """Of the first host, as the others reach it."""
    ssh: tuple[str, ...] = ("ssh",)

    def argv(self, host: str, script: str) -> list[str]:
        """The command line that runs `script` on a host; it asks nobody anything."""
        return [
            *self.ssh,
            "-o",
            "BatchMode=yes",
            "-o",
            f"ConnectTimeout={_CONNECT_S}",
            "-o",
            "ServerAliveInterval=15",
            "--",
            host,
            script,
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """What runs on them."""

    run_id: str
    code: str
    """Name of the folder of this code, with its hash."""
    per_host: int
    port: int
    """Of the first host, where its ranks wait for the others."""
    arguments: tuple[str, ...]
    """Of `python -m workloads.accept`."""
    environment: Mapping[str, str]


def run(
    hosts: PlainHosts,
    ranks: Ranks,
    archive: bytes,
    *,
    write: Callable[[bytes], None],
    say: Callable[[str], None],
) -> bytes:
    """The acceptance.json of a run over all hosts; output of the first goes to `write`."""
    _on_all(hosts, f"{shlex.quote(hosts.python)} -c 'import torch'", "torch")
    deliver = _DELIVER.format(folder=shlex.quote(hosts.folder), code=ranks.code)
    _on_all(hosts, deliver, "code", stdin=archive)
    say(f"{len(hosts.hosts)} hosts have {hosts.folder}/{ranks.code}; starting torchrun")
    said = _run_ranks(hosts, ranks, write)
    path = f"{hosts.folder}/results/{ranks.run_id}/{FILE_NAME}"
    done = _ask(hosts, hosts.hosts[0], f"cat {shlex.quote(path)}")
    if done.returncode == 0 and done.stdout:
        return done.stdout
    raise AcceptError(
        f"{hosts.hosts[0]}: no result at {path}: the ranks ended before they had one\n"
        + "\n".join(f"{host}: {line}" for host, lines in said.items() for line in lines)
    )


def script(hosts: PlainHosts, ranks: Ranks, number: int) -> str:
    """What the host of that number runs: its ranks, which end with their standard input."""
    places = {
        "SOPERATOR_JOB_ID": ranks.run_id,
        "SOPERATOR_PLACE_RESULTS": f"{hosts.folder}/results",
        "SOPERATOR_PLACE_SCRATCH": f"{hosts.folder}/scratch",
    }
    words = ["env", *(f"{name}={value}" for name, value in {**ranks.environment, **places}.items())]
    words += [hosts.python, "-m", "torch.distributed.run", f"--nnodes={len(hosts.hosts)}"]
    words += [f"--nproc-per-node={ranks.per_host}", f"--node-rank={number}"]
    words += [f"--master-addr={hosts.master_address}", f"--master-port={ranks.port}"]
    words += ["-m", "workloads.accept", *ranks.arguments]
    folder, command = shlex.quote(hosts.folder), shlex.join(words)
    return _RUN.format(folder=folder, code=ranks.code, command=command)


def _run_ranks(
    hosts: PlainHosts, ranks: Ranks, write: Callable[[bytes], None]
) -> dict[str, deque[str]]:
    """The last lines of each host, once all have ended; one that ends badly ends the others."""
    said = {host: deque[str](maxlen=_KEPT_LINES) for host in hosts.hosts}
    ended = threading.Event()
    processes: list[subprocess.Popen[bytes]] = []
    readers: list[threading.Thread] = []
    try:
        for number, host in enumerate(hosts.hosts):
            process = subprocess.Popen(
                hosts.argv(host, script(hosts, ranks, number)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            processes.append(process)
            assert process.stdout is not None
            show = write if number == 0 else _nothing
            reader = threading.Thread(
                target=_read, args=(process, process.stdout, said[host], show, ended), daemon=True
            )
            reader.start()
            readers.append(reader)
        while any(process.poll() is None for process in processes):
            ended.wait()
            ended.clear()
            if any(process.poll() for process in processes):
                break
    finally:
        _end(processes)
    for reader in readers:
        reader.join(_CONNECT_S)
    return said


def _read(
    process: subprocess.Popen[bytes],
    output: IO[bytes],
    said: deque[str],
    write: Callable[[bytes], None],
    ended: threading.Event,
) -> None:
    for line in output:
        said.append(line.decode(errors="replace").rstrip())
        write(line)
    process.wait()
    ended.set()


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Close every host's standard input, which ends its ranks, and wait for that."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    for process in processes:
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _on_all(hosts: PlainHosts, script: str, what: str, stdin: bytes = b"") -> None:
    """Run a script on every host; every host that refuses is told at once."""
    with ThreadPoolExecutor(len(hosts.hosts)) as pool:
        done = list(pool.map(lambda host: _ask(hosts, host, script, stdin), hosts.hosts))
    problems = [
        f"{host}: {what}: {_last_line(each)}"
        for host, each in zip(hosts.hosts, done, strict=True)
        if each.returncode
    ]
    if problems:
        raise AcceptError("\n".join(problems))


def _ask(
    hosts: PlainHosts, host: str, script: str, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(hosts.argv(host, script), input=stdin, capture_output=True, check=False)


def _last_line(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    said = lines[-1] if lines else f"exit status {done.returncode}"
    if done.returncode == 255:  # ssh's own
        return f"{said}; does `ssh {shlex.quote(str(done.args[-2]))} true` work without a question?"
    return said


def _nothing(_: bytes) -> None:
    """Other hosts' lines are kept for a failure only."""


def result_file(folder: Path, text: bytes) -> Path:
    """Keep a result in a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    path.write_bytes(text)
    return path
