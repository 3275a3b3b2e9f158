"""The stand-in of pulumi-command 1.2.1: commands and files over SSH; none on this machine.

`create` once, `update` (else `create`) on a change, `delete` at the end, nothing in a preview. The
host key is pinned where `connection` gives it; the agent, the user's keys and ~/.ssh of this
machine are never read.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import paramiko
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import IncompatiblePeer, NoValidConnectionsError

from infra.providers.engine.provider import (
    UNKNOWN,
    Archive,
    Asset,
    Dispatch,
    Failure,
    Provider,
    ProviderError,
)
from infra.providers.engine.serve import serve

_KEY_TYPES: Final = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)
_SSH_PORT: Final = 22
_DEFAULTS: Final = {"user": "root", "port": _SSH_PORT, "dialErrorLimit": 10, "perDialTimeout": 15}
"""A dialErrorLimit of -1 and a perDialTimeout of 0 are no limit."""
_FIRST_DELAY_S: Final = 0.1
_LONGEST_DELAY_S: Final = 5.0
Line = Callable[[str, str], None]
"""Called with `stdout` or `stderr` and one line of it."""


class _AnyHostKey(paramiko.MissingHostKeyPolicy):
    """What pulumi-command does without connection.hostKey: the server is not verified."""

    def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:
        return


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


def takes_variable(client: paramiko.SSHClient, name: str, value: str) -> bool:
    """Whether the server takes an environment variable; paramiko never asks for its answer."""
    transport = client.get_transport()
    assert transport is not None
    with transport.open_session() as channel:
        channel.set_environment_variable(name, value)
        channel.exec_command(f"printenv {name} > /dev/null")
        return channel.recv_exit_status() == 0


def run(
    client: paramiko.SSHClient,
    command: str,
    *,
    environment: Mapping[str, str],
    stdin: str,
    line: Line,
    cancelled: threading.Event,
) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a shell command line."""
    transport = client.get_transport()
    assert transport is not None
    channel = transport.open_session()
    with channel:
        for name, value in environment.items():
            channel.set_environment_variable(name, value)
        channel.exec_command(command)
        # A server may end before it reads its input; that is the command's business.
        writer = threading.Thread(target=_feed, args=(channel, stdin.encode()), daemon=True)
        writer.start()
        out, err = _Lines("stdout", line), _Lines("stderr", line)
        while not (channel.exit_status_ready() and channel.eof_received):
            if cancelled.is_set():
                raise ProviderError("cancelled: the command was cut off on the server")
            if not _drain(channel, out, err):
                cancelled.wait(0.02)
        while _drain(channel, out, err):
            pass
        return channel.recv_exit_status(), out.finish(), err.finish()


def copy_text(sftp: paramiko.SFTPClient, text: str, remote: str) -> None:
    """Writes `text` to the remote file; a directory in its place is refused."""
    if _is_dir(sftp, remote):
        raise ProviderError(
            f"remote path {remote} is a directory; when using a text asset, remotePath must be a "
            "file path"
        )
    make_dirs(sftp, posixpath.dirname(remote))
    sftp.putfo(io.BytesIO(text.encode()), remote)


def copy_path(sftp: paramiko.SFTPClient, source: str, remote: str) -> None:
    """Copies a local file or folder; `folder` lands in remote/folder, `folder/` in remote itself.

    source | remote is a directory | remote is missing | remote is a file
    dir    | remote/dir            | remote/dir        | refused
    dir/   | remote                | remote            | refused
    file   | remote/file           | remote            | overwritten
    """
    local = Path(source)
    if not local.exists():
        raise ProviderError(f"open {source}: no such file or directory")
    if local.is_file():
        target = posixpath.join(remote, local.name) if _is_dir(sftp, remote) else remote
        make_dirs(sftp, posixpath.dirname(target))
        _put(sftp, local, target)
        return
    target = remote if source.endswith("/") else posixpath.join(remote, local.resolve().name)
    make_dirs(sftp, target)
    for path in sorted(local.rglob("*")):
        there = posixpath.join(target, path.relative_to(local).as_posix())
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


def _is_dir(sftp: paramiko.SFTPClient, path: str) -> bool:
    try:
        return stat.S_ISDIR(sftp.stat(path).st_mode or 0)
    except FileNotFoundError:
        return False


def connected(
    connection: Mapping[str, Any],
    cancelled: threading.Event,
    tell: Callable[[str], None] = lambda _line: None,
) -> paramiko.SSHClient:
    """A client after at most dialErrorLimit failures, whatever they are: another host key too."""
    _refuse_dead_agent()
    connection = {**_DEFAULTS, **connection}  # a state of earlier days has none of them
    limit = int(connection["dialErrorLimit"])
    delay, dials = _FIRST_DELAY_S, 0
    while True:
        try:
            return _dial_once(connection)
        except (OSError, EOFError, paramiko.SSHException) as error:
            if 0 <= limit < dials + 1:
                raise ProviderError(
                    f"after {dials} failed attempts: {_why(error, connection)}"
                ) from error
            dials += 1
            tell(f"Dial {dials}/{'inf' if limit < 0 else limit} failed: retrying")
        if cancelled.wait(delay):
            raise ProviderError("context canceled")
        delay = min(delay * 1.5, _LONGEST_DELAY_S)


