"""A server from its start to its end: uvicorn around our app, or vLLM's own behind the same flags.

Order of a stop: no new requests, those who wait are returned, what runs has `drain_s`, then the
connections close; the same signal again skips the drain. Another one may be the same notice: a node
that is taken signals its processes, and the job's supervisor hands its own signal on. vLLM is a
program of its own here: nothing of it is imported. Its options:
https://docs.vllm.ai/en/latest/cli/serve.html (2026-11-21).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import importlib.util
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from workloads.common.exit_codes import ConfigError, PreemptedError, WorkloadError
from workloads.common.log import log
from workloads.common.models import load_tokenizer
from workloads.common.record import METRICS_FILE, Publisher
from workloads.common.tool_calls import OWN_FORM
from workloads.data.chat_template import call_form
from workloads.job import Job
from workloads.recipes.serve import ServeConfig, is_loopback
from workloads.serve.app import HAS_KEY, ON_LOOPBACK, ChatServer, VllmGuard, make_app
from workloads.serve.engine import Loaded, TransformersEngine, load
from workloads.serve.metrics import ServeMetrics, gpu_reader
from workloads.serve.weights import Weights

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
NOTICE_S = "SOPERATOR_NOTICE_S"
"""Seconds between the notice of a preemptible node and its end; unset elsewhere."""
_CLOSE_S = 5
"""Time to send what was written when the engine has stopped."""
HEAD_S = 10.0
"""Time in which a connection must bring the whole head of a request, its first and each further."""
MOST_CONNECTIONS = 512


def http_config(app: Starlette, config: ServeConfig, **more: Any) -> uvicorn.Config:
    """Return how requests are taken; connections that ask nothing are closed, and bounded.

    One too many ends another: the one that for the longest has asked nothing with the key.
    """
    most = max(MOST_CONNECTIONS, 2 * (config.limits.max_concurrency + config.limits.max_queue))
    head_s, base = HEAD_S, cast("Any", H11Protocol)

    class Bounded(base):
        """A connection; uvicorn by itself waits for ever for the rest of a head."""

        silence: asyncio.TimerHandle | None = None
        useless_since = 0.0

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.useless_since = self.loop.time()
            self.watch()
            there = [each for each in self.connections if not each.transport.is_closing()]
            if len(there) > most:
                useless = [each for each in there if not (each.is_asked and each.has_key)]
                min(useless, key=lambda each: each.useless_since).transport.abort()

        def data_received(self, data: bytes) -> None:
            self.watch()
            super().data_received(data)
            self.watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.has_key:
                self.useless_since = self.loop.time()
            if self.conn.trailing_data[0]:  # of a next request, which came before this one's end
                self.watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self.watch(is_over=True)
            super().connection_lost(exc)

        @property
        def is_asked(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        @property
        def has_key(self) -> bool:
            return HAS_KEY in self.cycle.scope

        def watch(self, *, is_over: bool = False) -> None:
            if self.silence is not None and (self.is_asked or is_over):
                self.silence = self.silence.cancel()
            elif self.silence is None and not self.is_asked and not is_over:
                self.silence = self.loop.call_later(head_s, self.transport.abort)

    return uvicorn.Config(
        app,
        http=Bounded,
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_CLOSE_S,
        ws="none",
        **more,
    )


def listen(config: ServeConfig) -> socket.socket:
    """Return the socket, which listens; a host that is not here, or a taken port, is refused."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        # It listens at once: a port that is only bound, any user takes who sets SO_REUSEADDR too.
        return socket.create_server(
            (config.host, config.port), family=family, dualstack_ipv6=family is socket.AF_INET6
        )
    except (OSError, TypeError) as error:  # TypeError: a host that is no name at all
        # Without the address, which create_server adds.
        reason = (getattr(error, "strerror", None) or str(error)).partition(" (while ")[0]
        said = f"serve.host: {config.host}: {reason}; name an address of this machine"
        if getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES):
            said = f"serve.port: {config.host}:{config.port}: {reason}; choose another port, or 0"
            said += " for any free one"
        raise ConfigError(said) from error


def drain_s(config: ServeConfig) -> float:
    """Return the seconds that answers have to end: the declared ones, within the node's notice."""
    notice = os.environ.get(NOTICE_S)
    if not notice:
        return config.drain_s
    most_s = max(0.0, float(notice) - 2 * _CLOSE_S)
    if config.drain_s > most_s:
        log(f"serve.drain_s: {config.drain_s:g}, cut to {most_s:g}: the node gives {notice} s")
    return min(config.drain_s, most_s)


