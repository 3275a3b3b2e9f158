"""The stand-in of pulumi-command 1.2.1: `create` over SSH, and a copy of one folder.

It takes what infra/components sends and refuses the rest by name: a command runs at each create
and update, and nothing in a preview or at the end. The host key is pinned; the agent, the user's
keys and ~/.ssh of this machine are never read.
"""

from __future__ import annotations

import base64
import io
import json
import os
import posixpath
import secrets
import socket
import stat
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Final

import paramiko
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import IncompatiblePeer, NoValidConnectionsError

from infra.local.plugins import StandIn
from infra.providers.engine.provider import (
    ARCHIVE,
    COUNT,
    SIGNATURE,
    TEXT,
    UNKNOWN,
    Dispatch,
    ProviderError,
    Rule,
    Values,
)
from infra.providers.engine.serve import serve

_SSH_PORT: Final = 22
_FIRST_DELAY_S: Final = 0.1
_LONGEST_DELAY_S: Final = 5.0

_CONNECTION: Final = {
    **dict.fromkeys(("host", "user", "privateKey", "hostKey"), TEXT),
    **dict.fromkeys(("port", "dialErrorLimit", "perDialTimeout"), COUNT),
}


def _refuse_dead_agent() -> None:
    """The official plugin asks the agent that the shell names, and ends where it is gone."""
    path = os.environ.get("SSH_AUTH_SOCK")
    if not path:
        return
    with socket.socket(socket.AF_UNIX) as agent:
        try:
            agent.connect(path)
        except OSError as error:
            why = os.strerror(error.errno or 0).lower()
            raise ProviderError(f"dial unix {path}: connect: {why}") from error


def run(
    client: paramiko.SSHClient,
    command: str,
    say: Callable[[str], None],
    cancelled: threading.Event,
) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a shell command line; each line is said as it comes."""
    transport = client.get_transport()
    assert transport is not None
    with transport.open_session() as channel, ThreadPoolExecutor(2) as readers:
        channel.exec_command(command)
        channel.shutdown_write()
        streams = (channel.makefile("rb"), channel.makefile_stderr("rb"))
        texts = [readers.submit(_text, stream, say) for stream in streams]
        # A command may close its output long before it ends.
        while not (all(text.done() for text in texts) and channel.exit_status_ready()):
            if cancelled.wait(0.02):
                channel.close()  # which ends the readers
                raise ProviderError("cancelled: the command was cut off on the server")
        out, err = (text.result() for text in texts)
        return channel.recv_exit_status(), out, err


def _text(stream: Iterable[bytes], say: Callable[[str], None]) -> str:
    """The whole text of a stream without its last newline."""
    whole = bytearray()
    for line in stream:
        whole += line
        say(line.removesuffix(b"\n").decode(errors="replace"))
    return whole.decode(errors="replace").removesuffix("\n")


def copy_content(sftp: paramiko.SFTPClient, source: str, remote: str) -> None:
    """Copies what is in a local folder into a remote one, which may have more."""
    local = Path(source)
    if not local.is_dir():
        raise ProviderError(f"open {source}: no such file or directory")
    make_dirs(sftp, remote)
    for path in sorted(local.rglob("*")):
        there = posixpath.join(remote, path.relative_to(local).as_posix())
        if path.is_symlink() and path.is_dir():
            raise ProviderError(
                f"failed to copy file {path} to remote path {there}: read {path}: is a directory"
            )
        if path.is_dir():
            make_dirs(sftp, there)
        else:
            _put(sftp, path, there)


def _put(sftp: paramiko.SFTPClient, local: Path, remote: str) -> None:
    """One file; paramiko says "size mismatch" where the other side had no room for its bytes."""
    size_bytes = local.stat().st_size
    try:
        sftp.put(str(local), remote, confirm=False)
        arrived = sftp.stat(remote).st_size
    except OSError as error:
        raise ProviderError(f"remotePath: '{remote}': not written: {error}") from error
    if arrived != size_bytes:
        raise ProviderError(
            f"remotePath: '{remote}': {arrived} of {size_bytes} bytes arrived: its filesystem is "
            "full or over a quota; free some there, then run pulumi up again"
        )


def make_dirs(sftp: paramiko.SFTPClient, path: str) -> None:
    """Makes a remote directory and its parents; one that is a file is refused."""
    if path in ("", "/"):
        return
    try:
        mode = sftp.stat(path).st_mode or 0
    except FileNotFoundError:
        make_dirs(sftp, posixpath.dirname(path))
        sftp.mkdir(path)
        return
    if not stat.S_ISDIR(mode):
        raise ProviderError(f"remote path {path} exists but is not a directory")


def connected(
    connection: Mapping[str, Any],
    cancelled: threading.Event,
    tell: Callable[[str], None] = lambda _line: None,
) -> paramiko.SSHClient:
    """A client after at most dialErrorLimit failures, whatever they are: another host key too."""
    _refuse_dead_agent()
    limit = int(connection["dialErrorLimit"])
    delay, dials = _FIRST_DELAY_S, 0
    while True:
        try:
            return _dial_once(connection)
        except (OSError, EOFError, paramiko.SSHException) as error:
            if dials + 1 > limit:
                raise ProviderError(
                    f"after {dials} failed attempts: {_why(error, connection)}"
                ) from error
            dials += 1
            tell(f"Dial {dials}/{limit} failed: retrying")
        if cancelled.wait(delay):
            raise ProviderError("context canceled")
        delay = min(delay * 1.5, _LONGEST_DELAY_S)


def _why(error: Exception, connection: Mapping[str, Any]) -> str:
    """The failure of a dial in the official plugin's words."""
    if isinstance(error, paramiko.BadHostKeyException | IncompatiblePeer):
        return "ssh: handshake failed: ssh: host key mismatch"
    if isinstance(error, paramiko.AuthenticationException):
        return (
            "ssh: handshake failed: ssh: unable to authenticate, attempted methods "
            "[none publickey], no supported methods remain"
        )
    if isinstance(error, NoValidConnectionsError):
        first = next(iter(error.errors.values()))
        why = os.strerror(getattr(first, "errno", None) or 0).lower()
        return f"dial tcp {connection['host']}:{connection['port']}: connect: {why}"
    return f"ssh: handshake failed: {error or type(error).__name__}"


