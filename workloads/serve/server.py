"""uvicorn around the app: start, signals, drain, end.

Owns the order of a stop: no new requests, those who wait are returned, what runs has `drain_s`,
then the connections close. A second signal skips the drain.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Generator

import uvicorn
from starlette.applications import Starlette

from workloads.common.exit_codes import ConfigError, PreemptedError
from workloads.common.log import log
from workloads.serve.app import ChatServer
from workloads.serve.config import ServeConfig
from workloads.serve.engine import TransformersEngine

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_CLOSE_S = 5
"""Time to send what was written when the engine has stopped."""


class _Uvicorn(uvicorn.Server):
    """uvicorn without its own signal handlers: they would close before the drain."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals alone."""
        yield


def listen(config: ServeConfig) -> socket.socket:
    """Return the bound socket; a port that is taken is refused with its number."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"serve.port: {config.host}:{config.port}: {error.strerror or error}; "
            "choose another port, or 0 for any free one"
        ) from error
    return listener


class Serving:
    """One server from its first request to its end."""

    def __init__(
        self,
        app: Starlette,
        chat: ChatServer,
        engine: TransformersEngine,
        config: ServeConfig,
        listener: socket.socket,
    ) -> None:
        self._chat = chat
        self._engine = engine
        self._config = config
        self._listener = listener
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                app,
                lifespan="off",
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=_CLOSE_S,
                ws="none",
            )
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._signal_name = ""
        self._lost: BaseException | None = None
        self._num_returned = 0

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until a signal; PreemptedError when answers had to be returned unfinished."""
        asyncio.run(self._run(ready))
        if self._lost is not None:
            raise self._lost
        if self._num_returned:
            raise PreemptedError(
                f"stopped by {self._signal_name}; {self._num_returned} answers were returned "
                f"unfinished after {self._config.drain_s:g} s (serve.drain_s)"
            )

    def lost(self, error: BaseException) -> None:
        """End the server because its device is gone; called from the engine's thread."""
        self._lost = error
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop, "a lost device")

    async def _run(self, ready: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            self._loop.add_signal_handler(number, self._stop, signal.Signals(number).name)
        self._engine.start()
        serving = asyncio.create_task(self._uvicorn.serve(sockets=[self._listener]))
        while not self._uvicorn.started and not serving.done():
            await asyncio.sleep(0.01)
        ready()
        await serving
        if self._stopping is not None:
            await self._stopping

    def _stop(self, name: str) -> None:
        if self._stopping is not None:
            log(f"{name} again: what runs is returned now")
            self._engine.hurry()
            return
        self._signal_name = name
        self._stopping = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        load = self._engine.load()
        log(
            f"{self._signal_name}: no new requests; {load.num_waiting} are returned, "
            f"{load.num_running} answers have {self._config.drain_s:g} s to end"
        )
        self._chat.is_healthy = False
        self._num_returned = await asyncio.to_thread(self._engine.stop, self._config.drain_s)
        self._uvicorn.should_exit = True
