"""SSH to a login node, whose host key the stack's outputs pin: commands, streams, tunnels.

Uses no agent, no user configuration and no key but the given one, so a command does the same on
every machine.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import paramiko
from paramiko.packet import Packetizer

from infra.clients.errors import EndedError, JobsError, last_words

ROOT: Final = "root"
QUICK_S: Final = 300.0
"""Longest that a quick command may take; sbatch tries for 2 minutes where slurmctld is busy."""
SLOWEST_BYTES_PER_S: Final = 16 << 10
"""Of what is sent to a command, which has so much more time."""
MOST_BYTES: Final = 128 << 20
"""Most that one command may print: a node must not fill this machine's memory."""
_MOST_LINE_BYTES: Final = 1 << 20
_MOST_PACKET_BYTES: Final = 256 << 10
"""PACKET_MAX_SIZE of OpenSSH (packet.c of 10.0p2); paramiko 5.1.0 takes up to 4 GiB."""
_CONNECT_TIMEOUT_S = 15
_HANDSHAKE_S = 3 * _CONNECT_TIMEOUT_S
"""For banner, keys and authentication: paramiko limits each read of a banner, not the whole."""
_KEEPALIVE_S = 15
_CHUNK_BYTES = 1 << 16
_QUIET_S = 0.1
"""After so much silence the errors of a quick command are taken."""
_UNANSWERED: Final = re.compile("timeout|EOF")  # in auth_handler.py of paramiko 5.1.0
LOST: Final = (OSError, EOFError, paramiko.SSHException)
"""What paramiko raises of a connection that is gone."""
_SESSION_WAIT_S = 60
_SESSION_POLL_S = 0.1

# paramiko logs tracebacks of its threads to stderr; we turn each into one line.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A login node: address, pinned host key (OpenSSH public line) and the key that opens it."""

    host: str
    port: int
    host_key: str
    identity: Path
    user: str = ROOT
    node: str | None = None
    """Worker behind it that is entered through it, by the same key as the same user."""
    is_built: bool = True
    """Whether `pulumi up` made it; else what is wrong there is its administrators' to mend."""

    def __str__(self) -> str:
        node = self.node and f" and {self.node} behind it"
        return f"{self.user}@{self.host}:{self.port}{node or ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one remote command did."""

    command: str
    exit_code: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


_AGAIN = ": run this again"


class ConnectionLostError(JobsError):
    """Nobody answers there now; the same may work again later."""

    @property
    def trying_again(self) -> str:
        """The same for who goes on by itself, so that nobody is told to run it again."""
        return f"{str(self).removesuffix(_AGAIN)}; trying again"