@dataclass(eq=False)
class Serving:
    """One server from its first request to its end."""

    app: InitVar[Starlette]
    _chat: ChatServer
    _engine: TransformersEngine
    config: InitVar[ServeConfig]
    _listener: socket.socket
    _loop: asyncio.AbstractEventLoop | None = None
    _stopping: asyncio.Task[None] | None = None
    _signal_name: str = ""
    _lost: BaseException | None = None
    _num_returned: int = 0

    def __post_init__(self, app: Starlette, config: ServeConfig) -> None:
        self._drain_s = drain_s(config)
        self._uvicorn: Any = uvicorn.Server(http_config(app, config))
        # Its own handlers of signals would close before the drain.
        self._uvicorn.capture_signals = contextlib.nullcontext
        self._told_by: set[str] = set()

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until a signal; PreemptedError when answers had to be returned unfinished."""
        asyncio.run(self._run(ready))
        if self._lost is not None:
            raise self._lost
        if self._num_returned:
            raise PreemptedError(
                f"stopped by {self._signal_name}; {self._num_returned} answers were returned "
                f"unfinished after {self._drain_s:g} s (serve.drain_s)"
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
        if self._uvicorn.started:
            ready()
        await serving
        if self._stopping is not None:
            await self._stopping

    def _stop(self, name: str) -> None:
        if name in self._told_by:
            log(f"{name} again: what runs is returned now")
            self._engine.hurry()
        self._told_by.add(name)
        if self._stopping is not None:
            return
        self._signal_name = name
        self._stopping = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        load = self._engine.load()
        log(
            f"{self._signal_name}: no new requests; {load.num_waiting} are returned, "
            f"{load.num_running} answers have {self._drain_s:g} s to end"
        )
        self._chat.is_healthy = False
        self._num_returned = await asyncio.to_thread(self._engine.stop, self._drain_s)
        self._uvicorn.should_exit = True


def serve(
    job: Job,
    config: ServeConfig,
    weights: Weights,
    key: str,
    listener: socket.socket,
    ready: Callable[[], None],
) -> None:
    """Serve until a signal; the record gets what was measured, however it ends."""
    loaded = load(config, weights, job.places)
    job.record.metrics |= loaded.metrics
    metrics = ServeMetrics(
        loaded.engine.load, lambda: memory_bytes(loaded), gpu_reader(loaded.device)
    )
    names = {name: name == weights.tuned_name for name in weights.names}
    chat = ChatServer(loaded.engine, loaded.tokenizer, config, names, metrics, loaded.grammars)
    serving = Serving(make_app(chat, api_key=key), chat, loaded.engine, config, listener)
    loaded.engine.on_lost = serving.lost
    job.record.artifacts["metrics"] = str(job.results_dir / METRICS_FILE)
    try:
        with Publisher(metrics.text, results_dir=job.results_dir, kind="serve"):
            serving.run(ready)
    finally:
        job.record.metrics |= metrics.record() | {"max_memory_bytes": _peak_bytes(loaded)}


def memory_bytes(loaded: Loaded) -> int:
    """Return the memory in use: the GPU's, on CPU this process's."""
    if loaded.device.type == "cuda":
        return torch.cuda.memory_allocated(loaded.device)
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def _peak_bytes(loaded: Loaded) -> int:
    if loaded.device.type == "cuda":
        return torch.cuda.max_memory_allocated(loaded.device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


_DTYPES: Mapping[str, str] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What --max-lora-rank of vLLM 0.32.0 takes, as its refusal of 4 prints."""
_POLL_S = 0.5


def is_installed() -> bool:
    """Whether vLLM can be imported here."""
    return importlib.util.find_spec("vllm") is not None


def choose_engine(config: ServeConfig, *, num_gpus: int) -> str:
    """Return the engine's name: what is asked for, or what is there."""
    if config.gpus > max(1, num_gpus):
        raise ConfigError(
            f"serve.gpus: {config.gpus}, this job has {num_gpus}; raise gpus_per_node of the job, "
            "or lower it"
        )
    is_vllm = config.engine == "vllm" or config.gpus > 1
    key = "serve.engine: vllm" if config.engine == "vllm" else f"serve.gpus: {config.gpus}"
    if is_vllm and not is_installed():
        raise ConfigError(
            f"{key} takes vLLM, which is not installed in this Python environment; install it "
            "there, or take transformers, a server for each GPU"
        )
    if num_gpus > config.gpus:
        log(f"{config.gpus} of {num_gpus} GPUs of this job are used (serve.gpus)")
    if config.engine == "auto":
        return "vllm" if num_gpus and is_installed() else "transformers"
    return config.engine


def vllm_command(config: ServeConfig, weights: Weights, model_dir: Path, port: int) -> list[str]:
    """Return vLLM's command line; the key is in its environment."""
    limits = config.limits
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    words += ["--model", str(model_dir), "--tokenizer", str(weights.tokenizer_dir)]
    words += ["--served-model-name", weights.served_name, "--host", config.host]
    words += ["--port", str(port), "--dtype", _DTYPES[config.dtype]]
    words += ["--seed", str(config.seed), "--max-num-seqs", str(limits.max_concurrency)]
    words += ["--max-model-len", str(limits.context_tokens)]
    words += ["--tensor-parallel-size", str(config.gpus)]
    words += ["--middleware", f"{VllmGuard.__module__}.{VllmGuard.__name__}"]
    # Without it vLLM, 0.18 and later, aborts what runs at once (its v1/engine/core.py).
    words += ["--shutdown-timeout", str(int(drain_s(config)))]
    form = call_form(load_tokenizer(weights.tokenizer_dir)) or OWN_FORM
    parser = {"arguments": "hermes", "parameters": "llama3_json"}[form.arguments]
    parser = "mistral" if form.has_id else parser
    words += ["--enable-auto-tool-choice", "--tool-call-parser", parser]
    found = importlib.util.find_spec("vllm")
    places = map(Path, (found and found.submodule_search_locations) or ())
    if any((each / "tool_parsers" / "tool_strict_level.py").exists() for each in places):
        # 0.32.0 has it. Else arguments of a call that must be made are any JSON, also a mere text.
        words += ["--tool-strict-level", "parameter"]
    if weights.adapter_dir is not None:
        words += ["--enable-lora", "--max-lora-rank", str(_lora_rank(weights.adapter_dir))]
        words += ["--lora-modules", f"{weights.tuned_name}={weights.adapter_dir}"]
    if not config.thinking:
        words += ["--default-chat-template-kwargs", json.dumps({"enable_thinking": False})]
    return words


