"""Runs the emulated object storage as a process of its own, until it is told to stop.

    python -m infra.local.object_storage --state DIR --cloud DIR --port P

Prints one line when it is ready. Writes into DIR of --state only; --cloud is the state folder of
the emulated Nebius API, which says which buckets, keys and rights there are. Listens on 127.0.0.1
only.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from infra.local.object_storage.access import Access
from infra.local.object_storage.calls import Objects, ObjectStorage
from infra.local.object_storage.server import make_server
from infra.providers.nebius.schema import Schema


def main() -> int:
    """Serves until SIGTERM or SIGINT."""
    options = _parser().parse_args()
    schema = Schema(Path(os.environ.get("SOPERATOR_CACHE") or options.state))
    storage = ObjectStorage(Access(options.cloud, schema), Objects(options.state))
    try:
        server = make_server(storage, options.port)
    except OSError as error:
        print(f"object storage: {error}", file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        # From another thread: shutdown() waits for the loop that the handler interrupts.
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"object storage ready on http://127.0.0.1:{server.server_address[1]}", flush=True)
    with server:
        server.serve_forever(poll_interval=0.1)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra.local.object_storage")
    parser.add_argument("--state", type=Path, required=True, metavar="DIR")
    parser.add_argument("--cloud", type=Path, required=True, metavar="DIR")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    return parser


if __name__ == "__main__":
    sys.exit(main())