class Connection:
    """An open connection; use it as a context manager."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._login: Connection | None = None
        self._transport = self._open_all()
        # paramiko keeps one reason for a refused channel, whichever thread asks for it first.
        self._opening = threading.Lock()

    def reopen(self) -> None:
        """Connects anew; what ran on the old connection is gone."""
        self.close()
        self._transport = self._open_all()

    def _open_all(self) -> paramiko.Transport:
        if self.endpoint.node is None:
            return _connect(self.endpoint, None)
        self._login = Connection(replace(self.endpoint, node=None))
        try:
            return _connect(self.endpoint, self._login)
        except JobsError:
            self._login.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection and whatever still runs on it."""
        self._transport.close()
        if self._login is not None:
            self._login.close()

    @property
    def is_open(self) -> bool:
        """False once either side is known to have ended it."""
        return self._transport.is_active()

    def forward(self, host: str, port: int) -> paramiko.Channel:
        """A TCP connection from the login node to `host`; its bytes, both ways."""
        try:
            return self._transport.open_channel(
                "direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=_CONNECT_TIMEOUT_S
            )
        except paramiko.ChannelException as error:
            raise JobsError(
                f"{host}:{port}: the {'worker' if self.endpoint.node else 'login node'} cannot "
                f"connect to it ({error.text}); is it up?"
            ) from error
        except LOST as error:
            # One that does not answer in time is as good as ended: nothing waits on it any more.
            self._transport.close()
            raise self._lost(error) from error

    def hold(self, command: str) -> paramiko.Channel:
        """Starts `command` and returns its channel, standard input open."""
        with self._within():
            channel = self._session()
            channel.exec_command(command)
            return channel

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        """Runs `command`, which is quick by its nature, in the user's shell until its end."""
        with self._within(len(stdin)):
            return self.run_bytes(command, stdin=stdin)[0]

    def run_bytes(self, command: str, *, stdin: bytes = b"") -> tuple[Result, bytes]:
        """As `run`, for as long as its data takes; with standard output also as it came."""
        stdout, said, code = bytearray(), bytearray(), 0
        with contextlib.closing(self._pieces(command, _QUIET_S, stdin, said)) as pieces:
            try:
                for chunk in pieces:
                    stdout += chunk
                    if len(stdout) + len(said) > MOST_BYTES:
                        raise JobsError(
                            f"a command on the login node printed more than {MOST_BYTES >> 20} "
                            "MiB, which is not read: ask for less (fewer days, a smaller folder), "
                            "or look there what it prints"
                        )
            except EndedError as ended:
                code = ended.exit_code
        text, words = (each.decode(errors="replace") for each in (stdout, said))
        return Result(command=command, exit_code=code, stdout=text, stderr=words), bytes(stdout)

    def stream(self, command: str, *, poll_s: float, stdin: bytes = b"") -> Iterator[bytes]:
        """Output of `command` as it comes; b"" after each `poll_s` of silence, ends with it."""
        said = bytearray()
        with contextlib.closing(self._pieces(command, poll_s, stdin or None, said)) as pieces:
            for chunk in pieces:
                del said[:-_CHUNK_BYTES]  # its end is told
                yield chunk

    def _pieces(
        self, command: str, poll_s: float, stdin: bytes | None, said: bytearray
    ) -> Generator[bytes]:
        """As `stream`, what comes on standard error added to `said`; None leaves `stdin` open.

        Both sides at once: one after the other, each with much to say would wait for the other.
        """
        channel = self.hold(command)
        try:
            channel.settimeout(poll_s)
            if stdin is not None:
                threading.Thread(target=_feed, args=(channel, stdin), daemon=True).start()
            while True:
                chunk = None
                with contextlib.suppress(TimeoutError):
                    chunk = channel.recv(_CHUNK_BYTES)
                if channel.recv_stderr_ready():
                    # What nobody reads would fill the window and hold the command.
                    said += channel.recv_stderr(MOST_BYTES)
                if chunk or (chunk is None and self._transport.is_active()):
                    yield chunk or b""
                    continue
                # A connection that is cut ends the output too, without an exit status.
                code = -1 if chunk is None else channel.recv_exit_status()
                if code < 0:
                    raise self._lost(EOFError("closed by the other side"))
                if code:
                    words = last_words(said.decode(errors="replace"))
                    raise EndedError(f"{self.endpoint}: {words} (exit status {code})", code)
                return
        except LOST as error:
            raise self._lost(error) from error
        finally:
            close_channel(channel)

    def _session(self) -> paramiko.Channel:
        """A session of the connection; waits while sshd has as many on it as it takes."""
        deadline_s = time.monotonic() + _SESSION_WAIT_S
        while True:
            try:
                with self._opening:
                    return self._transport.open_session(timeout=_CONNECT_TIMEOUT_S)
            except paramiko.ChannelException as error:
                if time.monotonic() >= deadline_s:
                    raise JobsError(
                        f"{self.endpoint}: sshd opens no further session on this connection "
                        f"({error.text}); 10 are allowed unless its MaxSessions says otherwise: "
                        "end some, or run this again later"
                    ) from error
            time.sleep(_SESSION_POLL_S)

    @contextlib.contextmanager
    def _within(self, num_bytes: int = 0) -> Generator[None]:
        """Gives the connection up where a quick command, and what is sent to it, has no end."""
        first = self._login or self  # the one that a worker's goes through
        try:
            with _limited(QUICK_S + num_bytes / SLOWEST_BYTES_PER_S, first._transport.close):
                yield
        except LOST as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> ConnectionLostError:
        reason = str(error) or type(error).__name__
        return ConnectionLostError(
            f"{self.endpoint}: the connection was lost ({reason}); jobs go on{_AGAIN}"
        )


