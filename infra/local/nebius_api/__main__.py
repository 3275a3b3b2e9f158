"""Runs the emulated Nebius API as a process of its own, until it is told to stop.

    python -m infra.local.nebius_api --state DIR --port P [--latency S]
        [--kube-endpoint URL --kube-ca FILE] [--object-storage HOST:PORT] [--anywhere]

Prints one line when it is ready. Writes into DIR only, apart from the descriptor cache in
$SOPERATOR_CACHE (DIR where that is not set). Listens on 127.0.0.1 only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

from infra.local.nebius_api.emulator import Emulator, KubeAccess
from infra.local.nebius_api.server import Server


def main() -> int:
    """Serves until SIGTERM or SIGINT."""
    options = _parser().parse_args()
    ca_file = options.kube_ca
    emulator = Emulator(
        folder=options.state,
        cache_dir=Path(os.environ.get("SOPERATOR_CACHE") or options.state),
        latency_s=options.latency,
        kube=KubeAccess(options.kube_endpoint, None if ca_file is None else Path(ca_file)),
        object_storage=options.object_storage,
        anywhere=options.anywhere,
    )
    try:
        asyncio.run(_serve(emulator, options.port))
    except OSError as error:
        print(f"nebius api: {error}", file=sys.stderr)
        return 1
    finally:
        emulator.store.close()
    return 0


async def _serve(emulator: Emulator, port: int) -> None:
    server, bound = await Server(emulator).start(port)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    services = len(emulator.schema.services)
    print(f"nebius api ready on http://127.0.0.1:{bound}, {services} services", flush=True)
    await stopped.wait()
    await server.stop(grace=1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra.local.nebius_api")
    parser.add_argument("--state", type=Path, required=True, metavar="DIR")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--latency", type=float, default=0.3, help="seconds of each operation")
    endpoint = os.environ.get("SOPERATOR_LOCAL_KUBE_ENDPOINT", KubeAccess.endpoint)
    parser.add_argument("--kube-endpoint", default=endpoint, metavar="URL")
    ca_file = os.environ.get("SOPERATOR_LOCAL_KUBE_CA_FILE")
    parser.add_argument("--kube-ca", default=ca_file, metavar="FILE")
    storage = os.environ.get("SOPERATOR_LOCAL_OBJECT_STORAGE")
    parser.add_argument("--object-storage", default=storage, metavar="HOST:PORT")
    parser.add_argument("--anywhere", action="store_true", help="every project, no limits")
    return parser


if __name__ == "__main__":
    sys.exit(main())