def _dial_once(connection: Mapping[str, Any]) -> paramiko.SSHClient:
    host, port = connection["host"], int(connection["port"])
    timeout = float(connection["perDialTimeout"])
    name = host if port == _SSH_PORT else f"[{host}]:{port}"
    key = _public_key(connection["hostKey"])
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    client.get_host_keys().add(name, key.get_name(), key)
    try:
        client.connect(
            host,
            port,
            username=connection["user"],
            pkey=_private_key(connection["privateKey"]),
            timeout=timeout,
            banner_timeout=timeout,
            auth_timeout=timeout,
            allow_agent=False,
            look_for_keys=False,
        )
    except BaseException:
        client.close()
        raise
    return client


def _private_key(text: str) -> paramiko.PKey:
    try:
        return paramiko.Ed25519Key.from_private_key(io.StringIO(text))
    except (paramiko.SSHException, ValueError, IndexError) as error:
        raise ProviderError("ssh: no key found") from error


def _public_key(line: str) -> paramiko.PKey:
    words = line.split()
    try:
        return paramiko.PKey.from_type_string(words[0], base64.b64decode(words[1], validate=True))
    except (IndexError, ValueError, paramiko.SSHException, UnknownKeyType) as error:
        raise ProviderError("failed to parse host key: ssh: no key found") from error


REMOTE: Final = "command:remote:Command"
COPY: Final = "command:remote:CopyToRemote"


class CommandProvider(Dispatch):
    """The two resources of pulumi-command that the program uses."""

    def __init__(self) -> None:
        super().__init__({REMOTE: _Command(), COPY: _Copy()})


def _new_id(urn: str) -> str:
    return urn.rsplit("::", 1)[-1] + secrets.token_hex(4)


class _Copy(StandIn):
    rules: ClassVar = {
        "connection": _CONNECTION,
        "remotePath": TEXT,
        "source": Rule(
            lambda value: (
                isinstance(value, dict)
                and value.get(SIGNATURE) == ARCHIVE
                and str(value.get("path")).endswith("/")
            ),
            "must be a FileArchive of a folder whose path ends with a slash",
        ),
    }

    def create(self, urn: str, inputs: Values) -> tuple[str, Values]:
        self._copy(inputs)
        return _new_id(urn), inputs

    def update(self, urn: str, id: str, old_state: Values, new: Values) -> Values:
        if any(new[key] != old_state.get(key) for key in ("remotePath", "source")):
            self._copy(new)
        return new

    def _copy(self, inputs: Values) -> None:
        remote = inputs["remotePath"]
        with connected(inputs["connection"], self.cancelled) as client:
            try:
                with client.open_sftp() as sftp:
                    copy_content(sftp, inputs["source"]["path"], remote)
            except OSError as error:
                raise ProviderError(f"remotePath: '{remote}': {error}") from error


class _Command(StandIn):
    rules: ClassVar = {
        "connection": _CONNECTION,
        "create": TEXT,
        "addPreviousOutputInEnv": Rule(lambda value: value is False, "{} must be false"),
    }
    outputs: ClassVar = {"stdout": UNKNOWN, "stderr": UNKNOWN}

    def create(self, urn: str, inputs: Values) -> tuple[str, Values]:
        return _new_id(urn), self._run(urn, inputs)

    def update(self, urn: str, id: str, old_state: Values, new: Values) -> Values:
        return self._run(urn, new)

    def _run(self, urn: str, inputs: Values) -> Values:
        def say(line: str) -> None:
            self.engine.info(urn, line)

        def dialled(line: str) -> None:
            self.engine.info(urn, line, passing=True)

        command = inputs["create"]
        with connected(inputs["connection"], self.cancelled, dialled) as client:
            status, out, err = run(client, command, say, self.cancelled)
        if status != 0:
            ended = f"Process exited with status {status}"
            raise ProviderError(f"{ended}: running {json.dumps(command)}:\n{out}\n{err}")
        return {**inputs, "stdout": out, "stderr": err}


if __name__ == "__main__":
    serve(CommandProvider(), "command", "1.2.1")