def _why(error: Exception, connection: Mapping[str, Any]) -> str:
    """The failure of a dial in the official plugin's words."""
    if isinstance(error, paramiko.BadHostKeyException | IncompatiblePeer):
        return "ssh: handshake failed: ssh: host key mismatch"
    if isinstance(error, paramiko.AuthenticationException):
        methods = "none publickey" if connection.get("privateKey") else "none"
        return (
            f"ssh: handshake failed: ssh: unable to authenticate, attempted methods [{methods}], "
            "no supported methods remain"
        )
    if isinstance(error, NoValidConnectionsError):
        first = next(iter(error.errors.values()))
        why = os.strerror(getattr(first, "errno", None) or 0).lower()
        return f"dial tcp {connection['host']}:{connection['port']}: connect: {why}"
    return f"ssh: handshake failed: {error or type(error).__name__}"


def _dial_once(connection: Mapping[str, Any]) -> paramiko.SSHClient:
    host, port = connection["host"], int(connection["port"])
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(_AnyHostKey())
    if pinned := connection.get("hostKey"):
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        name = host if port == _SSH_PORT else f"[{host}]:{port}"
        key = _public_key(pinned)
        client.get_host_keys().add(name, key.get_name(), key)
    timeout = float(connection["perDialTimeout"]) or None
    try:
        client.connect(
            host,
            port,
            username=connection["user"],
            password=connection.get("password"),
            pkey=_private_key(connection),
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


def _private_key(connection: Mapping[str, Any]) -> paramiko.PKey | None:
    text = connection.get("privateKey")
    if not text:
        return None
    for kind in _KEY_TYPES:
        try:
            return kind.from_private_key(io.StringIO(text))
        except paramiko.PasswordRequiredException:
            raise ProviderError(
                "connection.privateKey is encrypted; give one that is not"
            ) from None
        except (paramiko.SSHException, ValueError, IndexError):
            continue
    raise ProviderError("ssh: no key found")


def _public_key(line: str) -> paramiko.PKey:
    words = line.split()
    try:
        return paramiko.PKey.from_type_string(words[0], base64.b64decode(words[1], validate=True))
    except (IndexError, ValueError, paramiko.SSHException, UnknownKeyType) as error:
        raise ProviderError("failed to parse host key: ssh: no key found") from error


def _feed(channel: paramiko.Channel, data: bytes) -> None:
    try:
        channel.sendall(data)
        channel.shutdown_write()
    except OSError:
        return


def _drain(channel: paramiko.Channel, out: _Lines, err: _Lines) -> bool:
    """Takes what has come; True if anything had."""
    came = False
    if channel.recv_ready():
        out.add(channel.recv(1 << 16))
        came = True
    if channel.recv_stderr_ready():
        err.add(channel.recv_stderr(1 << 16))
        came = True
    return came


class _Lines:
    """Collects a stream and hands on each full line."""

    def __init__(self, name: str, line: Line) -> None:
        self._name, self._line = name, line
        self._data = bytearray()
        self._told = 0

    def add(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\n", self._told)) >= 0:
            self._line(self._name, self._data[self._told : end].decode(errors="replace"))
            self._told = end + 1

    def finish(self) -> str:
        """The whole text without its last newline."""
        if self._told < len(self._data):
            self._line(self._name, self._data[self._told :].decode(errors="replace"))
        return self._data.decode(errors="replace").removesuffix("\n")


REMOTE: Final = "command:remote:Command"
COPY: Final = "command:remote:CopyToRemote"
_NOT_SERVED: Final = {
    "agentSocketPath": "the agent is never used; give privateKey",
    "privateKeyPassword": "the stand-in opens no key; give one that is not encrypted",
    "proxy": "the stand-in dials the server itself; install the official command plugin",
}
_LOGGED: Final = {
    "stdoutAndStderr": ("stdout", "stderr"),
    "stdout": ("stdout",),
    "stderr": ("stderr",),
    "none": (),
}
_ACCEPT_ENV: Final = (
    "This only works if your SSH server is configured to accept these variables via AcceptEnv. "
    "Alternatively, if a Bash-like shell runs the command on the remote host, you could prefix the "
    "command itself with the variables in the form 'VAR=value command'"
)
Values = dict[str, Any]


class CommandProvider(Dispatch):
    """The two resources of pulumi-command that the program uses."""

    def __init__(self) -> None:
        super().__init__({REMOTE: _Command(), COPY: _Copy()})


class _OverSsh(Provider):
    required: ClassVar[tuple[str, ...]] = ("connection",)
    known: ClassVar[tuple[str, ...]]
    """Its inputs."""

    def check(self, old: Values, new: Values) -> tuple[Values, list[Failure]]:
        wrong = [(n, f"{n} is missing; declare it") for n in self.required if n not in new]
        wrong += _connection_problems(new.get("connection"))
        if "source" in self.known and "source" in new:
            wrong += _source_problems(new["source"])
        wrong += [(name, "unknown") for name in sorted(new.keys() - set(self.known))]
        if isinstance(new.get("connection"), dict):
            # As the official plugin keeps it in the state.
            new = {**new, "connection": {**_DEFAULTS, **new["connection"]}}
        return new, wrong


def _new_id(urn: str) -> str:
    return urn.rsplit("::", 1)[-1] + secrets.token_hex(4)


class _Copy(_OverSsh):
    required = ("connection", "remotePath", "source")
    known = (*required, "triggers")
    identity = ("triggers",)

    def create(self, urn: str, inputs: Values) -> tuple[str, Values]:
        self._copy(inputs)
        return _new_id(urn), inputs

    def update(self, urn: str, id: str, old_state: Values, new: Values) -> Values:
        if any(new[key] != old_state.get(key) for key in ("remotePath", "source")):
            self._copy(new)
        return new

    def _copy(self, inputs: Values) -> None:
        source, remote = inputs["source"], inputs["remotePath"]
        with connected(inputs["connection"], self.cancelled) as client:
            try:
                with client.open_sftp() as sftp:
                    if isinstance(source, Asset) and source.text is not None:
                        copy_text(sftp, source.text, remote)
                    else:
                        copy_path(sftp, str(source.path), remote)
            except OSError as error:
                raise ProviderError(f"remotePath: '{remote}': {error}") from error


class _Command(_OverSsh):
    # Triggers of a command update it, as any other input: so pulumi-command does since 1.1.
    known = (
        *("addPreviousOutputInEnv", "connection", "create", "delete", "environment", "logging"),
        *("stdin", "triggers", "update"),
    )
    outputs: ClassVar = {"stdout": UNKNOWN, "stderr": UNKNOWN}

    def create(self, urn: str, inputs: Values) -> tuple[str, Values]:
        return _new_id(urn), self._run(urn, inputs, inputs.get("create"), {})

    def update(self, urn: str, id: str, old_state: Values, new: Values) -> Values:
        command = new["update"] if new.get("update") is not None else new.get("create")
        return self._run(urn, new, command, old_state)

    def delete(self, id: str, state: Values) -> None:
        if state.get("delete") is not None:
            self._run("", state, state["delete"], state)

    def _run(self, urn: str, inputs: Values, command: str | None, previous: Values) -> Values:
        """The state after `command` ran; without one the previous output stays."""
        outputs = {name: previous.get(name) or "" for name in ("stdout", "stderr")}
        if command is None:
            return {**inputs, **outputs}
        earlier: dict[str, str] = {}
        if inputs.get("addPreviousOutputInEnv", True):
            known = {f"PULUMI_COMMAND_{name.upper()}": text for name, text in outputs.items()}
            earlier = {name: text for name, text in known.items() if text}
        shown = _LOGGED.get(inputs.get("logging") or "stdoutAndStderr", ())

        def line(stream: str, text: str) -> None:
            if urn and stream in shown:
                self.engine.info(urn, text)

        def dialled(text: str) -> None:
            self.engine.info(urn, text, passing=True)

        environment = inputs.get("environment") or {}
        with connected(inputs["connection"], self.cancelled, dialled) as client:
            for name, value in environment.items():
                if not takes_variable(client, name, value):
                    raise ProviderError(
                        f'could not set environment variable "{name}": ssh: setenv failed'
                    )
            taken = dict(environment)
            for name, value in earlier.items():
                if takes_variable(client, name, value):
                    taken.setdefault(name, value)
                else:
                    self.engine.warning(urn, f"Unable to set '{name}'. {_ACCEPT_ENV}")
            status, out, err = run(
                client,
                command,
                environment=taken,
                stdin=inputs.get("stdin") or "",
                line=line,
                cancelled=self.cancelled,
            )
        if status != 0:
            ended = f"Process exited with status {status}"
            raise ProviderError(f"{ended}: running {json.dumps(command)}:\n{out}\n{err}")
        return {**inputs, "stdout": out, "stderr": err}


def _connection_problems(connection: Any) -> list[tuple[str, str]]:
    if connection is None or connection is UNKNOWN:
        return []
    wrong = [] if "host" in connection else [("connection.host", "host is missing; declare it")]
    return wrong + [(f"connection.{n}", why) for n, why in _NOT_SERVED.items() if n in connection]


def _source_problems(source: Any) -> list[tuple[str, str]]:
    if source is UNKNOWN:
        return []
    if isinstance(source, Asset) and (source.path is not None or source.text is not None):
        return []
    if isinstance(source, Archive) and source.path is not None:
        return []
    return [("source", "must be a FileAsset, a StringAsset or a FileArchive")]


if __name__ == "__main__":
    serve(CommandProvider(), "command", "1.2.1")