def _lora_rank(adapter_dir: Path) -> int:
    """The smallest rank that vLLM makes room for and the adapter fits into."""
    rank = json.loads((adapter_dir / "adapter_config.json").read_text("utf-8"))["r"]
    if rank > _LORA_RANKS[-1]:
        raise ConfigError(
            f"{adapter_dir}: rank {rank}, vLLM takes at most {_LORA_RANKS[-1]}; merge it "
            "(train.export_merged) and name that by serve.merged"
        )
    return next(most for most in _LORA_RANKS if rank <= most)


def run_vllm(
    words: list[str],
    config: ServeConfig,
    port: int,
    key: str,
    ready: Callable[[], None],
    *,
    results_dir: Path,
) -> None:
    """Run vLLM until a signal ends it, its metrics published; an unasked end is an error."""
    with tempfile.TemporaryDirectory(prefix="vllm-", ignore_cleanup_errors=True) as private:
        # What vLLM compiles beside its model lies by default where any user may have put a program.
        home = os.environ.get("HOME") or private  # a container's user may have none
        kernels = {"TORCHINDUCTOR_CACHE_DIR": f"{home}/.cache/torchinductor"}
        told = {"VLLM_API_KEY": key} | ({ON_LOOPBACK: "1"} if is_loopback(config.host) else {})
        # Its ranks, all on this node, run what they are sent: they meet by a file and sockets in
        # TMPDIR, and gloo listens on loopback.
        told |= {"TMPDIR": private, "GLOO_SOCKET_IFNAME": "lo"}
        process = subprocess.Popen(words, env={**kernels, **os.environ, **told})
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
        asked: list[str] = []

        def stop(number: int, frame: object) -> None:
            asked.append(signal.Signals(number).name)
            # Once: a node's own signal and the supervisor's are one notice.
            if len(asked) == 1 or asked.count(asked[-1]) > 1:
                process.send_signal(signal.SIGTERM)
            if len(asked) == 1:
                # 0.32 gives up an answer that takes too long, and waits for its reader for ever.
                late = threading.Timer(drain_s(config) + _CLOSE_S, process.kill)
                late.daemon = True
                late.start()

        for number in _SIGNALS:
            signal.signal(number, stop)
        while process.poll() is None and page(host, port, "health") is None:
            time.sleep(_POLL_S)
        if process.poll() is None:
            ready()
        read = partial(page, host, port, "metrics", key)
        with Publisher(read, results_dir=results_dir, kind="serve"):
            status = process.wait()
    if not asked:
        raise WorkloadError(f"vLLM ended with {status}; see its lines above")
    log(f"vLLM ended with {status} after {asked[0]}")
    if status not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
        raise PreemptedError(f"stopped by {asked[0]}; vLLM ended with {status}")


def page(host: str, port: int, name: str, key: str = "") -> bytes | None:
    """Return a page of vLLM; None where it does not answer, or not well, or others may answer."""
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=2)) as connection:
        try:
            seen = _listeners(host, port)
            connection.connect()
            # The same ones all the while: so it is theirs, and a neighbour's never gets the key.
            if {uid for uid, _ in seen} != {str(os.geteuid())} or _listeners(host, port) != seen:
                return None
            connection.request("GET", f"/{name}", headers={"Authorization": f"Bearer {key}"})
            answer = connection.getresponse()
            return answer.read() if answer.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None


def _listeners(host: str, port: int) -> set[tuple[str, str]]:
    """Owner and inode of each socket here that takes connections to it (proc_pid_net(5))."""
    # It, or any address; one of IPv4 is written at the end of a row of IPv6 as in one of its own.
    found = {socket.inet_pton(each[0], str(each[4][0])) for each in socket.getaddrinfo(host, port)}
    names = ["".join(f"{word:08X}" for word in memoryview(each).cast("I")) for each in found]
    ends = tuple(f"{each}:{port:04X}" for name in names for each in (name, "0" * len(name)))
    tables = [each for each in map(Path, ("/proc/net/tcp", "/proc/net/tcp6")) if each.exists()]
    rows = [line.split() for table in tables for line in table.read_text().splitlines()]
    return {(row[7], row[9]) for row in rows if row[1].endswith(ends) and row[3] == "0A"}