@contextlib.contextmanager
def _limited(limit_s: float, end: Callable[[], None]) -> Generator[None]:
    """Calls `end` after `limit_s`, which has to end what is within: TimeoutError.

    paramiko's own limits are those of one read each.
    """
    late_at_s = time.monotonic() + limit_s
    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (*LOST, ConnectionLostError) as error:
        if time.monotonic() < late_at_s:
            raise
        raise TimeoutError(f"not complete within {limit_s:.0f} s") from error
    finally:
        timer.cancel()


class _Packets(Packetizer):
    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        if n > _MOST_PACKET_BYTES:
            raise paramiko.SSHException(f"a packet of {n} bytes, which no SSH server sends")
        return super().read_all(n, check_rekey)


NODE_PORT: Final = 22
"""Of a worker's sshd, with the login node's host keys (Soperator 4.1.7, worker/configmap.go)."""


def _connect(endpoint: Endpoint, login: Connection | None) -> paramiko.Transport:
    identity = _identity(endpoint.identity)
    host_key = parse_public_key(endpoint.host_key)
    try:
        sock = (
            login.forward(endpoint.node, NODE_PORT)
            if login and endpoint.node
            else socket.create_connection((endpoint.host, endpoint.port), _CONNECT_TIMEOUT_S)
        )
    except OSError as error:
        advice = (
            "is the stack up? `pulumi up` brings it up, `soperator local status` shows the local "
            "one"
            if endpoint.is_built
            else "is the name right, and does it take SSH from this network (a VPN, a jump host)?"
        )
        raise ConnectionLostError(f"{endpoint}: {error.strerror or error}; {advice}") from error
    transport = paramiko.Transport(sock, packetizer_class=_Packets)
    transport.banner_timeout = transport.auth_timeout = _CONNECT_TIMEOUT_S
    try:
        # `hostkey` also limits the key types on offer, so the pinned one is what is compared.
        with _limited(_HANDSHAKE_S, (login or transport).close):
            transport.connect(hostkey=host_key, username=endpoint.user, pkey=identity)
    except LOST as error:
        transport.close()
        raise _handshake_error(endpoint, error) from error
    transport.set_keepalive(_KEEPALIVE_S)
    return transport


