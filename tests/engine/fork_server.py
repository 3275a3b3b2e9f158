"""Processes of `python -m infra...` that are forked with what they import in memory (forked.py).

    python -m tests.engine.fork_server SOCKET

Each `pulumi` starts five programs of ours, and most of its CPU time were their imports.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import threading
import traceback
from typing import Any, Final

from infra.providers.nebius import resource_type
from infra.providers.nebius.resource_type import ResourceType
from infra.providers.nebius.schema import Schema

_LOADED: Final = (
    "infra.cli.machine.env",
    "infra.components.stack",
    "infra.jobs.recipes",
    "infra.local.kube.api_server",
    "infra.local.nebius_api.changes",
    "infra.local.nebius_api.hooks",
    "infra.local.plugins.command",
    "infra.local.plugins.kubernetes",
    "infra.local.plugins.language_host",
    "infra.operate.preflight.ask",
    "infra.operate.prices",
    "infra.providers.nebius.provider",
    "infra.providers.soperator.__main__",
    "cost.bill.bill",
    "cost.diff.table",
    "nebius.aio.request",
    "nebius.sdk",
    "nebius.api._registry",
    "jinja2",
    "pulumi_command",
    "pulumi_kubernetes",
    "pydantic.type_adapter",
    "typer._adapters",
)


_LAZY: Final = ("command.remote.Command", "kubernetes.core.v1.Secret", "kubernetes.helm.v4.Chart")
"""Names of SDKs whose modules load when one asks for a name; imported otherwise they lack it."""


_TOKENS: Final = (
    "nebius:compute/v1:Disk",
    "nebius:compute/v1:Filesystem",
    "nebius:compute/v1:GpuCluster",
    "nebius:compute/v1:Instance",
    "nebius:iam/v1:AccessPermit",
    "nebius:iam/v1:Group",
    "nebius:iam/v1:GroupMembership",
    "nebius:iam/v1:ServiceAccount",
    "nebius:iam/v2:AccessKey",
    "nebius:mk8s/v1:Cluster",
    "nebius:mk8s/v1:NodeGroup",
    "nebius:registry/v1:Registry",
    "nebius:storage/v1:Bucket",
    "nebius:vpc/v1:Allocation",
    "nebius:vpc/v1:Network",
    "nebius:vpc/v1:Subnet",
)


def serve(path: str) -> None:
    """Forks a process for each connection, until whoever started this one has ended."""
    for name in _LOADED:
        importlib.import_module(name)
    for name in _LAZY:
        pkgutil.resolve_name(f"pulumi_{name}".replace(".", ":", 1))
    _compile_rules(Schema.shared())
    gc.collect()
    gc.freeze()  # else the first collection of each process makes its own copy of all these pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(64)
        print("ready", flush=True)
        threading.Thread(target=_end_with, args=(sys.stdin.fileno(),), daemon=True).start()
        while True:
            client, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _become(client)
            client.close()


def _compile_rules(schema: Schema) -> None:
    """Of what stacks declare: each check of a first resource was a tenth of a second of parsing."""
    factory: Any = resource_type.validator()._factory
    left, known = [], set[str]()
    for token in _TOKENS:
        create = ResourceType.of_token(schema, token).service.methods_by_name["Create"]
        left.append(create.input_type)
    while left:
        message = left.pop()
        if message.full_name not in known:
            known.add(message.full_name)
            factory.get(message)
            left += [field.message_type for field in message.fields if field.message_type]


def _end_with(pipe: int) -> None:
    os.read(pipe, 1)
    os._exit(0)


def _become(client: socket.socket) -> None:
    """Is that process from its first to its last line."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, files, *_ = socket.recv_fds(client, 16, 4)
    with os.fdopen(files[0]) as file:
        file.seek(0)
        module, arguments, environment, folder = json.load(file)
    for number, file in enumerate(files[1:]):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = folder
    sys.argv = [module, *arguments]
    threading.Thread(target=_follow, args=(client,), daemon=True).start()
    status: Any = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code
        if isinstance(status, str):
            print(status, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    status = status if isinstance(status, int) else int(status is not None)
    with contextlib.suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    with contextlib.suppress(OSError):
        client.send(b"%d" % (status & 255))
    os._exit(status & 255)


def _follow(client: socket.socket) -> None:
    """Does to this process what happens to the one that it runs for."""
    while number := client.recv(16):
        os.kill(os.getpid(), int(number))
    os._exit(1)


if __name__ == "__main__":
    serve(sys.argv[1])