def offered_host_key(host: str, port: int, kind: str | None = None) -> str:
    """Public key line that the server proves to have, of the type `kind` where one is named.

    Nobody is logged in, and nothing is trusted: the caller holds it against what people know.
    """
    at = f"{host}:{port}"
    try:
        with (
            contextlib.closing(socket.create_connection((host, port), _CONNECT_TIMEOUT_S)) as sock,
            contextlib.closing(paramiko.Transport(sock, packetizer_class=_Packets)) as transport,
        ):
            if kind is not None:
                transport.get_security_options().key_types = (kind,)
            transport.start_client(timeout=_CONNECT_TIMEOUT_S)
            key = transport.get_remote_server_key()
    except (paramiko.SSHException, EOFError, OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise JobsError(
            f"{at}: no SSH server shows a host key there ({reason}); is the name right, and does "
            "it take SSH from this network (a VPN, a jump host)?"
        ) from error
    return f"{key.get_name()} {key.get_base64()}"


def _handshake_error(endpoint: Endpoint, error: Exception) -> JobsError:
    text = str(error)[:200] or type(error).__name__
    if isinstance(error, paramiko.AuthenticationException) and not _UNANSWERED.search(text):
        advice = (
            "add its public half to login.ssh_public_keys and run pulumi up, or give another key "
            "with --identity"
            if endpoint.is_built
            else f"add its public half to ~/.ssh/authorized_keys of {endpoint.user}; where it is "
            "there already, ask the administrators whether the account is locked or has expired, "
            "and whether a key alone lets in"
        )
        return JobsError(f"{endpoint}: key {endpoint.identity} was refused; {advice}")
    if "Bad host key" in text or "Incompatible ssh peer" in text or "no acceptable" in text:
        advice = (
            "if the login node was rebuilt run pulumi up, else someone is in between"
            if endpoint.is_built
            else "ask the administrators whether it was changed, then attach again with --host-key"
            " and the new one; else someone is in between"
        )
        return JobsError(
            f"{endpoint}: the host key is not the one that the stack pins, so nothing was sent; "
            f"{advice}"
        )
    return ConnectionLostError(
        f"{endpoint}: no SSH session: {text}; try again, or look at the login node"
    )


def _identity(path: Path) -> paramiko.PKey:
    if not path.is_file():
        raise JobsError(
            f"{path}: no such private key; give the one whose public half lets in there: "
            "login.ssh_public_keys of a stack that is built, with --identity"
        )
    try:
        return paramiko.PKey.from_path(path)
    # Of a key in PKCS#8 it is cryptography's TypeError.
    except (paramiko.PasswordRequiredException, TypeError) as error:
        raise JobsError(
            f"{path}: the key has a passphrase, which is not asked for here; "
            "give a key without one with --identity"
        ) from error
    except (paramiko.SSHException, ValueError, OSError) as error:
        raise JobsError(f"{path}: not a private key that can be read: {error}") from error


def public_line(identity: Path) -> str:
    """`TYPE BASE64` of a private key file; of its .pub file where there is one, for the agent's."""
    public = identity.with_name(f"{identity.name}.pub")
    if public.is_file():
        return " ".join(public.read_text(encoding="utf-8", errors="replace").split()[:2])
    key = _identity(identity)
    return f"{key.get_name()} {key.get_base64()}"


def parse_public_key(line: str) -> paramiko.PKey:
    """The key of an OpenSSH public key line `TYPE BASE64 [COMMENT]`."""
    parts = line.split()
    try:
        return paramiko.PKey.from_type_string(parts[0], base64.b64decode(parts[1], validate=True))
    except (IndexError, binascii.Error, ValueError, paramiko.SSHException) as error:
        raise JobsError(
            f"login_host_key: {line[:40]!r} is not an OpenSSH public key line; run pulumi up"
        ) from error


def _feed(channel: paramiko.Channel, stdin: bytes) -> None:
    """Sends standard input to its end; a command that ends before has not to read it.

    What came of it is in its exit status, which a lost connection has none of.
    """
    num_sent = 0
    with contextlib.suppress(*LOST):
        while num_sent < len(stdin):
            with contextlib.suppress(TimeoutError):  # a reader's time limit is the channel's
                num_sent += channel.send(stdin[num_sent : num_sent + _CHUNK_BYTES])
        channel.shutdown_write()


def close_channel(channel: paramiko.Channel) -> None:
    """paramiko tells the other side, of which nobody may be left: what was lost is told already."""
    with contextlib.suppress(OSError, EOFError):
        channel.close()


def split_lines(held: bytes, chunk: bytes) -> tuple[list[str], bytes]:
    """The lines that are whole now, and what is left; one that never ends is cut."""
    *whole, held = (held + chunk).split(b"\n")
    if len(held) > _MOST_LINE_BYTES:
        whole, held = [*whole, held], b""
    return [line.decode(errors="replace") for line in whole], held


PATIENCE_S: Final = 120.0
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0


def reopen(connection: Connection, *, patience_s: float = PATIENCE_S) -> None:
    """Tries with longer and longer pauses; after `patience_s` the last refusal is raised."""
    give_up_at = time.monotonic() + patience_s
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            connection.reopen()
            return
        except ConnectionLostError:
            if time.monotonic() + pause_s >= give_up_at:
                raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


_HOST: Final = "127.0.0.1"
_LOOK_EVERY_S: Final = 0.5
_OPEN_S: Final = 60.0
"""A server says that it runs before it listens."""
_PATIENCE_S: Final = 5.0
"""For the other side of a thing that ends."""
_TUNNEL_CHUNK: Final = 1 << 16


class Tunnel:
    """Open from its making until `close`."""

    def __init__(
        self, login: Endpoint, host: str, port: int, *, log: Callable[[str], None]
    ) -> None:
        self._target = (host, port)
        self._log = log
        self._connection = Connection(login)
        self._lost: str | None = None
        self._over = threading.Event()
        self._look = threading.Event()
        self._listener = socket.create_server((_HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [
            threading.Thread(target=work, daemon=True, name=f"tunnel-{work.__name__}")
            for work in (self._accept, self._keep)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def url(self) -> str:
        """The server's API as this machine reaches it."""
        return f"http://{_HOST}:{self.port}/v1"

    def wait_until_open(self, patience_s: float = _OPEN_S) -> None:
        """Returns once the other side takes a connection; JobsError after `patience_s` without."""
        give_up_at = time.monotonic() + patience_s
        while True:
            try:
                return self._connection.forward(*self._target).close()
            except JobsError as error:
                if isinstance(error, ConnectionLostError) or time.monotonic() >= give_up_at:
                    raise
            time.sleep(_LOOK_EVERY_S)

    def close(self) -> None:
        """Ends the listener, every connection through it, and the SSH session."""
        self._over.set()
        self._look.set()
        # A close alone does not wake up who waits in accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._connection.close()
        for thread in self._threads:
            thread.join(_PATIENCE_S)  # one may wait for a login node that does not answer

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError as error:
                if not self._over.is_set():
                    # Such as too many open files: the next one may come through.
                    self._log(f"the tunnel could not take a connection: {error}")
                    self._over.wait(_FIRST_PAUSE_S)
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One connection of this machine from its start to its end."""
        with client:
            try:
                if self._lost is not None:
                    raise ConnectionLostError(self._lost)
                channel = self._connection.forward(*self._target)
            except JobsError as error:
                if isinstance(error, ConnectionLostError):
                    self._look.set()
                with contextlib.suppress(OSError):
                    _refuse(client, str(error))
                return
            back = threading.Thread(target=_pump_back, args=(channel, client), daemon=True)
            back.start()
            _pump(client, channel)
            back.join()
            with contextlib.suppress(*LOST):
                channel.close()

    def _keep(self) -> None:
        """Opens a lost connection again, with longer and longer pauses, until the end."""
        pause_s = _FIRST_PAUSE_S
        while not self._over.is_set():
            if self._connection.is_open:
                self._look.wait(_LOOK_EVERY_S)
                self._look.clear()
                continue
            if self._lost is None:
                self._lost = f"the SSH tunnel to {self._connection.endpoint} is lost; reconnecting"
                self._log(self._lost)
            try:
                self._connection.reopen()
            except JobsError as error:
                self._lost = f"the SSH tunnel is lost; reconnecting: {error}"
                self._over.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            if self._over.is_set():
                self._connection.close()
                return
            self._lost, pause_s = None, _FIRST_PAUSE_S
            self._log("the SSH tunnel is back")


def _pump(client: socket.socket, channel: paramiko.Channel) -> None:
    with contextlib.suppress(*LOST):
        while data := client.recv(_TUNNEL_CHUNK):
            channel.sendall(data)
        channel.shutdown_write()


def _pump_back(channel: paramiko.Channel, client: socket.socket) -> None:
    with contextlib.suppress(*LOST):
        while data := channel.recv(_TUNNEL_CHUNK):
            client.sendall(data)
    # Whoever asks is told that nothing more comes, and `_pump` that nobody listens.
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


def _refuse(client: socket.socket, reason: str) -> None:
    client.settimeout(_PATIENCE_S)
    client.recv(_TUNNEL_CHUNK)
    error = {"message": reason, "type": "server_error", "param": None, "code": "tunnel_lost"}
    body = json.dumps({"error": error}).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    client.sendall(head.encode() + body)
    client.shutdown(socket.SHUT_WR)
    while client.recv(_TUNNEL_CHUNK):
        pass
